"""Messages and batches: what is answered, how often, and by which code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from nsqflow.client.consumer.batch import Batch, Batches
from nsqflow.client.consumer.reader import MessageReader
from nsqflow.client.message import Message
from nsqflow.errors import ConfigError, LocalProtocolError
from tests.fixtures.loops import asynchronous, eventually
from tests.unit.client.fakes import DEADLINE, FakeCoordinator, FakeSubscription, bodies

ANSWERS: dict[str, Callable[[Message], None]] = {
    "FIN": Message.finish,
    "REQ": Message.requeue,
    "TOUCH": Message.touch,
}


def answer_of(message: Message) -> tuple[str, float | None, bool]:
    """The command, its delay, and whether it counts for backoff."""
    assert message.answer is not None
    return tuple(message.answer)  # type: ignore[return-value]


# --- one message


def test_a_message_says_where_it_comes_from_but_never_what_is_in_it() -> None:
    message = FakeSubscription().message(b"secret", attempts=3)
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
    subscription = FakeSubscription()
    message = subscription.message(b"secret")
    ANSWERS[first](message)
    with pytest.raises(LocalProtocolError, match=f"{second} for .* answered by {first}") as caught:
        ANSWERS[second](message)
    assert "secret" not in str(caught.value)
    assert (subscription.answers, subscription.touches) == ([message], [])


def test_an_answer_after_close_requeued_the_message_raises() -> None:
    subscription = FakeSubscription()
    message = subscription.message()
    subscription.abandon(message)
    with pytest.raises(LocalProtocolError, match=r"answered by REQ by close\(\)"):
        message.finish()


def test_of_many_threads_only_one_answers() -> None:
    subscription = FakeSubscription()
    messages = subscription.messages(300)
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
    assert sorted(map(id, subscription.answers)) == sorted(map(id, messages))
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
def test_requeue_has_a_delay_and_may_count_as_a_failure(
    delay: float | None, backoff: bool, answer: tuple[str, float | None, bool]
) -> None:
    message = FakeSubscription().message()
    message.requeue(delay, backoff=backoff)
    assert answer_of(message) == answer


@pytest.mark.parametrize("delay", [-0.1, float("inf"), float("nan"), 10**9 + 1, "5", True, b"5"])
def test_a_delay_that_no_server_takes_is_refused_and_leaves_the_message_unanswered(
    delay: float,
) -> None:
    subscription = FakeSubscription()
    message = subscription.message()
    with pytest.raises(ConfigError, match="delay="):
        message.requeue(delay)
    assert not message.answered
    message.finish()


def test_touch_moves_the_deadline_of_this_message_alone() -> None:
    subscription = FakeSubscription()
    touched, other = subscription.messages(2)
    touched.touch()
    assert (touched.deadline, other.deadline) == (DEADLINE + 5, DEADLINE)
    assert subscription.touches == [touched]
    assert not touched.answered


# --- async with message


@asynchronous
async def test_the_end_of_the_block_finishes_the_message() -> None:
    subscription = FakeSubscription()
    async with subscription.message() as message:
        assert not message.answered
    assert answer_of(message)[0] == "FIN"


@asynchronous
async def test_an_answer_given_in_the_block_stands() -> None:
    subscription = FakeSubscription()
    async with subscription.message() as message:
        message.requeue(3)
    assert answer_of(message) == ("REQ", 3, True)
    assert subscription.answers == [message]
    async with subscription.message() as failing:
        failing.finish()
        raise ValueError
    assert answer_of(failing)[0] == "FIN"


@asynchronous
async def test_an_exception_ends_with_the_block_but_no_other_does() -> None:
    subscription = FakeSubscription()
    error = ValueError("wrong")
    async with subscription.message() as message:
        raise error
    assert subscription.failures == [(message, error)]
    for kind in (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(kind):
            async with subscription.message():
                raise kind


# --- keep_alive


@asynchronous
async def test_keep_alive_touches_only_as_long_as_its_block_runs() -> None:
    subscription = FakeSubscription()
    message = subscription.message()
    async with message.keep_alive(0.001):
        await eventually(lambda: len(subscription.touches) >= 3)
    count = len(subscription.touches)
    await asyncio.sleep(0.01)
    assert len(subscription.touches) == count


@asynchronous
async def test_keep_alive_stops_at_an_answer_and_lets_errors_pass() -> None:
    subscription = FakeSubscription()
    message = subscription.message()
    with pytest.raises(ValueError, match="mine"):
        async with message.keep_alive(0.001):
            message.finish()
            await asyncio.sleep(0.01)
            raise ValueError("mine")
    assert len(subscription.touches) <= 1


@pytest.mark.parametrize("interval", [0, -1, float("nan"), "5", True])
def test_keep_alive_refuses_an_invalid_interval(interval: float) -> None:
    @asynchronous
    async def keep() -> None:
        with pytest.raises(ConfigError, match="interval="):
            async with FakeSubscription().message().keep_alive(interval):
                pass

    keep()


# --- batches


def test_a_batch_leaves_out_what_was_answered_by_itself() -> None:
    subscription = FakeSubscription()
    first, second, third = batch = Batch(subscription.messages(3))
    first.requeue(1)
    batch.touch()
    assert subscription.touches == [second, third]
    third.finish()
    batch.finish()
    batch.requeue()
    assert [answer_of(message)[0] for message in batch] == ["REQ", "FIN", "FIN"]
    assert subscription.answers == [first, third, second]


def test_a_batch_is_requeued_as_its_messages_would_be() -> None:
    batch = Batch(FakeSubscription().messages(2))
    batch.requeue(2.5, backoff=False)
    assert [answer_of(message) for message in batch] == [("REQ", 2.5, False)] * 2


@asynchronous
async def test_the_end_of_the_block_finishes_the_batch() -> None:
    async with Batch(FakeSubscription().messages(3)) as batch:
        batch[1].requeue(0)
    assert [answer_of(message)[0] for message in batch] == ["FIN", "REQ", "FIN"]


@asynchronous
async def test_an_exception_fails_those_of_a_batch_that_were_not_answered() -> None:
    subscription = FakeSubscription()
    error = ValueError("wrong")
    async with Batch(subscription.messages(3)) as batch:
        batch[1].finish()
        raise error
    assert subscription.failures == [(batch[0], error), (batch[2], error)]
    assert answer_of(batch[1])[0] == "FIN"


@asynchronous
async def test_an_exception_after_a_batch_was_answered_is_logged_once() -> None:
    subscription = FakeSubscription()
    async with Batch(subscription.messages(3)) as batch:
        batch.finish()
        raise ValueError
    assert len(subscription.failures) == 1


@pytest.mark.parametrize("count", [0, 3])
def test_a_batch_never_swallows_a_cancellation(count: int) -> None:
    @asynchronous
    async def cancel() -> None:
        with pytest.raises(asyncio.CancelledError):
            async with Batch(FakeSubscription().messages(count)) as batch:
                batch[:1] = []
                raise asyncio.CancelledError

    cancel()


# --- gathering


class Batching:
    """A queue with a subscription, and batches from it."""

    def __init__(self, size: int, max_wait: float, max_in_flight: int = 100) -> None:
        self.subscription = FakeSubscription()
        self.coordinator = FakeCoordinator(max_in_flight, self.flush)
        self.queue = self.coordinator.queue
        self.batches = Batches(MessageReader(self.coordinator), size, max_wait)

    def flush(self) -> None:
        self.subscription.release(self.queue)

    def put(self, count: int) -> None:
        self.queue.put(self.subscription.messages(count))

    async def next(self) -> Batch:
        async with asyncio.timeout(10):
            return await anext(self.batches)


@asynchronous
async def test_a_full_batch_comes_at_once() -> None:
    batching = Batching(3, 3600)
    batching.put(7)
    assert bodies(await batching.next()) == [b"0", b"1", b"2"]
    assert bodies(await batching.next()) == [b"3", b"4", b"5"]


@asynchronous
async def test_a_batch_is_filled_by_what_comes_meanwhile() -> None:
    batching = Batching(3, 3600)
    task = asyncio.create_task(batching.next())
    for _ in range(3):
        await asyncio.sleep(0)
        assert not task.done()
        batching.put(1)
    assert len(await task) == 3


@asynchronous
async def test_a_batch_comes_with_what_there_is_when_its_time_is_over() -> None:
    batching = Batching(3, 0.01)
    batching.put(2)
    assert len(await batching.next()) == 2


@asynchronous
async def test_a_batch_comes_when_nothing_more_can_come() -> None:
    batching = Batching(100, 3600)
    batching.coordinator.starved = True
    batching.put(2)
    assert len(await batching.next()) == 2
    few = Batching(100, 3600, max_in_flight=4)
    few.put(9)
    batch = await few.next()
    assert len(batch) == 4
    batch.finish()
    assert len(await few.next()) == 4


@asynchronous
async def test_a_batch_being_collected_when_the_queue_closes_stays_there() -> None:
    batching = Batching(100, 3600)
    batching.put(2)
    task = asyncio.create_task(batching.next())
    await asyncio.sleep(0)
    assert len(batching.queue.close()) == 2
    with pytest.raises(StopAsyncIteration):
        await task
    with pytest.raises(StopAsyncIteration):
        await anext(batching.batches)


@pytest.mark.parametrize("ended_by", ["cancellation", "error"])
def test_what_was_being_gathered_stays_in_the_queue(ended_by: str) -> None:
    @asynchronous
    async def gather_in_vain() -> None:
        batching = Batching(100, 3600)
        batching.put(2)
        task = asyncio.create_task(batching.next())
        await asyncio.sleep(0)
        assert (batching.queue.queued, batching.queue.taken) == (2, 0)
        if ended_by == "error":
            rest = batching.queue.close(ValueError("the end"))
        else:
            task.cancel()
            rest = []
        await asyncio.wait([task])
        assert task.cancelled() or isinstance(task.exception(), ValueError)
        assert bodies([*rest, *batching.queue.messages]) == [b"0", b"1"]
        assert batching.subscription.answers == []

    gather_in_vain()
