"""The inbox: in which order it wakes, and what it never hands out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import pytest

from nsqflow.client.handoff import Handoff
from nsqflow.client.inbox import Inbox
from nsqflow.client.message import Message
from nsqflow.errors import NetworkError
from tests.fixtures.loops import asynchronous
from tests.unit.client.mail import Desk, FakeCoordinator, bodies

T = TypeVar("T")


def nothing() -> None:
    """What an inbox calls to have answers written, where there are none."""


async def turn() -> None:
    """Let all who were woken run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def waiting(
    call: Callable[[], Awaitable[T]], log: list[T] | None = None
) -> asyncio.Task[None]:
    """Start somebody who waits, and let them get as far as that."""

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
    inbox = Inbox(10, FakeCoordinator())
    inbox.put(Desk().messages(3))
    assert bodies([await inbox.next() for _ in range(3)]) == [b"0", b"1", b"2"]
    assert inbox.in_hands == 3


@asynchronous
async def test_who_waited_first_is_served_first() -> None:
    inbox = Inbox(10, FakeCoordinator())
    served: list[str] = []

    async def serve(name: str) -> None:
        await inbox.next()
        served.append(name)

    tasks = [asyncio.create_task(serve(name)) for name in "abc"]
    await turn()
    for message in Desk().messages(3):
        inbox.put([message])
        await turn()
    await asyncio.gather(*tasks)
    assert served == ["a", "b", "c"]


@asynchronous
async def test_who_can_not_be_served_yet_keeps_the_place_in_the_queue() -> None:
    desk, inbox = Desk(), Inbox(1, FakeCoordinator())
    inbox.put(desk.messages(1))
    inbox.take_many(1)
    served: list[str] = []

    async def serve(name: str) -> None:
        await inbox.next()
        served.append(name)

    tasks = [asyncio.create_task(serve(name)) for name in "abc"]
    await turn()
    inbox.put(desk.messages(3))  # all that is allowed is in hands: nobody gets one
    await turn()
    assert served == []
    for _ in tasks:
        inbox.released(1)
        await turn()
    await asyncio.gather(*tasks)
    assert served == ["a", "b", "c"]


@asynchronous
async def test_a_wake_up_is_passed_on_by_who_was_cancelled_in_the_same_moment() -> None:
    inbox = Inbox(10, FakeCoordinator())
    first = await waiting(inbox.next)
    served: list[Message] = []
    second = await waiting(inbox.next, served)
    inbox.put(Desk().messages(1))  # wakes the first
    first.cancel()
    await asyncio.wait([first])
    await asyncio.wait_for(second, 5)
    assert (first.cancelled(), len(served), inbox.in_hands) == (True, 1, 1)


@asynchronous
async def test_who_was_cancelled_while_waiting_takes_no_wake_up_from_others() -> None:
    inbox = Inbox(10, FakeCoordinator())
    first = await waiting(inbox.next)
    served: list[Message] = []
    second = await waiting(inbox.next, served)
    await end(first)
    inbox.put(Desk().messages(1))
    await asyncio.wait_for(second, 5)
    assert len(served) == 1


@asynchronous
async def test_no_more_than_max_in_flight_is_handed_out_whatever_arrives() -> None:
    inbox = Inbox(2, FakeCoordinator())
    inbox.put(Desk().messages(5))
    assert bodies([await inbox.next(), await inbox.next()]) == [b"0", b"1"]
    task = await waiting(inbox.next)
    assert (task.done(), inbox.ready(), inbox.take_many(5)) == (False, False, [])
    inbox.released(1)
    await asyncio.wait_for(task, 5)
    assert (inbox.in_hands, len(inbox.messages)) == (2, 2)


@asynchronous
async def test_take_many_takes_what_there_is_and_what_is_allowed() -> None:
    inbox = Inbox(4, FakeCoordinator())
    inbox.put(Desk().messages(3))
    assert len(inbox.take_many(2)) == 2
    assert len(inbox.take_many(2)) == 1
    inbox.put(Desk().messages(3))
    assert len(inbox.take_many(9)) == 1
    assert inbox.in_hands == 4


