"""Messages and batches: what is answered, how often, and by whom."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from nsqflow.client.batch import Batch, Batches
from nsqflow.client.inbox import Inbox
from nsqflow.client.message import Message
from nsqflow.errors import ConfigError, LocalProtocolError
from tests.fixtures.loops import asynchronous, eventually
from tests.unit.client.mail import DEADLINE, Desk, FakeCoordinator, bodies

ANSWERS: dict[str, Callable[[Message], None]] = {
    "FIN": Message.finish,
    "REQ": Message.requeue,
    "TOUCH": Message.touch,
}


def answer_of(message: Message) -> tuple[str, float | None, bool]:
    """The command, its delay, and whether it counts for backoff."""
    assert message._answer is not None
    return tuple(message._answer)  # type: ignore[return-value]


# --- one message


def test_a_message_says_where_it_comes_from_but_never_what_is_in_it() -> None:
    message = Desk().message(b"secret", attempts=3)
    assert repr(message) == (
        "<Message b'0123456789abcdef' of orders/billing from 10.0.0.1:4150, attempt 3, 6 bytes>"
    )
    assert (message.topic, message.channel, message.nsqd) == ("orders", "billing", "10.0.0.1:4150")
    # What only the redesigned NSQ has.
    assert message.partition is message.offset is message.size is message.internal_id is None
    assert (message.trace_id, message.headers, message.tag) == (None, None, None)


@pytest.mark.parametrize("first", ["FIN", "REQ"])
@pytest.mark.parametrize("second", ANSWERS)
def test_answering_twice_raises_and_says_what_was_answered(first: str, second: str) -> None:
    desk = Desk()
    message = desk.message(b"secret")
    ANSWERS[first](message)
    with pytest.raises(LocalProtocolError, match=f"{second} for .* answered by {first}") as caught:
        ANSWERS[second](message)
    assert "secret" not in str(caught.value)
    assert (desk.answers, desk.touches) == ([message], [])


def test_an_answer_after_close_has_given_the_message_back_says_so() -> None:
    desk = Desk()
    message = desk.message()
    desk.abandon(message)
    with pytest.raises(LocalProtocolError, match=r"answered by REQ by close\(\)"):
        message.finish()


def test_of_many_threads_only_one_answers() -> None:
    desk = Desk()
    messages = desk.messages(300)
    refused: list[Message] = []

    def answer(command: Callable[[Message], None]) -> None:
        for message in messages:
            try:
                command(message)
            except LocalProtocolError:
                refused.append(message)

    threads = [
        threading.Thread(target=answer, args=[command])
        for command in (Message.finish, Message.requeue) * 3
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(id, desk.answers)) == sorted(map(id, messages))
    assert len(refused) == 5 * len(messages)


@pytest.mark.parametrize(
    ("delay", "backoff", "answer"),
    [
        (None, True, ("REQ", None, True)),
        (None, False, ("REQ", None, False)),
        (0, True, ("REQ", 0, True)),
        (1.5, False, ("REQ", 1.5, False)),
    ],
)
def test_requeue_says_when_it_comes_again_and_whether_it_is_a_failure(
    delay: float | None, backoff: bool, answer: tuple[str, float | None, bool]
) -> None:
    message = Desk().message()
    message.requeue(delay, backoff=backoff)
    assert answer_of(message) == answer


@pytest.mark.parametrize("delay", [-0.1, float("inf"), float("nan"), 10**9])
def test_a_delay_that_no_server_takes_is_refused_and_leaves_the_message_unanswered(
    delay: float,
) -> None:
    desk = Desk()
    message = desk.message()
    with pytest.raises(ConfigError, match=r"delay .*; 0 or more seconds, or None"):
        message.requeue(delay)
    assert not message.answered
    message.finish()


def test_touch_moves_the_deadline_of_this_message_alone() -> None:
    desk = Desk()
    touched, other = desk.messages(2)
    touched.touch()
    assert (touched.deadline, other.deadline) == (DEADLINE + 5, DEADLINE)
    assert desk.touches == [touched]
    assert not touched.answered


# --- async with message


@asynchronous
async def test_the_end_of_the_block_finishes_the_message() -> None:
    desk = Desk()
    async with desk.message() as message:
        assert not message.answered
    assert answer_of(message)[0] == "FIN"


@asynchronous
async def test_an_answer_given_in_the_block_stands() -> None:
    desk = Desk()
    async with desk.message() as message:
        message.requeue(3)
    assert answer_of(message) == ("REQ", 3, True)
    assert desk.answers == [message]
    async with desk.message() as failing:
        failing.finish()
        raise ValueError
    assert answer_of(failing)[0] == "FIN"


@asynchronous
async def test_an_exception_ends_with_the_block_but_no_other_does() -> None:
    desk = Desk()
    error = ValueError("wrong")
    async with desk.message() as message:
        raise error
    assert desk.failures == [(message, error)]
    for kind in (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(kind):
            async with desk.message():
                raise kind


# --- keep_alive


@asynchronous
async def test_keep_alive_touches_only_as_long_as_its_block_runs() -> None:
    desk = Desk()
    message = desk.message()
    async with message.keep_alive(0.001):
        await eventually(lambda: len(desk.touches) >= 3)
    count = len(desk.touches)
    await asyncio.sleep(0.01)
    assert len(desk.touches) == count


@asynchronous
async def test_keep_alive_stops_at_an_answer_and_lets_errors_pass() -> None:
    desk = Desk()
    message = desk.message()
    with pytest.raises(ValueError, match="mine"):
        async with message.keep_alive(0.001):
            message.finish()
            await asyncio.sleep(0.01)
            raise ValueError("mine")
    assert len(desk.touches) <= 1


@pytest.mark.parametrize("interval", [0, -1, float("nan")])
def test_keep_alive_refuses_an_interval_that_is_none(interval: float) -> None:
    @asynchronous
    async def keep() -> None:
        with pytest.raises(ConfigError, match=r"interval .*; above 0 seconds, or None"):
            async with Desk().message().keep_alive(interval):
                pass

    keep()


# --- batches


def test_a_batch_leaves_out_what_was_answered_by_itself() -> None:
    desk = Desk()
    first, second, third = batch = Batch(desk.messages(3))
    first.requeue(1)
    batch.touch()
    assert desk.touches == [second, third]
    third.finish()
    batch.finish()
    batch.requeue()
    assert [answer_of(message)[0] for message in batch] == ["REQ", "FIN", "FIN"]
    assert desk.answers == [first, third, second]


def test_a_batch_is_requeued_as_its_messages_would_be() -> None:
    batch = Batch(Desk().messages(2))
    batch.requeue(2.5, backoff=False)
    assert [answer_of(message) for message in batch] == [("REQ", 2.5, False)] * 2


@asynchronous
async def test_the_end_of_the_block_finishes_the_batch() -> None:
    async with Batch(Desk().messages(3)) as batch:
        batch[1].requeue(0)
    assert [answer_of(message)[0] for message in batch] == ["FIN", "REQ", "FIN"]


@asynchronous
async def test_an_exception_fails_those_of_a_batch_that_were_not_answered() -> None:
    desk = Desk()
    error = ValueError("wrong")
    async with Batch(desk.messages(3)) as batch:
        batch[1].finish()
        raise error
    assert desk.failures == [(batch[0], error), (batch[2], error)]
    assert answer_of(batch[1])[0] == "FIN"


@asynchronous
async def test_an_exception_behind_a_batch_that_was_answered_is_told_once() -> None:
    desk = Desk()
    async with Batch(desk.messages(3)) as batch:
        batch.finish()
        raise ValueError
    assert len(desk.failures) == 1


@pytest.mark.parametrize("count", [0, 3])
def test_a_batch_never_swallows_a_cancellation(count: int) -> None:
    @asynchronous
    async def cancel() -> None:
        with pytest.raises(asyncio.CancelledError):
            async with Batch(Desk().messages(count)) as batch:
                batch[:1] = []
                raise asyncio.CancelledError

    cancel()


# --- gathering


class Post:
    """An inbox with a desk, and batches from it."""

    def __init__(self, size: int, max_wait: float, max_in_flight: int = 100) -> None:
        self.desk = Desk()
        self.coordinator = FakeCoordinator(lambda: self.desk.settle(self.inbox))
        self.inbox: Inbox = Inbox(max_in_flight, self.coordinator)
        self.batches = Batches(self.inbox, size, max_wait)

    def put(self, count: int) -> None:
        self.inbox.put(self.desk.messages(count))

    async def next(self) -> Batch:
        async with asyncio.timeout(10):
            return await anext(self.batches)


@asynchronous
async def test_a_full_batch_comes_at_once() -> None:
    post = Post(3, 3600)
    post.put(7)
    assert bodies(await post.next()) == [b"0", b"1", b"2"]
    assert bodies(await post.next()) == [b"3", b"4", b"5"]


@asynchronous
async def test_a_batch_is_filled_by_what_comes_meanwhile() -> None:
    post = Post(3, 3600)
    task = asyncio.create_task(post.next())
    for _ in range(3):
        await asyncio.sleep(0)
        assert not task.done()
        post.put(1)
    assert len(await task) == 3


@asynchronous
async def test_a_batch_comes_with_what_there_is_when_its_time_is_over() -> None:
    post = Post(3, 0.01)
    post.put(2)
    assert len(await post.next()) == 2


@asynchronous
async def test_a_batch_comes_when_nothing_more_can_come() -> None:
    post = Post(100, 3600)
    post.coordinator.starved = True
    post.put(2)
    assert len(await post.next()) == 2
    few = Post(100, 3600, max_in_flight=4)
    few.put(9)
    batch = await few.next()
    assert len(batch) == 4
    batch.finish()
    assert len(await few.next()) == 4


@asynchronous
async def test_what_was_being_gathered_when_the_inbox_closes_is_left_to_its_owner() -> None:
    post = Post(100, 3600)
    post.put(2)
    task = asyncio.create_task(post.next())
    await asyncio.sleep(0)
    assert len(post.inbox.close()) == 2
    with pytest.raises(StopAsyncIteration):
        await task
    with pytest.raises(StopAsyncIteration):
        await anext(post.batches)


@pytest.mark.parametrize("ended_by", ["cancellation", "error"])
def test_what_was_being_gathered_stays_in_the_queue(ended_by: str) -> None:
    @asynchronous
    async def gather_in_vain() -> None:
        post = Post(100, 3600)
        post.put(2)
        task = asyncio.create_task(post.next())
        await asyncio.sleep(0)
        assert (post.inbox.queued, post.inbox.in_hands) == (2, 0)
        if ended_by == "error":
            rest = post.inbox.close(ValueError("the end"))
        else:
            task.cancel()
            rest = []
        await asyncio.wait([task])
        assert task.cancelled() or isinstance(task.exception(), ValueError)
        assert bodies([*rest, *post.inbox.messages]) == [b"0", b"1"]
        assert post.desk.answers == []

    gather_in_vain()
