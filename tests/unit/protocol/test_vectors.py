"""Every vector of tests/vectors, in both directions, in one piece and byte by byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from nsqflow.errors import (
    ConfigError,
    DiscoveryError,
    LocalProtocolError,
    RemoteProtocolError,
)
from nsqflow.protocol import (
    Auth,
    AuthReply,
    ClientSession,
    ClientState,
    Cls,
    Command,
    Dialect,
    Dpub,
    Event,
    Fin,
    Identify,
    IdentifyReply,
    IdentifyRequest,
    LookupSession,
    Mpub,
    MpubExt,
    MpubTrace,
    Nop,
    PeerSession,
    Ping,
    Pub,
    PubExt,
    PubTrace,
    Rdy,
    Receipt,
    Req,
    ServerSession,
    ServerState,
    StartTls,
    Sub,
    SubscribeMode,
    Touch,
    parse_listlookup,
    parse_lookup,
)
from nsqflow.protocol.session import Session
from tests.unit.protocol.vectors import (
    FOLDER,
    KINDS,
    Vector,
    build,
    build_message,
    build_peer,
    describe,
    describe_lookup,
    describe_reply,
    load,
)

VECTORS = load(sorted(FOLDER.glob("*.toml")))

OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
AUTH_REQUIRED = b'\x00\x00\x00\x1a\x00\x00\x00\x00{"auth_required":true}'
ID = b"0123456789abcdef"
PEER = (
    b'IDENTIFY\n\x00\x00\x00\x42{"broadcast_address":"h","tcp_port":1,"http_port":2,"version":"3"}'
)

# A command of each kind, for a client that waits for the answer to it.
SUBSCRIPTIONS = {
    "SUB": Sub("t", "ch"),
    "SUB_ORDERED": Sub("t", "ch", 0, SubscribeMode.ORDERED),
    "SUB_ADVANCED": Sub("t", "ch", 0, SubscribeMode.ADVANCED),
}
COMMANDS: dict[str, Command] = {
    **SUBSCRIPTIONS,
    "PUB": Pub("t", b"x"),
    "MPUB": Mpub("t", [b"x"]),
    "DPUB": Dpub("t", 1, b"x"),
    "PUB_TRACE": PubTrace("t", 7, b"x"),
    "MPUB_TRACE": MpubTrace("t", [(7, b"x")]),
    "PUB_EXT": PubExt("t", b"{}", b"x"),
    "MPUB_EXT": MpubExt("t", [(b"{}", b"x")]),
    "AUTH": Auth(b"secret"),
    "RDY": Rdy(1),
    "FIN": Fin(ID),
    "REQ": Req(ID, 0),
    "TOUCH": Touch(ID),
    "CLS": Cls(),
}

# What a client has said to get a server into this state.
BEFORE: dict[str, tuple[bytes, list[Command]]] = {
    "connected": (b"", []),
    "subscribed": (b"SUB t ch\n", [COMMANDS["SUB"]]),
    "closing": (b"SUB t ch\nCLS\n", [COMMANDS["SUB"], COMMANDS["CLS"]]),
}


def each(kind: str) -> pytest.MarkDecorator:
    """Run a test with each vector of a kind."""
    return pytest.mark.parametrize("vector", [pytest.param(v, id=v["name"]) for v in VECTORS[kind]])


def each_dialect(kind: str) -> pytest.MarkDecorator:
    """Run a test with each vector of a kind, in each dialect that has it."""
    return pytest.mark.parametrize(
        ("vector", "dialect"),
        [
            pytest.param(vector, Dialect(dialect), id=f"{vector['name']}, {dialect}")
            for vector in VECTORS[kind]
            for dialect in vector["dialects"]
        ],
    )


however_cut = pytest.mark.parametrize("size", [2**31, 1], ids=["whole", "byte by byte"])


def cut(data: bytes, size: int) -> Iterator[bytes]:
    """Cut a stream as the network may."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def received(session: Session[Any], pieces: Iterable[bytes]) -> list[Any]:
    """Feed a session; return its events."""
    events = []
    for piece in pieces:
        session.receive_data(piece)
        while some := session.events():
            events += some
    return events


