"""Handlers that are slower than the messages come: nothing is given up that none of them saw."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nsqflow import ClientEvent, Consumer, Message, blocking
from tests.conformance.server_side import channel_stats, publish, rdy_counts, take, topic_of
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd


@pytest.fixture(scope="module")
def strict_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that takes a message back after 2 s."""
    with start_nsqd(tmp_path_factory.mktemp("nsqd"), options=["-msg-timeout=2s"]) as nsqd:
        yield nsqd


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return topic_of(request)


def held_by(nsqd: Nsqd, topic: str) -> int:
    stats = channel_stats(nsqd, topic)
    count: int = stats["depth"] + stats["in_flight_count"] + stats["deferred_count"]
    return count


@contextlib.contextmanager
def start_four(folder: Path) -> Iterator[list[Nsqd]]:
    """Four nsqd that know nothing of each other."""
    with ExitStack() as stack:
        folders = [folder / str(number) for number in range(4)]
        for each in folders:
            each.mkdir()
        yield [stack.enter_context(start_nsqd(each)) for each in folders]


async def attempts_of(nsqd: Nsqd, topic: str, count: int) -> list[int]:
    """Take all messages, and return how often each was delivered."""
    async with Consumer(topic, "ch", nsqd=nsqd.tcp_address, max_attempts=0) as consumer:
        messages = await take(consumer, count)
        for message in messages:
            message.finish()
        return [message.attempts for message in messages]


@asynchronous
async def test_messages_after_a_handler_that_sleeps_stay_with_nsqd(
    strict_nsqd: Nsqd, topic: str
) -> None:
    await publish(strict_nsqd, topic, *(b"%d" % number for number in range(5)))
    seen: list[bytes] = []

    async def sleep(message: Message) -> None:
        seen.append(message.body)
        await asyncio.sleep(60)

    consumer = Consumer(topic, "ch", nsqd=strict_nsqd.tcp_address)
    running = asyncio.create_task(consumer.run(sleep, signals=False))
    await asyncio.wait([running], timeout=30)  # fifteen times the timeout
    assert (seen, consumer.stats().counts.gave_up) == ([b"0"], 0)
    assert held_by(strict_nsqd, topic) == 5
    assert rdy_counts([strict_nsqd], topic) == [0]
    assert "no handler was free for 1 s, half of msg_timeout" in consumer.explain()
    await consumer.close(0)
    await running
    assert max(await attempts_of(strict_nsqd, topic, 5)) <= 1 + 2  # this one included


@asynchronous
async def test_a_steady_handler_is_called_once_for_each_message(tmp_path: Path) -> None:
    with start_nsqd(tmp_path) as nsqd:
        await publish(nsqd, "steady", *(b"%d" % number for number in range(300)))
        calls: Counter[bytes] = Counter()
        done = asyncio.Event()

        async def handle(message: Message) -> None:
            await asyncio.sleep(0.1)
            calls[message.body] += 1
            if len(calls) == 300:
                done.set()

        consumer = Consumer("steady", "ch", nsqd=nsqd.tcp_address, msg_timeout=5)
        running = asyncio.create_task(consumer.run(handle, signals=False))
        await asyncio.wait_for(done.wait(), 100)
        await consumer.close()
        await running
        assert sum(calls.values()) <= 330
        assert consumer.stats().counts.late <= 10
        assert consumer.stats().counts.gave_up == 0


def iterate(consumer: Any, seen: list[bytes], stop: threading.Event) -> None:
    for message in consumer:
        seen.append(message.body)
        stop.wait(PATIENCE)
        return


def batches(consumer: Any, seen: list[bytes], stop: threading.Event) -> None:
    for batch in consumer.batches(2, 0.05):
        seen.extend(message.body for message in batch)
        stop.wait(PATIENCE)
        return


def run(consumer: Any, seen: list[bytes], stop: threading.Event) -> None:
    def handle(message: Message) -> None:
        seen.append(message.body)
        stop.wait(PATIENCE)

    consumer.run(handle, 2, signals=False)


