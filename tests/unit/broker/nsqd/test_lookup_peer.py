"""How our nsqd keeps real nsqlookupd informed."""

import asyncio
import json
import logging
import socket
from typing import Any

import pytest

from nsqflow import protocol as nsq
from nsqflow.broker.nsqd import lookup_peer
from nsqflow.broker.nsqd.daemon import Nsqd
from nsqflow.broker.nsqd.lookup_peer import LookupPeers
from nsqflow.broker.version import VERSION
from tests.fixtures.loops import Journal, Listener, Wire, asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.servers import PATIENCE, Nsqlookupd, start_nsqlookupd
from tests.unit.broker.nsqd.running import make_nsqd, new_name

LONG = 3600.0


def answer(lookupd: Nsqlookupd, path: str) -> Any:
    status, body = lookupd.ask(path)
    return json.loads(body) if status == 200 else None


def knows(lookupd: Nsqlookupd, nsqd: Nsqd, topic: str) -> bool:
    """Whether nsqlookupd sends consumers of this topic to this nsqd."""
    found = answer(lookupd, f"/lookup?topic={topic}") or {"producers": []}
    return nsqd.tcp_port in [producer["tcp_port"] for producer in found["producers"]]


def channels(lookupd: Nsqlookupd, topic: str) -> list[str]:
    return sorted(answer(lookupd, f"/channels?topic={topic}")["channels"])


def holders(lookupd: Nsqlookupd, topic: str, channel: str) -> list[int]:
    """The ports of all nsqd that have a channel; unlike /channels, it forgets."""
    known = answer(lookupd, "/debug")
    return [each["tcp_port"] for each in known.get(f"channel:{topic}:{channel}", [])]


def nodes(lookupd: Nsqlookupd) -> dict[int, Any]:
    return {node["tcp_port"]: node for node in answer(lookupd, "/nodes")["producers"]}


def impatient(nsqd: Nsqd, *, ping_interval: float = LONG, timeout: float = PATIENCE) -> LookupPeers:
    """Have an nsqd that has no nsqlookupd yet use other times."""
    nsqd.lookup_peers = LookupPeers(nsqd, ping_interval=ping_interval, timeout=timeout)
    return nsqd.lookup_peers


class LookupWire(Wire):
    """A connection to ``ScriptedPeer``."""

    def __init__(self, peer: "ScriptedPeer") -> None:
        super().__init__(peer)
        self.session = nsq.LookupSession()
        self._peer = peer

    def receive(self, data: bytes) -> None:
        self.session.receive_data(data)
        while commands := self.session.events():
            for command in commands:
                self._peer.commands.add(command)
                self.session.send_response(self._peer.answers.get(command.name, b"OK"))
        self.send_raw(self.session.data_to_send())


class ScriptedPeer(Listener[LookupWire]):
    """An nsqlookupd that says OK to all, unless it is told to say something else."""

    def __init__(self, answers: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self.answers = answers or {}
        self.commands = Journal[nsq.PeerCommand]()

    async def heard(self, command: nsq.PeerCommand) -> None:
        await self.commands.take(lambda each: each == command, command, PATIENCE)

    def _accept(self) -> LookupWire:
        return LookupWire(self)


@asynchronous
async def test_it_says_who_it_is(nsqlookupd: Nsqlookupd) -> None:
    async with make_nsqd(
        lookupd_tcp_address=nsqlookupd.tcp_address, broadcast_address="a.host"
    ) as nsqd:
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))
        node = nodes(nsqlookupd)[nsqd.tcp_port]
        assert node["broadcast_address"] == "a.host"
        assert node["http_port"] == nsqd.http_port
        assert node["version"] == VERSION
        assert node["hostname"] == socket.gethostname()


@asynchronous
async def test_other_ports_can_be_told_than_those_it_listens_on(nsqlookupd: Nsqlookupd) -> None:
    async with make_nsqd(
        lookupd_tcp_address=nsqlookupd.tcp_address,
        broadcast_tcp_port=11111,
        broadcast_http_port=22222,
    ):
        await eventually(lambda: 11111 in nodes(nsqlookupd))
        assert nodes(nsqlookupd)[11111]["http_port"] == 22222


