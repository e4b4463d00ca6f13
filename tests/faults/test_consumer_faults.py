"""A consumer when the network or nsqd fails: nothing is lost, nothing is held forever."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Final, TypedDict

import pytest

from nsqflow import ClientEvent, Consumer, Message
from nsqflow import protocol as nsq
from nsqflow.errors import NsqError
from tests.conformance.server_side import (
    bodies_from,
    channel_stats,
    kinds,
    publish,
    rdy_counts,
    reading,
    take,
    topic_of,
)
from tests.fixtures.loops import CLOSE, HANG, asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.scripted import Connection, ScriptedNsqd
from tests.fixtures.servers import PATIENCE, Nsqd, Server, start_nsqd


class Delays(TypedDict):
    reconnect_delay: float
    max_reconnect_delay: float


FAST: Final[Delays] = {"reconnect_delay": 0.05, "max_reconnect_delay": 0.1}
TIMELY = ("cut", "random")


@pytest.fixture(scope="module")
def timely_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that looks after the channel "ch" of these topics from its first moment on.

    On a new channel it would notice only after five seconds that messages have timed out.
    """
    folder = tmp_path_factory.mktemp("timely-nsqd")
    with start_nsqd(folder) as server:
        for topic in TIMELY:
            assert server.ask(f"/topic/create?topic={topic}", "POST")[0] == 200
            assert server.ask(f"/channel/create?topic={topic}&channel=ch", "POST")[0] == 200
    with start_nsqd(folder) as server:
        yield server


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


def same_ports(server: Server) -> list[str]:
    return [f"-tcp-address={server.tcp_address}", f"-http-address={server.http_address}"]


def connected(consumer: Consumer) -> int:
    return sum(connection.connected for connection in consumer.stats().connections)


# --- connections lost with outstanding messages


