"""Publishing: the bytes of each command, and what no server would take."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import ConfigError, LocalProtocolError
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.publish import (
    Bodies,
    Dpub,
    Mpub,
    MpubExt,
    MpubTrace,
    Pub,
    PubExt,
    Publish,
    PubTrace,
)

ONE = "00000001"
TRACE = 0x1122334455667788

ENCODED = [
    (Pub("t", b"hello"), "PUB t\n", "00000005 68656c6c6f"),
    (Pub("t", b"hello", 0), "PUB t 0\n", "00000005 68656c6c6f"),
    (Dpub("t", 1500, b"x"), "DPUB t 1500\n", "00000001 78"),
    (Dpub("t", 0, b"x"), "DPUB t 0\n", "00000001 78"),
    # As measured on 0.3.7-HA.1.13.0.
    (
        PubTrace("t_part", TRACE, b"traced", 0),
        "PUB_TRACE t_part 0\n",
        "0000000e 1122334455667788 747261636564",
    ),
    (PubTrace("t", 2**64 - 1, b"x"), "PUB_TRACE t\n", "00000009 ffffffffffffffff 78"),
    (PubTrace("t", 0, b"x"), "PUB_TRACE t\n", "00000009 0000000000000000 78"),
    (PubExt("t", b"{}", b"x", 1), "PUB_EXT t 1\n", "00000005 0002 7b7d 78"),
    (PubExt("t", b"{}", b"x"), "PUB_EXT t\n", "00000005 0002 7b7d 78"),
    (Mpub("t", [b"a", b"bc"]), "MPUB t\n", "0000000f 00000002 00000001 61 00000002 6263"),
    (Mpub("t", [b"a", b"b"]), "MPUB t\n", "0000000e 00000002 00000001 61 00000001 62"),
    (Mpub("t", (b"a",), 12), "MPUB t 12\n", "00000009 00000001 00000001 61"),
    (
        MpubTrace("t", [(TRACE, b"a"), (0, b"b")], 0),
        "MPUB_TRACE t 0\n",
        "0000001e 00000002 00000009 1122334455667788 61 00000009 0000000000000000 62",
    ),
    (MpubTrace("t", [(0, b"b")]), "MPUB_TRACE t\n", f"00000011 {ONE} 00000009 0000000000000000 62"),
    (
        MpubExt("t", [(b"{}", b"a"), (b"", b"b")], 0),
        "MPUB_EXT t 0\n",
        "00000014 00000002 00000005 0002 7b7d 61 00000003 0000 62",
    ),
    (MpubExt("t", [(b"", b"b")]), "MPUB_EXT t\n", f"0000000b {ONE} 00000003 0000 62"),
]


class Huge(bytes):
    """As if it had two gigabytes."""

    def __len__(self) -> int:
        return 2**31


EMPTY = "empty message body: nsqd rejects empty messages"

REFUSED = [
    (Pub("t", b""), EMPTY),
    (Dpub("t", 5, b""), EMPTY),
    (PubTrace("t", 5, b""), EMPTY),
    (PubExt("t", b"{}", b""), EMPTY),
    (PubExt("t", b"", b"x"), "PUB_EXT without headers; an empty set of them is b'{}'"),
    (Mpub("t", []), "no messages to publish"),
    (MpubTrace("t", []), "no messages to publish"),
    (MpubExt("t", []), "no messages to publish"),
    (Mpub("t", [b"a", b"b", b"", b""]), "empty message body at index 2"),
    (MpubTrace("t", [(1, b"a"), (2, b"")]), "empty message body at index 1"),
    (MpubExt("t", [(b"{}", b"")]), "empty message body at index 0"),
    (Dpub("t", -1, b"x"), "delay of -1 ms: must be 0 to 9223372036854"),
    (PubTrace("t", -1, b"x"), "trace id -1: must be 0 to 18446744073709551615"),
    (
        PubTrace("t", 2**64, b"x"),
        "trace id 18446744073709551616: must be 0 to 18446744073709551615",
    ),
    (
        MpubTrace("t", [(0, b"x"), (-5, b"x")]),
        "trace id -5: must be 0 to 18446744073709551615",
    ),
    (PubExt("t", b"x" * 65536, b"x"), "headers of 65536 bytes: must be at most 65535"),
    (
        MpubExt("t", [(b"", b"x"), (b"x" * 65537, b"x")]),
        "headers of 65537 bytes: must be at most 65535",
    ),
    (Pub("t", Huge(b"x")), "body of 2147483648 bytes: must be 1 to 2147483647"),
    (Mpub("t", [Huge(b"x")]), "batch of 2147483656 bytes: must be at most 2147483647"),
    *(
        (command, "partition -1: must be 0 to 2147483647, or None")
        for command in (
            Pub("t", b"x", -1),
            Mpub("t", [b"x"], -1),
            PubTrace("t", 1, b"x", -1),
            MpubTrace("t", [(1, b"x")], -1),
            PubExt("t", b"{}", b"x", -1),
            MpubExt("t", [(b"", b"x")], -1),
        )
    ),
]


@pytest.mark.parametrize(("command", "line", "body"), ENCODED)
def test_a_publish_is_its_line_a_size_and_as_many_bytes(
    command: Publish, line: str, body: str
) -> None:
    assert command.encode() == line.encode() + bytes.fromhex(body)


def test_the_longest_headers_are_taken() -> None:
    data = PubExt("t", b"h" * 65535, b"x").encode()
    assert data == b"PUB_EXT t\n\x00\x01\x00\x02\xff\xff" + b"h" * 65535 + b"x"


@pytest.mark.parametrize(("command", "complaint"), REFUSED)
def test_what_no_server_takes_is_not_encoded(command: Publish, complaint: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        command.encode()
    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    "command",
    [
        Pub("a b", b"x"),
        Dpub("a b", 0, b"x"),
        PubTrace("a b", 0, b"x"),
        PubExt("a b", b"{}", b"x"),
        Mpub("a b", [b"x"]),
        MpubTrace("a b", [(0, b"x")]),
        MpubExt("a b", [(b"", b"x")]),
    ],
)
def test_a_publish_to_no_proper_topic_is_not_encoded(command: Publish) -> None:
    with pytest.raises(ConfigError, match=r"^topic name 'a b' has ' ' at position 1"):
        command.encode()


@pytest.mark.parametrize(
    ("command", "dialect"),
    [
        (Pub("t", b"x"), None),
        (Pub("t", b"x", 0), Dialect.REDESIGNED),
        (Mpub("t", [b"x"]), None),
        (Mpub("t", [b"x"], 0), Dialect.REDESIGNED),
        (Dpub("t", 0, b"x"), Dialect.CLASSIC),
        (PubTrace("t", 0, b"x"), Dialect.REDESIGNED),
        (MpubTrace("t", [(0, b"x")]), Dialect.REDESIGNED),
        (PubExt("t", b"{}", b"x"), Dialect.REDESIGNED),
        (MpubExt("t", [(b"", b"x")]), Dialect.REDESIGNED),
    ],
)
def test_a_publish_is_answered_and_knows_the_one_dialect_that_has_it(
    command: Publish, dialect: Dialect | None
) -> None:
    assert command.answered
    assert command.dialect is dialect


@pytest.mark.parametrize(("command", "line", "body"), ENCODED)
def test_bodies_are_not_shown(command: Publish, line: str, body: str) -> None:
    assert f"topic={command.topic!r}" in repr(command)
    assert "body" not in repr(command)
    assert "bodies" not in repr(command)
    assert "messages" not in repr(command)


def test_a_trace_id_is_a_whole_number() -> None:
    with pytest.raises(TypeError):
        PubTrace("t", cast(int, 1.5), b"x").encode()


def test_a_batch_of_what_is_not_bytes_is_refused() -> None:
    body = cast(bytes, memoryview(b"abcd").cast("I"))
    with pytest.raises(LocalProtocolError, match="are they bytes"):
        Mpub("t", [b"x", body]).encode()


@given(bodies=st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=9))
def test_bodies_that_were_measured_are_encoded_like_others(bodies: list[bytes]) -> None:
    measured = Bodies(bodies)
    sizes = [len(body) for body in bodies]
    assert (measured.smallest, measured.largest, measured.total) == (
        min(sizes),
        max(sizes),
        sum(sizes),
    )
    assert Mpub("t", measured).encode() == Mpub("t", bodies).encode()


def test_an_empty_one_among_bodies_that_were_measured_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="index 1"):
        Mpub("t", Bodies([b"a", b""])).encode()
