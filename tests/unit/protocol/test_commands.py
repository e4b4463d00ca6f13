"""Commands: the bytes of each, and what is refused before it is sent."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import ConfigError, LocalProtocolError
from nsqflow.protocol.commands import (
    MAGIC_V2,
    Auth,
    Cls,
    Command,
    Fin,
    Identify,
    Nop,
    Rdy,
    Req,
    Sub,
    SubscribeMode,
    Touch,
    is_valid_start,
    with_size,
)
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.messages import (
    encode_fins,
    encode_packed_fins,
    encode_reqs,
    encode_touches,
)
from tests.unit.protocol.strategies import ids

ID = b"0123456789abcdef"
BINARY_ID = bytes.fromhex("0000000000000027 0a200a200a200a0a")  # measured: taken raw

PLAIN, ORDERED, ADVANCED = SubscribeMode

ENCODED: list[tuple[Command, bytes]] = [
    (Identify(b"{}"), b"IDENTIFY\n\x00\x00\x00\x02{}"),
    (Auth(b"secret"), b"AUTH\n\x00\x00\x00\x06secret"),
    (Sub("t", "c"), b"SUB t c\n"),
    (Sub("t#ephemeral", "c#ephemeral"), b"SUB t#ephemeral c#ephemeral\n"),
    (Sub("t", "c", 0), b"SUB t c 0\n"),
    (Sub("t", "c", None, ORDERED), b"SUB_ORDERED t c\n"),
    (Sub("t", "c", 3, ORDERED), b"SUB_ORDERED t c 3\n"),
    (Sub("t", "c", 3, ADVANCED), b"SUB_ADVANCED t c 3\n"),
    (Sub("t", "c", 3, ADVANCED, "timestamp:17"), b"SUB_ADVANCED t c 3 timestamp:17\n"),
    (Rdy(0), b"RDY 0\n"),
    (Rdy(2500), b"RDY 2500\n"),
    (Fin(ID), b"FIN 0123456789abcdef\n"),
    (Fin(BINARY_ID), b"FIN \0\0\0\0\0\0\0'\n \n \n \n\n\n"),
    (Req(ID), b"REQ 0123456789abcdef 0\n"),
    (Req(ID, 1500), b"REQ 0123456789abcdef 1500\n"),
    (Req(ID, 9223372036854), b"REQ 0123456789abcdef 9223372036854\n"),
    (Touch(ID), b"TOUCH 0123456789abcdef\n"),
    (Cls(), b"CLS\n"),
    (Nop(), b"NOP\n"),
]

START = "start needs SUB_ADVANCED and a partition"
KINDS_OF_START = " is invalid: must be msgcount:N, timestamp:SECONDS, virtual_queue:N or special:-1"

REFUSED: list[tuple[Command, str]] = [
    (Identify(b""), "body of 0 bytes: must be 1 to 2147483647"),
    (Auth(b""), "body of 0 bytes: must be 1 to 2147483647"),
    (Sub("t", "c", -1), "partition -1: must be 0 to 2147483647, or None"),
    (Sub("t", "c", 0, PLAIN, "msgcount:1"), START),
    (Sub("t", "c", 0, ORDERED, "msgcount:1"), START),
    (Sub("t", "c", None, ADVANCED, "msgcount:1"), START),
    (Sub("t", "c", 0, ADVANCED, "count:0"), f"start 'count:0'{KINDS_OF_START}"),
    (Sub("t", "c", 0, ADVANCED, "msgcount:1 2"), f"start 'msgcount:1 2'{KINDS_OF_START}"),
    (Rdy(-1), "RDY -1: must be >= 0"),
    (Fin(b"short"), "message id b'short' of 5 bytes: must have 16"),
    (Fin(b""), "message id b'' of 0 bytes: must have 16"),
    (Touch(ID + b"0"), "message id b'0123456789abcdef0' of 17 bytes: must have 16"),
    (Req(b"short", 5), "message id b'short' of 5 bytes: must have 16"),
    (Req(ID, -1), "delay of -1 ms: must be 0 to 9223372036854"),
    (Req(ID, 9223372036855), "delay of 9223372036855 ms: must be 0 to 9223372036854"),
]


@pytest.mark.parametrize(("command", "data"), ENCODED)
def test_a_command_is_its_line_and_its_body(command: Command, data: bytes) -> None:
    assert command.encode() == data


@pytest.mark.parametrize(("command", "complaint"), REFUSED)
def test_what_a_server_would_close_for_is_not_encoded(command: Command, complaint: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        command.encode()
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("sub", "complaint"),
    [(Sub("a b", "c"), "^topic name 'a b' has ' '"), (Sub("t", ""), "^channel name '' is empty")],
)
def test_a_bad_name_is_not_encoded(sub: Sub, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        sub.encode()


def test_a_connection_begins_with_two_spaces_and_the_version() -> None:
    assert MAGIC_V2 == b"\x20\x20\x56\x32"


@pytest.mark.parametrize(
    ("command", "answered"),
    [
        (Identify, True),
        (Auth, True),
        (Sub, True),
        (Cls, True),
        (Rdy, False),
        (Fin, False),
        (Req, False),
        (Touch, False),
        (Nop, False),
    ],
)
def test_some_commands_are_answered_when_all_is_well(
    command: type[Command], answered: bool
) -> None:
    assert command.answered is answered


@pytest.mark.parametrize(
    ("command", "dialect"),
    [
        (Identify(b"{}"), None),
        (Auth(b"s"), None),
        (Sub("t", "c"), None),
        (Sub("t", "c", 0), Dialect.REDESIGNED),
        (Sub("t", "c", None, ORDERED), Dialect.REDESIGNED),
        (Sub("t", "c", None, ADVANCED), Dialect.REDESIGNED),
        (Rdy(1), None),
        (Fin(ID), None),
        (Req(ID), None),
        (Touch(ID), None),
        (Cls(), None),
        (Nop(), None),
    ],
)
def test_a_command_knows_the_one_dialect_that_has_it(
    command: Command, dialect: Dialect | None
) -> None:
    assert command.dialect is dialect


def test_a_secret_is_not_shown() -> None:
    assert repr(Auth(b"secret")) == "Auth()"


@pytest.mark.parametrize(
    ("start", "valid"),
    [
        ("msgcount:0", True),
        ("timestamp:1700000000", True),
        ("virtual_queue:12", True),
        ("special:-1", True),
        ("count:0", False),
        ("msgcount:", False),
        ("msgcount:--1", False),
        ("msgcount:1\n", False),
        ("msgcount:\N{ARABIC-INDIC DIGIT ONE}", False),
        ("", False),
    ],
)
def test_a_place_to_start_is_a_kind_and_a_number(start: str, valid: bool) -> None:
    assert is_valid_start(start) is valid


@pytest.mark.parametrize(
    ("encode", "data"),
    [
        (encode_fins, b"FIN aaaaaaaaaaaaaaaa\nFIN bbbbbbbbbbbbbbbb\n"),
        (encode_reqs, b"REQ aaaaaaaaaaaaaaaa 0\nREQ bbbbbbbbbbbbbbbb 0\n"),
        (encode_touches, b"TOUCH aaaaaaaaaaaaaaaa\nTOUCH bbbbbbbbbbbbbbbb\n"),
    ],
)
def test_many_answers_go_out_in_one_piece(
    encode: Callable[[list[bytes]], bytes], data: bytes
) -> None:
    assert encode([b"a" * 16, b"b" * 16]) == data
    assert encode([]) == b""


def test_many_requeues_share_one_delay() -> None:
    assert encode_reqs([b"a" * 16, b"b" * 16], 90000) == (
        b"REQ aaaaaaaaaaaaaaaa 90000\nREQ bbbbbbbbbbbbbbbb 90000\n"
    )


@pytest.mark.parametrize("encode", [encode_fins, encode_reqs, encode_touches])
def test_one_bad_id_among_many_is_named(encode: Callable[[list[bytes]], bytes]) -> None:
    with pytest.raises(LocalProtocolError, match=r"^message id b'bad' of 3 bytes: must have 16$"):
        encode([b"a" * 16, b"bad", b"worse"])


def test_packed_ids_become_one_fin_each() -> None:
    assert encode_packed_fins(b"a" * 16 + BINARY_ID) == (
        b"FIN aaaaaaaaaaaaaaaa\nFIN \0\0\0\0\0\0\0'\n \n \n \n\n\n"
    )
    with pytest.raises(LocalProtocolError, match=r"^33 bytes of ids: each must have 16$"):
        encode_packed_fins(b"a" * 33)


@given(st.lists(ids, max_size=5))
def test_packed_ids_make_the_bytes_that_listed_ids_do(many: list[bytes]) -> None:
    assert encode_packed_fins(b"".join(many)) == encode_fins(many)
    assert encode_packed_fins(b"".join(many), last_first=True) == encode_fins(many[::-1])


def test_a_body_larger_than_its_size_can_say_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(LocalProtocolError, match=r"^body of 2147483648 bytes: must be 1 to"):
        with_size(Huge())


def test_ids_may_come_from_any_iterable() -> None:
    assert encode_fins(id for id in (ID, BINARY_ID)) == encode_fins([ID, BINARY_ID])
    assert encode_fins(iter([])) == b""
