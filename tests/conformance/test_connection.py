"""Connections of consumers and producers to the real nsqd: taken up, kept, lost and made again."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from nsqflow import Consumer, Message, Producer, admin
from nsqflow.errors import (
    BadMessageError,
    ConfigError,
    FinishFailedError,
    NetworkError,
    RequestTimeout,
    RequeueFailedError,
    SubscribeFailedError,
    TouchFailedError,
)
from tests.conformance.server_side import reading
from tests.fixtures.events import EventLog
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.servers import PATIENCE, Kind, Nsqd, Nsqlookupd, start_nsqd

HEARTBEAT = 4 + 4 + len(b"_heartbeat_")  # bytes

QUICK: Any = {"reconnect_delay": 0.05, "max_reconnect_delay": 0.2}

numbers = count(1)


@pytest.fixture
def topic() -> str:
    """A topic of the test's own, on an nsqd that it shares with others."""
    return f"connection_{next(numbers)}"


@pytest.fixture(scope="module")
def timely_nsqd(server_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that looks after the channel "c" of these topics from its first moment on.

    On a channel made later, messages time out up to five seconds late.
    """
    folder = tmp_path_factory.mktemp("timely-nsqd")
    with start_nsqd(folder, kind=server_kind) as server:
        for topic in ("timed_out", "too_late", "reset"):
            assert server.ask(f"/topic/create?topic={topic}", "POST")[0] == 200
            assert server.ask(f"/channel/create?topic={topic}&channel=c", "POST")[0] == 200
    with start_nsqd(folder, kind=server_kind) as server:
        yield server


async def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    async with Producer(nsqd.tcp_address) as producer:
        await producer.publish_many(topic, bodies)


async def receive(consumer: Consumer, number: int = 1) -> list[Message]:
    """Receive ``count`` messages, and finish them."""
    async with asyncio.timeout(PATIENCE):
        messages = [await anext(consumer) for _ in range(number)]
    for message in messages:
        message.finish()
    return messages


async def channel_of(nsqd: Nsqd, topic: str, channel: str = "c") -> admin.ChannelStats:
    async with admin.Nsqd(nsqd.http_address) as api:
        stats = await api.stats(topic, channel)
    return stats.topics[0].channels[0]


async def client_of(nsqd: Nsqd, topic: str) -> Any:
    """What nsqd knows of the one client of a channel."""
    (client,) = (await channel_of(nsqd, topic)).clients
    return client


async def settled(nsqd: Nsqd, topic: str, **wanted: int) -> admin.ChannelStats:
    """Wait until nsqd counts so for a channel; in its own time."""
    async with asyncio.timeout(PATIENCE):
        while True:
            channel = await channel_of(nsqd, topic)
            if all(getattr(channel, name) == value for name, value in wanted.items()):
                return channel


@asynccontextmanager
async def consuming(address: str, topic: str, **options: Any) -> Any:
    """A connected consumer, and what it says."""
    events = EventLog()
    options = QUICK | options
    async with Consumer(topic, "c", nsqd=address, on_event=events, **options) as consumer:
        await events.next("connected")
        yield consumer, events


# Taking up.


@pytest.mark.proves(rows=[1, 16, 21])
@asynchronous
async def test_nsqd_lists_its_subscribers(nsqd: Nsqd, topic: str) -> None:
    async with consuming(
        nsqd.tcp_address, topic, client_id="me", hostname="my.host", user_agent="mine/1.0"
    ) as (consumer, _):
        client = await client_of(nsqd, topic)
        assert (client["client_id"], client["hostname"]) == ("me", "my.host")
        assert (client["user_agent"], client["version"]) == ("mine/1.0", "V2")
        await publish(nsqd, topic, b"x")
        assert (await receive(consumer))[0].body == b"x"


@pytest.mark.proves(rows=[21])
@asynchronous
async def test_nsqd_lists_its_producers(nsqd: Nsqd, topic: str) -> None:
    async with Producer(nsqd.tcp_address, client_id=topic) as producer:
        await producer.publish(topic, b"x")
        producers = json.loads(nsqd.ask("/stats?format=json")[1])["producers"]
        (me,) = [each for each in producers if each["client_id"] == topic]
        assert re.fullmatch(r"nsqflow/\S+", me["user_agent"])
        assert me["pub_counts"] == [{"topic": topic, "count": 1}]


@pytest.mark.proves(rows=[17])
@asynchronous
async def test_a_channel_that_is_full_is_tried_again_visibly(
    server_kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = EventLog()
    options: Any = {**QUICK, "on_event": events}
    with start_nsqd(tmp_path, kind=server_kind, options=["-max-channel-consumers=1"]) as nsqd:
        async with (
            consuming(nsqd.tcp_address, "full") as (first, _),
            Consumer("full", "c", nsqd=nsqd.tcp_address, **options) as second,
        ):
            for _ in range(3):
                event = await events.next("connect_failed")
                assert isinstance(event.error, SubscribeFailedError)
            assert "E_SUB_FAILED" in caplog.text
            assert "E_SUB_FAILED" in second.explain()
            await first.close()
            await events.next("connected")
            await publish(nsqd, "full", b"x")
            assert (await receive(second))[0].body == b"x"


@pytest.mark.proves(rows=[18, 19])
@asynchronous
async def test_the_first_connection_may_fail_any_number_of_times(
    nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    events = EventLog()
    await publish(nsqd, topic, b"x")
    async with Proxy(nsqd.tcp_address) as proxy:
        proxy.refuse()
        options: Any = {**QUICK, "on_event": events}
        async with Consumer(topic, "c", nsqd=proxy.address, **options) as consumer:
            for _ in range(4):
                event = await events.next("connect_failed")
                assert event.nsqd == proxy.address
                assert isinstance(event.error, NetworkError)
                assert re.fullmatch(r"next try in \d\.\d s", event.text)
            reason = os.strerror(errno.ECONNREFUSED)
            assert f"no connection to {proxy.address}: {reason}; next try in " in caplog.text
            proxy.accept()
            await events.next("connected")
            assert (await receive(consumer))[0].body == b"x"


@pytest.mark.proves(rows=[18], wishes=[10])
@asynchronous
async def test_a_lost_connection_is_reopened_each_time(nsqd: Nsqd, topic: str) -> None:
    async with (
        Proxy(nsqd.tcp_address) as proxy,
        consuming(proxy.address, topic) as (consumer, events),
        Producer(proxy.address, **QUICK) as producer,
    ):
        for lose in (proxy.cut, proxy.reset) * 4:
            lose()
            await events.next("disconnected")
            await events.next("connected")
            await publish_somehow(producer, topic)
            assert (await receive(consumer))[0].body == b"x"


async def publish_somehow(producer: Producer, topic: str) -> None:
    """Publish, though the connection may be known to be lost a moment later."""
    try:
        await producer.publish(topic, b"x")
    except NetworkError:
        await producer.publish(topic, b"x")


# Here rather than on a scripted peer, since it is real nsqlookupd that forgets and names again.
@pytest.mark.proves(rows=[20])
@asynchronous
async def test_one_that_nsqlookupd_named_is_dialled_again_only_when_named_again(
    server_kind: Kind, tmp_path: Path, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    events, dialled = EventLog(), []

    def look_on(address: str) -> str:
        dialled.append(address)
        return address

    options: Any = {"lookupd_poll_interval": 0.05, "on_event": events, "address_map": look_on}
    with start_nsqd(tmp_path, kind=server_kind, lookupd=[nsqlookupd]) as nsqd:
        await publish(nsqd, topic, b"x")
        address = nsqd.tcp_address
        consumer = Consumer(topic, "c", lookupd=nsqlookupd.http_address, **QUICK, **options)
        await receive(consumer)
    async with consumer, admin.Lookupd(nsqlookupd.http_address) as api:
        await events.next("disconnected")
        while (await api.lookup(topic)).producers:  # nsqlookupd forgets it in its own time
            pass
        await asyncio.sleep(0.1)  # ... while it was still named it could still be dialled
        before = len(dialled)
        await asyncio.sleep(0.5)  # ten polls, and ten times the reconnect_delay
        assert len(dialled) == before
        options = [f"-tcp-address={address}"]
        with start_nsqd(tmp_path, kind=server_kind, lookupd=[nsqlookupd], options=options) as nsqd:
            await events.next("connected")
            await publish(nsqd, topic, b"y")
            while (await receive(consumer))[0].body != b"y":
                pass  # x comes again if nsqd had stopped before it read the FIN
    assert set(dialled) == {address}


# What IDENTIFY asks for.


@pytest.mark.proves(rows=[22, 28], wishes=[12])
@asynchronous
async def test_an_idle_client_stays_connected_by_answering_heartbeats(
    nsqd: Nsqd, topic: str
) -> None:
    async with (
        Proxy(nsqd.tcp_address) as one,
        Proxy(nsqd.tcp_address) as two,
        consuming(one.address, topic, heartbeat_interval=1) as (consumer, events),
        Producer(two.address, heartbeat_interval=1) as producer,
    ):
        await producer.publish(topic, b"x")
        await receive(consumer)
        heartbeats = [proxy.to_client + 4 * HEARTBEAT for proxy in (one, two)]
        answers = [proxy.to_server + 4 * len(b"NOP\n") for proxy in (one, two)]
        await eventually(lambda: [one.to_client, two.to_client] >= heartbeats)
        await eventually(lambda: [one.to_server, two.to_server] >= answers)
        await producer.publish(topic, b"y")
        assert (await receive(consumer))[0].body == b"y"
        assert (one.connections, two.connections, events.kinds) == (1, 1, ["connected"])


@pytest.mark.proves(rows=[23])
@asynchronous
async def test_output_is_buffered_as_asked_for(nsqd: Nsqd, topic: str) -> None:
    # Each in a channel of its own, so that all get the same message.
    wishes: dict[str, Any] = {
        "patient": {"output_buffer_timeout": 20, "output_buffer_size": 65536},
        "unlimited": {"output_buffer_timeout": -1, "output_buffer_size": 65536},
        "quick": {"output_buffer_timeout": 0.025, "output_buffer_size": 65536},
        "small": {"output_buffer_timeout": 20, "output_buffer_size": 64},
        "unbuffered": {"output_buffer_timeout": 20, "output_buffer_size": -1},
    }
    consumers = {
        channel: Consumer(topic, channel, nsqd=nsqd.tcp_address, **wish)
        for channel, wish in wishes.items()
    }
    async with Producer(nsqd.tcp_address) as producer:
        for consumer in consumers.values():
            # Until its RDY is above 1: at its RDY, nsqd sends without delay.
            async with reading(consumer):
                await eventually(lambda c=consumer: rdy(c) > 1)  # type: ignore[misc]
        await producer.publish(topic, bytes(1000))
        for channel in ("quick", "small", "unbuffered"):
            await receive(consumers[channel])
        for channel in ("patient", "unlimited"):
            while not (await channel_of(nsqd, topic, channel)).in_flight_count:
                pass  # not yet even in the buffer
            assert consumers[channel].stats().counts.received == 0
    for consumer in consumers.values():
        await consumer.close()


def rdy(consumer: Consumer) -> int:
    return sum(each.rdy for each in consumer.stats().connections)


@pytest.mark.proves(rows=[24])
@asynchronous
async def test_a_message_is_delivered_again_after_the_timeout_asked_for(timely_nsqd: Nsqd) -> None:
    await publish(timely_nsqd, "timed_out", b"x")
    async with consuming(timely_nsqd.tcp_address, "timed_out", msg_timeout=1) as (consumer, _):
        async with asyncio.timeout(PATIENCE):
            first = await anext(consumer)
            assert time.monotonic() < first.deadline <= time.monotonic() + 1
            again = await anext(consumer)
        assert (first.attempts, again.attempts, again.id) == (1, 2, first.id)
        assert time.monotonic() > first.deadline - 0.05  # not before, by two clocks
        again.finish()
        await consumer.close(drain_timeout=0)


@pytest.mark.proves(rows=[25])
@asynchronous
async def test_a_sample_is_part_of_the_messages(nsqd: Nsqd, topic: str) -> None:
    async with consuming(nsqd.tcp_address, topic, sample_rate=50) as (consumer, _):
        assert (await client_of(nsqd, topic))["sample_rate"] == 50
        running = asyncio.create_task(consumer.run(lambda message: None, signals=False))
        await publish(nsqd, topic, *(b"%d" % number for number in range(1000)))
        await settled(nsqd, topic, message_count=1000, depth=0, in_flight_count=0)
        await consumer.close()
        await running
        assert 300 < consumer.stats().counts.finished < 700


REFUSED = [
    ("heartbeat_interval", 3600, "heartbeat interval (3600000) is invalid"),
    ("output_buffer_size", 10**9, "output buffer size (1000000000) is invalid"),
    ("output_buffer_timeout", 0.001, "output buffer timeout (1) is invalid"),
    ("msg_timeout", 10**6, "msg timeout (1000000000) is invalid"),
]


@pytest.mark.proves(rows=[31])
@pytest.mark.parametrize(("name", "value", "words"), REFUSED)
@asynchronous
async def test_what_nsqd_refuses_is_raised_with_its_text(
    nsqd: Nsqd, topic: str, name: str, value: float, words: str
) -> None:
    options: Any = {name: value}
    said = re.escape(f"{nsqd.tcp_address} refused the options: E_BAD_BODY ") + ".*"
    said += re.escape(words)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ConfigError, match=said):
            async for _ in Consumer(topic, "c", nsqd=nsqd.tcp_address, **options):
                raise AssertionError("a message")
        consumer = Consumer(topic, "c", nsqd=nsqd.tcp_address, **options)
        with pytest.raises(ConfigError, match=said):
            await consumer.run(lambda message: None, signals=False)
        async with Producer(nsqd.tcp_address, **options) as producer:
            with pytest.raises(ConfigError, match=said):
                await producer.publish(topic, b"x")


@pytest.mark.proves(rows=[27])
@asynchronous
async def test_no_nsqd_gets_more_rdy_than_it_takes(server_kind: Kind, tmp_path: Path) -> None:
    with start_nsqd(tmp_path, kind=server_kind, options=["-max-rdy-count=10"]) as nsqd:
        await publish(nsqd, "limited", *(b"%d" % number for number in range(100)))
        async with consuming(nsqd.tcp_address, "limited", max_in_flight=500) as (consumer, events):
            for _ in range(50):
                await receive(consumer)
            await eventually(lambda: consumer.stats().connections[0].rdy == 10)
            for _ in range(50):
                await receive(consumer)
            await settled(nsqd, "limited", depth=0, in_flight_count=0)
            assert (await client_of(nsqd, "limited"))["ready_count"] == 10
            assert events.kinds == ["connected"]


# Silence and delay.


@pytest.mark.proves(rows=[29])
@asynchronous
async def test_a_peer_that_falls_silent_is_left_and_dialled_again(nsqd: Nsqd, topic: str) -> None:
    async with (
        Proxy(nsqd.tcp_address) as proxy,
        consuming(proxy.address, topic, heartbeat_interval=1, dial_timeout=1) as (consumer, events),
        Producer(proxy.address, heartbeat_interval=1, on_event=events, **QUICK),
    ):
        await events.next("connected")
        proxy.hang()
        for _ in ("the consumer", "the producer"):
            event = await events.next("disconnected")
            assert re.search(r"silent for \d+ s, heartbeats missing", event.text)
        proxy.resume()
        await events.next("connected")
        await events.next("connected")
        await publish(nsqd, topic, b"x")
        assert (await receive(consumer))[0].body == b"x"


@pytest.mark.proves(wishes=[9])
@pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_a_loop_that_was_blocked_for_too_long_connects_again(
    nsqd: Nsqd, topic: str, uvloop: bool
) -> None:
    async def be_blocked() -> None:
        async with consuming(nsqd.tcp_address, topic, heartbeat_interval=1) as (consumer, events):
            time.sleep(3.2)  # noqa: ASYNC251 - nsqd gives us up after two heartbeats
            await events.next("disconnected")
            await events.next("connected")
            await publish(nsqd, topic, b"x")
            assert (await receive(consumer))[0].body == b"x"

    asynchronous(uvloop=uvloop)(be_blocked)()


# Errors.


@pytest.mark.proves(rows=[30, 32], defects=[9])
@asynchronous
async def test_a_late_answer_is_counted_and_logged_and_consuming_continues(
    timely_nsqd: Nsqd, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(timely_nsqd, "too_late", b"a", b"b", b"c")
    async with consuming(
        timely_nsqd.tcp_address, "too_late", msg_timeout=1, default_requeue_delay=0
    ) as (consumer, events):
        async with asyncio.timeout(PATIENCE):
            messages = [await anext(consumer) for _ in range(3)]
        consumer.pause()  # else they came again to this consumer, and could be answered
        await settled(timely_nsqd, "too_late", timeout_count=3, in_flight_count=0)
        messages[0].finish()
        messages[1].requeue(0, backoff=False)
        messages[2].touch()
        kinds = (FinishFailedError, RequeueFailedError, TouchFailedError)
        failed = [(await events.next("answer_failed")) for _ in kinds]
        assert {type(event.error) for event in failed} == set(kinds)
        assert consumer.stats().counts.refused == 3
        for message, command in zip(messages, ("FIN", "REQ", "TOUCH"), strict=True):
            assert re.search(
                rf"refused {command}: E_{command}_FAILED .*{re.escape(repr(message.id))}",
                caplog.text,
            )
        messages[2].finish()
        consumer.resume()
        again = await receive(consumer, 3)
        assert {message.attempts for message in again} == {2}
        await settled(timely_nsqd, "too_late", depth=0, in_flight_count=0)
        assert "disconnected" not in events.kinds


@pytest.mark.proves(rows=[31])
@asynchronous
async def test_a_fatal_error_comes_out_of_publish_and_the_next_one_works(
    server_kind: Kind, tmp_path: Path
) -> None:
    with start_nsqd(tmp_path, kind=server_kind, options=["-max-msg-size=100"]) as nsqd:
        async with Producer(nsqd.tcp_address, **QUICK) as producer:
            for _ in range(2):
                with pytest.raises(BadMessageError, match="E_BAD_MESSAGE"):
                    await producer.publish("small", bytes(101))
                await producer.publish("small", bytes(100))


@pytest.mark.proves(defects=[1])
@pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_a_reset_costs_no_more_than_a_new_connection(nsqd: Nsqd, topic: str, uvloop: bool) -> None:
    async def be_reset() -> None:
        pause: Any = {"reconnect_delay": 0.5, "max_reconnect_delay": 0.5}
        async with (
            Proxy(nsqd.tcp_address) as proxy,
            consuming(proxy.address, topic, **pause) as (consumer, events),
        ):
            proxy.refuse()
            proxy.reset()
            await events.next("connect_failed")
            busy = time.process_time()
            await events.next("connect_failed")  # the loop turns, and it has nothing to do
            assert time.process_time() - busy < 0.3
            proxy.accept()
            await events.next("connected")
            await publish(nsqd, topic, b"x")
            assert (await receive(consumer))[0].body == b"x"

    asynchronous(uvloop=uvloop)(be_reset)()


@pytest.mark.proves(defects=[1])
@asynchronous
async def test_resets_at_any_time_lose_nothing(timely_nsqd: Nsqd) -> None:
    bodies = [b"%d" % number for number in range(300)]
    received: set[bytes] = set()
    resets = iter(range(20, 300, 40))
    due = next(resets)
    async with (
        Proxy(timely_nsqd.tcp_address) as proxy,
        # Few at a time, so that a reset finds some not even sent.
        consuming(proxy.address, "reset", msg_timeout=1, max_in_flight=10) as (consumer, events),
    ):
        await publish(timely_nsqd, "reset", *bodies)
        async with asyncio.timeout(PATIENCE):
            while len(received) < len(bodies):
                received |= {message.body for message in await receive(consumer)}
                if len(received) >= due:
                    proxy.reset()
                    await events.next("disconnected")
                    due = next(resets, len(bodies) + 1)
    assert received == set(bodies)
    assert events.kinds.count("disconnected") >= 7


@pytest.mark.parametrize("size", [*range(1, 30, 4), *range(30, 420, 65), *range(420, 520, 9)])
@asynchronous
async def test_a_connection_that_ends_at_any_byte_is_reopened(
    nsqd: Nsqd, topic: str, size: int
) -> None:
    await publish(nsqd, topic, b"a", b"b")
    async with Proxy(nsqd.tcp_address) as proxy:
        proxy.limit(size)
        # At once, and not after a minute, they come from the connection that was cut.
        options: Any = {**QUICK, "msg_timeout": 1, "max_in_flight": 1}
        async with Consumer(topic, "c", nsqd=proxy.address, **options) as consumer:
            bodies: set[bytes] = set()
            while bodies != {b"a", b"b"}:
                bodies |= {message.body for message in await receive(consumer)}
            await eventually(lambda: consumer.stats().outstanding == 0)


@asynchronous
async def test_a_slow_connection_is_served(nsqd: Nsqd, topic: str) -> None:
    async with Proxy(nsqd.tcp_address) as proxy:
        proxy.delay = 0.1
        async with (
            consuming(proxy.address, topic) as (consumer, events),
            Producer(proxy.address) as producer,
        ):
            await asyncio.gather(*(producer.publish(topic, b"%d" % n) for n in range(50)))
            assert len(await receive(consumer, 50)) == 50
            assert events.kinds == ["connected"]


@asynchronous
async def test_a_publish_over_a_connection_that_hangs_is_not_sent(nsqd: Nsqd, topic: str) -> None:
    async with Proxy(nsqd.tcp_address) as proxy:
        proxy.hang()
        options: Any = {**QUICK, "dial_timeout": 0.1}
        async with Producer(proxy.address, **options) as producer:
            with pytest.raises((NetworkError, RequestTimeout), match="not sent"):
                await producer.publish(topic, b"x", timeout=0.3)
            proxy.resume()
            await producer.publish(topic, b"x")


# Where nsqd is.


@pytest.mark.proves(wishes=[29])
@asynchronous
async def test_a_name_is_resolved_again_for_each_connection(
    nsqd: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, resolve = asyncio.get_running_loop(), asyncio.get_running_loop().getaddrinfo
    asked: list[str] = []

    async def move(host: Any, port: Any, **hints: Any) -> Any:
        asked.append(host)
        # Twice it is a closed port.
        return await resolve("127.0.0.1" if len(asked) > 2 else "127.0.0.2", port, **hints)

    monkeypatch.setattr(loop, "getaddrinfo", move)
    await publish(nsqd, topic, b"x")
    port = nsqd.tcp_address.rpartition(":")[2]
    async with consuming(f"nsqd.example:{port}", topic) as (consumer, events):
        assert (await receive(consumer))[0].nsqd == f"nsqd.example:{port}"
    assert events.kinds[:3] == ["connect_failed", "connect_failed", "connected"]
    assert asked == ["nsqd.example"] * 3


@pytest.mark.proves(wishes=[29])
@pytest.mark.parametrize("kind", ["address", "host", "function"])
@asynchronous
async def test_an_address_that_means_nothing_here_leads_where_the_map_says(
    nsqd: Nsqd, topic: str, kind: str
) -> None:
    host, _, port = nsqd.tcp_address.rpartition(":")
    known_as = f"nsqd-0.cluster.local:{port}"
    asked: list[str] = []

    def look_up(address: str) -> str:
        asked.append(address)
        return nsqd.tcp_address

    maps: dict[str, Any] = {
        "address": {known_as: nsqd.tcp_address},
        "host": {"nsqd-0.cluster.local": host},
        "function": look_up,
    }
    async with Producer(known_as, address_map=maps[kind]) as producer:
        await producer.publish(topic, b"x")
    async with consuming(known_as, topic, address_map=maps[kind]) as (consumer, _):
        assert (await receive(consumer))[0].nsqd == known_as
    assert asked == ([known_as] * 2 if kind == "function" else [])


@pytest.mark.proves(wishes=[29])
@asynchronous
async def test_what_nsqlookupd_names_is_mapped_too(
    server_kind: Kind, tmp_path: Path, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    options = ["-broadcast-address=nsqd-0.cluster.local"]
    with start_nsqd(tmp_path, kind=server_kind, lookupd=[nsqlookupd], options=options) as nsqd:
        await publish(nsqd, topic, b"x")
        mapping = {"nsqd-0.cluster.local": "127.0.0.1"}
        lookupd = nsqlookupd.http_address
        async with Consumer(topic, "c", lookupd=lookupd, address_map=mapping) as consumer:
            (message,) = await receive(consumer)
            assert message.nsqd.startswith("nsqd-0.cluster.local:")
        async with Producer(lookupd=lookupd, address_map=mapping) as producer:
            await producer.publish(topic, b"y")


@asynchronous
async def test_a_map_that_fails_is_named() -> None:
    known = {"somewhere:4150": "127.0.0.1:4150"}
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ConfigError, match="address_map raised KeyError"):
            await anext(Consumer("t", "c", nsqd="elsewhere:4150", address_map=known.__getitem__))
        async with Producer("elsewhere:4150", address_map=known.__getitem__) as producer:
            with pytest.raises(ConfigError, match="address_map raised KeyError"):
                await producer.publish("t", b"x")


@asynchronous
async def test_a_closed_producer_has_no_connection(nsqd: Nsqd, topic: str) -> None:
    async with Proxy(nsqd.tcp_address) as proxy:
        async with Producer(proxy.address, connections_per_nsqd=3) as producer:
            await producer.publish(topic, b"x")
            await eventually(lambda: proxy.open_connections == 3)
        await eventually(lambda: proxy.open_connections == 0)
        assert proxy.connections == 3