# Sessions in the state that a vector needs.


def connected_client(
    dialect: Dialect, identify: Vector | None = None, reply: bytes = OK
) -> ClientSession:
    client = ClientSession(IdentifyRequest(**identify or {}), dialect=dialect)
    client.data_to_send()
    assert describe(received(client, [reply]), dialect) == [{"event": "connected"}]
    return client


def subscribed_client(
    dialect: Dialect, sub: Sub = SUBSCRIPTIONS["SUB"], identify: Vector | None = None
) -> ClientSession:
    client = connected_client(dialect, identify)
    client.send(sub)
    client.data_to_send()
    assert describe(received(client, [OK]), dialect) == [{"event": "subscribed"}]
    return client


def client_for(
    command: Command, dialect: Dialect, identify: Vector | None = None, *, auth: bool = True
) -> ClientSession:
    """A client in whose state servers take the command."""
    if isinstance(command, Rdy | Fin | Req | Touch | Cls | Nop):
        return subscribed_client(dialect, identify=identify)
    asked = auth and isinstance(command, Auth)
    return connected_client(dialect, identify, AUTH_REQUIRED if asked else OK)


def waiting_client(vector: Vector) -> ClientSession:
    """A client that has sent what stands in ``after``, and nothing after it."""
    dialect = Dialect(vector["dialect"])
    if vector["after"] == "IDENTIFY":
        client = ClientSession(IdentifyRequest(**vector.get("identify", {})), dialect=dialect)
    else:
        command = COMMANDS[vector["after"]]
        client = client_for(command, dialect, vector.get("identify"))
        client.send(command)
    client.data_to_send()
    return client


def identified_server(
    dialect: Dialect, identify: Vector, reply: IdentifyReply | None = None
) -> ServerSession:
    """A server that has just granted what a client asked for."""
    body = json.dumps(identify).encode()
    server = ServerSession(dialect=dialect)
    line = b"  V2IDENTIFY\n" + len(body).to_bytes(4, "big")
    assert received(server, [line + body]) == [Identify(body)]
    server.accept_identify(reply or IdentifyReply())
    return server


def server_in(state: str, dialect: Dialect) -> ServerSession:
    if state == "without-heartbeats":
        server = identified_server(dialect, {"heartbeat_interval": -1})
        server.data_to_send()
        return server
    server = ServerSession(dialect=dialect)
    said, commands = BEFORE[state]
    assert received(server, [b"  V2" + said]) == commands
    return server


def state_for(command: Command) -> str:
    """The state in which servers take the command."""
    return "subscribed" if isinstance(command, Rdy | Fin | Req | Touch | Cls | Nop) else "connected"


# The files themselves.


def test_there_are_vectors_of_every_kind() -> None:
    assert [kind for kind in KINDS if not VECTORS[kind]] == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no vectors"),
        ("# only a comment\n", "no vectors"),
        ("command = []\n", "no vectors"),
        ('[[comand]]\nname = "n"\n', "unknown kind 'comand'"),
        ('[[peer_command]]\nname = "n"\nsource = "s"\nwire = []\n', r"without \['meaning'\]"),
        ('[[listlookup]]\nname = "n"\nstatus = 200\nbody = ""\n', r"without \['source'\]"),
        (
            '[[peer_command]]\nname = "n"\nsource = "s"\nwire = []\nmeaning = {}\nwier = []\n',
            r"unknown \['wier'\]",
        ),
        (
            '[[peer_command]]\nname = "n"\nsource = "s"\nwire = [{ txt = "" }]\nmeaning = {}\n',
            "neither text nor hex",
        ),
        (
            '[[listlookup]]\nname = "n"\nsource = "s"\nstatus = 200\nbody = ""\n' * 2,
            "two vectors of one name",
        ),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "some.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        load([path])