@asynchronous
async def test_what_it_has_is_registered_when_it_connects(nsqlookupd: Nsqlookupd) -> None:
    bare, topic = new_name("bare"), new_name()
    async with make_nsqd() as nsqd:
        nsqd.engine.topic(bare, nsqd.now())
        for channel in ("a", "b"):
            nsqd.engine.topic(topic, nsqd.now()).channel(channel, nsqd.now())
        nsqd.set_lookupd_addresses([nsqlookupd.tcp_address])
        await eventually(lambda: channels(nsqlookupd, topic) == ["a", "b"])
        assert knows(nsqlookupd, nsqd, topic)
        assert knows(nsqlookupd, nsqd, bare)
        assert channels(nsqlookupd, bare) == []


@asynchronous
async def test_one_can_wait_until_all_have_heard_of_all() -> None:
    topic = new_name()
    with start_nsqlookupd() as first, start_nsqlookupd() as second:
        async with make_nsqd() as nsqd:
            nsqd.engine.topic(topic, nsqd.now())
            nsqd.set_lookupd_addresses([first.tcp_address, second.tcp_address])
            async with asyncio.timeout(PATIENCE):
                await nsqd.lookup_peers.registered()
            assert knows(first, nsqd, topic)
            assert knows(second, nsqd, topic)


@asynchronous
async def test_what_comes_and_goes_is_told(nsqlookupd: Nsqlookupd) -> None:
    topic = new_name()
    async with make_nsqd(lookupd_tcp_address=nsqlookupd.tcp_address) as nsqd:
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))
        nsqd.engine.topic(topic, nsqd.now())
        await eventually(lambda: knows(nsqlookupd, nsqd, topic))
        nsqd.engine.topics[topic].channel("a", nsqd.now())
        await eventually(lambda: holders(nsqlookupd, topic, "a") == [nsqd.tcp_port])
        nsqd.engine.topics[topic].delete_channel("a")
        await eventually(lambda: holders(nsqlookupd, topic, "a") == [])
        assert knows(nsqlookupd, nsqd, topic)
        nsqd.engine.delete_topic(topic)
        await eventually(lambda: not knows(nsqlookupd, nsqd, topic))


@asynchronous
async def test_a_topic_that_is_deleted_takes_its_channels_along(nsqlookupd: Nsqlookupd) -> None:
    topic = new_name()
    async with make_nsqd(lookupd_tcp_address=nsqlookupd.tcp_address) as nsqd:
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))
        nsqd.engine.topic(topic, nsqd.now()).channel("a", nsqd.now())
        await eventually(lambda: holders(nsqlookupd, topic, "a") == [nsqd.tcp_port])
        nsqd.engine.delete_topic(topic)
        await eventually(lambda: not knows(nsqlookupd, nsqd, topic))
        assert holders(nsqlookupd, topic, "a") == []


@asynchronous
async def test_what_is_ephemeral_is_registered_and_forgotten(nsqlookupd: Nsqlookupd) -> None:
    topic = new_name() + "#ephemeral"
    async with make_nsqd(lookupd_tcp_address=nsqlookupd.tcp_address) as nsqd:
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))
        nsqd.engine.topic(topic, nsqd.now()).channel("c#ephemeral", nsqd.now())
        escaped = topic.replace("#", "%23")
        await eventually(lambda: channels(nsqlookupd, escaped) == ["c#ephemeral"])
        nsqd.engine.topics[topic].delete_channel("c#ephemeral")
        await eventually(lambda: channels(nsqlookupd, escaped) == [])
        await eventually(lambda: topic not in answer(nsqlookupd, "/topics")["topics"])


@asynchronous
async def test_nsqlookupd_forgets_it_when_it_stops(nsqlookupd: Nsqlookupd) -> None:
    async with make_nsqd(lookupd_tcp_address=nsqlookupd.tcp_address) as nsqd:
        port = nsqd.tcp_port
        await eventually(lambda: port in nodes(nsqlookupd))
    await eventually(lambda: port not in nodes(nsqlookupd))


@asynchronous
async def test_it_hears_of_the_last_changes_before_it_is_left() -> None:
    topic = new_name()
    async with ScriptedPeer() as peer:
        nsqd = make_nsqd(lookupd_tcp_address=peer.address)
        async with nsqd:
            await nsqd.lookup_peers.registered()
            nsqd.engine.topic(topic, nsqd.now())
        await peer.heard(nsq.Register(topic))


@asynchronous
async def test_one_that_hangs_is_not_waited_for_when_it_stops(
    nsqlookupd: Nsqlookupd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_peer, "_FLUSH_TIMEOUT", 0.01)
    async with Proxy(nsqlookupd.tcp_address) as proxy:
        nsqd = make_nsqd(lookupd_tcp_address=proxy.address)
        impatient(nsqd)
        async with asyncio.timeout(PATIENCE):
            async with nsqd:
                await nsqd.lookup_peers.registered()
                proxy.hang()
                nsqd.engine.topic(new_name(), nsqd.now())
        proxy.resume()


