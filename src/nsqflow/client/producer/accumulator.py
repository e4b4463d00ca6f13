"""The accumulator: collects messages into batches and hands the batches to connections.

    send ──> open batches ──> queues by destination ──> a sender ──> stored, refused, uncertain
             (one loop turn)   (no connection)

Messages sent within one turn of the loop go out as one batch. One timer watches the deadlines
of all messages. Buffered bytes are capped at ``max_pending``; further messages wait, in order.

``PartitionedAccumulator`` adds what partitions of the redesigned NSQ need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

from nsqflow.client.events import EventEmitter
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.client.producer.partition_sender import PartitionSender
from nsqflow.client.producer.pool import ConnectionPool, Sender
from nsqflow.client.producer.publish_batch import (
    Destination,
    PublishBatch,
    PublishFuture,
    SendStatus,
    TopicQueue,
    timeout_error,
    topic_of,
    uncertain_error,
)
from nsqflow.client.producer.routing import refuse_redesigned
from nsqflow.client.producer.semaphore import WeightedSemaphore
from nsqflow.client.reconnect_schedule import TRIGGER_GAP
from nsqflow.errors import NsqError, PublishUncertain, ServerError
from nsqflow.protocol import check_topic
from nsqflow.trace import warn_of_classic

_NOT_STORED = ("E_PUB_FAILED", "E_DPUB_FAILED")  # another nsqd may be able to store it
_BAD_MESSAGE = ("E_BAD_MESSAGE", "E_BAD_BODY")  # a single message of the batch may be the cause
_SWEEP_GAP = 0.02  # seconds between sweeps: each visits all batches

check_topic_name = lru_cache(maxsize=1024)(check_topic)


def drop_trace(batch: PublishBatch) -> None:
    """Publish without the trace id that ``set_tracing`` asks for: classic nsqd have none."""
    if batch.trace is not None:
        batch.trace = None
        warn_of_classic(batch.topic)


class Accumulator:
    """Batches messages, limits their bytes and enforces their deadlines."""

    def __init__(self, config: ProducerConfig, pool: ConnectionPool, events: EventEmitter) -> None:
        self._config = config
        self._max_batch_size = config.max_body_size - 4  # MPUB counts its messages in four bytes
        self._pool = pool
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._memory = WeightedSemaphore(config.max_pending, self._sweep_by)
        self._queues: dict[Destination, TopicQueue] = {}
        self._open: dict[Destination, PublishBatch] = {}  # queued, and open until the flush
        self._flush_scheduled = False
        self._sweep_at = float("inf")
        self._sweeper: asyncio.TimerHandle | None = None
        self._redial_at = float("inf")  # for queued batches; part of the sweep
        pool.start(on_done=self._on_done, on_ready=self.flush)

    @property
    def pending_bytes(self) -> int:
        """Bytes of all messages that have no result yet."""
        return self._memory.used

    # Adding messages

    def send(
        self, destination: Destination, body: bytes, timeout: float, wait: bool = True
    ) -> PublishFuture:
        """Add a message to the open batch of its destination; return the future of its result.

        Beyond ``max_pending`` it waits in line, or with ``wait=False`` raises
        ``BufferFullError``.
        """
        size = len(body) + 4
        memory = self._memory  # as its try_acquire() does: this saves a call for each message
        if memory.waiters or memory.used + size > memory.limit:
            return self._send_when_free(destination, body, timeout, wait)
        batch = self._open.get(destination)
        if batch is None or batch.timeout != timeout or batch.size + size > self._max_batch_size:
            batch = self._open_batch(destination, timeout)
        memory.used += size
        future: PublishFuture = asyncio.Future(loop=self._loop)
        batch.bodies.append(body)
        batch.futures.append(future)
        batch.size += size
        return future

    def find_destination(self, batch: PublishBatch) -> Destination:
        """Return where a batch goes; raise ``ConfigError`` for what its topic can't take."""
        if batch.destination is batch.topic and batch.has_only_destination:  # the usual case, fast
            return batch.destination
        error = refuse_redesigned(batch, "it is for topics of the redesigned NSQ; pass lookupd=")
        if error is not None:
            raise error
        drop_trace(batch)
        return batch.destination

    def send_batch(self, batch: PublishBatch, wait: bool = True) -> PublishFuture:
        """Send a batch after earlier messages to its topic; return the future of its result."""
        check_topic_name(batch.topic)
        future: PublishFuture = asyncio.Future(loop=self._loop)
        batch.futures = [future]
        if not self._memory.try_acquire(batch.size):
            start = partial(self._add_batch, batch)
            self._memory.call_when_acquired(batch.size, batch.deadline, future, start, wait)
        elif len(batch.bodies) == 1:
            self._add_batch(batch)
        else:  # several messages: worth a write of their own
            self._queue(batch)
            self.flush()
        return future

    # Sending batches

    def flush(self) -> None:
        """End the loop turn: hand the batches to senders."""
        self._flush_scheduled = False
        self._open.clear()
        senders: set[Sender | PartitionSender] = set()
        for destination, queue in list(self._queues.items()):
            while (
                queue.batches
                and queue.outstanding is None
                and (sender := self._pool.pick(queue.batches[0])) is not None
            ):
                batch = queue.next(self._max_batch_size)
                self._open.pop(destination, None)  # opened just now, with memory released
                if sender.send(batch):
                    senders.add(sender)
                else:  # every message of it was cancelled
                    queue.outstanding = None
                    self._memory.release(batch.size)
            if queue.batches and queue.outstanding is None:
                self._await_connection(destination, queue)
            if not queue.batches and queue.outstanding is None:
                self._queues.pop(destination, None)
        for sender in senders:
            sender.flush()

    # Closing

    async def drain(self) -> None:
        """Wait until every message has its result."""
        while pending := list(self._pending()):
            await asyncio.wait(pending)

    async def close(self, error: NsqError) -> None:
        """Fail unsent messages with ``error``, unanswered ones as uncertain; disconnect."""
        self.abort(error)
        await self._pool.close()

    def abort(self, error: NsqError) -> None:
        """Fail unsent messages with ``error`` and unanswered ones as uncertain."""
        self._memory.close(error)
        queued = self._queued()
        self._queues.clear()
        self._open.clear()
        for batch in queued:
            self._fail(batch, error)
        for sender in self._pool.senders():
            for batch in sender.unanswered:
                self._expire(batch, sender.address, error)
        if self._sweeper is not None:
            self._sweeper.cancel()

    # Private methods: batches

    def _send_when_free(
        self, destination: Destination, body: bytes, timeout: float, wait: bool
    ) -> PublishFuture:
        check_topic_name(topic_of(destination))
        future: PublishFuture = asyncio.Future(loop=self._loop)
        deadline = self._loop.time() + timeout
        start = partial(self._add_waiting, destination, body, future, deadline)
        self._memory.call_when_acquired(len(body) + 4, deadline, future, start, wait)
        return future

    def _add_waiting(
        self, destination: Destination, body: bytes, future: PublishFuture, deadline: float
    ) -> None:
        # To two digits: messages that waited together then share a timeout, and so a batch.
        timeout = float(f"{max(0.0, deadline - self._loop.time()):.2g}")
        batch = self._open.get(destination)
        full = batch is not None and batch.size + len(body) + 4 > self._max_batch_size
        if batch is None or batch.timeout != timeout or full:
            batch = self._open_batch(destination, timeout)
        batch.add(body, future)

    def _open_batch(self, destination: Destination, timeout: float) -> PublishBatch:
        topic = check_topic_name(topic_of(destination))
        batch = PublishBatch(topic, self._loop.time() + timeout)
        batch.destination = destination
        batch.timeout = timeout
        self._add_batch(batch)
        self._open[destination] = batch
        return batch

    def _add_batch(self, batch: PublishBatch) -> None:
        self._queue(batch)
        self._schedule_flush()

    def _queue(self, batch: PublishBatch) -> None:
        self._open.pop(batch.destination, None)
        self._queue_for(batch.destination).append(batch)
        self._sweep_by(batch.deadline)

    def _put_back(self, batches: Sequence[PublishBatch]) -> None:
        for batch in reversed(batches):
            self._queue_for(batch.destination).batches.appendleft(batch)
        self._schedule_flush()

    def _queue_for(self, destination: Destination) -> TopicQueue:
        queue = self._queues.get(destination)
        if queue is None:
            queue = self._queues[destination] = self._make_queue(destination)
        return queue

    def _make_queue(self, destination: Destination) -> TopicQueue:
        return TopicQueue()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def _await_connection(self, destination: Destination, queue: TopicQueue) -> None:
        """Ask for a connection; fail the batches if no connection can be made."""
        error = self._pool.unreachable_error(destination)
        if error is not None:
            for batch in queue.take_due(float("inf")):
                self._fail(batch, error)
        if queue.has_new:  # even if they have failed: the cause may be gone by the next time
            queue.has_new = False
            self._pool.connect(destination)
        if queue.batches and self._redial_at == float("inf"):
            self._redial_at = self._loop.time() + TRIGGER_GAP
            self._sweep_by(self._redial_at)

    # Private methods: results

    def _on_done(
        self,
        batches: Sequence[PublishBatch],
        status: SendStatus,
        nsqd: str,
        error: NsqError | None,
    ) -> None:
        if status is SendStatus.STORED:
            for batch in batches:
                self._memory.release(batch.size)
        elif status is SendStatus.NOT_READ:
            self._put_back(batches)
        elif isinstance(error, ServerError) and status is SendStatus.REFUSED:
            for batch in batches:
                self._on_refused(batch, nsqd, error)
        else:
            self._on_lost(batches, nsqd, error)

    def _on_refused(self, batch: PublishBatch, nsqd: str, error: ServerError) -> None:
        batch.refused_by |= {nsqd}
        if self._split_bad(batch, error):
            return
        if error.code == "E_MPUB_FAILED" and len(batch.bodies) > 1:
            self._on_lost([batch], nsqd, error)
        elif error.code in _NOT_STORED and len(batch.refused_by) < self._pool.nsqd_count(
            batch.topic
        ):
            self._put_back([batch])
        else:
            self._fail(batch, error)

    def _split_bad(self, batch: PublishBatch, error: ServerError) -> bool:
        """Send each message of a batch alone if one of them may be bad: nothing was stored."""
        if error.code not in _BAD_MESSAGE or len(batch.bodies) == 1 or batch.shares_future:
            return False
        parts = batch.split()
        self._memory.release(batch.size - sum(part.size for part in parts))
        self._put_back(parts)
        return True

    def _on_lost(self, batches: Sequence[PublishBatch], nsqd: str, error: object) -> None:
        for batch in batches:
            failure = uncertain_error(batch.destination, nsqd, error)
            if self._config.retry_uncertain:
                batch.uncertainty = failure
            else:
                self._fail_uncertain(batch, nsqd, failure)
        if self._config.retry_uncertain:
            self._put_back(batches)

    def _fail(self, batch: PublishBatch, error: NsqError) -> None:
        batch.set_exception(error)
        self._memory.release(batch.size)

    def _fail_uncertain(self, batch: PublishBatch, nsqd: str, failure: PublishUncertain) -> None:
        self._fail(batch, failure)
        self._events.emit("uncertain", nsqd, str(failure), failure)

    def _queued(self) -> list[PublishBatch]:
        return [batch for queue in self._queues.values() for batch in queue.batches]

    def _pending(self) -> Iterator[asyncio.Future[Any]]:
        """One unresolved future of each batch (they are resolved together), and all waiters."""
        sent = [batch for sender in self._pool.senders() for batch in sender.unanswered]
        for batch in self._queued() + sent:
            future = next((future for future in batch.futures if not future.done()), None)
            if future is not None:
                yield future
        yield from self._memory.pending()

    # Private methods: deadlines

    def _sweep_by(self, deadline: float) -> None:
        if deadline < self._sweep_at:
            self._sweep_at = deadline
            if self._sweeper is not None:
                self._sweeper.cancel()
            self._sweeper = self._loop.call_at(deadline, self._sweep)

    def _sweep(self) -> None:
        now = self._loop.time()
        self._sweep_at = float("inf")
        self._open.clear()  # those that have expired must take no more messages
        # Waiters first: bytes that other messages release must not go to expired ones.
        next_at = min(self._memory.expire(now), self._sweep_queues(now), self._sweep_sent(now))
        next_at = min(next_at, self._redial(now))
        self._sweep_by(max(next_at, now + _SWEEP_GAP))

    def _redial(self, now: float) -> float:
        """Ask for connections again while batches are queued; return when to do so next."""
        if now >= self._redial_at:
            waiting = [each for each, queue in self._queues.items() if queue.batches]
            for destination in waiting:
                self._pool.connect(destination)
            self._redial_at = now + TRIGGER_GAP if waiting else float("inf")
        return self._redial_at

    def _sweep_queues(self, now: float) -> float:
        due = [batch for queue in self._queues.values() for batch in queue.take_due(now)]
        for batch in due:
            reason = self._pool.describe(batch.destination)
            self._fail(batch, timeout_error(batch.destination, reason))
        return min((batch.deadline for batch in self._queued()), default=float("inf"))

    def _sweep_sent(self, now: float) -> float:
        next_deadline = float("inf")
        for sender in self._pool.senders():
            for batch in sender.unanswered:
                if batch.deadline > now:
                    next_deadline = min(next_deadline, batch.deadline)
                else:
                    self._expire(batch, sender.address, "no answer in time")
        return next_deadline

    def _expire(self, batch: PublishBatch, nsqd: str, reason: object) -> None:
        """Fail a sent batch; a late answer to it is ignored."""
        if not batch.expired:
            self._fail_uncertain(batch, nsqd, uncertain_error(batch.destination, nsqd, reason))
            batch.expire()
