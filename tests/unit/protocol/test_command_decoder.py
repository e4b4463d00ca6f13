"""Commands as a server reads them: equal to what was sent, refused in nsqd's words."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol.body_decoder import Limits
from nsqflow.protocol.command_decoder import CommandDecoder
from nsqflow.protocol.commands import (
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
)
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.publish import Dpub, Mpub, MpubExt, MpubTrace, Pub, PubExt, PubTrace
from tests.unit.protocol.strategies import attempt, ids, names, pieces

CLASSIC, REDESIGNED = Dialect.CLASSIC, Dialect.REDESIGNED
ID = b"0123456789abcdef"

bodies = st.binary(min_size=1, max_size=20)
partitions = st.none() | st.integers(0, 10**9 - 1)
numbers = st.integers(0, 2**64 - 1)
headers = st.binary(min_size=1, max_size=20)
starts = st.builds("{}:{}".format, st.sampled_from(["msgcount", "timestamp"]), numbers)

COMMANDS: dict[Dialect, st.SearchStrategy[Command]] = {
    CLASSIC: st.one_of(
        st.builds(Identify, bodies),
        st.builds(Auth, bodies),
        st.builds(Sub, names, names),
        st.builds(Rdy, st.integers(0, 2500)),
        st.builds(Fin, st.just(ID)),
        st.builds(Req, st.just(ID), st.integers(0, 10**12)),
        st.builds(Touch, st.just(ID)),
        st.just(Cls()),
        st.just(Nop()),
        st.builds(Pub, names, bodies),
        st.builds(Mpub, names, st.lists(bodies, min_size=1, max_size=4)),
        st.builds(Dpub, names, st.integers(0, 3600000), bodies),
    ),
    REDESIGNED: st.one_of(
        st.builds(Identify, bodies),
        st.builds(Auth, bodies),
        st.builds(Sub, names, names, partitions, st.sampled_from(SubscribeMode)),
        st.builds(Sub, names, names, st.integers(0, 9), st.just(SubscribeMode.ADVANCED), starts),
        st.builds(Rdy, st.integers(0, 2500)),
        st.builds(Fin, ids),
        st.builds(Req, ids, st.integers(0, 10**12)),
        st.builds(Touch, ids),
        st.just(Cls()),
        st.just(Nop()),
        st.builds(Pub, names, bodies, partitions),
        st.builds(PubTrace, names, numbers, bodies, partitions),
        st.builds(PubExt, names, headers, bodies, partitions),
        st.builds(Mpub, names, st.lists(bodies, min_size=1, max_size=4), partitions),
        st.builds(MpubTrace, names, st.lists(st.tuples(numbers, bodies), min_size=1), partitions),
        st.builds(
            MpubExt,
            names,
            st.lists(st.tuples(headers | st.just(b""), bodies), min_size=1),
            partitions,
        ),
    ),
}


def decode(dialect: Dialect, *parts: bytes, limits: Limits | None = None) -> list[Command]:
    decoder, found = CommandDecoder(dialect, limits), []
    for part in parts:
        decoder.buffer.feed(part)
        while (command := decoder.next()) is not None:
            found.append(command)
    return found


@pytest.mark.parametrize("dialect", Dialect)
@given(data=st.data())
def test_commands_come_back_equal_wherever_the_network_cut_them(
    dialect: Dialect, data: st.DataObject
) -> None:
    sent = data.draw(st.lists(COMMANDS[dialect], max_size=5))
    stream = b"".join(command.encode() for command in sent)
    assert decode(dialect, *data.draw(pieces(stream))) == sent


WORDS = b"PUB MPUB SUB FIN REQ RDY PUB_TRACE MPUB_EXT AUTH t 0 -1 \1 \5 \xff".split(b" ")


@pytest.mark.parametrize("dialect", Dialect)
@given(
    st.lists(
        st.sampled_from([b" ", b"\n", b"\0\0\0", ID, *WORDS]),
        max_size=20,
    ).map(b"".join)
    | st.binary(max_size=60)
)
def test_whatever_a_client_sends_is_a_command_or_a_protocol_error(
    dialect: Dialect, stream: bytes
) -> None:
    found = attempt(RemoteProtocolError, decode, dialect, stream)
    if isinstance(found, list):
        assert all(isinstance(command, Command) for command in found)
    else:
        assert found.code.startswith("E_")


DECODED: list[tuple[Dialect, bytes, Command]] = [
    # Classic nsqd ignores parameters it does not know, including a partition.
    (CLASSIC, b"SUB t c 0\n", Sub("t", "c")),
    (CLASSIC, b"PUB t 0\n\0\0\0\1x", Pub("t", b"x")),
    (CLASSIC, b"MPUB t x\n\0\0\0\x09\0\0\0\1\0\0\0\1x", Mpub("t", [b"x"])),
    (CLASSIC, b"FIN 0123456789abcdef more\n", Fin(ID)),
    (CLASSIC, b"CLS x y\n", Cls()),
    (CLASSIC, b"IDENTIFY x\n\0\0\0\2{}", Identify(b"{}")),
    (CLASSIC, b"NOP\r\n", Nop()),
    (CLASSIC, b"TOUCH 0123456789abcdef\r\n", Touch(ID)),
    (CLASSIC, b"RDY\n", Rdy(1)),
    (CLASSIC, b"RDY \n", Rdy(0)),
    (CLASSIC, b"RDY 0002500\n", Rdy(2500)),
    (CLASSIC, b"DPUB t \n\0\0\0\1x", Dpub("t", 0, b"x")),
    (CLASSIC, b"DPUB t 3600000\n\0\0\0\1x", Dpub("t", 3600000, b"x")),
    (CLASSIC, b"REQ 0123456789abcdef 9999999999999999999\n", Req(ID, 9999999999999999999)),
    # Redesigned: -1 is any partition, and one token too many makes it so too.
    (REDESIGNED, b"PUB t -1\n\0\0\0\1x", Pub("t", b"x")),
    (REDESIGNED, b"PUB t 0\n\0\0\0\1x", Pub("t", b"x", 0)),
    (REDESIGNED, b"PUB t 999999999\n\0\0\0\1x", Pub("t", b"x", 999999999)),
    (REDESIGNED, b"PUB t 0 \n\0\0\0\1x", Pub("t", b"x")),
    (REDESIGNED, b"PUB t 0 extra\n\0\0\0\1x", Pub("t", b"x")),
    (REDESIGNED, b"SUB t c 7\n", Sub("t", "c", 7)),
    (REDESIGNED, b"SUB t c 7 \n", Sub("t", "c")),
    (REDESIGNED, b"SUB_ORDERED t c 7 msgcount:5\n", Sub("t", "c", None, SubscribeMode.ORDERED)),
    (REDESIGNED, b"SUB_ADVANCED t c 7 \n", Sub("t", "c", None, SubscribeMode.ADVANCED)),
    (
        REDESIGNED,
        b"SUB_ADVANCED t c x special:-1\n",
        Sub("t", "c", None, SubscribeMode.ADVANCED, "special:-1"),
    ),
    (
        REDESIGNED,
        b"SUB_ADVANCED t c 2147483648 special:-1 more\n",
        Sub("t", "c", None, SubscribeMode.ADVANCED, "special:-1"),
    ),
    # The first 16 bytes are the id, whatever they are and whatever follows.
    (REDESIGNED, b"FIN " + ID * 2 + b"\n", Fin(ID)),
    (REDESIGNED, b"FIN \n\n\n\n\n\n\n\n\r\r\r\r\r\r\r\r\r\n", Fin(b"\n" * 8 + b"\r" * 8)),
    (REDESIGNED, b"REQ                  150\r\n", Req(b" " * 16, 150)),
    (REDESIGNED, b"PUB_EXT t\n\0\0\0\3\0\0x", PubExt("t", b"", b"x")),
    (REDESIGNED, b"RDY\r\n", Rdy(1)),
]


@pytest.mark.parametrize(("dialect", "data", "command"), DECODED)
def test_what_the_servers_put_up_with_is_taken_as_they_take_it(
    dialect: Dialect, data: bytes, command: Command
) -> None:
    assert decode(dialect, data) == [command]
    assert decode(dialect, *(data[i : i + 1] for i in range(len(data)))) == [command]


# nsqd/protocol_v2.go, v1.3.0.
CLASSIC_ERRORS = [
    (b"\n", "E_INVALID invalid command "),
    (b"pub t\n", "E_INVALID invalid command pub"),
    (b"\xff\n", "E_INVALID invalid command \\xff"),
    (b"PUB_TRACE t\n", "E_INVALID invalid command PUB_TRACE"),
    (b"SUB_ORDERED t c\n", "E_INVALID invalid command SUB_ORDERED"),
    (b"PUB\n", "E_INVALID PUB insufficient number of parameters"),
    (b"MPUB\n", "E_INVALID MPUB insufficient number of parameters"),
    (b"DPUB t\n", "E_INVALID DPUB insufficient number of parameters"),
    (b"SUB t\n", "E_INVALID SUB insufficient number of parameters"),
    (b"FIN\n", "E_INVALID FIN insufficient number of params"),
    (b"TOUCH\n", "E_INVALID TOUCH insufficient number of params"),
    (b"REQ 0123456789abcdef\n", "E_INVALID REQ insufficient number of params"),
    (b"AUTH secret\n", "E_INVALID AUTH invalid number of parameters"),
    (b"FIN 0123456789abcde\n", "E_INVALID invalid message ID"),
    (b"TOUCH 0123456789abcdef0\n", "E_INVALID invalid message ID"),
    (b"REQ short 5\n", "E_INVALID invalid message ID"),
    (b"PUB \n", 'E_BAD_TOPIC PUB topic name "" is not valid'),
    (b"PUB a$b\n", 'E_BAD_TOPIC PUB topic name "a$b" is not valid'),
    (b'PUB a"\\\t\x01\x7f\xe9\n', r'E_BAD_TOPIC PUB topic name "a\"\\\t\x01\x7f\xe9" is not valid'),
    (b"PUB \a\b\v\f\r.\n", r'E_BAD_TOPIC PUB topic name "\a\b\v\f\r." is not valid'),
    (b"MPUB a$b\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a$b" is not valid'),
    (b"DPUB a$b 5\n", 'E_BAD_TOPIC DPUB topic name "a$b" is not valid'),
    (b"SUB a$b c\n", 'E_BAD_TOPIC SUB topic name "a$b" is not valid'),
    (b"SUB t c$\n", 'E_BAD_CHANNEL SUB channel name "c$" is not valid'),
    (b"DPUB t soon\n", "E_INVALID DPUB could not parse timeout soon"),
    (b"DPUB t -1\n", "E_INVALID DPUB could not parse timeout -1"),
    (b"DPUB t 3600001\n", "E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    (b"RDY some\n", "E_INVALID RDY could not parse count some"),
    (b"RDY -1\n", "E_INVALID RDY could not parse count -1"),
    (b"RDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500"),
    # nsqd lets this one overflow
    (b"RDY 18446744073709551617\n", "E_INVALID RDY could not parse count 18446744073709551617"),
    (b"REQ 0123456789abcdef \xffs\n", "E_INVALID REQ could not parse timeout \\xffs"),
    (b"IDENTIFY\n\0\0\0\0", "E_BAD_BODY IDENTIFY invalid body size 0"),
    (b"IDENTIFY\n\0\x50\0\1", "E_BAD_BODY IDENTIFY body too big 5242881 > 5242880"),
    (b"AUTH\n\xff\xff\xff\xff", "E_BAD_BODY AUTH invalid body size -1"),
    (b"PUB t\n\0\0\0\0", "E_BAD_MESSAGE PUB invalid message body size 0"),
    (b"PUB t\n\0\x10\0\1", "E_BAD_MESSAGE PUB message too big 1048577 > 1048576"),
    (b"DPUB t 5\n\0\x10\0\1", "E_BAD_MESSAGE DPUB message too big 1048577 > 1048576"),
    (b"MPUB t\n\0\x50\0\1", "E_BAD_BODY MPUB body too big 5242881 > 5242880"),
]

# As measured on 0.3.7-HA.1.13.0.
NO_PARTITION = (
    "E_BAD_PARTITION topic partition is not valid: strconv.Atoi: parsing %s: invalid syntax"
)
REDESIGNED_ERRORS = [
    (b"SUB_ORDER t c\n", "E_INVALID invalid command [[83 85 66 95 79 82 68 69 82] [116] [99]]"),
    (b"DPUB t 5\n", "E_INVALID invalid command [[68 80 85 66] [116] [53]]"),
    (b"\n", "E_INVALID invalid command [[]]"),
    (b"PUB t \n", NO_PARTITION % '""'),
    (b"PUB t one\n", NO_PARTITION % '"one"'),
    (b"PUB t --1\n", NO_PARTITION % '"--1"'),
    (b"PUB t 2147483648\n", NO_PARTITION % '"2147483648"'),
    (b"SUB t c \xb2\n", NO_PARTITION % r'"\xb2"'),
    (b"PUB\n", "E_INVALID insufficient number of parameters"),
    (b"MPUB t -2\n", "E_TOPIC_NOT_EXIST "),
    (b"PUB a$b\n", "E_TOPIC_NOT_EXIST "),
    (b"MPUB a$b\n", "E_TOPIC_NOT_EXIST "),
    (b"SUB a$b c\n", 'E_BAD_TOPIC SUB topic name "a$b" is not valid'),
    (b"SUB_ORDERED t c$\n", 'E_BAD_CHANNEL SUB channel name "c$" is not valid'),
    (b"SUB_ADVANCED t\n", "E_INVALID SUB insufficient number of parameters"),
    (b"SUB_ADVANCED t c 0 count:0\n", "E_INVALID invalid consume offset:count:0"),
    (b"SUB_ADVANCED t c 0 \xff\n", "E_INVALID invalid consume offset:\\xff"),
    (b"FIN\n", "E_INVALID FIN insufficient number of params"),
    (b"REQ 0123456789abcdef\n", "E_INVALID REQ insufficient number of params"),
    (b"PUB t\n\0\0\0\0", "E_BAD_BODY invalid body size 0"),
    (b"MPUB t\n\0\0\0\0", "E_BAD_BODY invalid body size 0"),
    (b"PUB_TRACE t\n\0\x10\0\1", "E_BAD_MESSAGE message too big 1048577 > 1048576"),
    (b"PUB_EXT t\n\0\x10\0\1", "E_BAD_MESSAGE message too big 1048577 > 1048576"),
    (b"MPUB_TRACE t\n\0\x50\0\1", "E_BAD_BODY body too big 5242881 > 5242880"),
    (b"MPUB_EXT t\n\0\x50\0\1", "E_BAD_BODY body too big 5242881 > 5242880"),
    (
        b"PUB_TRACE t\n\0\0\0\x0812345678",
        "E_BAD_BODY invalid body size 8 with trace id enabled",
    ),
    (
        b"MPUB_TRACE t\n\0\0\0\x09\0\0\0\1\0\0\0\1x",
        "E_BAD_MESSAGE MPUB invalid message(0) body size 1 for tracing",
    ),
    (
        b"PUB_EXT t\n\0\0\0\1x",
        "E_BAD_BODY invalid body size 1 in ext json header content length",
    ),
    (
        b"PUB_EXT t\n\0\0\0\4\0\2{}",
        "E_BAD_BODY invalid body size 4 in ext json header content length",
    ),
    (
        b"MPUB_EXT t\n\0\0\0\x0a\0\0\0\1\0\0\0\2\0\0",
        "E_BAD_BODY invalid body size 2 in ext json header content length",
    ),
]


@pytest.mark.parametrize(
    ("dialect", "data", "complaint"),
    [(CLASSIC, *row) for row in CLASSIC_ERRORS] + [(REDESIGNED, *row) for row in REDESIGNED_ERRORS],
)
def test_a_bad_command_is_refused_with_the_code_and_in_the_words_of_the_server(
    dialect: Dialect, data: bytes, complaint: str
) -> None:
    assert decode(dialect, data[:-1]) == []  # no earlier than nsqd would know
    with pytest.raises(RemoteProtocolError) as caught:
        decode(dialect, data)
    assert f"{caught.value.code} {caught.value.text}" == complaint


@pytest.mark.parametrize("dialect", Dialect)
def test_a_line_that_fills_nsqds_buffer_ends_the_connection_without_an_error_frame(
    dialect: Dialect,
) -> None:
    assert decode(dialect, b"NOP " + b"x" * 16379 + b"\n") == [Nop()]
    with pytest.raises(RemoteProtocolError) as caught:
        decode(dialect, b"NOP " + b"x" * 16380)
    assert (caught.value.code, caught.value.text) == ("", "line of more than 16384 bytes")


def test_a_server_may_set_other_limits() -> None:
    limits = Limits(max_rdy_count=5, max_req_timeout_ms=6, max_msg_size=7, max_line_size=30)
    assert decode(CLASSIC, b"RDY 5\nDPUB t 6\n\0\0\0\7seven..", limits=limits) == [
        Rdy(5),
        Dpub("t", 6, b"seven.."),
    ]
    for data, complaint in [
        (b"RDY 6\n", "RDY count 6 out of range 0-5"),
        (b"DPUB t 7\n", "DPUB timeout 7 out of range 0-6"),
        (b"PUB t\n\0\0\0\x08", "PUB message too big 8 > 7"),
        (b"x" * 30, "line of more than 30 bytes"),
    ]:
        with pytest.raises(RemoteProtocolError) as caught:
            decode(CLASSIC, data, limits=limits)
        assert caught.value.text == complaint


def admitting(answer: Callable[[str], bool], data: bytes) -> list[Command]:
    decoder, found = CommandDecoder(CLASSIC, admit=answer), []
    decoder.buffer.feed(data)
    while (command := decoder.next()) is not None:
        found.append(command)
    return found


def test_a_command_that_is_not_admitted_is_skipped() -> None:
    asked: list[str] = []

    def admit(name: str) -> bool:
        asked.append(name)
        return name != "RDY"

    stream = b"NOP\nRDY nonsense\nPUB t\n\0\0\0\4RDY\nCLS\n"
    assert admitting(admit, stream) == [Nop(), Pub("t", b"RDY\n"), Cls()]
    assert asked == ["NOP", "RDY", "PUB", "CLS"]


def test_the_state_is_asked_before_a_command_is_known_or_its_parameters_are_read() -> None:
    def admit(name: str) -> bool:
        raise RemoteProtocolError(f"cannot {name} in current state", "E_INVALID")

    for data in (b"SUB\n", b"WHAT\n"):
        with pytest.raises(RemoteProtocolError, match=f"^E_INVALID cannot {data[:-1].decode()} in"):
            admitting(admit, data)