@pytest.mark.parametrize(
    "meaning",
    [
        {"command": "PUB", "topic": "t", "body": b"x", "partitoin": 0},
        {"command": "SUB", "topic": "t", "chanel": "ch"},
        {"command": "MPUB_TRACE", "topic": "t", "messages": [{"trace": "07", "body": b"x"}]},
        {"command": "SUB_ORDER", "topic": "t", "channel": "ch"},
    ],
)
def test_a_command_in_unknown_words_is_refused(meaning: Vector) -> None:
    with pytest.raises((TypeError, ValueError)):
        build(meaning)


# From client to server.


@each("magic")
@however_cut
def test_servers_know_their_protocol_by_the_first_four_bytes(vector: Vector, size: int) -> None:
    nsqd = vector["server"] == "nsqd"
    server: Session[Any] = ServerSession() if nsqd else LookupSession()
    if "answer" in vector:
        with pytest.raises(RemoteProtocolError, match="E_BAD_PROTOCOL"):
            received(server, cut(vector["wire"], size))
        assert server.data_to_send() == vector["answer"]
    else:
        client: Session[Any] = ClientSession() if nsqd else PeerSession()
        assert client.data_to_send()[:4] == vector["wire"]
        command = (b"NOP\n", Nop()) if nsqd else (b"PING\n", Ping())
        assert received(server, cut(vector["wire"] + command[0], size)) == [command[1]]


@each_dialect("command")
def test_clients_write_commands_as_they_are_known(vector: Vector, dialect: Dialect) -> None:
    command = build(vector["meaning"])
    if isinstance(command, Identify):
        assert command.encode() == vector["wire"]  # the session writes its own
        return
    client = client_for(command, dialect)
    client.send(command)
    assert client.data_to_send() == vector["wire"]


@each_dialect("command")
@however_cut
def test_servers_read_commands_as_they_are_known(
    vector: Vector, dialect: Dialect, size: int
) -> None:
    command = build(vector["meaning"])
    server = server_in(state_for(command), dialect)
    assert received(server, cut(vector["wire"], size)) == [command]


@each_dialect("accepted")
@however_cut
def test_servers_take_what_no_client_of_ours_writes(
    vector: Vector, dialect: Dialect, size: int
) -> None:
    commands = [build(vector["meaning"])] if "meaning" in vector else []
    state = vector.get("state") or state_for(*commands)
    server = server_in(state, dialect)
    assert received(server, cut(vector["wire"], size)) == commands
    assert server.data_to_send() == b""
    assert vector["wire"] not in [command.encode() for command in commands]


@each("refused")
@however_cut
def test_servers_refuse_a_bad_command_in_known_words(vector: Vector, size: int) -> None:
    server = server_in(vector["state"], Dialect(vector["dialect"]))
    with pytest.raises(RemoteProtocolError) as raised:
        received(server, cut(vector["wire"], size))
    assert raised.value.code == vector["code"]
    assert server.state is ServerState.FAILED
    answer = server.data_to_send()
    assert answer == vector.get("answer", answer)
    assert answer[4:8] == b"\x00\x00\x00\x01"
    assert answer[8:].split(b" ")[0] == vector["code"].encode()


@each_dialect("unsendable")
def test_clients_refuse_to_send_what_servers_would_refuse(vector: Vector, dialect: Dialect) -> None:
    command = build(vector["meaning"])
    client = client_for(command, dialect, vector.get("identify"), auth=False)
    state = client.state
    with pytest.raises((LocalProtocolError, ConfigError), match=re.escape(vector["reason"])):
        client.send(command)
    assert client.data_to_send() == b""
    assert (client.state, client.unanswered) == (state, 0)


@each("identify_request")
@however_cut
def test_servers_read_what_a_client_asks_for(vector: Vector, size: int) -> None:
    body = vector["json"].encode()
    server = ServerSession(dialect=Dialect(vector["dialect"]))
    wire = b"  V2IDENTIFY\n" + len(body).to_bytes(4, "big") + body
    assert received(server, cut(wire, size)) == [Identify(body)]
    assert server.identify == IdentifyRequest(**vector["fields"])