@asynchronous
async def test_answers_of_the_same_turn_make_room() -> None:
    desk = Desk()
    inbox = Inbox(1, FakeCoordinator(lambda: desk.settle(inbox)))
    inbox.put(desk.messages(3))
    for _ in range(3):
        (await asyncio.wait_for(inbox.next(), 5)).finish()


@asynchronous
async def test_a_raised_limit_serves_who_waits_for_room() -> None:
    inbox = Inbox(1, FakeCoordinator())
    inbox.put(Desk().messages(3))
    inbox.take_many(1)
    tasks = [await waiting(inbox.next) for _ in range(2)]
    holder = await waiting(inbox.hold)
    inbox.max_in_flight = 4
    await asyncio.wait_for(asyncio.gather(*tasks, holder), 5)
    assert (inbox.in_hands, inbox.max_in_flight) == (4, 4)


@asynchronous
async def test_a_lowered_limit_hands_out_nothing_until_enough_came_back() -> None:
    inbox = Inbox(3, FakeCoordinator())
    inbox.put(Desk().messages(4))
    inbox.take_many(3)
    inbox.max_in_flight = 1
    task = await waiting(inbox.next)
    inbox.released(2)
    await turn()
    assert not task.done()
    inbox.released(1)
    await asyncio.wait_for(task, 5)


@asynchronous
async def test_closing_ends_every_wait_and_returns_what_nobody_was_given() -> None:
    inbox = Inbox(1, FakeCoordinator())
    inbox.put(Desk().messages(3))
    inbox.take_many(1)
    waits: list[bool] = []
    tasks = [await waiting(inbox.wait, waits) for _ in range(2)]
    assert bodies(inbox.close()) == [b"1", b"2"]
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert waits == [False, False]
    with pytest.raises(StopAsyncIteration):
        await inbox.next()
    assert inbox.close() == []


@asynchronous
async def test_an_error_reaches_all_who_wait_and_all_who_come_later() -> None:
    inbox = Inbox(1, FakeCoordinator())
    tasks = [await waiting(inbox.next) for _ in range(2)]
    inbox.close(NetworkError("all is lost"))
    inbox.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(result) for result in results] == ["all is lost"] * 2
    with pytest.raises(NetworkError, match="all is lost"):
        await inbox.next()
    with pytest.raises(NetworkError, match="all is lost"):
        await inbox.wait()


@asynchronous
async def test_idle_waits_until_nothing_is_in_hands() -> None:
    inbox = Inbox(5, FakeCoordinator())
    inbox.put(Desk().messages(2))
    inbox.take_many(2)
    task = await waiting(inbox.idle)
    inbox.released(1)
    await turn()
    assert not task.done()
    inbox.released(1)
    await asyncio.wait_for(task, 5)


@asynchronous
async def test_who_is_in_a_hurry_waits_for_nothing_in_hands() -> None:
    inbox = Inbox(5, FakeCoordinator())
    inbox.put(Desk().messages(1))
    inbox.take_many(1)
    task = await waiting(inbox.idle)
    inbox.hurry()
    with pytest.raises(TimeoutError):
        await task
    with pytest.raises(TimeoutError):
        await inbox.idle()
    inbox.released(1)
    await inbox.idle()


@asynchronous
async def test_hold_counts_like_a_message_and_waits_for_room() -> None:
    inbox = Inbox(1, FakeCoordinator())
    await inbox.hold()
    assert inbox.in_hands == 1
    task = await waiting(inbox.hold)
    assert not task.done()
    inbox.released(1)
    await asyncio.wait_for(task, 5)
    assert inbox.in_hands == 1


@asynchronous
async def test_messages_that_were_removed_are_not_handed_out() -> None:
    inbox = Inbox(5, FakeCoordinator())
    inbox.put(Desk().messages(4))
    assert bodies(inbox.remove(lambda message: message.body in (b"0", b"2"))) == [b"0", b"2"]
    assert bodies(inbox.take_many(5)) == [b"1", b"3"]


