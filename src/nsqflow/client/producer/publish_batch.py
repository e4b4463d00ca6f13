"""A batch of messages for one topic: sent to nsqd in one command, resolved as one."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from operator import countOf
from typing import Any, NamedTuple

from nsqflow.errors import (
    ConfigError,
    NsqError,
    PrecedingPublishFailed,
    PublishUncertain,
    RequestTimeout,
    copy_error,
)
from nsqflow.protocol import (
    Dpub,
    Mpub,
    MpubExt,
    MpubTrace,
    Pub,
    PubExt,
    Publish,
    PubTrace,
    Receipt,
)
from nsqflow.protocol.publish import Bodies

PublishFuture = asyncio.Future[Receipt | None]


class TopicPartition(NamedTuple):
    """One partition of a topic of the redesigned NSQ."""

    topic: str
    partition: int | None
    """None: not known before the topic was looked up."""


Destination = str | TopicPartition
"""Where a batch goes: to any nsqd or partition of a topic, or to one partition, in order."""


def topic_of(destination: Destination) -> str:
    """Return the topic of a destination."""
    return destination if isinstance(destination, str) else destination.topic


def describe(destination: Destination) -> str:
    """Return a destination as text, for errors."""
    if isinstance(destination, str) or destination.partition is None:
        return repr(topic_of(destination))
    return f"partition {destination.partition} of {destination.topic!r}"


_JOINED = 1.0  # seconds between the deadlines of batches that are sent as one
_places = count()


class SendStatus(enum.Enum):
    """What became of a batch after it was written to a connection."""

    STORED = enum.auto()
    REFUSED = enum.auto()  # nsqd answered with an error
    NOT_READ = enum.auto()  # nsqd closed the connection because of an earlier command
    LOST = enum.auto()  # no answer will come


class PublishBatch:
    """One command that publishes.

    There is one future for each body, or (``publish_many``) one for all of them.
    """

    # Defaults, so that a plain batch is made quickly: many have no more than one message.
    timeout = 0.0  # the publish timeout that all messages of the batch share
    expired = False  # sent, and reported as uncertain
    uncertainty: PublishUncertain | None = None  # set when sent again after a loss
    refused_by: frozenset[str] = frozenset()  # addresses of nsqd that could not store it
    # Redesigned:
    partition: int | None = None  # set when it is sent
    key: bytes | None = None  # until the partition is known
    trace: int | None = None  # of its only message
    trace_optional = False  # tracing is on for the topic; ignored by classic nsqd
    headers: list[bytes] | None = None  # JSON, one for each body
    traces: list[int] | None = None  # of several messages, whose receipt names only the first
    settled = False  # its topic is known, and can take it
    place = 0  # in the order of its partition
    alone = False  # a message of a refused batch: to be sent in no other
    sent_at = 0.0
    refused_codes: tuple[str, ...] = ()
    # Of the connection, client and nsqd: set for traced messages alone.
    ends: tuple[str | None, str | None] = (None, None)

    def __init__(
        self,
        topic: str,
        deadline: float,
        bodies: Bodies | None = None,
        delay_ms: int | None = None,
    ) -> None:
        self.topic = topic
        self.destination: Destination = topic
        self.deadline = deadline
        self.delay_ms = delay_ms  # None: not deferred
        self.bodies: list[bytes] = [] if bodies is None else bodies
        self.futures: list[PublishFuture] = []
        # Bytes of the messages in MPUB: four for the length, then the body.
        self.size = 0 if bodies is None else 4 * len(bodies) + bodies.total

    def add(self, body: bytes, future: PublishFuture) -> None:
        """Add a message."""
        self.bodies.append(body)
        self.futures.append(future)
        self.size += 4 + len(body)

    @property
    def shares_future(self) -> bool:
        """Whether one future stands for all messages."""
        return len(self.futures) < len(self.bodies)

    def command(self) -> Publish | None:
        """Return the command to send; None if every message was cancelled."""
        self._drop_cancelled()
        if not self.futures:
            return None
        if self.delay_ms is not None:
            return Dpub(self.topic, self.delay_ms, self.bodies[0])
        if self.headers is not None:
            return self._command_with_headers(self.headers)
        if self.trace is not None:
            return PubTrace(self.topic, self.trace, self.bodies[0], self.partition)
        if self.traces is not None:
            messages = list(zip(self.traces, self.bodies, strict=True))
            return MpubTrace(self.topic, messages, self.partition)
        if len(self.bodies) == 1:
            return Pub(self.topic, self.bodies[0], self.partition)
        return Mpub(self.topic, self.bodies, self.partition)

    def _command_with_headers(self, headers: list[bytes]) -> Publish:
        if len(self.bodies) == 1:
            return PubExt(self.topic, headers[0], self.bodies[0], self.partition)
        messages = list(zip(headers, self.bodies, strict=True))
        return MpubExt(self.topic, messages, self.partition)

    def _drop_cancelled(self) -> None:
        # A message that was cancelled or timed out before it was sent must not be sent.
        if any(map(asyncio.Future.done, self.futures)):
            kept = [i for i, future in enumerate(self.futures) if not future.done()]
            if self.headers is not None:
                self.headers = [self.headers[i] for i in kept]
            self.bodies = [] if self.shares_future else [self.bodies[i] for i in kept]
            self.futures = [self.futures[i] for i in kept]

    def split(self) -> list[PublishBatch]:
        """Return one batch for each message."""
        batches = []
        for i, (body, future) in enumerate(zip(self.bodies, self.futures, strict=True)):
            batch = PublishBatch(self.topic, self.deadline)
            batch.uncertainty = self.uncertainty
            batch.destination, batch.place = self.destination, self.place
            batch.alone = True
            batch.headers = None if self.headers is None else self.headers[i : i + 1]
            batch.add(body, future)
            batches.append(batch)
        return batches

    @property
    def has_only_destination(self) -> bool:
        """Whether it has no options but its destination."""
        plain = self.delay_ms is None and self.trace is None
        return plain and self.headers is None and self.traces is None

    @property
    def is_plain(self) -> bool:
        """Whether it can be joined with another batch into one MPUB."""
        plain = self.has_only_destination and self.uncertainty is None
        return plain and not (self.alone or self.shares_future)

    def join(self, other: PublishBatch) -> None:
        """Append the messages of another batch for the same partition."""
        if isinstance(self.bodies, Bodies):  # its sizes do not follow changes
            self.bodies = list(self.bodies)
        self.bodies += other.bodies
        self.futures += other.futures
        self.size += other.size

    def set_result(self, receipt: Receipt | None) -> None:
        """Resolve all futures: nsqd has stored the batch."""
        for future in self.futures:
            if not future.done():
                future.set_result(receipt)

    def set_exception(self, error: NsqError) -> None:
        """Fail all futures, each with an exception of its own."""
        if self.uncertainty is not None:
            error = PublishUncertain(f"{self.uncertainty}; sent again, and failed: {error}")
        for future in self.futures:
            if not future.done():
                future.set_exception(copy_error(error))

    def expire(self) -> None:
        """Release the bodies: the batch was sent, and its futures have failed by timeout."""
        self.expired = True
        self.bodies = []
        self.futures = []


class TopicQueue:
    """Batches of one topic that wait for a connection, oldest first."""

    __slots__ = ("batches", "has_new", "outstanding")

    is_ordered = False
    """Whether a batch is sent only when the one before it was stored."""

    def __init__(self) -> None:
        self.batches: deque[PublishBatch] = deque()
        self.has_new = False  # batches were added since a connection was last asked for
        self.outstanding: PublishBatch | None = None  # if ordered: sent, without an answer yet

    def next(self, max_size: int) -> PublishBatch:
        """Remove and return the oldest batch, to be sent."""
        return self.batches.popleft()

    def append(self, batch: PublishBatch) -> None:
        """Add a batch at the end."""
        self.has_new = True
        self.batches.append(batch)

    def take_due(self, now: float) -> list[PublishBatch]:
        """Remove and return the batches whose deadline is not after ``now``."""
        due = [batch for batch in self.batches if batch.deadline <= now]
        if due:
            self.batches = deque(batch for batch in self.batches if batch.deadline > now)
        return due

    def take_after(self, failed: PublishBatch) -> list[PublishBatch]:
        """Remove and return the batches that must not be sent after one has failed."""
        return []


class KeyQueue(TopicQueue):
    """Batches whose keys have no partition yet."""

    __slots__ = ()

    def take_due(self, now: float) -> list[PublishBatch]:
        """Remove and return the batches that are due, and those after them with the same key."""
        keys: set[bytes | None] = set()
        due: list[PublishBatch] = []
        kept: deque[PublishBatch] = deque()
        for batch in self.batches:
            if batch.deadline <= now or batch.key in keys:
                keys.add(batch.key)
                due.append(batch)
            else:
                kept.append(batch)
        self.batches = kept
        return due


class PartitionQueue(TopicQueue):
    """Batches of one partition: one is outstanding at a time, so their order holds.

    What is published meanwhile gathers and goes out as one batch after it.
    """

    __slots__ = ()

    is_ordered = True

    def append(self, batch: PublishBatch) -> None:
        """Add a batch at the end."""
        batch.place = next(_places)
        super().append(batch)

    def take_after(self, failed: PublishBatch) -> list[PublishBatch]:
        """Remove and return the batches after one that has failed, and is not here any more."""
        before = deque(batch for batch in self.batches if batch.place < failed.place)
        after = [batch for batch in self.batches if batch.place >= failed.place]
        self.batches = before
        return after

    def next(self, max_size: int) -> PublishBatch:
        """Remove and return the oldest batch, joined with those after it that are alike.

        A message joins a batch that times out up to a second before it would itself.
        """
        batch = self.outstanding = self.batches.popleft()
        while self.batches and batch.is_plain and self.batches[0].is_plain:
            other = self.batches[0]
            in_time = batch.deadline <= other.deadline <= batch.deadline + _JOINED
            if batch.size + other.size > max_size or not in_time:
                break
            batch.join(self.batches.popleft())
        return batch


def preceding_error(destination: Destination, error: NsqError) -> PrecedingPublishFailed:
    """Return the error of a batch that waited for one that has failed."""
    return PrecedingPublishFailed(
        f"publish to {describe(destination)} was not sent, to keep the order: the one before it "
        f"failed: {error}"
    )


def uncertain_error(destination: Destination, nsqd: str, reason: object) -> PublishUncertain:
    """Return the error of a batch that was sent and not answered."""
    where = describe(destination)
    return PublishUncertain(f"publish to {where} was sent to {nsqd}, stored or not: {reason}")


def timeout_error(destination: Destination, reason: object) -> RequestTimeout:
    """Return the error of a batch that was not sent before its deadline."""
    return RequestTimeout(f"publish to {describe(destination)} was not sent in time: {reason}")


def split_by_size(bodies: Sequence[bytes], max_body_size: int) -> list[range]:
    """Split ``bodies`` into ranges that fit into one MPUB each."""
    ranges, start, size = [], 0, 4
    for i, body in enumerate(bodies):
        size += 4 + len(body)
        if size > max_body_size:
            ranges.append(range(start, i))
            start, size = i, 8 + len(body)
    ranges.append(range(start, len(bodies)))
    return ranges


def check_bodies(values: Iterable[Any], max_msg_size: int) -> Bodies:
    """Return all values as bytes; raise an error that names the first invalid one."""
    if isinstance(values, bytes | bytearray | memoryview | str):
        raise TypeError(f"bodies is {type(values).__name__}: must be a list of bytes")
    bodies = list(values)
    if bodies and countOf(map(type, bodies), bytes) == len(bodies):  # the usual case, fast
        checked = Bodies(bodies)
        if checked.smallest and checked.largest <= max_msg_size:
            return checked
    return Bodies(check_body(body, max_msg_size, f"body {i}") for i, body in enumerate(bodies))


def check_body(value: Any, max_msg_size: int, name: str = "body") -> bytes:
    """Return ``value`` as bytes; raise for what every nsqd would refuse."""
    if type(value) is not bytes and not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{name} is {type(value).__name__}: must be bytes")
    body = bytes(value)  # does not copy bytes
    if not 1 <= len(body) <= max_msg_size:
        raise ConfigError(
            f"{name} of {len(body)} bytes is invalid: must have 1 to {max_msg_size} bytes "
            f"(max_msg_size)"
        )
    return body
