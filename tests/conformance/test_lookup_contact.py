"""The protocol core against the real nsqlookupd, and a real nsqd against ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqflow.errors import DiscoveryError
from nsqflow.protocol import (
    ACCEPT_V1,
    Dialect,
    LookupAnswer,
    Node,
    Peer,
    PeerCommand,
    PeerIdentify,
    PeerReply,
    Ping,
    Register,
    Unregister,
    parse_listlookup,
    parse_lookup,
)
from tests.conformance.driver import LookupServer, PeerConnection
from tests.fixtures.servers import Kind, Nsqlookupd, command_of, start_nsqd, start_nsqlookupd

ME = Peer(
    broadcast_address="10.1.2.3", tcp_port=4150, http_port=4151, version="1.3.0", hostname="me"
)
NODE = Node(
    broadcast_address="10.1.2.3", tcp_port=4150, http_port=4151, version="1.3.0", hostname="me"
)


@pytest.fixture
def peer(nsqlookupd: Nsqlookupd) -> Iterator[PeerConnection]:
    with PeerConnection(nsqlookupd.connect()) as peer:
        yield peer


def ask(nsqlookupd: Nsqlookupd, path: str) -> tuple[int, bytes]:
    return nsqlookupd.ask(path, Accept=ACCEPT_V1)


def lookup(nsqlookupd: Nsqlookupd, topic: str) -> LookupAnswer:
    return parse_lookup(*ask(nsqlookupd, f"/lookup?topic={topic}"))


def test_nsqlookupd_returns_its_addresses(
    nsqlookupd: Nsqlookupd, version: str, peer: PeerConnection
) -> None:
    reply = peer.request(PeerIdentify(ME))
    assert reply.peer
    assert reply.peer.version == version
    assert f"{reply.peer.broadcast_address}:{reply.peer.tcp_port}" == nsqlookupd.tcp_address
    assert f"{reply.peer.broadcast_address}:{reply.peer.http_port}" == nsqlookupd.http_address


def test_what_was_registered_is_found_until_it_is_unregistered(
    nsqlookupd: Nsqlookupd, peer: PeerConnection
) -> None:
    peer.request(PeerIdentify(ME))
    assert peer.request(Register("lk_orders")) == PeerReply("REGISTER")
    assert lookup(nsqlookupd, "lk_orders") == LookupAnswer(producers=(NODE,))
    assert peer.request(Register("lk_orders", "billing")) == PeerReply("REGISTER")
    answer = lookup(nsqlookupd, "lk_orders")
    assert answer == LookupAnswer(producers=(NODE,), channels=("billing",))
    assert answer.dialect is Dialect.CLASSIC
    assert answer.producers[0].address == "10.1.2.3:4150"
    assert peer.request(Ping()) == PeerReply("PING")
    assert peer.request(Unregister("lk_orders", "billing")) == PeerReply("UNREGISTER")
    assert peer.request(Unregister("lk_orders")) == PeerReply("UNREGISTER")
    assert lookup(nsqlookupd, "lk_orders").producers == ()


def test_an_ephemeral_topic_is_forgotten_with_its_last_node(
    nsqlookupd: Nsqlookupd, peer: PeerConnection
) -> None:
    peer.request(PeerIdentify(ME))
    peer.request(Register("lk_passing#ephemeral"))
    assert lookup(nsqlookupd, "lk_passing%23ephemeral").producers == (NODE,)
    peer.request(Unregister("lk_passing#ephemeral"))
    assert ask(nsqlookupd, "/lookup?topic=lk_passing%23ephemeral")[0] == 404


def test_a_node_whose_connection_ends_is_found_no_more(nsqlookupd: Nsqlookupd) -> None:
    with PeerConnection(nsqlookupd.connect()) as peer:
        peer.request(PeerIdentify(ME))
        peer.request(Register("lk_leaving"))
        assert lookup(nsqlookupd, "lk_leaving").producers == (NODE,)
    nsqlookupd.await_log(r"UNREGISTER category:topic key:lk_leaving ")
    answer = lookup(nsqlookupd, "lk_leaving")
    assert (answer.producers, answer.dialect) == ((), None)


def test_many_commands_may_be_on_their_way_at_once(peer: PeerConnection) -> None:
    for command in (PeerIdentify(ME), Ping(), Register("lk_many"), Unregister("lk_many"), Ping()):
        peer.session.send(command)
    peer.flush()
    replies = [peer.expect(PeerReply) for _ in range(5)]
    assert [reply.command for reply in replies] == [
        *("IDENTIFY", "PING", "REGISTER", "UNREGISTER", "PING")
    ]
    assert [reply.error for reply in replies] == [None] * 5


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ([Register("t")], "E_INVALID client must IDENTIFY"),
        ([Unregister("t", "ch")], "E_INVALID client must IDENTIFY"),
        ([PeerIdentify(ME), PeerIdentify(ME)], "E_INVALID cannot IDENTIFY again"),
        ([PeerIdentify(Peer(tcp_port=1))], "E_BAD_BODY IDENTIFY missing fields"),
    ],
    ids=["REGISTER first", "UNREGISTER first", "IDENTIFY twice", "IDENTIFY with holes"],
)
def test_nsqlookupd_says_what_is_wrong_and_closes(
    peer: PeerConnection, commands: list[PeerCommand], words: str
) -> None:
    *_, reply = [peer.request(command) for command in commands]
    assert str(reply.error) == words
    peer.expect_end()


def test_an_unknown_topic_has_no_nsqd_and_is_not_an_error(nsqlookupd: Nsqlookupd) -> None:
    assert ask(nsqlookupd, "/lookup?topic=lk_unknown")[0] == 404
    answer = lookup(nsqlookupd, "lk_unknown")
    assert answer == LookupAnswer(producers=(), channels=(), partitions={}, meta=None)
    assert answer.dialect is None


def test_a_question_without_a_topic_is_an_error(nsqlookupd: Nsqlookupd) -> None:
    with pytest.raises(DiscoveryError, match=r"400.*MISSING_ARG_TOPIC"):
        parse_lookup(*ask(nsqlookupd, "/lookup"))


def test_a_classic_nsqlookupd_knows_no_cluster(nsqlookupd: Nsqlookupd) -> None:
    status, body = ask(nsqlookupd, "/listlookup")
    assert (status, body) == (404, b'{"message":"NOT_FOUND"}')
    assert parse_listlookup(status, body) is None


def test_an_nsqd_is_found_by_what_it_registered(server_kind: Kind, tmp_path: Path) -> None:
    with (
        start_nsqlookupd(kind=server_kind) as nsqlookupd,
        start_nsqd(tmp_path, kind=server_kind, lookupd=[nsqlookupd]) as nsqd,
    ):
        assert nsqd.ask("/topic/create?topic=t", "POST")[0] == 200
        assert nsqd.ask("/channel/create?topic=t&channel=ch", "POST")[0] == 200
        nsqlookupd.await_log("REGISTER category:channel key:t subkey:ch")
        answer = lookup(nsqlookupd, "t")
        assert [node.address for node in answer.producers] == [nsqd.tcp_address]
        assert answer.channels == ("ch",)
        assert parse_lookup(*ask(nsqlookupd, "/nodes")).producers == answer.producers


def test_an_nsqd_registers_with_nsqlookupd(server_kind: Kind, version: str, tmp_path: Path) -> None:
    us = Peer(
        broadcast_address="127.0.0.1", tcp_port=4160, http_port=4161, version="9.9", hostname="us"
    )
    command_of("nsqd", server_kind)  # if it is missing, fail before the test waits for it
    ours = LookupServer(us)
    with (
        ours,
        start_nsqd(
            tmp_path, kind=server_kind, options=[f"-lookupd-tcp-address={ours.address}"]
        ) as nsqd,
    ):
        hello = ours.next()
        assert isinstance(hello, PeerIdentify)
        assert hello.peer.version == version
        assert f"{hello.peer.broadcast_address}:{hello.peer.tcp_port}" == nsqd.tcp_address
        assert f"127.0.0.1:{hello.peer.http_port}" == nsqd.http_address
        nsqd.await_log(r"peer info \{TCPPort:4160 HTTPPort:4161 Version:9\.9 ")
        said: object = None
        for path, command in (
            ("/topic/create?topic=t", Register("t")),
            ("/channel/create?topic=t&channel=ch", Register("t", "ch")),
            ("/channel/delete?topic=t&channel=ch", Unregister("t", "ch")),
            ("/topic/delete?topic=t", Unregister("t")),
        ):
            assert nsqd.ask(path, "POST")[0] == 200
            # nsqd says all it has once it is connected: just then, a new topic is said twice.
            while (heard := ours.next()) == said:
                pass
            said = heard
            assert said == command
    assert ours.commands.empty()
