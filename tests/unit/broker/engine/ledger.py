"""A journal in memory, which answers loads when the test wants it to."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nsqflow.broker.engine import journal
from nsqflow.broker.engine.engine import Engine, RestoredQueue
from nsqflow.broker.engine.journal import (
    Clear,
    Create,
    Drop,
    FanOut,
    Finish,
    Load,
    Operation,
    Pause,
    Put,
    Requeue,
)
from nsqflow.broker.engine.message import QueuedMessage


@dataclass
class Row:
    """One stored message."""

    timestamp: int
    attempts: int
    due: int
    body: bytes

    def requeue(self, attempts: int, due: int) -> None:
        self.attempts, self.due = attempts, due


@dataclass
class StoredQueue:
    """A stored topic or channel."""

    topic: str
    channel: str | None
    paused: bool = False
    rows: dict[bytes, Row] = field(default_factory=dict)

    def page(self, after: bytes, limit: int) -> list[QueuedMessage]:
        ids = sorted(id for id, row in self.rows.items() if id > after and not row.due)
        return [self.message(id) for id in ids[:limit]]

    def message(self, id: bytes) -> QueuedMessage:
        row = self.rows[id]
        return QueuedMessage(id, row.timestamp, row.body, row.attempts, row.due)


class PageRequest(NamedTuple):
    """A requested page, and its content at that time."""

    queue_id: int
    after: bytes
    limit: int
    page: list[QueuedMessage]
    last_id: bytes
    """The last message that was put before the request."""


class Ledger:
    """Applies the operations of an engine and checks that each makes sense."""

    def __init__(self) -> None:
        self.queues: dict[int, StoredQueue] = {}
        self.requests: deque[PageRequest] = deque()
        """The requested pages, the oldest first."""
        self.not_stored: set[bytes] = set()
        self.last_id = b""
        self.last_queue_id = 0

    def record(self, operation: Operation) -> None:
        """Apply an operation of the engine; one that makes no sense fails the test."""
        match operation:
            case Create(queue_id, topic, channel):
                self._create(queue_id, topic, channel)
            case Drop(queue_id):
                dropped = self.queues.pop(queue_id)
                if dropped.channel is None:
                    assert dropped.topic not in [each.topic for each in self.queues.values()]
            case Pause(queue_id, paused):
                self.queues[queue_id].paused = paused
            case Clear(queue_id):
                self.queues[queue_id].rows.clear()
            case Put(queue_id, rows):
                self._put(queue_id, rows)
            case Finish(queue_id, ids):
                assert ids, "there is nothing to finish"
                for id in ids:
                    del self.queues[queue_id].rows[id]
            case Requeue(queue_id, id, attempts, due):
                assert due > 0
                self.queues[queue_id].rows[id].requeue(attempts, due)
            case FanOut(source, targets):
                self._fan_out(source, targets)
            case Load(queue_id, after, limit):
                assert limit > 0
                page = self.queues[queue_id].page(after, limit)
                self.requests.append(PageRequest(queue_id, after, limit, page, self.last_id))

    # Called by tests

    def answer(
        self,
        engine: Engine,
        *,
        late: bool = False,
        most: int = 10**6,
        unstored: Container[bytes] = (),
    ) -> None:
        """Answer the oldest request: with the page of that time, or with what is stored now.

        A page may be shorter than requested, but not empty if there are messages. They must have
        been reported as stored.
        """
        request = self.requests.popleft()
        queue_id, page = request.queue_id, request.page
        if late:
            found = (
                self.queues[queue_id].page(request.after, request.limit)
                if queue_id in self.queues
                else []
            )
            page = [message for message in found if message.id not in unstored]
        engine.page_loaded(
            queue_id, [message for message in page if message.id not in self.not_stored][:most]
        )

    def remove(self, ids: Iterable[bytes]) -> None:
        """Remove messages that could not be stored from all queues."""
        self.not_stored.update(ids)
        for queue in self.queues.values():
            for id in self.not_stored & queue.rows.keys():
                del queue.rows[id]

    def restore(self, engine: Engine, now: int) -> None:
        """Restore an engine from everything stored."""
        self.requests.clear()
        queues = [self._restored(queue_id) for queue_id in sorted(self.queues)]
        engine.restore(queues, self.last_id, self.last_queue_id, now)

    def names(self) -> set[tuple[str, str | None]]:
        return {(each.topic, each.channel) for each in self.queues.values()}

    def rows(self, topic: str, channel: str | None = None) -> dict[bytes, Row]:
        """Return the stored messages of a topic or channel."""
        [queue] = [
            each for each in self.queues.values() if (each.topic, each.channel) == (topic, channel)
        ]
        return queue.rows

    def _restored(self, number: int) -> RestoredQueue:
        queue = self.queues[number]
        return RestoredQueue(
            number,
            queue.topic,
            queue.channel,
            queue.paused,
            sum(not row.due for row in queue.rows.values()),
            [queue.message(id) for id, row in sorted(queue.rows.items()) if row.due],
        )

    def _create(self, queue_id: int, topic: str, channel: str | None) -> None:
        assert queue_id > self.last_queue_id, "a queue id is never reused"
        self.last_queue_id = queue_id
        assert (topic, channel) not in self.names()
        assert channel is None or (topic, None) in self.names()
        self.queues[queue_id] = StoredQueue(topic, channel)

    def _put(self, queue_id: int, rows: Sequence[journal.Row]) -> None:
        kept = self.queues[queue_id].rows
        for of, id, timestamp, attempts, due, body in rows:
            assert of == queue_id
            assert id not in kept
            kept[id] = Row(timestamp, attempts, due, body)
            self.last_id = max(self.last_id, id)

    def _fan_out(self, source: int, targets: Sequence[int]) -> None:
        topic = self.queues[source]
        assert topic.channel is None
        for target in targets:
            channel = self.queues[target]
            assert channel.topic == topic.topic
            assert channel.channel is not None
            assert not channel.rows.keys() & topic.rows.keys()
            channel.rows |= {id: replace(row) for id, row in topic.rows.items()}
        topic.rows.clear()
