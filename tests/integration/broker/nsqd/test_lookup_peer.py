"""Registration of our nsqd with nsqlookupd."""

import asyncio
import json
import logging
import socket
from typing import Any

import pytest

from nsqflow.broker.nsqd import lookup_peer
from nsqflow.broker.nsqd.daemon import NsqdDaemon
from nsqflow.broker.nsqd.lookup_peer import LookupPeers
from nsqflow.broker.version import VERSION
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.servers import PATIENCE, Nsqlookupd, start_nsqlookupd
from tests.unit.broker.nsqd.running import make_nsqd, new_name

LONG = 3600.0


def answer(lookupd: Nsqlookupd, path: str) -> Any:
    status, body = lookupd.ask(path)
    return json.loads(body) if status == 200 else None


def lists(lookupd: Nsqlookupd, nsqd: NsqdDaemon, topic: str) -> bool:
    """Return whether nsqlookupd lists this nsqd for a topic."""
    found = answer(lookupd, f"/lookup?topic={topic}") or {"producers": []}
    return nsqd.tcp_port in [producer["tcp_port"] for producer in found["producers"]]


def channels(lookupd: Nsqlookupd, topic: str) -> list[str]:
    return sorted(answer(lookupd, f"/channels?topic={topic}")["channels"])


def channel_ports(lookupd: Nsqlookupd, topic: str, channel: str) -> list[int]:
    """Return the ports of all nsqd with a channel; unlike /channels, without former ones."""
    known = answer(lookupd, "/debug")
    return [each["tcp_port"] for each in known.get(f"channel:{topic}:{channel}", [])]


def nodes(lookupd: Nsqlookupd) -> dict[int, Any]:
    return {node["tcp_port"]: node for node in answer(lookupd, "/nodes")["producers"]}


def set_timeouts(
    nsqd: NsqdDaemon, *, ping_interval: float = LONG, timeout: float = PATIENCE
) -> LookupPeers:
    """Give an nsqd without nsqlookupd other timeouts."""
    nsqd.lookup_peers = LookupPeers(nsqd, ping_interval=ping_interval, timeout=timeout)
    return nsqd.lookup_peers


@asynchronous
async def test_nsqd_identifies_itself_to_nsqlookupd(nsqlookupd: Nsqlookupd) -> None:
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
async def test_broadcast_ports_are_announced_instead_of_the_real_ones(
    nsqlookupd: Nsqlookupd,
) -> None:
    async with make_nsqd(
        lookupd_tcp_address=nsqlookupd.tcp_address,
        broadcast_tcp_port=11111,
        broadcast_http_port=22222,
    ):
        await eventually(lambda: 11111 in nodes(nsqlookupd))
        assert nodes(nsqlookupd)[11111]["http_port"] == 22222


@asynchronous
async def test_existing_topics_and_channels_are_registered_on_connecting(
    nsqlookupd: Nsqlookupd,
) -> None:
    bare, topic = new_name("bare"), new_name()
    async with make_nsqd() as nsqd:
        nsqd.engine.topic(bare, nsqd.now())
        for channel in ("a", "b"):
            nsqd.engine.topic(topic, nsqd.now()).channel(channel, nsqd.now())
        nsqd.set_lookupd_addresses([nsqlookupd.tcp_address])
        await eventually(lambda: channels(nsqlookupd, topic) == ["a", "b"])
        assert lists(nsqlookupd, nsqd, topic)
        assert lists(nsqlookupd, nsqd, bare)
        assert channels(nsqlookupd, bare) == []


@asynchronous
async def test_registered_waits_for_every_nsqlookupd() -> None:
    topic = new_name()
    with start_nsqlookupd() as first, start_nsqlookupd() as second:
        async with make_nsqd() as nsqd:
            nsqd.engine.topic(topic, nsqd.now())
            nsqd.set_lookupd_addresses([first.tcp_address, second.tcp_address])
            async with asyncio.timeout(PATIENCE):
                await nsqd.lookup_peers.registered()
            assert lists(first, nsqd, topic)
            assert lists(second, nsqd, topic)


@asynchronous
async def test_created_and_deleted_topics_and_channels_are_registered(
    nsqlookupd: Nsqlookupd,
) -> None:
    topic = new_name()
    async with make_nsqd(lookupd_tcp_address=nsqlookupd.tcp_address) as nsqd:
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))
        nsqd.engine.topic(topic, nsqd.now())
        await eventually(lambda: lists(nsqlookupd, nsqd, topic))
        nsqd.engine.topics[topic].channel("a", nsqd.now())
        await eventually(lambda: channel_ports(nsqlookupd, topic, "a") == [nsqd.tcp_port])
        nsqd.engine.topics[topic].delete_channel("a")
        await eventually(lambda: channel_ports(nsqlookupd, topic, "a") == [])
        assert lists(nsqlookupd, nsqd, topic)
        nsqd.engine.delete_topic(topic)
        await eventually(lambda: not lists(nsqlookupd, nsqd, topic))


