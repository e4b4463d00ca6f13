"""nsqd and nsqlookupd: both sides, byte for byte (nsqlookupd/lookup_protocol_v1.go)."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from nsqflow.protocol.registration import (
    MAGIC_V1,
    LookupSession,
    Peer,
    PeerCommand,
    PeerIdentify,
    PeerReply,
    PeerSession,
    Ping,
    Register,
    Unregister,
)
from tests.unit.protocol.strategies import attempt, json_values, names, pieces

PEER = Peer(
    broadcast_address="127.0.0.1", tcp_port=4150, http_port=4151, version="1.3.0", hostname="vm"
)
PEER_JSON = (
    b'{"broadcast_address":"127.0.0.1","tcp_port":4150,"http_port":4151,'
    b'"version":"1.3.0","hostname":"vm"}'
)
IDENTIFY = b"IDENTIFY\n\x00\x00\x00\x64" + PEER_JSON
OK = b"\x00\x00\x00\x02OK"

registrations = st.builds(Register, names, names | st.just("")) | st.builds(Unregister, names)


def peer_session(*commands: PeerCommand) -> PeerSession:
    session = PeerSession()
    for command in commands:
        session.send(command)
    return session


def receive(session: LookupSession, *parts: bytes) -> list[PeerCommand]:
    found: list[PeerCommand] = []
    for part in parts:
        session.receive_data(part)
        while events := session.events():
            found += events
    return found


@pytest.mark.parametrize(
    ("command", "data"),
    [
        (PeerIdentify(PEER), IDENTIFY),
        (Register("t"), b"REGISTER t\n"),
        (Register("t#ephemeral", "c"), b"REGISTER t#ephemeral c\n"),
        (Unregister("t"), b"UNREGISTER t\n"),
        (Unregister("t", "c"), b"UNREGISTER t c\n"),
        (Ping(), b"PING\n"),
    ],
)
def test_a_command_is_its_line_and_for_identify_its_json(command: PeerCommand, data: bytes) -> None:
    assert command.encode() == data


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (Register("a b"), "^topic name 'a b' has ' '"),
        (Unregister("t", "c$"), r"^channel name 'c\$' has '\$'"),
    ],
)
def test_a_bad_name_is_not_registered_and_nothing_is_sent(
    command: PeerCommand, complaint: str
) -> None:
    session = PeerSession()
    with pytest.raises(ConfigError, match=complaint):
        session.send(command)
    assert session.data_to_send() == b"  V1"
    session.receive_data(OK)
    with pytest.raises(RemoteProtocolError, match="without a command"):
        session.events()


def test_nsqd_sends_its_magic_before_commands() -> None:
    session = peer_session(PeerIdentify(PEER), Register("t", "c"), Ping())
    assert session.data_to_send() == b"  V1" + IDENTIFY + b"REGISTER t c\nPING\n"
    assert session.data_to_send() == b""


@given(st.data())
def test_nsqd_reads_each_answer_as_that_to_its_oldest_command(data: st.DataObject) -> None:
    session = peer_session(PeerIdentify(PEER), Register("t"), Ping(), Unregister("t"))
    stream = b"\x00\x00\x00\x64" + PEER_JSON + OK + OK + b"\x00\x00\x00\x12E_BAD_TOPIC topic "
    replies: list[PeerReply] = []
    for piece in data.draw(pieces(stream)):
        session.receive_data(piece)
        replies += session.events()
    assert [(reply.command, reply.peer) for reply in replies] == [
        ("IDENTIFY", PEER),
        ("REGISTER", None),
        ("PING", None),
        ("UNREGISTER", None),
    ]
    assert [str(reply.error) for reply in replies] == ["None", "None", "None", "E_BAD_TOPIC topic"]


def test_an_nsqlookupd_may_answer_identify_with_ok_alone() -> None:
    session = peer_session(PeerIdentify(PEER))
    session.receive_data(OK)
    assert session.events() == [PeerReply("IDENTIFY")]


@pytest.mark.parametrize(
    ("command", "data", "complaint"),
    [
        (None, OK, "answer b'OK' without a command"),
        (Ping(), b"\x00\x00\x00\x04NOPE", "answer b'NOPE' to PING; expected OK"),
        (Ping(), b"\x00\x00\x00\x00", "answer b'' to PING; expected OK"),
        (PeerIdentify(PEER), b"\x00\x00\x00\x04NOPE", "IDENTIFY is not JSON: b'NOPE'"),
        (
            Ping(),
            b"\x00\x10\x00\x00" + b"x" * 1048576,
            f"answer b'{'x' * 100}' to PING; expected OK",
        ),
        (Ping(), b"\xff\xff\xff\xff", "body of -1 bytes: must be 0 to 1048576"),
        (Ping(), b"\x00\x10\x00\x01", "body of 1048577 bytes: must be 0 to 1048576"),
        (Ping(), b"HTTP", "body of 1213486160 bytes: must be 0 to 1048576"),
    ],
)
def test_an_answer_that_makes_no_sense_ends_nsqds_side(
    command: PeerCommand | None, data: bytes, complaint: str
) -> None:
    session = peer_session(*([command] if command else []))
    session.receive_data(data)
    with pytest.raises(RemoteProtocolError) as caught:
        session.events()
    assert str(caught.value) == complaint
    assert session.data_to_send() == b""
    with pytest.raises(LocalProtocolError) as refused:
        session.send(Register("t"))
    assert str(refused.value) == f"cannot REGISTER: {complaint}"


def test_answers_before_a_bad_one_come_out_first() -> None:
    session = peer_session(Ping())
    session.receive_data(OK + OK)
    assert session.events() == [PeerReply("PING")]
    with pytest.raises(RemoteProtocolError, match=r"^answer b'OK' without a command$"):
        session.events()


@given(st.data())
def test_nsqlookupd_reads_what_nsqd_wrote_wherever_the_network_cut_it(data: st.DataObject) -> None:
    sent = [PeerIdentify(PEER), *data.draw(st.lists(registrations | st.just(Ping()), max_size=5))]
    stream = peer_session(*sent).data_to_send()
    assert receive(LookupSession(), *data.draw(pieces(stream))) == sent


def test_nsqlookupd_answers_with_a_size_and_no_type() -> None:
    session = LookupSession()
    session.send_peer(PEER)
    session.send_response()
    session.send_response(b"E_INVALID x")
    assert session.data_to_send() == (
        b"\x00\x00\x00\x64" + PEER_JSON + OK + b"\x00\x00\x00\x0bE_INVALID x"
    )


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b"PING\r\n", Ping()),
        (b"\t PING now \n", Ping()),
        (b"REGISTER t \n", Register("t")),
        (b"REGISTER t c more\r\n", Register("t", "c")),
        (b"UNREGISTER t  c\n", Unregister("t")),  # Go splits at each single space
    ],
)
def test_a_line_is_read_as_nsqlookupd_reads_it(line: bytes, command: PeerCommand) -> None:
    assert receive(LookupSession(), b"  V1" + IDENTIFY + line) == [PeerIdentify(PEER), command]


def test_a_ping_may_come_before_identify() -> None:
    assert receive(LookupSession(), b"  V1PING\n") == [Ping()]


def identify(body: bytes) -> bytes:
    return b"  V1IDENTIFY\n" + len(body).to_bytes(4, "big") + body


GREETED = b"  V1"
NOT_JSON = "E_BAD_BODY IDENTIFY failed to decode JSON body"
MISSING = "E_BAD_BODY IDENTIFY missing fields"

ERRORS = [
    (b"  V2", "E_BAD_PROTOCOL"),
    (b"GET ", "E_BAD_PROTOCOL"),
    (GREETED + b"\n", "E_INVALID invalid command"),
    (GREETED + b"ping\n", "E_INVALID invalid command ping"),
    (GREETED + b"\xff\n", "E_INVALID invalid command \\xff"),
    (GREETED + b"REGISTER t\n", "E_INVALID client must IDENTIFY"),
    (GREETED + b"UNREGISTER\n", "E_INVALID client must IDENTIFY"),
    (GREETED + IDENTIFY + b"IDENTIFY\n", "E_INVALID cannot IDENTIFY again"),
    (GREETED + IDENTIFY + b"REGISTER\n", "E_INVALID REGISTER insufficient number of params"),
    (GREETED + IDENTIFY + b"UNREGISTER \n", "E_INVALID UNREGISTER insufficient number of params"),
    (GREETED + IDENTIFY + b"REGISTER $\n", "E_BAD_TOPIC REGISTER topic name '$' is not valid"),
    (GREETED + IDENTIFY + b"REGISTER  t\n", "E_BAD_TOPIC REGISTER topic name '' is not valid"),
    (
        GREETED + IDENTIFY + b"UNREGISTER t c$\n",
        "E_BAD_CHANNEL UNREGISTER channel name 'c$' is not valid",
    ),
    (identify(b""), NOT_JSON),
    (identify(b"[]"), NOT_JSON),
    (identify(b'{"tcp_port":"4150"}'), NOT_JSON),
    (identify(b"{}"), MISSING),
    *(
        (identify(json.dumps(asdict(PEER) | {name: None}).encode()), MISSING)
        for name in ("broadcast_address", "tcp_port", "http_port", "version")
    ),
    (
        GREETED + b"IDENTIFY\n\xff\xff\xff\xff",
        "E_BAD_BODY body of -1 bytes: must be 0 to 1048576",
    ),
    (
        GREETED + b"IDENTIFY\n\x00\x10\x00\x01",
        "E_BAD_BODY body of 1048577 bytes: must be 0 to 1048576",
    ),
]


@pytest.mark.parametrize("bytewise", [False, True])
@pytest.mark.parametrize(("data", "answer"), ERRORS)
def test_a_bad_command_is_answered_in_nsqlookupds_words(
    data: bytes, answer: str, bytewise: bool
) -> None:
    session = LookupSession()
    with pytest.raises(RemoteProtocolError) as caught:
        receive(session, *([data[i : i + 1] for i in range(len(data))] if bytewise else [data]))
    assert str(caught.value).strip() == answer
    sent = session.data_to_send()
    assert sent[:4] == (len(sent) - 4).to_bytes(4, "big")
    assert sent[4:].decode().rstrip(" ") == answer  # an empty line leaves the space after "command"


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (b"", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"\x00\x00\x00\x02{", b"E_BAD_BODY IDENTIFY failed to read body"),
    ],
)
def test_an_nsqd_that_closes_within_identify_gets_an_error(cut: bytes, words: bytes) -> None:
    session = LookupSession()
    session.receive_data(b"  V1IDENTIFY\n" + cut)
    session.receive_eof()
    with pytest.raises(RemoteProtocolError, match=words.decode()):
        session.events()
    assert session.data_to_send() == len(words).to_bytes(4, "big") + words


def test_an_nsqd_that_closes_between_commands_gets_no_answer() -> None:
    session = LookupSession()
    session.receive_data(b"  V1PING")
    session.receive_eof()
    assert session.events() == []
    assert session.data_to_send() == b""


def test_an_nsqd_need_not_say_its_hostname() -> None:
    peer = Peer(broadcast_address="h", tcp_port=1, http_port=2, version="3")
    body = b'{"broadcast_address":"h","tcp_port":1,"http_port":2,"version":"3"}'
    assert receive(LookupSession(), identify(body)) == [PeerIdentify(peer)]


def test_a_line_without_end_is_not_kept_forever() -> None:
    session = LookupSession()
    assert receive(session, b"  V1PING " + b"x" * 4090 + b"\n") == [Ping()]
    with pytest.raises(RemoteProtocolError, match=r"^line of more than 4096 bytes$"):
        receive(session, b"x" * 4096)
    assert session.data_to_send() == b""


def test_the_protocol_has_its_own_magic() -> None:
    assert MAGIC_V1 == b"\x20\x20\x56\x31"


@given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
def test_arbitrary_bytes_are_a_peer_or_a_protocol_error(data: bytes) -> None:
    found = attempt(RemoteProtocolError, Peer.decode, data)
    assert isinstance(found, Peer) or str(found).startswith("IDENTIFY ")


@given(
    st.lists(
        st.sampled_from(
            [
                b"  V1",
                b"PING",
                b"REGISTER",
                b"IDENTIFY\n",
                IDENTIFY,
                b" ",
                b"\n",
                b"t",
                b"\0",
                b"\xff",
            ]
        ),
        max_size=12,
    ).map(b"".join)
)
def test_whatever_an_nsqd_sends_is_commands_or_a_protocol_error(stream: bytes) -> None:
    found = attempt(RemoteProtocolError, receive, LookupSession(), stream)
    if isinstance(found, list):
        assert {*map(type, found)} <= {PeerIdentify, Register, Unregister, Ping}
    else:
        assert found.code.startswith("E_")