@pytest.mark.proves(wishes=[14])
@asynchronous
async def test_outstanding_messages_of_a_lost_connection_count_until_they_are_answered(
    timely_nsqd: Nsqd, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[ClientEvent] = []
    async with (
        Proxy(timely_nsqd.tcp_address) as proxy,
        Consumer(
            "cut",
            "ch",
            nsqd=proxy.address,
            max_in_flight=3,
            msg_timeout=1,
            reconnect_delay=0.05,
            on_event=events.append,
        ) as consumer,
    ):
        await publish(timely_nsqd, "cut", b"a", b"b", b"c")
        held = await take(consumer, 2)
        await eventually(lambda: consumer.stats().queued == 1)
        proxy.cut()
        await eventually(lambda: kinds(events).count("connected") == 2)
        stats = consumer.stats()
        assert (stats.outstanding, stats.queued) == (2, 0), "what was not handed out is dropped"
        # Only one more may come, whatever nsqd has.
        await eventually(lambda: rdy_counts([timely_nsqd], "cut") == [1])
        [third] = await take(consumer, 1)
        assert (third.attempts, consumer.stats().outstanding) == (2, 3)
        for message in held:
            message.finish()
        await eventually(lambda: consumer.stats().counts.orphaned == 2)
        assert f"2 messages of {proxy.address} answered after it was lost" in caplog.text
        third.finish()
        again = await take(consumer, 2)
        assert sorted([third.body, *(m.body for m in again)]) == [b"a", b"b", b"c"]
        assert {message.attempts for message in again} == {2}
        for message in again:
            message.finish()
        await eventually(lambda: rdy_counts([timely_nsqd], "cut") == [3])
        await eventually(lambda: consumer.stats().counts.finished == 3)


@pytest.mark.proves(wishes=[13])
@asynchronous
async def test_rdy_comes_back_after_lost_messages_had_used_up_all_that_is_allowed(
    nsqd: Nsqd, topic: str
) -> None:
    async with (
        Proxy(nsqd.tcp_address) as proxy,
        Consumer(
            topic, "ch", nsqd=proxy.address, max_in_flight=2, reconnect_delay=0.05
        ) as consumer,
    ):
        await publish(nsqd, topic, b"a", b"b")
        held = await take(consumer, 2)
        proxy.reset()
        await eventually(lambda: proxy.connections == 2 and connected(consumer) == 1)
        await publish(nsqd, topic, b"c")
        assert rdy_counts([nsqd], topic) == [0]
        assert consumer.stats().queued == 0
        for message in held:
            message.requeue(0, backoff=False)
        assert await bodies_from(consumer, 1) == [b"c"]
        await eventually(lambda: rdy_counts([nsqd], topic) == [2])


@asynchronous
async def test_an_answer_to_a_lost_connection_counts_for_backoff(nsqd: Nsqd, topic: str) -> None:
    async with (
        Proxy(nsqd.tcp_address) as proxy,
        Consumer(topic, "ch", nsqd=proxy.address, **FAST) as consumer,
    ):
        await publish(nsqd, topic, b"a")
        [message] = await take(consumer, 1)
        proxy.cut()
        await eventually(lambda: proxy.connections == 2)
        message.requeue()
        await eventually(lambda: consumer.stats().backoff_level == 1)


FRESH = nsq.Message(timestamp=0, attempts=1, id=b"f" * 16, body=b"fresh")
EXHAUSTED = [
    nsq.Message(timestamp=0, attempts=9, id=b"%016d" % number, body=b"%d" % number)
    for number in range(3)
]


@pytest.mark.parametrize("end", ["lost", "closed"])
@asynchronous
async def test_messages_that_wait_to_be_given_up_are_dropped_or_requeued(end: str) -> None:
    # Scripted: no need to wait for a message to wear out.
    given_up: list[bytes] = []
    async with (
        ScriptedNsqd() as peer,
        Consumer(
            "orders",
            "ch",
            nsqd=peer.address,
            max_in_flight=1,
            on_giving_up=lambda message, _: given_up.append(message.body),
            **FAST,
        ) as consumer,
    ):
        async with reading(consumer):
            await peer.received(nsq.Rdy)
        peer.connections[0].send_messages([FRESH])
        [message] = await take(consumer, 1)
        peer.connections[0].send_messages(EXHAUSTED)  # they wait for max_in_flight
        await eventually(lambda: consumer.stats().counts.received == 4)
        if end == "lost":
            peer.connections[0].reset()
            await peer.received(nsq.Sub)
            await peer.received(nsq.Sub)
            message.finish()
            await peer.received(lambda command: command == nsq.Rdy(1))
        else:
            closing = asyncio.create_task(consumer.close())
            await peer.received(nsq.Cls)
            message.finish()
            async with asyncio.timeout(PATIENCE):
                assert (await closing).requeued == 3
        assert consumer.stats().outstanding == 0
        assert given_up == []


# --- nsqd ends and comes back


@asynchronous
async def test_a_restart_of_nsqd_loses_nothing(tmp_path: Path, topic: str) -> None:
    seen: Counter[bytes] = Counter()
    all_of_them = {b"%d" % i for i in range(300)}

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.001)
        seen[message.body] += 1

    nsqd = start_nsqd(tmp_path)
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=20, **FAST) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=5, signals=False))
        with nsqd:
            await publish(nsqd, topic, *all_of_them)
            await eventually(lambda: len(seen) > 20)
            await asyncio.to_thread(nsqd.stop)
        with start_nsqd(tmp_path, options=same_ports(nsqd)) as again:
            await eventually(lambda: len(seen) == 300)
            await publish(again, topic, b"after the restart")
            await eventually(lambda: b"after the restart" in seen)
            await consumer.close()
            await running
            assert channel_stats(again, topic)["depth"] == 0
    assert set(seen) == all_of_them | {b"after the restart"}


@asynchronous
async def test_a_crash_of_nsqd_is_survived(tmp_path: Path, topic: str) -> None:
    events: list[ClientEvent] = []
    nsqd = start_nsqd(tmp_path)
    async with Consumer(
        topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=5, on_event=events.append, **FAST
    ) as consumer:
        with nsqd:
            await publish(nsqd, topic, *(b"%d" % i for i in range(5)))
            held = await take(consumer, 3)
            nsqd.kill()
        await eventually(lambda: "connect_failed" in kinds(events))
        assert consumer.stats().queued == 0
        for message in held:
            message.finish()
        with start_nsqd(tmp_path, options=same_ports(nsqd)) as again:
            # What nsqd had in memory only is gone with it.
            await publish(again, topic, b"new")
            while await bodies_from(consumer, 1) != [b"new"]:
                pass
            await eventually(lambda: rdy_counts([again], topic) == [5])
            assert consumer.stats().counts.orphaned == 3


