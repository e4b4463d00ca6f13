"""The queue and its reader: the order of waking, and what is never handed out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar, cast

import pytest

from nsqflow.client.consumer.reader import MessageReader
from nsqflow.client.consumer.thread_queue import ThreadQueue
from nsqflow.client.message import Message
from nsqflow.errors import NetworkError
from tests.fixtures.loops import asynchronous
from tests.unit.client.fakes import FakeCoordinator, FakeSubscription, bodies

T = TypeVar("T")


def nothing() -> None:
    """What a reader calls to have answers written, where there are none."""


async def turn() -> None:
    """Let all woken tasks run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def waiting(
    call: Callable[[], Awaitable[T]], log: list[T] | None = None
) -> asyncio.Task[None]:
    """Start a call, and let it run until it waits."""

    async def wait() -> None:
        result = await call()
        if log is not None:
            log.append(result)

    task = asyncio.create_task(wait())
    await turn()
    return task


async def end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@asynchronous
async def test_messages_come_out_in_the_order_they_came_in() -> None:
    reader = MessageReader(FakeCoordinator(10))
    reader.queue.put(FakeSubscription().messages(3))
    assert bodies([await anext(reader) for _ in range(3)]) == [b"0", b"1", b"2"]
    assert reader.queue.taken == 3


@asynchronous
async def test_the_reader_that_waited_longest_is_served_first() -> None:
    reader = MessageReader(FakeCoordinator(10))
    served: list[str] = []

    async def serve(name: str) -> None:
        await anext(reader)
        served.append(name)

    tasks = [asyncio.create_task(serve(name)) for name in "abc"]
    await turn()
    for message in FakeSubscription().messages(3):
        reader.queue.put([message])
        await turn()
    await asyncio.gather(*tasks)
    assert served == ["a", "b", "c"]


@asynchronous
async def test_a_reader_that_cannot_be_served_yet_keeps_its_place() -> None:
    subscription, reader = FakeSubscription(), MessageReader(FakeCoordinator(1))
    reader.queue.put(subscription.messages(1))
    reader.take_many(1)
    served: list[str] = []

    async def serve(name: str) -> None:
        await anext(reader)
        served.append(name)

    tasks = [asyncio.create_task(serve(name)) for name in "abc"]
    await turn()
    reader.queue.put(subscription.messages(3))  # max_in_flight is outstanding: no reader gets one
    await turn()
    assert served == []
    for _ in tasks:
        reader.queue.release(1)
        await turn()
    await asyncio.gather(*tasks)
    assert served == ["a", "b", "c"]


@asynchronous
async def test_a_reader_that_is_cancelled_when_woken_wakes_the_next() -> None:
    reader = MessageReader(FakeCoordinator(10))
    first = await waiting(reader.__anext__)
    served: list[Message] = []
    second = await waiting(reader.__anext__, served)
    reader.queue.put(FakeSubscription().messages(1))  # wakes the first
    first.cancel()
    await asyncio.wait([first])
    await asyncio.wait_for(second, 5)
    assert (first.cancelled(), len(served), reader.queue.taken) == (True, 1, 1)


@asynchronous
async def test_a_cancelled_waiter_takes_no_wake_up_from_others() -> None:
    reader = MessageReader(FakeCoordinator(10))
    first = await waiting(reader.__anext__)
    served: list[Message] = []
    second = await waiting(reader.__anext__, served)
    await end(first)
    reader.queue.put(FakeSubscription().messages(1))
    await asyncio.wait_for(second, 5)
    assert len(served) == 1


@asynchronous
async def test_no_more_than_max_in_flight_is_handed_out_whatever_arrives() -> None:
    reader = MessageReader(FakeCoordinator(2))
    reader.queue.put(FakeSubscription().messages(5))
    assert bodies([await anext(reader), await anext(reader)]) == [b"0", b"1"]
    task = await waiting(reader.__anext__)
    assert (task.done(), reader.ready(), reader.take_many(5)) == (False, False, [])
    reader.queue.release(1)
    await asyncio.wait_for(task, 5)
    assert (reader.queue.taken, len(reader.queue.messages)) == (2, 2)


@asynchronous
async def test_take_many_takes_what_there_is_and_what_is_allowed() -> None:
    reader = MessageReader(FakeCoordinator(4))
    reader.queue.put(FakeSubscription().messages(3))
    assert len(reader.take_many(2)) == 2
    assert len(reader.take_many(2)) == 1
    reader.queue.put(FakeSubscription().messages(3))
    assert len(reader.take_many(9)) == 1
    assert reader.queue.taken == 4


@asynchronous
async def test_answers_of_the_same_turn_free_their_places() -> None:
    subscription = FakeSubscription()
    reader = MessageReader(FakeCoordinator(1, lambda: subscription.release(reader.queue)))
    reader.queue.put(subscription.messages(3))
    for _ in range(3):
        (await asyncio.wait_for(anext(reader), 5)).finish()