async def turns_during(work: Callable[[], None], inbox: Inbox, count: int) -> int:
    """Count the turns that the loop has while somebody takes messages and never waits."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count_turns())
    for _ in range(count):
        await inbox.next()
        work()
    await end(task)
    return turns


@asynchronous
async def test_the_loop_has_its_turns_while_somebody_takes_many_messages() -> None:
    inbox = Inbox(10_000, FakeCoordinator())
    inbox.put(Desk().messages(10_000))
    assert await turns_during(nothing, inbox, 10_000) >= 9


@asynchronous
async def test_the_loop_has_its_turns_while_somebody_is_slow_over_a_few_messages() -> None:
    inbox = Inbox(10, FakeCoordinator())
    inbox.put(Desk().messages(10))
    assert await turns_during(lambda: time.sleep(0.02), inbox, 10) >= 9


# --- readers


@asynchronous
async def test_a_reader_that_waits_is_demand_and_its_waiting_is_measured() -> None:
    coordinator = FakeCoordinator()
    inbox = Inbox(10, coordinator)
    assert inbox.readers(time.monotonic()).free == 0
    task = await waiting(inbox.next)
    assert coordinator.reviews == 1
    await asyncio.sleep(0.02)
    readers = inbox.readers(time.monotonic())
    assert (readers.free, readers.handed, readers.idle > 0.01) == (1, 0, True)
    inbox.put(Desk().messages(1))
    await task
    readers = inbox.readers(time.monotonic())
    assert (readers.free, readers.handed, readers.outstanding) == (0, 1, 1)
    assert readers.handed_at > 0


@asynchronous
async def test_a_reader_makes_no_review_where_prefetch_allows_all() -> None:
    coordinator = FakeCoordinator()
    inbox = Inbox(10, coordinator)
    inbox.restrained = False
    await end(await waiting(inbox.next))
    assert coordinator.reviews == 0


@pytest.mark.parametrize("way", ["next", "gather", "hold"])
def test_callers_that_give_up_leave_nothing_behind(way: str) -> None:
    @asynchronous
    async def give_up() -> None:
        inbox = Inbox(1, FakeCoordinator())
        if way == "hold":
            inbox.put(Desk().messages(1))
            inbox.take_many(1)
        for _ in range(100):
            call = inbox.gather(5, 3600) if way == "gather" else getattr(inbox, way)()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call, 0.0001)
        assert not inbox._waiters
        assert not inbox._gatherers
        assert not inbox._watchers
        assert inbox.readers(time.monotonic()).free == 0

    give_up()


@pytest.mark.parametrize("way", ["next", "turn", "take_many"])
def test_messages_are_checked_once_it_is_time_even_within_a_turn_of_the_loop(way: str) -> None:
    @asynchronous
    async def take() -> None:
        coordinator = FakeCoordinator()
        inbox = Inbox(10, coordinator)
        inbox.put(Desk().messages(3))
        turn_ = inbox.turn()
        for expected in (0, 1):
            if way == "next":
                await inbox.next()
            elif way == "turn":
                next(turn_)
            else:
                inbox.take_many(1)
            assert len(coordinator.checks) == expected
            inbox.set_check_at(time.monotonic())

    take()


@asynchronous
async def test_what_is_put_back_comes_first_and_goes_back_once_it_is_closed() -> None:
    coordinator = FakeCoordinator()
    inbox = Inbox(10, coordinator)
    inbox.put(Desk().messages(3))
    inbox.put_back(inbox.take_many(2))
    assert bodies(inbox.take_many(3)) == [b"0", b"1", b"2"]
    inbox.close()
    late = Desk().messages(1)
    inbox.in_hands += 1
    inbox.put_back(late)
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
    inbox = Inbox(2, FakeCoordinator())
    inbox.put(Desk().messages(3))
    inbox.read_ahead.append(cast(Handoff, FakeReadAhead(inbox.take_many(2))))
    assert (inbox.outstanding, inbox.queued, inbox.in_hands) == (0, 3, 2)
    reader = await waiting(inbox.next)
    holder = await waiting(inbox.hold)
    inbox.remove(lambda message: False)
    await asyncio.wait_for(asyncio.gather(reader, holder), 5)
    assert inbox.in_hands == 2


@asynchronous
async def test_what_is_put_back_is_seen_by_batches_that_are_being_gathered() -> None:
    inbox = Inbox(10, FakeCoordinator())
    inbox.put(Desk().messages(2))
    taken = inbox.take_many(2)
    batches: list[list[Message]] = []
    task = await waiting(lambda: inbox.gather(2, 3600), batches)
    inbox.put_back(taken)
    await asyncio.wait_for(task, 5)
    assert batches == [taken]