@asynchronous
async def test_a_restarted_nsqlookupd_is_told_all_anew() -> None:
    topic, late = new_name(), new_name("late")
    with start_nsqlookupd() as first:
        async with make_nsqd(lookupd_tcp_address=first.tcp_address) as nsqd:
            nsqd.engine.topic(topic, nsqd.now()).channel("a", nsqd.now())
            await eventually(lambda: channels(first, topic) == ["a"])
            first.kill()
            nsqd.engine.topic(late, nsqd.now())
            nsqd.engine.topics[topic].delete_channel("a")
            with start_nsqlookupd(options=[f"-tcp-address={first.tcp_address}"]) as second:
                await eventually(lambda: knows(second, nsqd, topic))
                assert knows(second, nsqd, late)
                assert channels(second, topic) == []


@asynchronous
async def test_what_happened_meanwhile_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    old, late = new_name("old"), new_name("late")
    async with ScriptedPeer() as peer, make_nsqd() as nsqd:
        impatient(nsqd)
        nsqd.engine.topic(old, nsqd.now())
        nsqd.set_lookupd_addresses([peer.address])
        await peer.heard(nsq.Register(old))
        await peer.stop()
        await eventually(lambda: "trying again" in caplog.text)
        nsqd.engine.delete_topic(old)
        nsqd.engine.topic(late, nsqd.now())
        peer.commands.entries.clear()
        await peer.start()
        await peer.heard(nsq.Register(late))
        nsqd.engine.topics[late].channel("a", nsqd.now())
        await peer.heard(nsq.Register(late, "a"))
        said = [command for command in peer.commands.entries if command.name != "IDENTIFY"]
        assert said == [nsq.Register(late), nsq.Register(late, "a")]


@asynchronous
async def test_one_that_hangs_holds_up_no_other(nsqlookupd: Nsqlookupd) -> None:
    topic = new_name()
    async with Proxy(nsqlookupd.tcp_address) as proxy:
        proxy.hang()
        addresses = [proxy.address, nsqlookupd.tcp_address]
        async with make_nsqd() as nsqd:
            impatient(nsqd)
            nsqd.set_lookupd_addresses(addresses)
            await eventually(lambda: proxy.connections == 1)
            nsqd.engine.topic(topic, nsqd.now())
            await eventually(lambda: knows(nsqlookupd, nsqd, topic))
            assert proxy.to_server == 0


@asynchronous
async def test_one_that_hangs_is_given_up_and_tried_again(
    nsqlookupd: Nsqlookupd, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_name()
    async with Proxy(nsqlookupd.tcp_address) as proxy, make_nsqd() as nsqd:
        impatient(nsqd, timeout=0.5)
        nsqd.set_lookupd_addresses([proxy.address])
        await eventually(lambda: nsqd.lookup_peers.http_addresses != ())
        proxy.hang()
        before = proxy.connections
        nsqd.engine.topic(topic, nsqd.now())
        await eventually(lambda: proxy.connections > before)
        assert f"LOOKUPD({proxy.address}): no answer within 0.5 s - trying again in" in caplog.text
        proxy.resume()
        await eventually(lambda: knows(nsqlookupd, nsqd, topic))


@asynchronous
async def test_a_lost_connection_is_noticed_at_once(nsqlookupd: Nsqlookupd) -> None:
    async with Proxy(nsqlookupd.tcp_address) as proxy, make_nsqd() as nsqd:
        impatient(nsqd)
        nsqd.set_lookupd_addresses([proxy.address])
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))
        proxy.cut()
        await eventually(lambda: proxy.connections == 2)
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))


@asynchronous
async def test_it_pings_however_much_else_it_says() -> None:
    async with ScriptedPeer() as peer, make_nsqd() as nsqd:
        impatient(nsqd, ping_interval=0.2)
        nsqd.set_lookupd_addresses([peer.address])
        await peer.connected()
        names: list[str] = []
        while nsq.Ping() not in peer.commands.entries:
            names.append(new_name())
            nsqd.engine.topic(names[-1], nsqd.now())
            await peer.heard(nsq.Register(names[-1]))
        assert len(names) > 1
        await peer.heard(nsq.Ping())
        await peer.heard(nsq.Ping())
        assert len(peer.connections) == 1


