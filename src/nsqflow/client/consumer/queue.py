"""The queue of messages that have arrived and were not handed to user code yet.

It also counts what was handed out and what its readers are doing, and wakes readers that wait.
It decides nothing: ``MessageReader`` takes messages out, the coordinator puts them in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from nsqflow.client.consumer.prefetch import ReaderState
from nsqflow.client.message import Message

if TYPE_CHECKING:
    from nsqflow.client.consumer.ordered import OrderedGate
    from nsqflow.client.consumer.thread_queue import ThreadQueue

_SLICE = 0.003  # seconds after which a reader that never waits lets the event loop run


class MessageQueue:
    """Messages between subscriptions and readers, at most ``max_in_flight`` of them taken."""

    def __init__(self, max_in_flight: int) -> None:
        self.messages: deque[Message] = deque()
        self.max_in_flight = max_in_flight
        self.taken = 0  # handed out or read ahead for threads, and not answered
        self.closed = False
        self.error: BaseException | None = None  # what ended the consumer, if it was an error
        self.check_at = inf  # when the first message must be checked before it is taken
        self.pause_at = 0.0  # the earlier of check_at and the end of the slice
        self.slice_ends = 0.0
        self.prefetch_limited = True  # RDY follows the demand of readers
        self.workers = 0  # tasks that run handlers
        self.thread_queues: list[ThreadQueue] = []
        self.gate: OrderedGate | None = None  # where partitions are ordered
        self.batch_demand = 0  # the sizes of batches that are being collected
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._batch_waiters: dict[asyncio.Future[None], None] = {}
        self._answer_waiters: dict[asyncio.Future[None], None] = {}
        self._wait_aborted = False
        self._free = 0
        self._free_changed = monotonic()
        self._idle = 0.0
        self._chunk = 1
        self._released = 0
        self._handed_at = -inf

    @property
    def outstanding(self) -> int:
        """The number of messages handed to user code and not answered."""
        return self.taken - sum(map(len, self.thread_queues))

    @property
    def queued(self) -> int:
        """The number of messages not handed out, including those read ahead for threads."""
        gated = 0 if self.gate is None else len(self.gate)
        return len(self.messages) + sum(map(len, self.thread_queues)) + gated

    def set_max_in_flight(self, count: int) -> None:
        """Allow ``count`` messages to be taken at a time."""
        self.max_in_flight = count
        self._wake_waiters()
        _wake_all(self._answer_waiters)

    # Deadlines

    def set_check_at(self, at: float) -> None:
        """Have the first message checked before anything is taken from then on."""
        self.check_at = at
        self.pause_at = min(self.slice_ends, at)

    def oldest_deadline(self) -> float:
        """Return the deadline of the message that has waited longest."""
        front = self.messages[0].delivery.deadline if self.messages else inf
        return min([front, *(each.oldest_deadline() for each in self.thread_queues)])

    def next_deadline(self) -> float:
        """Return the earliest deadline of the messages that wait."""
        deadlines = [message.delivery.deadline for message in self.messages]
        deadlines += [each.oldest_deadline() for each in self.thread_queues]
        if self.gate is not None:
            deadlines += [message.delivery.deadline for message in self.gate]
        return min(deadlines, default=inf)

    # Putting in and taking out

    def put(self, messages: list[Message]) -> None:
        """Queue messages that have arrived."""
        if self.gate is not None:
            messages = self.gate.admit(messages)
        self._add(messages)

    def answered(self, messages: list[Message]) -> None:
        """Queue the messages of ordered partitions that waited for these."""
        if self.gate is not None and (following := self.gate.leave(messages)):
            self._add(following)

    def _add(self, messages: list[Message]) -> None:
        self.messages.extend(messages)
        if self._waiters:
            self._wake_waiters()
        if self._batch_waiters:
            _wake_all(self._batch_waiters)

    def put_back(self, messages: list[Message]) -> None:
        """Queue messages at the front that were taken and not handed to user code."""
        self.taken -= len(messages)
        self.messages.extendleft(reversed(messages))
        self._wake_waiters()
        _wake_all(self._batch_waiters)

    def release(self, count: int) -> None:
        """Count messages that were answered."""
        self.taken -= count
        self._released += count
        if self._waiters and self.messages:
            self._wake_waiters()
        if self._batch_waiters:
            _wake_all(self._batch_waiters)
        if self._answer_waiters:
            _wake_all(self._answer_waiters)

    def remove(self, unwanted: Callable[[Message], bool]) -> list[Message]:
        """Take out messages that must not be handed out; return them."""
        removed = list(filter(unwanted, self.messages))
        if removed:
            gone = set(removed)
            kept = [message for message in self.messages if message not in gone]
            self.messages.clear()
            self.messages.extend(kept)
        recalled = [message for each in self.thread_queues for message in each.recall(unwanted)]
        if recalled:
            self.taken -= len(recalled)
            self._wake_waiters()
            _wake_all(self._answer_waiters)
        if self.gate is not None:
            gated = self.gate.remove(unwanted)
            self.answered(removed + recalled)
            return removed + recalled + gated
        return removed + recalled

    def close(self, error: BaseException | None = None) -> list[Message]:
        """End all readers; return the messages that were not handed out."""
        self.closed = True
        self.error = self.error or error
        rest = self.remove(lambda _: True)
        self._wake(len(self._waiters))
        _wake_all(self._batch_waiters)
        return rest

    # Waiting until messages are answered

    async def wait_idle(self) -> None:
        """Wait until all messages are answered; ``TimeoutError`` after ``abort_wait``."""
        while self.taken:
            if self._wait_aborted:
                raise TimeoutError
            await self._answered()

    def abort_wait(self) -> None:
        """End ``wait_idle`` now and in future."""
        self._wait_aborted = True
        _wake_all(self._answer_waiters)

    async def acquire(self) -> None:
        """Wait until ``max_in_flight`` allows one more message, and count it as taken."""
        while self.taken >= self.max_in_flight:
            await self._answered()
        self.taken += 1

    async def _answered(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._answer_waiters[waiter] = None
        try:
            await waiter
        finally:
            self._answer_waiters.pop(waiter, None)

    # Waiting until messages arrive

    def add_waiter(self) -> asyncio.Future[None]:
        """Return a future that is set when a message can be taken; first come, first served."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        return waiter

    def cancel_waiter(self, waiter: asyncio.Future[None]) -> None:
        """Forget a waiter; if it was woken already, wake the next one in its place."""
        self._waiters.pop(waiter, None)
        if waiter.done() and not waiter.cancelled():
            self._wake(1)

    async def wait_changed(self, seconds: float) -> None:
        """Wait until a message arrives or is answered, at most ``seconds``."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._batch_waiters[waiter] = None
        timer = None if seconds == inf else loop.call_later(seconds, _wake_one, waiter)
        try:
            await waiter
        finally:
            self._batch_waiters.pop(waiter, None)
            if timer is not None:
                timer.cancel()

    def _wake_waiters(self) -> None:
        """Wake as many readers as can take a message; the others keep their order."""
        self._wake(min(len(self.messages), self.max_in_flight - self.taken))

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    # Readers

    def readers(self, now: float) -> ReaderState:
        """Return what the readers are doing."""
        self.count_free(0, now)
        threads = self.thread_queues
        free = self._free + sum(each.free() for each in threads)
        total = self.workers + sum(each.readers for each in threads)
        outstanding = self.outstanding
        return ReaderState(
            total=max(total, free, 1),
            free=free,
            gathering=min(self.batch_demand, self.max_in_flight),
            chunk=self._chunk,
            outstanding=outstanding,
            handed=self._released + outstanding,
            idle=self._idle + sum(each.idle_seconds(now) for each in threads),
            handed_at=max([self._handed_at, *(each.handed_at for each in threads)]),
            oldest_deadline=self.oldest_deadline(),
        )

    def count_free(self, change: int, now: float) -> None:
        """Count readers that begin (+1) or stop (-1) waiting for a message."""
        self._idle += self._free * (now - self._free_changed)
        self._free_changed = now
        self._free += change

    def begin_slice(self) -> None:
        """Let a reader take messages one by one, until ``pause_at``."""
        self._handed_at = monotonic()
        self.slice_ends = self._handed_at + _SLICE
        self.pause_at = min(self.slice_ends, self.check_at)
        self._chunk = 1

    def batch_taken(self, size: int) -> None:
        """Record that a reader takes batches of ``size``."""
        self._chunk = size
        self._handed_at = monotonic()


def _wake_one(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _wake_all(waiters: dict[asyncio.Future[None], None]) -> None:
    for waiter in waiters:
        _wake_one(waiter)
    waiters.clear()
