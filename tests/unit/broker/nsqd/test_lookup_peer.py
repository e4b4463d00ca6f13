"""Registration of our nsqd with nsqlookupd."""

import pytest

from nsqflow import protocol as nsq
from nsqflow.broker.nsqd.daemon import NsqdDaemon
from nsqflow.broker.nsqd.lookup_peer import LookupPeers
from tests.fixtures.loops import Journal, Listener, Wire, asynchronous, eventually
from tests.fixtures.servers import PATIENCE
from tests.unit.broker.nsqd.running import make_nsqd, new_name

LONG = 3600.0


def set_timeouts(
    nsqd: NsqdDaemon, *, ping_interval: float = LONG, timeout: float = PATIENCE
) -> LookupPeers:
    """Give an nsqd without nsqlookupd other timeouts."""
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
    """An nsqlookupd that replies OK, unless ``answers`` has another reply."""

    def __init__(self, answers: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self.answers = answers or {}
        self.commands = Journal[nsq.PeerCommand]()

    async def received(self, command: nsq.PeerCommand) -> None:
        await self.commands.take(lambda each: each == command, command, PATIENCE)

    def _accept(self) -> LookupWire:
        return LookupWire(self)


@asynchronous
async def test_the_last_changes_are_registered_before_nsqd_stops() -> None:
    topic = new_name()
    async with ScriptedPeer() as peer:
        nsqd = make_nsqd(lookupd_tcp_address=peer.address)
        async with nsqd:
            await nsqd.lookup_peers.registered()
            nsqd.engine.topic(topic, nsqd.now())
        await peer.received(nsq.Register(topic))


@asynchronous
async def test_changes_without_a_connection_are_registered_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    old, late = new_name("old"), new_name("late")
    async with ScriptedPeer() as peer, make_nsqd() as nsqd:
        set_timeouts(nsqd)
        nsqd.engine.topic(old, nsqd.now())
        nsqd.set_lookupd_addresses([peer.address])
        await peer.received(nsq.Register(old))
        await peer.stop()
        await eventually(lambda: "trying again" in caplog.text)
        nsqd.engine.delete_topic(old)
        nsqd.engine.topic(late, nsqd.now())
        peer.commands.entries.clear()
        await peer.start()
        await peer.received(nsq.Register(late))
        nsqd.engine.topics[late].channel("a", nsqd.now())
        await peer.received(nsq.Register(late, "a"))
        sent = [command for command in peer.commands.entries if command.name != "IDENTIFY"]
        assert sent == [nsq.Register(late), nsq.Register(late, "a")]


@asynchronous
async def test_nsqd_pings_while_it_registers_changes() -> None:
    async with ScriptedPeer() as peer, make_nsqd() as nsqd:
        set_timeouts(nsqd, ping_interval=0.2)
        nsqd.set_lookupd_addresses([peer.address])
        await peer.connected()
        names: list[str] = []
        while nsq.Ping() not in peer.commands.entries or len(names) < 2:
            names.append(new_name())
            nsqd.engine.topic(names[-1], nsqd.now())
            await peer.received(nsq.Register(names[-1]))
        await peer.received(nsq.Ping())
        await peer.received(nsq.Ping())
        assert len(peer.connections) == 1


@asynchronous
async def test_the_delay_between_failed_attempts_grows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ScriptedPeer({"IDENTIFY": b"what?"}) as peer, make_nsqd() as nsqd:
        nsqd.set_lookupd_addresses([peer.address])
        await eventually(lambda: "trying again in 0.25 s" in caplog.text)
        await eventually(lambda: "trying again in 0.5 s" in caplog.text)


@asynchronous
async def test_a_connection_that_lasted_is_retried_soon(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedPeer() as peer, make_nsqd() as nsqd:
        await peer.stop()
        set_timeouts(nsqd, ping_interval=0.05)
        nsqd.set_lookupd_addresses([peer.address])
        await eventually(lambda: "trying again in 0.5 s" in caplog.text)
        await peer.start()
        await peer.received(nsq.Ping())
        caplog.clear()
        await peer.stop()
        await eventually(lambda: "trying again" in caplog.text)
        assert "trying again in 0.25 s" in caplog.text


@asynchronous
async def test_an_unsolicited_reply_ends_the_connection() -> None:
    async with ScriptedPeer() as peer, make_nsqd() as nsqd:
        set_timeouts(nsqd)
        nsqd.set_lookupd_addresses([peer.address])
        wire = await peer.connected()
        await peer.commands.take(lambda each: each.name == "IDENTIFY", "IDENTIFY", PATIENCE)
        wire.send_raw(b"\0\0\0\2OK")
        await peer.connected()


@asynchronous
async def test_an_nsqlookupd_without_peer_info_is_registered_with(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = new_name()
    async with ScriptedPeer() as peer, make_nsqd() as nsqd:
        nsqd.engine.topic(topic, nsqd.now())
        nsqd.set_lookupd_addresses([peer.address])
        await peer.received(nsq.Register(topic))
        assert f"LOOKUPD({peer.address}): no broadcast address" in caplog.text
        assert nsqd.lookup_peers.http_addresses == ()


@asynchronous
async def test_a_host_that_does_not_exist_is_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with make_nsqd(lookupd_tcp_address="nowhere.invalid:4160") as nsqd:
        await eventually(lambda: "LOOKUPD(nowhere.invalid:4160): [Errno" in caplog.text)
        assert nsqd.health == "OK"
