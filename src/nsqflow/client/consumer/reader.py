"""The reading side of a consumer: takes messages out of the queue for user code.

It hands out at most ``max_in_flight`` messages at a time whatever the servers send, and none
whose deadline has passed: nsqd delivers those again. Iterating code, batches, workers and the
queues of threads all read through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Self

from nsqflow.client.message import Message

if TYPE_CHECKING:
    from nsqflow.client.consumer.coordinator import Coordinator

# An iterating reader lets the event loop run after this many messages even if the slice of
# time is not over: its own code between them costs next to nothing.
_SLICE_MESSAGES = 1024


class MessageReader:
    """Iterates over the messages of a consumer; several tasks may do so at the same time."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.queue = coordinator.queue
        self._coordinator = coordinator
        self._slice_left = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Wait for a message; the iteration ends when the consumer is closed."""
        queue = self.queue
        self._slice_left -= 1
        if self._slice_left < 0 or monotonic() >= queue.pause_at:
            await self._pause()
        messages = queue.messages
        if not messages or queue.taken >= queue.max_in_flight:
            if not self.ready() and not await self.wait():
                raise StopAsyncIteration
            self._begin_slice()
        queue.taken += 1
        return messages.popleft()

    def ready(self) -> bool:
        """Return whether a message can be taken now."""
        queue = self.queue
        if monotonic() >= queue.check_at:
            self._coordinator.check(monotonic())
        if not queue.messages:
            return False
        if queue.taken >= queue.max_in_flight:
            self._coordinator.flush_all()  # answers that are queued make place
        return queue.taken < queue.max_in_flight

    async def wait(self, *, demand: bool = True) -> bool:
        """Wait until a message can be taken; return False when the consumer is closed.

        ``demand=False``: the caller is not a reader, or is counted as one elsewhere.
        """
        queue = self.queue
        while not self.ready():
            if queue.closed:
                self._raise_error()
                return False
            waiter = queue.add_waiter()
            queue.count_free(demand, monotonic())
            try:
                if demand and queue.prefetch_limited:
                    self._coordinator.update_rdy()
                await waiter
            except BaseException:
                queue.cancel_waiter(waiter)
                raise
            finally:
                queue.count_free(-demand, monotonic())
        return True

    def take_slice(self) -> Iterator[Message]:
        """Yield messages until there are none, or until the event loop must run."""
        queue = self.queue
        messages, popleft = queue.messages, queue.messages.popleft
        self._begin_slice()
        if monotonic() >= queue.check_at:
            self._coordinator.check(monotonic())
        while messages:
            if queue.taken >= queue.max_in_flight and not self.ready():
                return
            queue.taken += 1
            yield popleft()
            if monotonic() >= queue.pause_at:
                if monotonic() >= queue.slice_ends:
                    return
                self._coordinator.check(monotonic())

    def take_many(self, size: int) -> list[Message]:
        """Take up to ``size`` messages, without waiting; call it only if ``ready``."""
        queue = self.queue
        taken: list[Message] = []
        messages, count = queue.messages, min(size, queue.max_in_flight - queue.taken)
        now = monotonic()
        if now < queue.check_at:
            taken = [messages.popleft() for _ in range(min(count, len(messages)))]
        else:  # each must be checked
            while len(taken) < count:
                self._coordinator.check(now)
                if not messages:
                    break
                taken.append(messages.popleft())
        queue.taken += len(taken)
        return taken

    async def take_batch(self, size: int, max_wait: float) -> list[Message]:
        """Wait for ``size`` messages, or for as many as arrive in time; none if closed.

        They stay in the queue until then, so a caller that is cancelled loses none, and
        ``max_wait`` counts from the arrival of the first.
        """
        queue = self.queue
        queue.batch_demand += size
        queue.count_free(+1, monotonic())
        try:
            if queue.prefetch_limited:
                self._coordinator.update_rdy()
            while not queue.closed:
                if (seconds := self._batch_delay(size, max_wait)) > 0:
                    await queue.wait_changed(seconds)
                elif batch := self.take_many(size):
                    queue.batch_taken(size)
                    return batch
        finally:
            queue.batch_demand -= size
            queue.count_free(-1, monotonic())
        self._raise_error()
        return []

    def put_back(self, messages: list[Message]) -> None:
        """Return messages that were taken and not handed to user code."""
        if self.queue.closed:
            self.queue.taken -= len(messages)
            self._coordinator.give_back(messages)
        else:
            self.queue.put_back(messages)

    # For the queues of threads

    def update_rdy(self) -> None:
        """Have the RDY sent that the readers need now."""
        self._coordinator.update_rdy()

    def drop_expired(self) -> None:
        """Drop messages that have expired or were rejected by threads."""
        self._coordinator.expire(monotonic())

    # Private methods

    async def _pause(self) -> None:
        """Let the event loop run if the slice is over, and check the first message.

        A reader that never waits would starve the connection.
        """
        if self._slice_left < 0 or monotonic() >= self.queue.slice_ends:
            await asyncio.sleep(0)
            self._begin_slice()
        if monotonic() >= self.queue.check_at:
            self._coordinator.check(monotonic())

    def _begin_slice(self) -> None:
        self._slice_left = _SLICE_MESSAGES
        self.queue.begin_slice()

    def _batch_delay(self, size: int, max_wait: float) -> float:
        """Return the seconds until a batch must be handed out; 0: now."""
        if not self.ready():
            return inf
        queue = self.queue
        if len(queue.messages) >= min(size, queue.max_in_flight - queue.taken):
            return 0.0
        first, now = queue.messages[0].delivery, monotonic()
        # Later it might time out before the batch is handled.
        latest = first.deadline - first.subscription.msg_timeout / 2
        ends = min(first.arrived + max_wait, latest)
        return 0.0 if ends <= now or self._coordinator.is_starved() else ends - now

    def _raise_error(self) -> None:
        if self.queue.error is not None:
            raise self.queue.error