@pytest.mark.proves(wishes=[10, 13])
@asynchronous
async def test_an_nsqd_that_closes_again_and_again_is_dialled_less_and_less_often() -> None:
    # Scripted: SUB is taken, and the connection closed; no real one does so all the time.
    def welcome_and_close(connection: Connection, _: nsq.Sub) -> None:
        connection.send_response()
        connection.close()

    async with ScriptedNsqd() as peer:
        peer.on(nsq.Sub, [welcome_and_close] * 4)
        async with (
            Consumer(
                "orders", "ch", nsqd=peer.address, max_in_flight=7, reconnect_delay=0.1
            ) as consumer,
            reading(consumer),
        ):
            times = []
            for _ in range(5):
                await peer.received(nsq.Sub)
                times.append(asyncio.get_running_loop().time())
            # 0.1, 0.2, 0.4, 0.8 s, each a quarter shorter at most; four times 0.1 would be 0.4.
            assert times[4] - times[0] > 0.75 * 1.5 - 0.1
            await peer.received(lambda command: command == nsq.Rdy(7))
            assert connected(consumer) == 1, "and nothing is left of those before"


@asynchronous
async def test_many_consumers_of_one_nsqd_all_come_back(nsqd: Nsqd, topic: str) -> None:
    async with Proxy(nsqd.tcp_address) as proxy:
        consumers = [
            Consumer(topic, f"ch{i}", nsqd=proxy.address, max_in_flight=3, **FAST)
            for i in range(20)
        ]
        for consumer in consumers:
            await consumer.__aenter__()
        made = 20
        for cut in (proxy.cut, proxy.reset, proxy.cut):
            await _all_connected(consumers, proxy, made)
            made = proxy.connections + 20
            cut()
        await _all_connected(consumers, proxy, made)
        await publish(nsqd, topic, b"to all")
        for consumer in consumers:
            assert await bodies_from(consumer, 1) == [b"to all"]
        await asyncio.gather(*(consumer.close() for consumer in consumers))


async def _all_connected(consumers: list[Consumer], proxy: Proxy, made: int) -> None:
    await eventually(lambda: proxy.connections >= made)
    await eventually(lambda: all(map(connected, consumers)))


# --- slowness and silence


@asynchronous
async def test_a_slow_consumer_keeps_its_connection_and_takes_no_more_than_it_may(
    nsqd: Nsqd, topic: str
) -> None:
    await publish(nsqd, topic, *(b"%04d" % i * 1000 for i in range(500)))
    async with (
        Proxy(nsqd.tcp_address) as proxy,
        Consumer(
            topic, "ch", nsqd=proxy.address, max_in_flight=4, heartbeat_interval=1
        ) as consumer,
    ):
        held = await take(consumer, 4)
        # nsqd closes a connection that is silent for two of its heartbeats.
        sent = proxy.to_server
        nops = 4 * len(nsq.Nop().encode())
        await eventually(lambda: proxy.to_server >= sent + nops)
        stats = consumer.stats()
        assert (stats.outstanding, stats.queued, stats.counts.received) == (4, 0, 4)
        assert (proxy.connections, connected(consumer)) == (1, 1)
        for message in held:
            message.finish()
        await bodies_from(consumer, 496)


@asynchronous
async def test_a_connection_that_hangs_is_replaced(nsqd: Nsqd, topic: str) -> None:
    events: list[ClientEvent] = []
    async with (
        Proxy(nsqd.tcp_address) as proxy,
        Consumer(
            topic,
            "ch",
            nsqd=proxy.address,
            heartbeat_interval=1,
            dial_timeout=0.5,
            on_event=events.append,
            **FAST,
        ) as consumer,
    ):
        await eventually(lambda: connected(consumer) == 1)
        proxy.hang()
        await eventually(lambda: "disconnected" in kinds(events))
        assert "silent for" in next(each.text for each in events if each.kind == "disconnected")
        await eventually(lambda: "connect_failed" in kinds(events))
        proxy.cut()
        proxy.resume()
        await publish(nsqd, topic, b"again")
        assert await bodies_from(consumer, 1) == [b"again"]


# --- nsqd that break the protocol


@asynchronous
async def test_unrequested_messages_end_the_connection_and_nothing_else() -> None:
    # Scripted: nsqd sends nothing before the first RDY.
    early = nsq.Message(timestamp=0, attempts=1, id=b"e" * 16, body=b"early")

    def push(connection: Connection, _: nsq.Sub) -> None:
        connection.transport.pause_reading()
        connection.session.send_response(b"OK")
        connection.send_messages([early])  # in one piece with the OK

    events: list[ClientEvent] = []
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Sub, [push])
        async with (
            Consumer(
                "orders", "ch", nsqd=peer.address, max_in_flight=3, on_event=events.append, **FAST
            ) as consumer,
            reading(consumer),
        ):
            await peer.received(nsq.Sub)
            await peer.received(nsq.Sub)
            await peer.received(lambda command: command == nsq.Rdy(3))
            errors = {str(each.error) for each in events if each.error is not None}
            assert errors == {"messages before the first RDY"}
            assert consumer.stats().counts.received == 0


