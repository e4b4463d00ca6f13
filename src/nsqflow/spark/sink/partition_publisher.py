"""Publishes to topics of the redesigned NSQ, with the producer of the client.

The producer runs in the background thread: heartbeats are answered while Spark computes rows. Each
batch of rows is stored or the task fails: what has no answer is sent again, so it may be stored
twice. Batches of a partition are sent one after another, and again in their place.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from functools import partial

from nsqflow.blocking import loop_thread
from nsqflow.blocking.loop_thread import LoopUser
from nsqflow.client.events import EventEmitter
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.client.producer.partitioned import PartitionedAccumulator
from nsqflow.client.producer.pool import ConnectionPool
from nsqflow.client.producer.publish_batch import (
    PublishBatch,
    PublishFuture,
    TopicPartition,
    describe,
)
from nsqflow.errors import BadBodyError, BadMessageError, LocalProtocolError, NsqError, ServerError
from nsqflow.protocol import Dialect
from nsqflow.spark.connection import connection_settings
from nsqflow.spark.options import SinkOptions
from nsqflow.spark.server_options import Access
from nsqflow.transport.handshake import ConnectionSettings

logger = logging.getLogger(__name__)

_MAX_PENDING = 16 * 1024 * 1024  # bytes of batches without an answer
_MAX_BATCHES = 1000  # the same, in batches
_SLOW_RESPONSE = 3.0  # seconds without an answer after which a warning is logged


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProducerConfig(ProducerConfig):
    """The options of the producer, with the connections of a Spark task."""

    access: Access = field(default_factory=Access)

    def connection_settings(self, dialect: Dialect = Dialect.REDESIGNED) -> ConnectionSettings:
        """Return the settings for all connections."""
        settings = connection_settings(self.access)
        return replace(settings, dialect=dialect, dial_timeout=self.dial_timeout)


class PartitionPublisher:
    """Publishes batches; all of them are stored when ``finish()`` returns.

    An error is raised for a batch that is not stored within ``give_up_after`` seconds: a killed
    leader is replaced after half a minute, or later.
    """

    def __init__(self, options: SinkOptions, *, give_up_after: float = 120.0) -> None:
        self.acknowledged: dict[str, int] = {}
        """The number of messages that each partition has stored, by ``topic/partition``."""
        self._options = options
        self._give_up_after = give_up_after
        self._accumulator: PartitionedAccumulator | None = None
        self._pool: ConnectionPool | None = None
        self._unanswered: dict[PublishFuture, PublishBatch] = {}  # oldest first
        self._size = 0  # bytes of these
        self._error: NsqError | None = None  # the first one
        self._user = LoopUser(self._abort, self._detach_after_fork)
        self._thread = loop_thread.lease(self._user)
        self._changed: asyncio.Event | None = None

    def publish(self, batch: PublishBatch) -> None:
        """Send a batch; wait while too many bytes have no answer."""
        self._thread.run(partial(self._publish, batch))

    def finish(self) -> None:
        """Wait until everything is stored."""
        self._thread.run(partial(self._await_answers, 0, 0))

    def close(self) -> None:
        """Disconnect; what is not acknowledged may be stored or not."""
        self._thread.run(self._abort)
        loop_thread.release(self._user, self._thread)

    # In the loop

    async def _publish(self, batch: PublishBatch) -> None:
        accumulator = self._accumulator or self._start()
        await self._await_answers(max(0, _MAX_PENDING - batch.size), _MAX_BATCHES - 1)
        batch.deadline = asyncio.get_running_loop().time() + self._give_up_after
        count, largest = len(batch.bodies), max(map(len, batch.bodies))
        accumulator.find_destination(batch)
        future = accumulator.send_batch(batch)
        self._unanswered[future] = batch
        self._size += batch.size
        future.add_done_callback(partial(self._on_answer, batch.size, count, largest))

    def _start(self) -> PartitionedAccumulator:
        options, servers = self._options, self._options.servers
        limit = options.max_batch_bytes
        config = PartitionProducerConfig(
            lookupd=servers.lookupd,
            lookupd_tls=options.access.http_context() if servers.use_https else None,
            access=options.access,
            dialect=Dialect.REDESIGNED.value,
            # Batches that come here are within these limits, but for single large messages.
            max_msg_size=limit - 8,
            max_body_size=limit,
            max_pending=2**40,
            retry_uncertain=True,
        )
        events = EventEmitter(None)
        self._pool = ConnectionPool(config, events)
        self._accumulator = PartitionedAccumulator(config, self._pool, events)
        self._changed = asyncio.Event()
        return self._accumulator

    async def _await_answers(self, max_size: int, max_batches: int) -> None:
        """Wait until no more than this has no answer; raise the first error."""
        is_slow = False
        while self._error is None and (
            self._size > max_size or len(self._unanswered) > max_batches
        ):
            assert self._changed is not None
            self._changed.clear()
            try:
                async with asyncio.timeout(_SLOW_RESPONSE):
                    await self._changed.wait()
            except TimeoutError:
                if not is_slow:
                    self._warn()
                is_slow = True
        if self._error is not None:
            raise self._error

    def _warn(self) -> None:
        assert self._pool is not None
        oldest = next(iter(self._unanswered.values()))
        logger.warning(
            "the sink waits for %s: %d batches are not stored after %g s; it tries for up to %g s: "
            "%s",
            describe(oldest.destination),
            len(self._unanswered),
            _SLOW_RESPONSE,
            self._give_up_after,
            self._pool.describe(oldest.destination),
        )

    def _on_answer(self, size: int, count: int, largest: int, future: PublishFuture) -> None:
        batch = self._unanswered.pop(future)
        self._size -= size
        error = None if future.cancelled() else future.exception()
        if error is None:
            to = batch.destination
            partition = to.partition if isinstance(to, TopicPartition) else batch.partition
            name = f"{batch.topic}/{partition}"
            self.acknowledged[name] = self.acknowledged.get(name, 0) + count
        elif self._error is None and isinstance(error, NsqError):
            self._error = _with_hint(error, batch, largest)
        assert self._changed is not None
        self._changed.set()

    async def _abort(self) -> None:
        accumulator, self._accumulator = self._accumulator, None
        if accumulator is not None:
            await accumulator.close(LocalProtocolError("the task has ended"))

    def _detach_after_fork(self) -> object:
        return self._accumulator


def _with_hint(error: NsqError, batch: PublishBatch, largest: int) -> NsqError:
    """Return the error, with a hint about the option to change if it is known."""
    if not isinstance(error, ServerError):
        return error
    text = f"{error.text} ({describe(batch.destination)})"
    if isinstance(error, BadMessageError):
        text += f": the largest has {largest} bytes, nsqd's -max-msg-size allows fewer"
    elif isinstance(error, BadBodyError):
        text += ": maxBatchBytes must not be above nsqd's -max-body-size"
    return type(error)(error.code, text)
