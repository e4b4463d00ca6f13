"""What an engine persists: operations on queues and messages.

A *queue id* is a number above 0 that identifies a topic or channel; it is never reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nsqflow.broker.engine.message import QueuedMessage

NOT_PERSISTED = 0  # the queue id of everything in memory only: ephemeral, or no data path

Row = tuple[int, bytes, int, int, int, bytes]
"""A message: queue id, id, timestamp, attempts, due, body."""


@dataclass(frozen=True, slots=True)
class Create:
    """Create a queue: a topic or a channel."""

    queue_id: int
    topic: str
    channel: str | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete a queue with all its messages."""

    queue_id: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause or unpause a queue."""

    queue_id: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Clear:
    """Delete the messages of a queue."""

    queue_id: int


@dataclass(frozen=True, slots=True)
class FanOut:
    """Move all messages of a topic to each of the targets."""

    queue_id: int
    targets: Sequence[int]


@dataclass(frozen=True, slots=True)
class Put:
    """Store new messages, at least one, by ascending ids; an id is unique in its queue.

    Answered by ``Engine.stored`` or ``Engine.not_stored``.
    """

    queue_id: int
    rows: Sequence[Row]

    @classmethod
    def of(cls, queue_id: int, messages: Sequence[QueuedMessage]) -> Put:
        """Store messages in their current state."""
        rows = [(queue_id, e.id, e.timestamp, e.attempts, e.due, e.body) for e in messages]
        return cls(queue_id, rows)


@dataclass(frozen=True, slots=True)
class Finish:
    """Delete finished messages."""

    queue_id: int
    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Requeue:
    """Record that a message was requeued, and when it is due."""

    queue_id: int
    id: bytes
    attempts: int
    due: int


@dataclass(frozen=True, slots=True)
class Load:
    """Read the next messages of a queue that were never deferred, by id.

    Answered by ``Engine.page_loaded``, after new messages in the page were reported as stored.
    """

    queue_id: int
    after: bytes
    limit: int


QueueOperation = Create | Drop | Pause | Clear | FanOut
MessageOperation = Put | Finish | Requeue
Operation = QueueOperation | MessageOperation | Load


class Journal(Protocol):
    """Persists what happens in an engine."""

    def record(self, operation: Operation) -> None:
        """Take the next operation; they must take effect in the order of the calls."""