@asynchronous
async def test_deleting_a_topic_unregisters_its_channels(nsqlookupd: Nsqlookupd) -> None:
    topic = new_name()
    async with make_nsqd(lookupd_tcp_address=nsqlookupd.tcp_address) as nsqd:
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))
        nsqd.engine.topic(topic, nsqd.now()).channel("a", nsqd.now())
        await eventually(lambda: channel_ports(nsqlookupd, topic, "a") == [nsqd.tcp_port])
        nsqd.engine.delete_topic(topic)
        await eventually(lambda: not lists(nsqlookupd, nsqd, topic))
        assert channel_ports(nsqlookupd, topic, "a") == []


@asynchronous
async def test_ephemeral_topics_and_channels_are_registered_and_removed(
    nsqlookupd: Nsqlookupd,
) -> None:
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
async def test_nsqlookupd_removes_an_nsqd_that_stops(nsqlookupd: Nsqlookupd) -> None:
    async with make_nsqd(lookupd_tcp_address=nsqlookupd.tcp_address) as nsqd:
        port = nsqd.tcp_port
        await eventually(lambda: port in nodes(nsqlookupd))
    await eventually(lambda: port not in nodes(nsqlookupd))


@asynchronous
async def test_stopping_does_not_wait_for_an_nsqlookupd_that_hangs(
    nsqlookupd: Nsqlookupd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_peer, "_FLUSH_TIMEOUT", 0.01)
    async with Proxy(nsqlookupd.tcp_address) as proxy:
        nsqd = make_nsqd(lookupd_tcp_address=proxy.address)
        set_timeouts(nsqd)
        async with asyncio.timeout(PATIENCE):
            async with nsqd:
                await nsqd.lookup_peers.registered()
                proxy.hang()
                nsqd.engine.topic(new_name(), nsqd.now())
        proxy.resume()


@asynchronous
async def test_everything_is_registered_with_a_restarted_nsqlookupd() -> None:
    topic, late = new_name(), new_name("late")
    with start_nsqlookupd() as first:
        async with make_nsqd(lookupd_tcp_address=first.tcp_address) as nsqd:
            nsqd.engine.topic(topic, nsqd.now()).channel("a", nsqd.now())
            await eventually(lambda: channels(first, topic) == ["a"])
            first.kill()
            nsqd.engine.topic(late, nsqd.now())
            nsqd.engine.topics[topic].delete_channel("a")
            with start_nsqlookupd(options=[f"-tcp-address={first.tcp_address}"]) as second:
                await eventually(lambda: lists(second, nsqd, topic) and lists(second, nsqd, late))
                assert channels(second, topic) == []


@asynchronous
async def test_an_nsqlookupd_that_hangs_delays_no_other(nsqlookupd: Nsqlookupd) -> None:
    topic = new_name()
    async with Proxy(nsqlookupd.tcp_address) as proxy:
        proxy.hang()
        addresses = [proxy.address, nsqlookupd.tcp_address]
        async with make_nsqd() as nsqd:
            set_timeouts(nsqd)
            nsqd.set_lookupd_addresses(addresses)
            await eventually(lambda: proxy.connections == 1)
            nsqd.engine.topic(topic, nsqd.now())
            await eventually(lambda: lists(nsqlookupd, nsqd, topic))
            assert proxy.to_server == 0


@asynchronous
async def test_an_nsqlookupd_that_hangs_is_dropped_and_retried(
    nsqlookupd: Nsqlookupd, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_name()
    async with Proxy(nsqlookupd.tcp_address) as proxy, make_nsqd() as nsqd:
        set_timeouts(nsqd, timeout=0.5)
        nsqd.set_lookupd_addresses([proxy.address])
        await eventually(lambda: nsqd.lookup_peers.http_addresses != ())
        proxy.hang()
        before = proxy.connections
        nsqd.engine.topic(topic, nsqd.now())
        await eventually(lambda: proxy.connections > before)
        assert f"LOOKUPD({proxy.address}): no answer within 0.5 s - trying again in" in caplog.text
        proxy.resume()
        await eventually(lambda: lists(nsqlookupd, nsqd, topic))


@asynchronous
async def test_a_lost_connection_is_noticed_at_once(nsqlookupd: Nsqlookupd) -> None:
    async with Proxy(nsqlookupd.tcp_address) as proxy, make_nsqd() as nsqd:
        set_timeouts(nsqd)
        nsqd.set_lookupd_addresses([proxy.address])
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))
        proxy.cut()
        await eventually(lambda: proxy.connections == 2)
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))