@asynchronous
async def test_more_than_rdy_allows_waits_and_is_not_handed_out() -> None:
    # Scripted: nsqd keeps to RDY.
    messages = [
        nsq.Message(timestamp=0, attempts=1, id=b"%016d" % number, body=b"x")
        for number in range(10)
    ]
    async with (
        ScriptedNsqd() as peer,
        Consumer("orders", "ch", nsqd=peer.address, max_in_flight=2) as consumer,
    ):
        async with reading(consumer):
            await peer.received(nsq.Rdy)
        peer.connections[0].send_messages(messages)
        held = await take(consumer, 2)
        third = asyncio.create_task(anext(consumer))
        await asyncio.wait([third], timeout=0.05)
        assert not third.done()
        assert consumer.stats().queued == 8
        held[0].finish()
        for message in (held[1], await third):
            message.finish()
        for _ in range(7):
            [message] = await take(consumer, 1)
            message.finish()


@asynchronous
async def test_an_nsqd_that_ignores_rdy_is_left_before_it_fills_the_memory(topic: str) -> None:
    # Scripted: nsqd keeps to RDY.
    sent = 0

    def ignore_rdy(connection: Connection, _: nsq.Rdy) -> None:
        nonlocal sent
        for _batch in range(100):
            connection.send_messages(
                nsq.Message(timestamp=0, attempts=1, id=b"%016d" % (sent + number), body=b"x" * 99)
                for number in range(100)
            )
            sent += 100

    events: list[ClientEvent] = []
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Rdy, [ignore_rdy])
        consumer = Consumer(
            topic, "ch", nsqd=peer.address, max_in_flight=10, on_event=events.append
        )
        async with consumer:
            held = await take(consumer, 1)
            await eventually(lambda: "disconnected" in kinds(events))
            [error] = [str(each.error) for each in events if each.kind == "disconnected"]
            assert re.fullmatch(
                rf"{peer.address} ignores RDY: \d+ messages in flight, at most 1 were asked for",
                error,
            )
            assert consumer.stats().counts.received <= 3000  # 1000, and what was read with it
            assert consumer.stats().queued == 0
            held[0].finish()


@asynchronous
async def test_messages_that_expire_unread_leave_nothing_in_memory(topic: str) -> None:
    # Scripted: it sends what was not asked for, few enough not to be left for it.
    numbers = count()

    def send(connection: Connection) -> None:
        connection.send_messages(
            nsq.Message(timestamp=0, attempts=1, id=b"%016d" % next(numbers), body=b"x")
            for _ in range(500)
        )

    async with (
        ScriptedNsqd(reply=nsq.IdentifyReply(msg_timeout=200)) as peer,
        Consumer(topic, "ch", nsqd=peer.address, max_in_flight=1) as consumer,
    ):
        first = asyncio.create_task(take(consumer, 1))
        await peer.received(nsq.Rdy)
        send(peer.connections[0])
        held = await first
        for expired in range(500, 3000, 500):
            await eventually(lambda n=expired: consumer.stats().counts.expired >= n - 1)  # type: ignore[misc]
            send(peer.connections[0])
        assert consumer._coordinator is not None
        [subscription] = consumer._coordinator.subscriptions.values()
        assert len(subscription._held) <= 2 * 500 + 32
        held[0].finish()


@asynchronous
async def test_an_nsqd_that_announces_no_timeout_does_not_end_the_others(
    nsqd: Nsqd, topic: str
) -> None:
    await publish(nsqd, topic, *[b"x"] * 20)
    async with ScriptedNsqd(reply=nsq.IdentifyReply(msg_timeout=0)) as peer:
        servers = [nsqd.tcp_address, peer.address]
        async with Consumer(topic, "ch", nsqd=servers) as consumer:
            for message in await take(consumer, 20):
                message.finish()


@asynchronous
async def test_one_nsqd_that_refuses_for_good_ends_the_consumer_and_stops_the_others(
    nsqd: Nsqd, topic: str
) -> None:
    # Scripted: of two real ones, both would refuse.
    async with ScriptedNsqd() as strict:
        refusal = b"E_UNAUTHORIZED AUTH failed for SUB"
        strict.on(nsq.Sub, lambda connection, _: connection.send_error(refusal))
        servers = [nsqd.tcp_address, strict.address]
        async with Consumer(topic, "ch", nsqd=servers, max_in_flight=4) as consumer:
            with pytest.raises(NsqError, match="E_UNAUTHORIZED"):
                async with asyncio.timeout(PATIENCE):
                    await anext(consumer)
            await eventually(lambda: connected(consumer) == 1)
            await eventually(lambda: rdy_counts([nsqd], topic) == [0])
            await publish(nsqd, topic, b"not for us")
            await eventually(lambda: channel_stats(nsqd, topic)["depth"] == 1)
            assert channel_stats(nsqd, topic)["requeue_count"] == 0


