"""The accumulator: one result per message, all memory released, first come first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.client.events import ClientEvent, EventEmitter
from nsqflow.client.producer.accumulator import Accumulator
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.client.producer.pool import ConnectionPool, OnDone, Sender
from nsqflow.client.producer.publish_batch import Destination, PublishBatch, PublishFuture
from nsqflow.client.producer.semaphore import WeightedSemaphore
from nsqflow.errors import (
    AuthFailedError,
    BadMessageError,
    BufferFullError,
    LocalProtocolError,
    NetworkError,
    NsqError,
    PublishUncertain,
    RequestTimeout,
    ServerError,
)
from nsqflow.protocol import CommandFailed, IdentifyRequest
from nsqflow.protocol.publish import Bodies
from nsqflow.transport.handshake import ConnectionSettings
from tests.fixtures.loops import asynchronous

LONG = 1000.0  # seconds: never, here


class FakeSender(Sender):
    """A connection that accepts every batch and answers when the test says so."""

    def __init__(self, address: str, on_done: OnDone, on_ready: Callable[[], None]) -> None:
        settings = ConnectionSettings(identify=IdentifyRequest())
        super().__init__(address, settings, on_done, on_ready)
        self.open = True
        self.commands: list[list[bytes]] = []
        self.flushes = 0

    @property
    def ready(self) -> bool:
        return self.open

    def send(self, batch: PublishBatch) -> bool:
        if batch.command() is None:
            return False
        self.commands.append(list(batch.bodies))
        self.unanswered.append(batch)
        return True

    def flush(self) -> None:
        self.flushes += 1

    def refuse(self, code: str) -> None:
        """Answer the oldest with an error, and close, as nsqd does."""
        self.open = False
        self.command_failed(CommandFailed(ServerError.from_frame(code.encode()), "PUB", True))

    def lose(self) -> None:
        self.open = False
        self.connection_lost(NetworkError("lost"))


class FakePool(ConnectionPool):
    """Some senders, picked in turn, and an accumulator on top."""

    def __init__(self, count: int = 1, **options: Any) -> None:
        self.events: list[ClientEvent] = []
        options = {"max_msg_size": 92, "max_body_size": 100, "max_pending": 200} | options
        config = ProducerConfig(nsqd=("127.0.0.1:1",), **options)
        self._count = count
        self.accumulator = Accumulator(config, self, EventEmitter(self.events.append))
        self.error: NsqError | None = None  # that no waiting can fix
        self.asked: list[Destination] = []  # topics for which a connection was asked for
        self._turn = 0

    def start(self, *, on_done: OnDone, on_ready: Callable[[], None]) -> None:
        self.fakes = [FakeSender(f"nsqd{i}", on_done, on_ready) for i in range(self._count)]

    async def close(self) -> None:
        pass

    def senders(self) -> list[Sender]:
        return [*self.fakes]

    def pick(self, batch: PublishBatch) -> Sender | None:
        ready = [sender for sender in self.fakes if sender.ready]
        ready = [o for o in ready if o.address not in batch.refused_by] or ready
        self._turn += 1
        return ready[self._turn % len(ready)] if ready else None

    def connect(self, destination: Destination) -> None:
        self.asked.append(destination)

    def unreachable_error(self, destination: Destination) -> NsqError | None:
        return self.error

    def describe(self, destination: Destination) -> str:
        return f"no nsqd for {destination}"

    def nsqd_count(self, topic: str) -> int:
        return len(self.fakes)


def send(
    pool: FakePool, *bodies: bytes, topic: str = "t", timeout: float = LONG
) -> list[PublishFuture]:
    return [pool.accumulator.send(topic, body, timeout) for body in bodies]


def send_batch(
    pool: FakePool, *bodies: bytes, topic: str = "t", timeout: float = LONG
) -> PublishFuture:
    """Send a batch as ``publish_many`` does."""
    deadline = asyncio.get_running_loop().time() + timeout
    return pool.accumulator.send_batch(PublishBatch(topic, deadline, Bodies(bodies)))


async def turn() -> None:
    """Let a turn of the loop pass, and what it leads to."""
    for _ in range(3):
        await asyncio.sleep(0)


async def begun(*calls: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(call) for call in calls]
    await turn()
    return tasks


def result(future: asyncio.Future[Any]) -> str:
    if not future.done():
        return "open"
    if future.cancelled():
        return "cancelled"
    error = future.exception()
    return "stored" if error is None else type(error).__name__


# Batches


@asynchronous
async def test_the_messages_of_one_turn_are_one_batch_and_one_flush() -> None:
    pool = FakePool()
    futures = send(pool, b"1", b"2", b"3")
    assert pool.fakes[0].commands == [], "the turn has not ended"
    await turn()
    assert pool.fakes[0].commands == [[b"1", b"2", b"3"]]
    assert pool.fakes[0].flushes == 1
    pool.fakes[0].published(None)
    assert [result(future) for future in futures] == ["stored"] * 3
    assert pool.accumulator.pending_bytes == 0


@asynchronous
async def test_messages_go_out_in_the_order_of_the_calls() -> None:
    pool = FakePool()
    send(pool, b"1")
    send(pool, b"2", timeout=LONG / 2)
    send(pool, b"3")
    send_batch(pool, b"4", b"5")
    send(pool, b"6")
    send(pool, b"x", topic="u")
    await turn()
    commands = [[b"1"], [b"2"], [b"3"], [b"4", b"5"], [b"6"], [b"x"]]
    assert pool.fakes[0].commands == commands


@asynchronous
async def test_a_batch_has_no_more_messages_than_fit() -> None:
    pool = FakePool()
    send(pool, b"1" * 44, b"2" * 44, b"3" * 44)
    await turn()
    assert pool.fakes[0].commands == [[b"1" * 44, b"2" * 44], [b"3" * 44]]


@asynchronous
async def test_an_invalid_topic_uses_no_memory() -> None:
    pool = FakePool()
    with pytest.raises(NsqError, match="'a b'"):
        send(pool, b"1", topic="a b")
    await turn()
    assert pool.accumulator.pending_bytes == 0
    await pool.accumulator.drain()


@asynchronous
async def test_queued_batches_go_out_once_a_connection_takes_them() -> None:
    pool = FakePool()
    pool.fakes[0].open = False
    send(pool, b"1")
    await turn()
    send(pool, b"2")
    await turn()
    pool.fakes[0].open = True
    pool.accumulator.flush()
    assert pool.fakes[0].commands == [[b"1"], [b"2"]]
    assert pool.fakes[0].flushes == 1


# Answers


@asynchronous
async def test_a_bad_message_fails_alone_and_the_others_are_sent_again_in_order() -> None:
    pool = FakePool(2)
    first, second = pool.fakes
    second.open = False
    bad = send(pool, b"1", b"2")
    await turn()
    later = send(pool, b"3")
    await turn()
    second.open = True
    first.refuse("E_BAD_MESSAGE too big")
    assert [result(future) for future in bad + later] == ["open"] * 3
    await turn()
    assert second.commands == [[b"1"], [b"2"], [b"3"]]
    second.published(None)
    first.open = True
    second.refuse("E_BAD_MESSAGE too big")
    await turn()
    first.published(None)
    results = [result(future) for future in bad + later]
    assert results == ["stored", BadMessageError.__name__, "stored"]
    assert pool.accumulator.pending_bytes == 0


@asynchronous
async def test_a_refused_batch_with_one_future_is_not_split() -> None:
    pool = FakePool()
    future = send_batch(pool, b"1", b"2")
    await turn()
    pool.fakes[0].refuse("E_BAD_MESSAGE too big")
    assert result(future) == "BadMessageError"
    assert pool.accumulator.pending_bytes == 0


@asynchronous
async def test_a_batch_that_one_nsqd_could_not_store_is_sent_once_to_each() -> None:
    pool = FakePool(3)
    [future] = send(pool, b"1")
    for _ in range(3):
        assert not future.done()
        await turn()
        [sender] = [sender for sender in pool.fakes if sender.unanswered]
        sender.refuse("E_PUB_FAILED disk is full")
        sender.open = True
    assert result(future) == "PublishFailedError"
    assert [sender.commands for sender in pool.fakes] == [[[b"1"]]] * 3


@asynchronous
async def test_a_lost_batch_is_uncertain_and_reported_once_per_command() -> None:
    pool = FakePool()
    futures = send(pool, b"1", b"2")
    await turn()
    futures.append(send_batch(pool, b"3"))
    await turn()
    pool.fakes[0].lose()
    assert [result(future) for future in futures] == ["PublishUncertain"] * 3
    assert [event.kind for event in pool.events] == ["uncertain"] * 2
    assert pool.accumulator.pending_bytes == 0


@asynchronous
async def test_a_batch_that_was_sent_and_lost_never_fails_as_if_it_was_not_sent() -> None:
    pool = FakePool(retry_uncertain=True)
    [late] = send(pool, b"1", timeout=0.02)
    [refused] = send(pool, b"2", topic="u")
    [closed] = send(pool, b"3", topic="v")
    await turn()
    pool.fakes[0].lose()
    await asyncio.wait([late])
    assert (result(refused), result(closed)) == ("open", "open")
    pool.error = AuthFailedError("E_AUTH_FAILED")
    pool.accumulator.flush()
    assert result(refused) == "PublishUncertain"
    pool.error = None
    pool.accumulator.abort(LocalProtocolError("closed"))
    assert [result(future) for future in (late, closed)] == ["PublishUncertain"] * 2


# Deadlines


@asynchronous
async def test_unsent_and_unanswered_messages_fail_at_their_deadline() -> None:
    pool = FakePool()
    [sent] = send(pool, b"1", timeout=0.02)
    await turn()
    pool.fakes[0].open = False
    [waiting] = send(pool, b"2", timeout=0.03)
    [later] = send(pool, b"3", timeout=LONG)
    await asyncio.wait([sent, waiting])
    assert isinstance(sent.exception(), PublishUncertain)
    assert isinstance(waiting.exception(), RequestTimeout)
    assert "no nsqd for t" in str(waiting.exception())
    assert not later.done()
    assert pool.accumulator.pending_bytes == 5
    pool.fakes[0].published(None)  # the answer to the first, at last
    assert pool.accumulator.pending_bytes == 5, "its bytes were released before"
    pool.fakes[0].open = True
    pool.accumulator.flush()
    pool.fakes[0].published(None)
    assert result(later) == "stored"


@asynchronous
async def test_messages_fail_at_once_if_no_nsqd_can_be_reached() -> None:
    pool = FakePool()
    pool.fakes[0].open = False
    futures = send(pool, b"1", timeout=100) + send(pool, b"2", timeout=10)
    await turn()
    assert [result(future) for future in futures] == ["open", "open"]
    pool.error = AuthFailedError("E_AUTH_FAILED")
    pool.accumulator.flush()
    assert [result(future) for future in futures] == ["AuthFailedError"] * 2
    assert pool.accumulator.pending_bytes == 0
    # Those that come later fail too, but ask for a connection: the cause may be gone by now.
    pool.asked.clear()
    [later] = send(pool, b"3")
    await turn()
    assert (result(later), pool.asked) == ("AuthFailedError", ["t"])


@asynchronous
async def test_each_turn_that_finds_no_connection_asks_for_one() -> None:
    pool = FakePool()
    send(pool, b"0")
    await turn()
    assert pool.asked == [], "there is one"
    pool.fakes[0].open = False
    send(pool, b"1", b"2")
    send(pool, b"3", topic="u")
    await turn()
    assert pool.asked == ["t", "u"]
    send_batch(pool, b"4")
    await turn()
    assert pool.asked == ["t", "u", "t"]
    for _ in range(3):  # a dial has failed, say: nothing new was published
        pool.accumulator.flush()
    assert pool.asked == ["t", "u", "t"]
    pool.fakes[0].open = True
    pool.accumulator.flush()
    assert not pool.accumulator._queues


@asynchronous
async def test_a_connection_is_asked_for_again_each_second_while_a_batch_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    passed = 0.0
    monkeypatch.setattr(loop, "time", lambda: began + passed)
    pool = FakePool()
    pool.fakes[0].open = False
    [first] = send(pool, b"1", timeout=3.5)
    await turn()
    asked = []
    for _ in range(8):
        passed += 0.5
        await turn()
        asked.append(len(pool.asked))
    assert asked == [1, 2, 2, 3, 3, 4, 4, 4]
    assert result(first) == "RequestTimeout"
    assert pool.accumulator._sweep_at == pool.accumulator._redial_at == float("inf"), (
        "nothing waits"
    )
    [second] = send(pool, b"2")
    await turn()
    pool.fakes[0].open = True
    pool.accumulator.flush()
    pool.fakes[0].published(None)
    passed += 10
    await turn()
    assert (result(second), len(pool.asked)) == ("stored", 5)
    assert pool.accumulator._redial_at == float("inf")


# Closing


@asynchronous
async def test_an_aborted_accumulator_fails_all_messages_and_all_later_ones() -> None:
    pool = FakePool()
    [sent] = send(pool, b"1")
    await turn()
    pool.fakes[0].open = False
    [waiting] = send(pool, b"2")
    await turn()
    [fresh] = send(pool, b"3", topic="u")
    waiting_for_memory = send_batch(pool, b"x" * 192)
    [draining] = await begun(pool.accumulator.drain())
    pool.accumulator.abort(LocalProtocolError("closed"))
    results = [result(future) for future in (sent, waiting, fresh, waiting_for_memory)]
    assert results == ["PublishUncertain"] + ["LocalProtocolError"] * 3
    await draining
    assert pool.accumulator.pending_bytes == 0
    later = [*send(pool, b"4"), send_batch(pool, b"4")]
    assert [result(future) for future in later] == ["LocalProtocolError"] * 2
    assert pool.fakes[0].commands == [[b"1"]]
    pool.fakes[0].published(None)  # the answer that came too late
    pool.fakes[0].lose()
    assert pool.accumulator.pending_bytes == 0


@asynchronous
async def test_draining_waits_for_messages_that_were_not_cancelled() -> None:
    pool = FakePool()
    pool.fakes[0].open = False
    [first, second] = [*send(pool, b"1"), *send(pool, b"2", topic="u")]
    [draining] = await begun(pool.accumulator.drain())
    second.cancel()
    await turn()
    assert not draining.done()
    first.cancel()
    async with asyncio.timeout(10):
        await draining


# The semaphore


class Acquiring:
    """Calls that acquire bytes of a semaphore, by number."""

    def __init__(self, limit: int) -> None:
        self.wakes: list[float] = []
        self.semaphore = WeightedSemaphore(limit, self.wakes.append)
        self.order: list[int] = []  # of the calls that have acquired their bytes

    def acquire(
        self, number: int, size: int, deadline: float = LONG, *, wait: bool = True
    ) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        start = partial(self.order.append, number)
        if self.semaphore.try_acquire(size):
            start()
        else:
            self.semaphore.call_when_acquired(size, deadline, future, start, wait)
        return future


@asynchronous
async def test_bytes_are_acquired_in_order() -> None:
    calls = Acquiring(100)
    calls.acquire(0, 100)
    waiting = [calls.acquire(number, size) for number, size in enumerate((60, 10, 90, 1), 1)]
    waiting[1].cancel()
    await turn()
    calls.semaphore.release(50)
    assert calls.order == [0], "the first does not fit, and the others are after it"
    calls.semaphore.release(50)
    assert calls.order == [0, 1], "the second is cancelled, the third does not fit"
    calls.acquire(5, 1)
    assert calls.order == [0, 1], "a new call waits after them"
    calls.semaphore.release(60)
    assert (calls.order, calls.semaphore.used) == ([0, 1, 3, 4, 5], 92)


@asynchronous
async def test_a_call_that_must_not_wait_is_refused_as_long_as_another_waits() -> None:
    calls = Acquiring(100)
    calls.acquire(1, 60, wait=False)
    with pytest.raises(BufferFullError, match="max_pending=100"):
        calls.acquire(2, 41, wait=False)
    calls.acquire(3, 41)
    with pytest.raises(BufferFullError):
        calls.acquire(4, 1, wait=False)
    calls.semaphore.release(60)
    calls.acquire(5, 59, wait=False)
    assert (calls.order, calls.semaphore.used) == ([1, 3, 5], 100)


@asynchronous
async def test_a_wait_for_bytes_ends_at_its_deadline() -> None:
    calls = Acquiring(100)
    calls.acquire(0, 100)
    first, _ = calls.acquire(1, 10, 5.0), calls.acquire(2, 20, 7.0)
    assert calls.wakes == [5.0, 7.0]
    assert calls.semaphore.expire(4.9) == 5.0
    assert calls.semaphore.expire(5.0) == 7.0
    with pytest.raises(RequestTimeout, match="max_pending=100"):
        await first
    calls.semaphore.release(100)
    assert calls.order == [0, 2]
    assert calls.semaphore.expire(LONG) == float("inf")
    assert calls.semaphore.used == 20


# Any sequence of events


class Scenario:
    """Random events, and the calls that publish."""

    def __init__(self, retry: bool, count: int) -> None:
        self.pool = FakePool(count, retry_uncertain=retry)
        self.calls: list[asyncio.Task[None]] = []
        self.ends: deque[str] = deque()

    async def publish(self, size: int, timeout: float) -> None:
        await self.pool.accumulator.send("t", b"x" * size, timeout)

    async def publish_many(self, sizes: list[int]) -> None:
        await send_batch(self.pool, *(b"x" * size for size in sizes))

    async def step(self, action: str, number: int) -> None:
        senders = self.pool.fakes
        sender = senders[number % len(senders)]
        if action == "publish":
            self.call(self.publish(number % 92 + 1, LONG))
        elif action == "publish briefly":
            self.call(self.publish(number % 92 + 1, 0.001))
        elif action == "many":
            self.call(self.publish_many([number % 20 + 1] * (number % 4 + 1)))
        elif action == "cancel" and self.calls:
            self.calls[number % len(self.calls)].cancel()
        elif action == "answer" and sender.unanswered:
            sender.published(None)
        elif action == "refuse" and sender.unanswered:
            codes = ("E_BAD_MESSAGE", "E_PUB_FAILED", "E_MPUB_FAILED", "E_BAD_BODY")
            sender.refuse(codes[number % 4])
        elif action == "lose" and sender.open:
            sender.lose()
        elif action == "open":
            sender.open = True
            self.pool.accumulator.flush()
        elif action == "turn":
            await asyncio.sleep(0.002 if number % 7 == 0 else 0)

    def call(self, publish: Coroutine[Any, Any, None]) -> None:
        self.calls.append(asyncio.create_task(publish))

    async def end(self) -> None:
        """Answer every batch until all calls have ended."""
        draining = asyncio.create_task(self.pool.accumulator.drain())
        async with asyncio.timeout(20):
            while not draining.done() or not all(call.done() for call in self.calls):
                for sender in self.pool.fakes:
                    sender.open = True
                    while sender.unanswered:
                        sender.published(None)
                self.pool.accumulator.flush()
                await asyncio.sleep(0)


actions = st.tuples(
    st.sampled_from(
        ["publish"] * 4
        + ["turn"] * 4
        + ["answer"] * 2
        + ["publish briefly", "many", "cancel", "refuse", "lose", "open", "open"]
    ),
    st.integers(0, 1000),
)


@given(st.lists(actions, max_size=80), st.booleans(), st.integers(1, 3))
def test_every_call_has_one_result_and_every_byte_is_released(
    actions_taken: list[tuple[str, int]], retry: bool, count: int
) -> None:
    @asynchronous
    async def run() -> None:
        scenario = Scenario(retry, count)
        accumulator = scenario.pool.accumulator
        for action, number in actions_taken:
            await scenario.step(action, number)
            assert 0 <= accumulator.pending_bytes <= 200
        await scenario.end()
        assert accumulator.pending_bytes == 0
        for call in scenario.calls:
            if not call.cancelled():
                assert isinstance(call.exception(), NsqError | None)
        accumulator.abort(LocalProtocolError("closed"))

    run()
