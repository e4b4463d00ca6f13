"""The accumulator for topics that nsqlookupd names: it knows partitions of the redesigned NSQ.

A message with a key or a partition, and each message of an ordered topic, goes to one partition
only, in order: one batch is outstanding at a time, and is sent again in its place. If it fails,
what waits after it fails too. Until the topic was looked up, a key has no partition yet; such
messages wait in a queue of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from nsqflow.client.events import EventEmitter
from nsqflow.client.producer.accumulator import Accumulator, check_topic_name, drop_trace
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.client.producer.partition_sender import trace_failure
from nsqflow.client.producer.partitioner import make_partitioner
from nsqflow.client.producer.pool import ConnectionPool
from nsqflow.client.producer.publish_batch import (
    Destination,
    KeyQueue,
    PartitionQueue,
    PublishBatch,
    SendStatus,
    TopicPartition,
    TopicQueue,
    preceding_error,
    topic_of,
)
from nsqflow.client.producer.retry import RETRY_DELAY, RetryDecision, decide_retry
from nsqflow.client.producer.routing import TopicRoute
from nsqflow.errors import ConfigError, NsqError, RequestTimeout, ServerError
from nsqflow.protocol import Dialect


class PartitionedAccumulator(Accumulator):
    """An accumulator whose batches may belong to a partition."""

    def __init__(self, config: ProducerConfig, pool: ConnectionPool, events: EventEmitter) -> None:
        self._partition_of = make_partitioner(config.partitioner)
        self._turns: dict[str, int] = {}  # for ordered topics: the partition of the last batch
        super().__init__(config, pool, events)

    def find_destination(self, batch: PublishBatch) -> Destination:
        """Return where a batch goes; raise ``ConfigError`` for what its topic can't take.

        The key is not needed any more once the partition is known.
        """
        check_topic_name(batch.topic)  # before it is looked up
        if TopicPartition(batch.topic, None) in self._queues:
            self.flush()  # earlier messages get their partition first, if it is known by now
        route = self._pool.route(batch.topic)
        assert route is not None
        batch.destination = target = self._find_target(batch, route)
        if target != TopicPartition(batch.topic, None):
            batch.key = None
        return target

    def flush(self) -> None:
        """End the loop turn: find the partitions of batches, hand the batches to senders."""
        for destination in list(self._queues):
            self._settle(destination)
        super().flush()

    # Private methods

    def _queue(self, batch: PublishBatch) -> None:
        # While it waited for memory, the partition of its key, or of one before it, may have
        # become known: their order is that of these calls.
        if batch.destination != batch.topic:
            self._settle(TopicPartition(batch.topic, None))
        super()._queue(batch)
        if batch.key is not None:
            self._settle(batch.destination)

    def _settle(self, destination: Destination) -> None:
        """Fail batches that their topic can't take; move others to their partitions' queues."""
        queue = self._queues.get(destination)
        route = None if queue is None else self._pool.route(topic_of(destination))
        if queue is None or route is None or not route.known:
            return
        new = list(takewhile(lambda batch: not batch.settled, reversed(queue.batches)))
        for batch in reversed(new):
            if batch.settled:  # meanwhile: a failed one makes room for others, which come here too
                continue
            batch.settled = True
            try:
                target = self._find_target(batch, route)
            except ConfigError as error:
                queue.batches.remove(batch)
                self._fail(batch, error)
                if queue.is_ordered:  # those after it have failed too
                    return
                continue
            if target != destination:
                queue.batches.remove(batch)
                self._open.pop(destination, None)
                self._open.pop(target, None)
                batch.destination, batch.key = target, None
                self._queue_for(target).append(batch)

    def _find_target(self, batch: PublishBatch, route: TopicRoute) -> Destination:
        if (error := route.check(batch)) is not None:
            raise error
        if route.dialect is Dialect.CLASSIC:
            drop_trace(batch)
        elif batch.key is not None:
            return self._partition_for(route, batch.key)
        elif route.meta.ordered and batch.destination == batch.topic:
            return self._next_partition(route)
        return batch.destination

    def _partition_for(self, route: TopicRoute, key: bytes) -> TopicPartition:
        count = route.meta.partition_num
        known = route.dialect is Dialect.REDESIGNED and count > 0
        return TopicPartition(route.topic, self._partition_of(key, count) if known else None)

    def _next_partition(self, route: TopicRoute) -> TopicPartition:
        """Return the next partition of an ordered topic; if possible, one that has a leader."""
        numbers = sorted(route.leaders) or range(max(1, route.meta.partition_num))
        last = self._turns.get(route.topic, -1)
        number = next((each for each in numbers if each > last), numbers[0])
        self._turns[route.topic] = number
        return TopicPartition(route.topic, number)

    def _make_queue(self, destination: Destination) -> TopicQueue:
        if not isinstance(destination, TopicPartition):
            return TopicQueue()
        return KeyQueue() if destination.partition is None else PartitionQueue()

    def _on_done(
        self,
        batches: Sequence[PublishBatch],
        status: SendStatus,
        nsqd: str,
        error: NsqError | None,
    ) -> None:
        for batch in batches:
            self._no_longer_outstanding(batch)
        super()._on_done(batches, status, nsqd, error)

    def _on_refused(self, batch: PublishBatch, nsqd: str, error: ServerError) -> None:
        if batch.partition is None:  # a classic nsqd
            super()._on_refused(batch, nsqd, error)
            return
        codes, seconds = batch.refused_codes, self._loop.time() - batch.sent_at
        decision = decide_retry(error, refusals=codes.count(error.code), seconds=seconds)
        batch.refused_codes = (*codes, error.code)
        if decision is RetryDecision.UNCERTAIN:
            self._on_lost([batch], nsqd, error)
        elif decision is not RetryDecision.FAIL:
            batch.refused_by |= {f"{nsqd}/{batch.partition}"}
            after = RETRY_DELAY if decision is RetryDecision.RETRY_LATER else 0.0
            self._pool.refresh(batch.topic, batch.partition, after=after)
            self._put_back([batch])
        elif not self._split_bad(batch, error):
            self._fail(batch, error)

    def _fail(self, batch: PublishBatch, error: NsqError) -> None:
        if isinstance(error, RequestTimeout) and batch.deadline > self._loop.time():
            error = preceding_error(batch.destination, error)  # one with the same key is due
        self._fail_alone(batch, error)
        queue = self._queues.get(batch.destination)
        if queue is not None:
            self._no_longer_outstanding(batch)
            for other in queue.take_after(batch):
                self._fail_alone(other, preceding_error(batch.destination, error))

    def _fail_alone(self, batch: PublishBatch, error: NsqError) -> None:
        if batch.trace is not None:
            trace_failure(batch, error)
        super()._fail(batch, error)

    def _no_longer_outstanding(self, batch: PublishBatch) -> None:
        queue = self._queues.get(batch.destination)
        if queue is not None and queue.outstanding is batch:
            queue.outstanding = None
            self._schedule_flush()