# --- closing in the midst of it


@pytest.mark.parametrize("moment", ["dialling", "waiting", "hanging", "throwing out"])
@asynchronous
async def test_closing_leaves_nothing_behind_whatever_the_connection_does(moment: str) -> None:
    # That no task is left is seen to by @asynchronous.
    async with ScriptedNsqd() as peer:
        events: list[ClientEvent] = []
        consumer = Consumer("orders", "ch", nsqd=peer.address, on_event=events.append)
        if moment == "dialling":
            peer.on(nsq.Identify, HANG)
        elif moment == "waiting":
            await peer.stop()
        elif moment == "hanging":
            peer.on(nsq.Cls, HANG)
        else:
            peer.on(nsq.Cls, CLOSE)
        async with consumer, asyncio.timeout(PATIENCE):
            if moment == "dialling":
                await peer.received(nsq.Identify)
            elif moment == "waiting":
                await eventually(lambda: kinds(events) == ["connect_failed"])
            else:
                async with reading(consumer):
                    await peer.received(nsq.Rdy)
            drained = await consumer.close()
    assert (drained.handled, drained.requeued, drained.abandoned) == (0, 0, 0)


@asynchronous
async def test_orphans_do_not_keep_a_consumer_from_closing(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, b"a")
    async with Proxy(nsqd.tcp_address) as proxy:
        consumer = Consumer(topic, "ch", nsqd=proxy.address)
        [message] = await take(consumer, 1)
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: connected(consumer) == 0)
        drained = await consumer.close(drain_timeout=0.1)
        assert (drained.handled, drained.requeued, drained.abandoned) == (0, 0, 0)
        message.finish()  # no harm: it is late
        await eventually(lambda: consumer.stats().counts.orphaned == 1)


# --- all of it at once


@pytest.mark.proves(wishes=[9, 10, 13, 14])
@asynchronous
async def test_under_random_faults_every_message_is_seen_and_never_too_many_at_once(
    timely_nsqd: Nsqd,
) -> None:
    random = Random()
    seed = random.randrange(10**9)
    random.seed(seed)
    seen: Counter[bytes] = Counter()
    published: list[bytes] = []
    held = most = 0

    async def handle(message: Message) -> None:
        nonlocal held, most
        held += 1
        most = max(most, held, consumer.stats().outstanding)
        await asyncio.sleep(random.random() * 0.02)
        held -= 1
        seen[message.body] += 1

    async with Proxy(timely_nsqd.tcp_address) as proxy:
        consumer = Consumer(
            "random",
            "ch",
            nsqd=proxy.address,
            max_in_flight=10,
            max_attempts=0,
            msg_timeout=1,
            heartbeat_interval=1,
            dial_timeout=0.5,
            **FAST,
        )
        async with consumer:
            running = asyncio.create_task(consumer.run(handle, concurrency=30, signals=False))
            clock = asyncio.get_running_loop().time
            end = clock() + 8
            while clock() < end:
                bodies = [b"%d" % (len(published) + i) for i in range(random.randint(1, 40))]
                await publish(timely_nsqd, "random", *bodies)
                published += bodies
                await _harm(proxy, random)
            await eventually(lambda: len(seen) == len(published), what=f"seed {seed}")
            assert most <= 10, f"seed {seed}"
            await consumer.close()
            await running
    assert set(seen) == set(published), f"seed {seed}"
    assert proxy.connections > 5, f"seed {seed}"


async def _harm(proxy: Proxy, random: Random) -> None:
    """Do one of the things that networks do."""
    match random.randrange(6):
        case 0:
            proxy.cut()
        case 1:
            proxy.reset()
        case 2:
            proxy.limit(random.randint(1, 2000))
        case 3:
            proxy.chop = random.choice([None, 1, 7, 100])
        case 4:
            proxy.hang()
            await asyncio.sleep(random.random() * 0.5)
            proxy.resume()
        case 5:
            proxy.refuse()
            proxy.cut()
            await asyncio.sleep(random.random() * 0.3)
            proxy.accept()
    await asyncio.sleep(random.random() * 0.3)
