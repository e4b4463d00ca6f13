"""What a consumer says of itself: explain() in words, stats() in numbers."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqflow import Consumer
from nsqflow import protocol as nsq
from tests.conformance.server_side import (
    publish,
    rdy_counts,
    reading,
    take,
    topic_of,
)
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.scripted import HANG, ScriptedNsqd
from tests.fixtures.servers import Kind, Nsqd, Nsqlookupd, start_nsqd, start_nsqlookupd


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


@pytest.fixture
def closed_address() -> Iterator[str]:
    """An address that refuses connections, and that no other process takes meanwhile."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sock.getsockname()[1]}"


async def explained(consumer: Consumer, pattern: str) -> str:
    """Wait until it says so; return the line."""
    lines: list[str] = []

    def fits() -> bool:
        lines[:] = [line for line in consumer.explain().splitlines() if re.search(pattern, line)]
        return bool(lines)

    try:
        await eventually(fits)
    except AssertionError:
        raise AssertionError(f"{pattern!r} is not in:\n{consumer.explain()}") from None
    return lines[0]


def test_one_that_was_not_started_says_so() -> None:
    consumer = Consumer("orders", "ch", nsqd="127.0.0.1:4150")
    assert consumer.explain() == "<Consumer orders/ch> was not started"
    stats = consumer.stats()
    assert (stats.connections, stats.outstanding, stats.max_in_flight) == ((), 0, 200)


# --- connections


@asynchronous
async def test_an_nsqd_that_does_not_answer_is_being_connected() -> None:
    # Scripted: a real nsqd answers.
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Identify, HANG)
        async with Consumer("orders", "ch", nsqd=peer.address) as consumer:
            await peer.received(nsq.Identify)
            assert f"{peer.address}: connecting" in consumer.explain().splitlines()
            [connection] = consumer.stats().connections
            assert (connection.nsqd, connection.connected) == (peer.address, False)


@asynchronous
async def test_a_refused_dial_is_described_with_its_reason_and_the_next_try(
    closed_address: str,
) -> None:
    async with Consumer("orders", "ch", nsqd=closed_address, reconnect_delay=30) as consumer:
        line = await explained(consumer, "next try")
        address = closed_address
        form = rf"{address}: not connected: (?!{address}).+; next try in (\d+\.\d) s \(failure 1\)"
        match = re.fullmatch(form, line)
        assert match, line
        assert 20 < float(match[1]) <= 30
        assert consumer.stats().connections[0].failures == 1


@asynchronous
async def test_a_connection_is_described_by_its_rdy_and_the_reason(nsqd: Nsqd, topic: str) -> None:
    first: list[str] = []
    async with Consumer(
        topic,
        "ch",
        nsqd=nsqd.tcp_address,
        max_in_flight=10,
        on_event=lambda _: first.append(consumer.explain()),
    ) as consumer:
        async with reading(consumer):
            line = await explained(consumer, "RDY 10")
        assert "RDY 1, 0 in flight; is new: has 1 until its first message" in first[0]
        assert line == (
            f"{nsqd.tcp_address}: connected, RDY 10, 0 in flight; has its even share; "
            "no message yet: is there anything in the channel?"
        )
        await publish(nsqd, topic, b"first")
        await explained(consumer, "1 queued")
        [message] = await take(consumer, 1)
        await explained(consumer, rf"{topic}/ch: 1 of 10 messages outstanding$")
        assert re.search(r"last message \d\.\d s ago", consumer.explain())
        message.finish()


@asynchronous
async def test_max_in_flight_outstanding_is_the_reason_that_nothing_comes(
    nsqd: Nsqd, topic: str
) -> None:
    await publish(nsqd, topic, b"a", b"b", b"c")
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=2) as consumer:
        messages = await take(consumer, 2)
        await explained(
            consumer, "all 2 messages that max_in_flight allows are outstanding: finish"
        )
        await explained(
            consumer, "RDY 2, 2 in flight; as many as RDY allows: nsqd waits for answers"
        )
        for message in messages:
            message.finish()
        for message in await take(consumer, 1):
            message.finish()
        await explained(consumer, "0 of 2 messages outstanding")


@asynchronous
async def test_messages_of_lost_connections_are_described(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, b"a", b"b")
    async with (
        Proxy(nsqd.tcp_address) as proxy,
        Consumer(
            topic, "ch", nsqd=proxy.address, max_in_flight=2, reconnect_delay=0.05
        ) as consumer,
    ):
        messages = await take(consumer, 2)
        proxy.cut()
        await explained(consumer, "2 of the outstanding messages are of lost connections")
        await explained(consumer, "RDY 0, 0 in flight; waits: messages of lost connections, and")
        for message in messages:
            message.finish()
        await explained(consumer, "RDY 2, 0 in flight")
        assert "of lost connections" not in consumer.explain()


# --- the consumer as a whole


@asynchronous
async def test_a_pause_is_described(nsqd: Nsqd, topic: str) -> None:
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer:
        consumer.pause()
        await explained(consumer, f"{topic}/ch: paused, 0 of 200 messages outstanding")
        await explained(consumer, "RDY 0, 0 in flight; is paused or backing off")
        consumer.resume()
        await explained(consumer, f"{topic}/ch: RDY 0: no reader; .*, 0 of 200 messages")
        async with reading(consumer):
            await explained(
                consumer, r"prefetch allows \d+ in flight \(nothing measured yet\), 0 of 200"
            )
            await explained(consumer, r"RDY \d+, .* handlers can start in time \(prefetch\)")