@asynchronous
async def test_nsqlookupd_receives_the_pings() -> None:
    with start_nsqlookupd() as lookupd:
        async with make_nsqd() as nsqd:
            set_timeouts(nsqd, ping_interval=0.05)
            nsqd.set_lookupd_addresses([lookupd.tcp_address])
            await asyncio.to_thread(lookupd.await_log, r"pinged \(last ping")


@asynchronous
async def test_changes_go_out_on_the_same_connection(nsqlookupd: Nsqlookupd) -> None:
    names = [new_name() for _ in range(10)]
    async with Proxy(nsqlookupd.tcp_address) as proxy, make_nsqd() as nsqd:
        set_timeouts(nsqd)
        nsqd.set_lookupd_addresses([proxy.address])
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))
        for name in names:
            nsqd.engine.topic(name, nsqd.now())
        await eventually(lambda: all(lists(nsqlookupd, nsqd, name) for name in names))
        assert proxy.connections == 1


@asynchronous
async def test_addresses_can_be_changed_while_it_runs() -> None:
    with start_nsqlookupd() as first, start_nsqlookupd() as second:
        async with make_nsqd(lookupd_tcp_address=first.tcp_address) as nsqd:
            await eventually(lambda: nsqd.tcp_port in nodes(first))
            nsqd.set_lookupd_addresses([second.tcp_address, second.tcp_address])
            await eventually(lambda: nsqd.tcp_port in nodes(second))
            await eventually(lambda: nsqd.tcp_port not in nodes(first))


@asynchronous
async def test_an_address_that_stays_keeps_its_connection(
    nsqlookupd: Nsqlookupd,
) -> None:
    async with Proxy(nsqlookupd.tcp_address) as proxy, make_nsqd() as nsqd:
        nsqd.set_lookupd_addresses([proxy.address])
        await eventually(lambda: nsqd.tcp_port in nodes(nsqlookupd))
        nsqd.set_lookupd_addresses([nsqlookupd.tcp_address, proxy.address])
        await eventually(lambda: len(nsqd.lookup_peers.http_addresses) == 2)
        assert proxy.connections == 1


@asynchronous
async def test_the_reason_why_nsqlookupd_refuses_nsqd_is_logged(
    nsqlookupd: Nsqlookupd, caplog: pytest.LogCaptureFixture
) -> None:
    address = nsqlookupd.tcp_address
    async with make_nsqd(lookupd_tcp_address=address, http_address=""):
        text = f"LOOKUPD({address}): E_BAD_BODY IDENTIFY missing fields - trying again in 0.25 s"
        await eventually(lambda: text in caplog.text)


@asynchronous
async def test_registration_is_logged_as_nsqd_logs_it(
    nsqlookupd: Nsqlookupd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nsqflow.broker.nsqd")
    old, new = new_name("old"), new_name("new")
    address = nsqlookupd.tcp_address
    async with make_nsqd() as nsqd:
        nsqd.engine.topic(old, nsqd.now())
        nsqd.set_lookupd_addresses([address])
        await eventually(lambda: lists(nsqlookupd, nsqd, old))
        nsqd.engine.topic(new, nsqd.now()).channel("a", nsqd.now())
        nsqd.engine.delete_topic(new)
        nsqd.set_lookupd_addresses([])
    host, _, port = nsqlookupd.http_address.rpartition(":")
    tcp_port = address.rpartition(":")[2]
    info = f"{{TCPPort:{tcp_port} HTTPPort:{port} Version:1.3.0 BroadcastAddress:{host}}}"
    lines = [line for line in caplog.messages if line.startswith("LOOKUP")]
    assert lines == [
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
async def test_every_nsqlookupd_is_asked_for_the_channels_of_a_topic() -> None:
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
async def test_an_nsqlookupd_that_does_not_answer_is_skipped(
    nsqlookupd: Nsqlookupd, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_name()
    nsqlookupd.ask(f"/channel/create?topic={topic}&channel=a", "POST")
    with start_nsqlookupd() as killed:
        async with make_nsqd() as nsqd:
            nsqd.set_lookupd_addresses([killed.tcp_address, nsqlookupd.tcp_address])
            await eventually(lambda: len(nsqd.lookup_peers.http_addresses) == 2)
            killed.kill()
            assert await nsqd.lookup_peers.channels_of(topic) == ["a"]
            assert (
                f"channels to pre-create for topic {topic} - {killed.http_address}" in caplog.text
            )


@asynchronous
async def test_nsqd_can_be_stopped_while_it_waits_for_a_reply(nsqlookupd: Nsqlookupd) -> None:
    async with Proxy(nsqlookupd.tcp_address) as proxy:
        proxy.hang()
        async with make_nsqd(lookupd_tcp_address=proxy.address):
            await eventually(lambda: proxy.open_connections == 1)
        proxy.resume()
        await eventually(lambda: proxy.open_connections == 0)