@asynchronous
async def test_a_raised_limit_serves_waiting_readers() -> None:
    reader = MessageReader(FakeCoordinator(1))
    reader.queue.put(FakeSubscription().messages(3))
    reader.take_many(1)
    tasks = [await waiting(reader.__anext__) for _ in range(2)]
    holder = await waiting(reader.queue.acquire)
    reader.queue.set_max_in_flight(4)
    await asyncio.wait_for(asyncio.gather(*tasks, holder), 5)
    assert (reader.queue.taken, reader.queue.max_in_flight) == (4, 4)


@asynchronous
async def test_a_lowered_limit_hands_out_nothing_until_enough_are_answered() -> None:
    reader = MessageReader(FakeCoordinator(3))
    reader.queue.put(FakeSubscription().messages(4))
    reader.take_many(3)
    reader.queue.set_max_in_flight(1)
    task = await waiting(reader.__anext__)
    reader.queue.release(2)
    await turn()
    assert not task.done()
    reader.queue.release(1)
    await asyncio.wait_for(task, 5)


@asynchronous
async def test_closing_ends_every_wait_and_returns_what_was_not_handed_out() -> None:
    reader = MessageReader(FakeCoordinator(1))
    reader.queue.put(FakeSubscription().messages(3))
    reader.take_many(1)
    waits: list[bool] = []
    tasks = [await waiting(reader.wait, waits) for _ in range(2)]
    assert bodies(reader.queue.close()) == [b"1", b"2"]
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert waits == [False, False]
    with pytest.raises(StopAsyncIteration):
        await anext(reader)
    assert reader.queue.close() == []


@asynchronous
async def test_an_error_reaches_waiting_and_later_readers() -> None:
    reader = MessageReader(FakeCoordinator(1))
    tasks = [await waiting(reader.__anext__) for _ in range(2)]
    reader.queue.close(NetworkError("all is lost"))
    reader.queue.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(result) for result in results] == ["all is lost"] * 2
    with pytest.raises(NetworkError, match="all is lost"):
        await anext(reader)
    with pytest.raises(NetworkError, match="all is lost"):
        await reader.wait()


@asynchronous
async def test_wait_idle_waits_until_nothing_is_outstanding() -> None:
    reader = MessageReader(FakeCoordinator(5))
    reader.queue.put(FakeSubscription().messages(2))
    reader.take_many(2)
    task = await waiting(reader.queue.wait_idle)
    reader.queue.release(1)
    await turn()
    assert not task.done()
    reader.queue.release(1)
    await asyncio.wait_for(task, 5)


@asynchronous
async def test_a_close_without_drain_timeout_waits_for_no_message() -> None:
    reader = MessageReader(FakeCoordinator(5))
    reader.queue.put(FakeSubscription().messages(1))
    reader.take_many(1)
    task = await waiting(reader.queue.wait_idle)
    reader.queue.abort_wait()
    with pytest.raises(TimeoutError):
        await task
    with pytest.raises(TimeoutError):
        await reader.queue.wait_idle()
    reader.queue.release(1)
    await reader.queue.wait_idle()


@asynchronous
async def test_acquire_counts_like_a_message_and_waits_for_max_in_flight() -> None:
    reader = MessageReader(FakeCoordinator(1))
    await reader.queue.acquire()
    assert reader.queue.taken == 1
    task = await waiting(reader.queue.acquire)
    assert not task.done()
    reader.queue.release(1)
    await asyncio.wait_for(task, 5)
    assert reader.queue.taken == 1


@asynchronous
async def test_messages_that_were_removed_are_not_handed_out() -> None:
    reader = MessageReader(FakeCoordinator(5))
    reader.queue.put(FakeSubscription().messages(4))
    assert bodies(reader.queue.remove(lambda message: message.body in (b"0", b"2"))) == [b"0", b"2"]
    assert bodies(reader.take_many(5)) == [b"1", b"3"]