@asynchronous
async def test_backoff_is_described_with_its_level_and_its_end(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, b"fails")
    texts: list[str] = []
    async with Consumer(
        topic,
        "ch",
        nsqd=nsqd.tcp_address,
        backoff_multiplier=0.1,
        on_event=lambda _: texts.append(consumer.explain()),
    ) as consumer:
        [message] = await take(consumer, 1)
        message.requeue(30)
        await explained(consumer, r"in backoff \(level 1\), waiting for one message to test with")
        await explained(consumer, "RDY 1, 0 in flight; is the one connection that tests whether")
        assert re.search(r"in backoff for 0\.\d s more \(level 1\), ", texts[-1])
        assert consumer.stats().backoff_level == 1


@asynchronous
async def test_one_that_ended_by_an_error_says_which(nsqd: Nsqd, topic: str) -> None:
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, msg_timeout=100000) as consumer:
        await explained(consumer, f"{topic}/ch: ended by {nsqd.tcp_address} refused the options")
        await explained(consumer, f"{nsqd.tcp_address}: not connected: .*; not dialled again")


@asynchronous
async def test_a_closed_one_says_so(nsqd: Nsqd, topic: str) -> None:
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer:
        await explained(consumer, "connected, RDY")
    assert consumer.explain().startswith(f"{topic}/ch: closed, 0 of 200 messages outstanding")


# --- nsqlookupd


@asynchronous
async def test_a_topic_without_nsqd_is_described_once_nsqlookupd_answered(
    nsqlookupd: Nsqlookupd, topic: str
) -> None:
    async with Consumer(topic, "ch", lookupd=nsqlookupd.http_address) as consumer:
        assert "no nsqd" not in consumer.explain(), "no nsqlookupd has been asked yet"
        await explained(consumer, f"^nsqlookupd knows no nsqd with topic '{topic}'$")


@asynchronous
async def test_a_failing_nsqlookupd_is_described_with_its_last_error(
    nsqlookupd: Nsqlookupd, topic: str, closed_address: str
) -> None:
    lookupds = [nsqlookupd.http_address, closed_address]
    async with Consumer(topic, "ch", lookupd=lookupds, lookupd_poll_interval=0.05) as consumer:
        await explained(
            consumer, f"^nsqlookupd {closed_address}: failed 3 times, last: .*{closed_address}: "
        )
        assert f"nsqlookupd {nsqlookupd.http_address}" not in consumer.explain()


@asynchronous
async def test_an_nsqd_that_is_named_but_not_reached_is_not_a_missing_topic(
    server_kind: Kind, tmp_path: Path, topic: str, closed_address: str
) -> None:
    port = closed_address.rsplit(":", 1)[1]
    with (
        start_nsqlookupd(kind=server_kind) as lookupd,
        start_nsqd(
            tmp_path, kind=server_kind, lookupd=[lookupd], options=[f"-broadcast-tcp-port={port}"]
        ) as nsqd,
    ):
        await publish(nsqd, topic, b"out of reach")
        lookupd.await_log(rf"REGISTER category:topic key:{topic} ")
        async with Consumer(
            topic, "ch", lookupd=lookupd.http_address, lookupd_poll_interval=3600
        ) as consumer:
            line = await explained(consumer, "not connected")
            assert re.fullmatch(
                f"{closed_address}: not connected: .*; dialled when nsqlookupd names it again "
                r"\(failure 1\)",
                line,
            ), line
            assert "no nsqd has the topic" not in consumer.explain()


# --- numbers


@asynchronous
async def test_stats_count_what_came_and_what_became_of_it(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, *(b"%d" % i for i in range(5)))
    async with Consumer(
        topic, "ch", nsqd=nsqd.tcp_address, max_in_flight=5, max_backoff_duration=0
    ) as consumer:
        messages = await take(consumer, 4)
        await eventually(lambda: consumer.stats().queued == 1)
        stats = consumer.stats()
        assert (stats.outstanding, stats.max_in_flight, stats.paused) == (4, 5, False)
        messages[0].finish()
        messages[1].finish()
        messages[2].requeue(60)
        async with messages[3]:
            raise RuntimeError("no database")
        await eventually(lambda: consumer.stats().outstanding == 0)
        counts = consumer.stats().counts
        assert (counts.received, counts.finished, counts.requeued, counts.failed) == (5, 2, 2, 1)
        assert (counts.late, counts.refused, counts.orphaned, counts.gave_up) == (0, 0, 0, 0)
        [connection] = consumer.stats().connections
        assert (connection.nsqd, connection.connected) == (nsqd.tcp_address, True)
        assert (connection.received, connection.finished, connection.in_flight) == (5, 2, 1)
        await eventually(lambda: rdy_counts([nsqd], topic) == [connection.rdy])
        # What was given out stays as it was.
        assert stats.counts.finished == 0


@asynchronous
async def test_stats_go_on_while_the_consumer_drains(nsqd: Nsqd, topic: str) -> None:
    await publish(nsqd, topic, b"held")
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address) as consumer:
        [message] = await take(consumer, 1)
        closing = asyncio.create_task(consumer.close())
        await explained(consumer, "closed, 1 of 200 messages outstanding")
        assert consumer.stats().connections[0].connected
        message.finish()
        drained = await closing
        assert (drained.handled, drained.requeued, drained.abandoned) == (1, 0, 0)
        assert consumer.stats().outstanding == 0