@each("identify_request")
def test_clients_ask_for_it_in_the_same_words(vector: Vector) -> None:
    request = IdentifyRequest(**vector["fields"])
    client = ClientSession(request, dialect=Dialect(vector["dialect"]))
    wire = client.data_to_send()
    body = wire.removeprefix(b"  V2IDENTIFY\n")[4:]
    assert wire == b"  V2IDENTIFY\n" + len(body).to_bytes(4, "big") + body
    asked = json.loads(body)
    assert {name: asked.get(name) for name in json.loads(vector["json"])} == json.loads(
        vector["json"]
    )


# From server to client.


@each("frame")
@however_cut
def test_clients_read_what_servers_send(vector: Vector, size: int) -> None:
    client = waiting_client(vector)
    events = received(client, cut(vector["wire"], size))
    assert describe(events, client.dialect) == vector["events"]
    assert client.data_to_send() == vector.get("answer", b"")
    closed = any(event.get("closes") for event in vector["events"])
    assert (client.state is ClientState.FAILED) == closed


@each("frame")
def test_servers_send_the_same_bytes(vector: Vector) -> None:
    server = ServerSession(dialect=Dialect(vector["dialect"]))
    for event in vector["events"]:
        say(server, event)
    assert server.data_to_send() == vector["wire"]


def say(server: ServerSession, event: Vector) -> None:
    match event:
        case {"event": "published" | "subscribed", **rest} if not rest:
            server.send_response()
        case {"event": "published", "receipt": receipt}:
            ids = {name: int(receipt[name], 16) for name in ("internal_id", "trace_id")}
            server.send_receipt(Receipt(**{**receipt, **ids}))
        case {"event": "authenticated", **fields}:
            server.send_response(AuthReply(**fields).encode())
        case {"event": "heartbeat"}:
            server.send_heartbeat()
        case {"event": "close_wait"}:
            server.send_close_wait()
        case {"code": code, "text": text}:
            server.send_error(code, text)
        case _:
            raise AssertionError(f"no server says {event!r}")


@each("message")
@however_cut
def test_clients_read_messages(vector: Vector, size: int) -> None:
    dialect = Dialect(vector["dialect"])
    client = subscribed_client(dialect, SUBSCRIPTIONS[vector["subscription"]], extension(vector))
    events = received(client, cut(vector["wire"], size))
    assert describe(events, dialect) == [{"event": "message", **vector["meaning"]}]


@each("message")
def test_servers_write_messages(vector: Vector) -> None:
    server = identified_server(Dialect(vector["dialect"]), extension(vector))
    server.receive_data(vector["subscription"].encode() + b" t ch\n")
    assert len(server.events()) == 1
    server.data_to_send()
    server.send_messages([build_message(vector["meaning"])])
    assert server.data_to_send() == vector["wire"]


def extension(vector: Vector) -> Vector:
    return {"extend_support": True} if vector.get("extend_support") else {}


@each("broken")
@however_cut
def test_clients_notice_what_no_server_may_send(vector: Vector, size: int) -> None:
    client = waiting_client(vector)
    with pytest.raises(RemoteProtocolError, match=re.escape(vector["reason"])):
        received(client, cut(vector["wire"], size))
    assert client.state is ClientState.FAILED
    assert client.data_to_send() == b""


@each("identify_reply")
@however_cut
def test_clients_read_what_they_are_granted(vector: Vector, size: int) -> None:
    client = waiting_client({"after": "IDENTIFY", **vector})
    events: list[Event] = received(client, cut(vector["wire"], size))
    assert describe(events, client.dialect) == vector["events"]
    assert granted(client) == vector["grants"]
    assert client.reply.dialect is Dialect(vector["dialect"])
    assert client.data_to_send() == b""


@pytest.mark.parametrize(
    "vector", [pytest.param(v, id=v["name"]) for v in VECTORS["identify_reply"] if v["exact"]]
)
def test_servers_grant_it_in_the_same_bytes(vector: Vector) -> None:
    asked = {"feature_negotiation": True, **vector.get("identify", {})}
    reply = IdentifyReply(**vector["grants"])
    server = identified_server(Dialect(vector["dialect"]), asked, reply)
    assert server.data_to_send() == vector["wire"]