async def turns_during(work: Callable[[], None], reader: MessageReader, count: int) -> int:
    """Count the turns of the loop while a reader takes messages and never waits."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count_turns())
    for _ in range(count):
        await anext(reader)
        work()
    await end(task)
    return turns


@asynchronous
async def test_the_loop_runs_while_a_reader_takes_many_messages() -> None:
    reader = MessageReader(FakeCoordinator(10_000))
    reader.queue.put(FakeSubscription().messages(10_000))
    assert await turns_during(nothing, reader, 10_000) >= 9


@asynchronous
async def test_the_loop_runs_while_a_reader_is_slow_with_a_few_messages() -> None:
    reader = MessageReader(FakeCoordinator(10))
    reader.queue.put(FakeSubscription().messages(10))
    assert await turns_during(lambda: time.sleep(0.02), reader, 10) >= 9


# --- readers


@asynchronous
async def test_a_reader_that_waits_is_demand_and_its_waiting_is_measured() -> None:
    coordinator = FakeCoordinator(10)
    reader = MessageReader(coordinator)
    assert reader.queue.readers(time.monotonic()).free == 0
    task = await waiting(reader.__anext__)
    assert coordinator.updates == 1
    await asyncio.sleep(0.02)
    readers = reader.queue.readers(time.monotonic())
    assert (readers.free, readers.handed, readers.idle > 0.01) == (1, 0, True)
    reader.queue.put(FakeSubscription().messages(1))
    await task
    readers = reader.queue.readers(time.monotonic())
    assert (readers.free, readers.handed, readers.outstanding) == (0, 1, 1)
    assert readers.handed_at > 0


@asynchronous
async def test_a_reader_makes_no_review_where_prefetch_allows_all() -> None:
    coordinator = FakeCoordinator(10)
    reader = MessageReader(coordinator)
    reader.queue.prefetch_limited = False
    await end(await waiting(reader.__anext__))
    assert coordinator.updates == 0


@pytest.mark.parametrize("way", ["next", "take_batch", "acquire"])
def test_cancelled_callers_leave_nothing_in_the_queue(way: str) -> None:
    @asynchronous
    async def give_up() -> None:
        reader = MessageReader(FakeCoordinator(1))
        if way == "acquire":
            reader.queue.put(FakeSubscription().messages(1))
            reader.take_many(1)
        for _ in range(100):
            calls: dict[str, Callable[[], Coroutine[object, object, object]]] = {
                "next": reader.__anext__,
                "take_batch": lambda: reader.take_batch(5, 3600),
                "acquire": reader.queue.acquire,
            }
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(calls[way](), 0.0001)
        assert not reader.queue._waiters
        assert not reader.queue._batch_waiters
        assert not reader.queue._answer_waiters
        assert reader.queue.readers(time.monotonic()).free == 0

    give_up()


@pytest.mark.parametrize("way", ["next", "take_slice", "take_many"])
def test_messages_are_checked_once_it_is_time_even_within_a_turn_of_the_loop(way: str) -> None:
    @asynchronous
    async def take() -> None:
        coordinator = FakeCoordinator(10)
        reader = MessageReader(coordinator)
        reader.queue.put(FakeSubscription().messages(3))
        messages = reader.take_slice()
        for expected in (0, 1):
            if way == "next":
                await anext(reader)
            elif way == "take_slice":
                next(messages)
            else:
                reader.take_many(1)
            assert len(coordinator.checks) == expected
            reader.queue.set_check_at(time.monotonic())

    take()


@asynchronous
async def test_what_is_put_back_comes_first_and_goes_back_once_it_is_closed() -> None:
    coordinator = FakeCoordinator(10)
    reader = MessageReader(coordinator)
    reader.queue.put(FakeSubscription().messages(3))
    reader.put_back(reader.take_many(2))
    assert bodies(reader.take_many(3)) == [b"0", b"1", b"2"]
    reader.queue.close()
    late = FakeSubscription().messages(1)
    reader.queue.taken += 1
    reader.put_back(late)
    assert coordinator.given_back == late


class FakeReadAhead:
    """Messages that were taken for a thread, all of which are unwanted."""

    readers = 1
    handed_at = 0.0

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    def __len__(self) -> int:
        return len(self.messages)

    def free(self) -> int:
        return 0

    def idle_seconds(self, now: float) -> float:
        return 0.0

    def oldest_deadline(self) -> float:
        return 0.0

    def recall(self, unwanted: Callable[[Message], bool]) -> list[Message]:
        recalled, self.messages = self.messages, []
        return recalled


@asynchronous
async def test_places_of_messages_that_are_recalled_from_threads_are_free_again() -> None:
    reader = MessageReader(FakeCoordinator(2))
    reader.queue.put(FakeSubscription().messages(3))
    reader.queue.thread_queues.append(cast(ThreadQueue, FakeReadAhead(reader.take_many(2))))
    assert (reader.queue.outstanding, reader.queue.queued, reader.queue.taken) == (0, 3, 2)
    waiter = await waiting(reader.__anext__)
    holder = await waiting(reader.queue.acquire)
    reader.queue.remove(lambda message: False)
    await asyncio.wait_for(asyncio.gather(waiter, holder), 5)
    assert reader.queue.taken == 2


@asynchronous
async def test_what_is_put_back_is_seen_by_batches_that_are_being_gathered() -> None:
    reader = MessageReader(FakeCoordinator(10))
    reader.queue.put(FakeSubscription().messages(2))
    taken = reader.take_many(2)
    batches: list[list[Message]] = []
    task = await waiting(lambda: reader.take_batch(2, 3600), batches)
    reader.put_back(taken)
    await asyncio.wait_for(task, 5)
    assert batches == [taken]