@asynchronous
async def test_nsqlookupd_counts_the_pings() -> None:
    with start_nsqlookupd() as lookupd:
        async with make_nsqd() as nsqd:
            impatient(nsqd, ping_interval=0.05)
            nsqd.set_lookupd_addresses([lookupd.tcp_address])
            await asyncio.to_thread(lookupd.await_log, r"pinged \(last ping")


@asynchronous
async def test_too_many_changes_are_not_kept_but_all_is_said_anew(
    nsqlookupd: Nsqlookupd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lookup_peer, "MOST_CHANGES", 10)
    names = [new_name() for _ in range(13)]
    async with Proxy(nsqlookupd.tcp_address) as proxy, make_nsqd() as nsqd:
        impatient(nsqd)
        nsqd.set_lookupd_addresses([proxy.address])
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))
        proxy.hang()
        for name in names:
            nsqd.engine.topic(name, nsqd.now())
        await eventually(lambda: proxy.connections == 2)
        assert "more than 10 changes wait for an answer" in caplog.text
        proxy.resume()
        await eventually(lambda: all(knows(nsqlookupd, nsqd, name) for name in names))


@asynchronous
async def test_changes_up_to_the_limit_go_out_on_the_same_connection(
    nsqlookupd: Nsqlookupd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_peer, "MOST_CHANGES", 10)
    names = [new_name() for _ in range(10)]
    async with Proxy(nsqlookupd.tcp_address) as proxy, make_nsqd() as nsqd:
        impatient(nsqd)
        nsqd.set_lookupd_addresses([proxy.address])
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))
        for name in names:
            nsqd.engine.topic(name, nsqd.now())
        await eventually(lambda: all(knows(nsqlookupd, nsqd, name) for name in names))
        assert proxy.connections == 1


@asynchronous
async def test_addresses_can_be_changed_while_it_runs() -> None:
    with start_nsqlookupd() as first, start_nsqlookupd() as second:
        async with make_nsqd(lookupd_tcp_address=first.tcp_address) as nsqd:
            await eventually(lambda: nsqd.tcp_port in nodes(first))
            nsqd.set_lookupd_addresses([second.tcp_address, second.tcp_address])
            assert nsqd.lookup_peers.addresses == (second.tcp_address,)
            await eventually(lambda: nsqd.tcp_port in nodes(second))
            await eventually(lambda: nsqd.tcp_port not in nodes(first))


@asynchronous
async def test_one_that_stays_keeps_its_connection_when_addresses_change(
    nsqlookupd: Nsqlookupd,
) -> None:
    async with Proxy(nsqlookupd.tcp_address) as proxy, make_nsqd() as nsqd:
        nsqd.set_lookupd_addresses([proxy.address])
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))
        nsqd.set_lookupd_addresses([nsqlookupd.tcp_address, proxy.address])
        await eventually(lambda: len(nsqd.lookup_peers.http_addresses) == 2)
        assert proxy.connections == 1


@asynchronous
async def test_an_nsqd_that_nsqlookupd_refuses_says_why(
    nsqlookupd: Nsqlookupd, caplog: pytest.LogCaptureFixture
) -> None:
    address = nsqlookupd.tcp_address
    async with make_nsqd(lookupd_tcp_address=address, http_address=""):
        text = f"LOOKUPD({address}): E_BAD_BODY IDENTIFY missing fields - trying again in 0.25 s"
        await eventually(lambda: text in caplog.text)


@asynchronous
async def test_what_is_no_nsqlookupd_is_left_alone_a_while_longer_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ScriptedPeer({"IDENTIFY": b"what?"}) as peer, make_nsqd() as nsqd:
        nsqd.set_lookupd_addresses([peer.address])
        await eventually(lambda: "trying again in 0.25 s" in caplog.text)
        await eventually(lambda: "trying again in 0.5 s" in caplog.text)