@pytest.mark.parametrize("way", [iterate, batches, run])
def test_plain_code_that_is_busy_leaves_the_rest_with_nsqd(
    strict_nsqd: Nsqd, topic: str, way: Any
) -> None:
    asyncio.run(publish(strict_nsqd, topic, *(b"%d" % number for number in range(20))))
    seen: list[bytes] = []
    stop = threading.Event()
    consumer = blocking.Consumer(topic, "ch", nsqd=strict_nsqd.tcp_address)
    thread = threading.Thread(target=way, args=(consumer, seen, stop))
    thread.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while rdy_counts([strict_nsqd], topic) != [0] or not seen:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        # All that was read ahead is with nsqd again, and the stall is longer than its timeout.
        while channel_stats(strict_nsqd, topic)["in_flight_count"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(seen) <= 2
        assert held_by(strict_nsqd, topic) == 20
        assert consumer.stats().queued == 0
        assert consumer.stats().counts.gave_up == 0
    finally:
        stop.set()
        consumer.close(0)
        thread.join(PATIENCE)


@asynchronous
async def test_what_expires_in_the_client_is_counted_reported_once_and_never_handed_out(
    strict_nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[ClientEvent] = []
    consumer = Consumer(topic, "ch", nsqd=strict_nsqd.tcp_address, on_event=events.append)
    await publish(strict_nsqd, topic, *[b"quick"] * 100)
    seen: list[tuple[bytes, int]] = []
    go_on = asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append((message.body, message.attempts))
        if message.body == b"slow":
            await go_on.wait()

    running = asyncio.create_task(consumer.run(handle, signals=False))
    await eventually(lambda: len(seen) == 100)
    await publish(strict_nsqd, topic, b"slow", *[b"later"] * 10)
    await eventually(lambda: consumer.stats().counts.expired == 10)
    assert (len(seen), consumer.stats().queued) == (101, 0)
    assert "10 timed out before a handler was free" in consumer.explain()
    assert [each.kind for each in events].count("expired") == 1
    assert caplog.text.count("messages time out before a handler is free") == 1
    await eventually(lambda: channel_stats(strict_nsqd, topic)["in_flight_count"] == 0)
    go_on.set()
    await eventually(lambda: [body for body, _ in seen].count(b"later") == 10)
    assert {attempts for body, attempts in seen if body == b"later"} == {2}
    await consumer.close(0)
    await running


@asynchronous
async def test_an_answer_to_a_late_message_is_its_copys_answer_too(
    strict_nsqd: Nsqd, topic: str
) -> None:
    await publish(strict_nsqd, topic, b"x")
    async with Consumer(topic, "ch", nsqd=strict_nsqd.tcp_address) as consumer:
        [message] = await take(consumer, 1)
        # A reader that waits for more lets the copy come; it must not get it.
        more = asyncio.ensure_future(consumer.batches(2, 3600).__anext__())
        await eventually(lambda: consumer.stats().queued == 1)
        message.finish()
        await eventually(lambda: consumer.stats().queued == 0)
        more.cancel()
        await asyncio.wait([more])
        await eventually(lambda: held_by(strict_nsqd, topic) == 0)
        assert consumer.stats().counts.refused == 0


# --- no demand, or only for a short time


@asynchronous
async def test_opening_and_closing_costs_no_attempt(strict_nsqd: Nsqd, topic: str) -> None:
    await publish(strict_nsqd, topic, *(b"%d" % number for number in range(50)))
    for _ in range(10):
        async with Consumer(topic, "ch", nsqd=strict_nsqd.tcp_address) as consumer:
            await eventually(lambda c=consumer: any(e.connected for e in c.stats().connections))  # type: ignore[misc]
            assert "RDY 0: no reader" in consumer.explain()
        assert consumer.stats().counts.received == 0
    assert await attempts_of(strict_nsqd, topic, 50) == [1] * 50


@asynchronous
async def test_connections_that_handle_one_message_each_give_none_up(tmp_path: Path) -> None:
    with start_nsqd(tmp_path) as nsqd:
        await publish(nsqd, "t", *(b"%d" % number for number in range(50)))
        handled = []
        for _ in range(10):
            async with Consumer("t", "ch", nsqd=nsqd.tcp_address) as consumer:
                async for message in consumer:
                    async with message:
                        handled.append(message.body)
                    break
            assert consumer.stats().counts.gave_up == 0
        assert len(set(handled)) == 10
        assert held_by(nsqd, "t") == 40


@pytest.mark.parametrize("count", [1, 50])
@asynchronous
async def test_a_cancelled_batch_costs_no_attempt_and_stays_in_the_queue(
    tmp_path: Path, count: int
) -> None:
    with start_nsqd(tmp_path) as nsqd:
        await publish(nsqd, "t", *(b"%d" % number for number in range(count)))
        async with Consumer("t", "ch", nsqd=nsqd.tcp_address) as consumer:
            one = consumer.batches(100, 3600)  # that goes on, too
            for _ in range(50):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(consumer.batches(100, 3600)), 0.02)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(one), 0.02)
            counts = consumer.stats().counts
            assert (counts.gave_up, counts.requeued, counts.received) == (0, 0, count)
            assert consumer.stats().queued == count
            # The first of them has waited long enough for this.
            batch = await asyncio.wait_for(anext(consumer.batches(100, 1)), PATIENCE)
            assert [message.attempts for message in batch] == [1] * count
            batch.finish()