def granted(client: ClientSession) -> Vector:
    return {name: value for name, value in asdict(client.reply).items() if value is not None}


# Whole connections.


@each("exchange")
@however_cut
def test_clients_follow_a_recorded_connection(vector: Vector, size: int) -> None:
    client = ClientSession(IdentifyRequest(**vector["identify"]))
    for step in vector["step"]:
        if step["from"] == "client":
            for command in map(build, step["commands"]):
                if not isinstance(command, Identify):  # that one it sends by itself
                    client.send(command)
            assert client.data_to_send() != b""
        else:
            events = received(client, cut(step["wire"], size))
            assert describe(events, Dialect.CLASSIC) == step["events"]
            assert client.data_to_send() == b""
    assert granted(client) == vector["grants"]


@each("exchange")
@however_cut
def test_servers_follow_a_recorded_connection(vector: Vector, size: int) -> None:
    server = ServerSession()
    for step in vector["step"]:
        if step["from"] == "client":
            commands = received(server, cut(step["wire"], size))
            assert commands == [*map(build, step["commands"])]
            if isinstance(commands[0], Identify):
                server.accept_identify(IdentifyReply(**vector["grants"]))
                assert not any(isinstance(event, StartTls) for event in server.events())


# nsqlookupd.


@each("lookup")
def test_an_answer_to_lookup_is_understood(vector: Vector) -> None:
    body = vector["body"].encode()
    if "error" in vector:
        with pytest.raises(DiscoveryError, match=re.escape(vector["error"])):
            parse_lookup(vector["status"], body)
        return
    answer = parse_lookup(vector["status"], body)
    assert describe_lookup(answer) == vector["answer"]
    assert (answer.dialect.value if answer.dialect else None) == vector.get("speaks")


@each("listlookup")
def test_an_answer_to_listlookup_is_understood(vector: Vector) -> None:
    body = vector["body"].encode()
    if "error" in vector:
        with pytest.raises(DiscoveryError, match=re.escape(vector["error"])):
            parse_listlookup(vector["status"], body)
        return
    nodes = parse_listlookup(vector["status"], body)
    assert (None if nodes is None else [*map(asdict, nodes)]) == vector.get("nodes")


@each("peer_command")
def test_an_nsqd_registers_with_nsqlookupd_in_known_bytes(vector: Vector) -> None:
    session = PeerSession()
    session.send(build_peer(vector["meaning"]))
    assert session.data_to_send() == b"  V1" + vector["wire"]


@each("peer_command")
@however_cut
def test_nsqlookupd_reads_what_an_nsqd_sends(vector: Vector, size: int) -> None:
    command = build_peer(vector["meaning"])
    session = lookup_session(identified=command.name != "IDENTIFY")
    assert received(session, cut(vector["wire"], size)) == [command]


@each("peer_reply")
@however_cut
def test_an_nsqd_reads_what_nsqlookupd_answers(vector: Vector, size: int) -> None:
    session = PeerSession()
    command = next(
        each["meaning"]
        for each in VECTORS["peer_command"]
        if each["meaning"]["command"] == vector["after"]
    )
    session.send(build_peer(command))
    [reply] = received(session, cut(vector["wire"], size))
    assert reply.command == vector["after"]
    assert describe_reply(reply) == vector["meaning"]


@each("peer_refused")
@however_cut
def test_nsqlookupd_refuses_in_known_words(vector: Vector, size: int) -> None:
    session = lookup_session(identified=vector["identified"])
    with pytest.raises(RemoteProtocolError):
        received(session, cut(vector["wire"], size))
    assert session.data_to_send() == vector["answer"]


def test_nsqlookupd_says_ok_in_known_bytes() -> None:
    session = LookupSession()
    session.send_response()
    assert session.data_to_send() == b"\x00\x00\x00\x02OK"


def lookup_session(*, identified: bool) -> LookupSession:
    session = LookupSession()
    assert len(received(session, [b"  V1" + PEER if identified else b"  V1"])) == identified
    return session