@asynchronous
async def test_one_that_has_lasted_is_tried_again_soon(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedPeer() as peer, make_nsqd() as nsqd:
        await peer.stop()
        impatient(nsqd, ping_interval=0.05)
        nsqd.set_lookupd_addresses([peer.address])
        await eventually(lambda: "trying again in 0.5 s" in caplog.text)
        await peer.start()
        await peer.heard(nsq.Ping())
        caplog.clear()
        await peer.stop()
        await eventually(lambda: "trying again" in caplog.text)
        assert "trying again in 0.25 s" in caplog.text


@asynchronous
async def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    async with ScriptedPeer() as peer, make_nsqd() as nsqd:
        impatient(nsqd)
        nsqd.set_lookupd_addresses([peer.address])
        wire = await peer.connected()
        await peer.commands.take(lambda each: each.name == "IDENTIFY", "IDENTIFY", PATIENCE)
        wire.send_raw(b"\0\0\0\2OK")
        await peer.connected()


@asynchronous
async def test_an_old_nsqlookupd_that_only_says_ok_is_registered_with(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = new_name()
    async with ScriptedPeer() as peer, make_nsqd() as nsqd:
        nsqd.engine.topic(topic, nsqd.now())
        nsqd.set_lookupd_addresses([peer.address])
        await peer.heard(nsq.Register(topic))
        assert f"LOOKUPD({peer.address}): no broadcast address" in caplog.text
        assert nsqd.lookup_peers.http_addresses == ()


@asynchronous
async def test_it_logs_what_nsqd_logs(
    nsqlookupd: Nsqlookupd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nsqflow.broker.nsqd")
    old, new = new_name("old"), new_name("new")
    address = nsqlookupd.tcp_address
    async with make_nsqd() as nsqd:
        nsqd.engine.topic(old, nsqd.now())
        nsqd.set_lookupd_addresses([address])
        await eventually(lambda: knows(nsqlookupd, nsqd, old))
        nsqd.engine.topic(new, nsqd.now()).channel("a", nsqd.now())
        nsqd.engine.delete_topic(new)
        nsqd.set_lookupd_addresses([])
    host, _, port = nsqlookupd.http_address.rpartition(":")
    tcp_port = address.rpartition(":")[2]
    info = f"{{TCPPort:{tcp_port} HTTPPort:{port} Version:1.3.0 BroadcastAddress:{host}}}"
    told = [line for line in caplog.messages if line.startswith("LOOKUP")]
    assert told == [
        f"LOOKUP({address}): adding peer",
        f"LOOKUP connecting to {address}",
        f"LOOKUPD({address}): peer info {info}",
        f"LOOKUPD({address}): REGISTER {old}",
        f"LOOKUPD({address}): topic REGISTER {new}",
        f"LOOKUPD({address}): channel REGISTER {new} a",
        f"LOOKUPD({address}): channel UNREGISTER {new} a",
        f"LOOKUPD({address}): topic UNREGISTER {new}",
        f"LOOKUP({address}): removing peer",
        "LOOKUP: closing",
    ]


@asynchronous
async def test_all_are_asked_for_the_channels_of_a_topic() -> None:
    topic = new_name()
    with start_nsqlookupd() as first, start_nsqlookupd() as second:
        for lookupd, names in (first, ("a", "b")), (second, ("b", "c", "d%23ephemeral")):
            for name in names:
                lookupd.ask(f"/channel/create?topic={topic}&channel={name}", "POST")
        async with make_nsqd() as nsqd:
            nsqd.set_lookupd_addresses([first.tcp_address, second.tcp_address])
            await eventually(lambda: len(nsqd.lookup_peers.http_addresses) == 2)
            addresses = (first.http_address, second.http_address)
            assert nsqd.lookup_peers.http_addresses == addresses
            assert sorted(await nsqd.lookup_peers.channels_of(topic)) == ["a", "b", "c"]
            assert await nsqd.lookup_peers.channels_of(new_name()) == []


@asynchronous
async def test_one_that_does_not_answer_has_no_channels_to_tell(
    nsqlookupd: Nsqlookupd, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_name()
    nsqlookupd.ask(f"/channel/create?topic={topic}&channel=a", "POST")
    with start_nsqlookupd() as gone:
        async with make_nsqd() as nsqd:
            nsqd.set_lookupd_addresses([gone.tcp_address, nsqlookupd.tcp_address])
            await eventually(lambda: len(nsqd.lookup_peers.http_addresses) == 2)
            gone.kill()
            assert await nsqd.lookup_peers.channels_of(topic) == ["a"]
            assert f"channels to pre-create for topic {topic} - {gone.http_address}" in caplog.text


@asynchronous
async def test_it_can_be_closed_while_it_waits_for_an_answer(nsqlookupd: Nsqlookupd) -> None:
    async with Proxy(nsqlookupd.tcp_address) as proxy:
        proxy.hang()
        async with make_nsqd(lookupd_tcp_address=proxy.address):
            await eventually(lambda: proxy.open_connections == 1)
        proxy.resume()
        await eventually(lambda: proxy.open_connections == 0)


@asynchronous
async def test_a_host_that_does_not_exist_is_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with make_nsqd(lookupd_tcp_address="nowhere.invalid:4160") as nsqd:
        await eventually(lambda: "LOOKUPD(nowhere.invalid:4160): [Errno" in caplog.text)
        assert nsqd.health == "OK"