@asynchronous
async def test_max_wait_goes_on_counting_when_the_caller_is_cancelled(tmp_path: Path) -> None:
    with start_nsqd(tmp_path) as nsqd:
        await publish(nsqd, "t", b"x")
        rounds, batch = 0, None
        async with Consumer("t", "ch", nsqd=nsqd.tcp_address) as consumer:
            while batch is None:
                rounds += 1
                assert rounds < 50
                with contextlib.suppress(TimeoutError):
                    batch = await asyncio.wait_for(anext(consumer.batches(100, 0.5)), 0.2)
            assert [message.attempts for message in batch] == [1]
            batch.finish()


@asynchronous
async def test_a_batch_goes_out_by_half_of_the_timeout(strict_nsqd: Nsqd, topic: str) -> None:
    await publish(strict_nsqd, topic, b"x")
    async with Consumer(topic, "ch", nsqd=strict_nsqd.tcp_address) as consumer:
        [message] = await asyncio.wait_for(anext(consumer.batches(100, 3600)), PATIENCE)
        assert message.attempts == 1
        assert time.monotonic() < message.deadline
        message.finish()


@asynchronous
async def test_after_a_pause_in_demand_nothing_is_asked_for(strict_nsqd: Nsqd, topic: str) -> None:
    await publish(strict_nsqd, topic, *[b"x"] * 30)
    async with Consumer(topic, "ch", nsqd=strict_nsqd.tcp_address) as consumer:
        for message in await take(consumer, 20):
            message.finish()
        await eventually(lambda: rdy_counts([strict_nsqd], topic) == [0])
        await eventually(lambda: channel_stats(strict_nsqd, topic)["in_flight_count"] == 0)
        for message in await take(consumer, 10):
            message.finish()


@asynchronous
async def test_with_fewer_messages_allowed_than_nsqd_each_has_its_turn(
    tmp_path: Path, topic: str
) -> None:
    with start_four(tmp_path) as nsqds:
        await publish(nsqds[3], topic, b"x")
        addresses = [nsqd.tcp_address for nsqd in nsqds]
        # With the options of low RDY alone its turn might come after minutes.
        async with Consumer(topic, "ch", nsqd=addresses, rdy_redistribute_interval=60) as consumer:
            [message] = await take(consumer, 1)
            message.finish()


@asynchronous
async def test_free_handlers_get_work_though_one_of_many_nsqd_has_it_all(
    tmp_path: Path, topic: str
) -> None:
    with start_four(tmp_path) as nsqds:
        await publish(nsqds[0], topic, *[b"x"] * 50)
        active, most = 0, 0
        together = asyncio.Event()

        async def handle(message: Message) -> None:
            nonlocal active, most
            active += 1
            most = max(most, active)
            if active == 3:
                together.set()
            await asyncio.sleep(0.5)
            active -= 1

        addresses = [nsqd.tcp_address for nsqd in nsqds]
        # Nothing can be fetched ahead at this pace: the window is as wide as there are handlers.
        consumer = Consumer(topic, "ch", nsqd=addresses, msg_timeout=1)
        running = asyncio.create_task(consumer.run(handle, 3, signals=False))
        for _ in range(3):  # again and again
            together.clear()
            await asyncio.wait_for(together.wait(), PATIENCE)
        assert most == 3
        await consumer.close()
        await running


@pytest.mark.parametrize("way", ["handler", "tasks"])
@asynchronous
async def test_several_readers_are_measured_as_several(tmp_path: Path, way: str) -> None:
    with start_nsqd(tmp_path) as nsqd:
        await publish(nsqd, "t", *(b"%d" % number for number in range(60)))
        seen: list[bytes] = []

        async def handle(message: Message) -> None:
            await asyncio.sleep(0.5)
            seen.append(message.body)

        async def iterate() -> None:
            async for message in consumer:
                async with message:
                    await handle(message)

        consumer = Consumer("t", "ch", nsqd=nsqd.tcp_address, msg_timeout=2)
        tasks: list[asyncio.Task[Any]]
        if way == "handler":
            tasks = [asyncio.create_task(consumer.run(handle, 10, signals=False))]
        else:
            tasks = [asyncio.create_task(iterate()) for _ in range(10)]
        await eventually(lambda: len(set(seen)) == 60, timeout=60)
        await consumer.close()
        await asyncio.wait(tasks)
        for task in tasks:
            task.exception()
        counts = consumer.stats().counts
        assert (counts.expired, counts.gave_up) == (0, 0)
        assert len(seen) <= 63
