"""A subscription to one nsqd, read in chunks.

nsqd pushes while fewer messages are in flight than RDY says, and no message of a chunk is finished
before it is in the spool. So RDY is exactly the number of messages that are wanted, and the next
RDY must be sent before the FINs, or nsqd would push by the old one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic

from nsqflow.errors import NetworkError, NsqError
from nsqflow.protocol import (
    AnswerFailed,
    CloseWait,
    Cls,
    Columns,
    CommandFailed,
    Event,
    MessageBatch,
    Rdy,
)
from nsqflow.spark.spool.dedup import split_ids
from nsqflow.transport.sync_connection import SyncConnection

logger = logging.getLogger(__name__)

MAX_CHUNK = 32 * 1024 * 1024  # bytes after which a chunk ends

_STOP_INTERVAL = 0.2  # seconds between two checks of the stop event
_LATE_MESSAGE_TIMEOUT = 0.02  # seconds for a message that nsqd was sending
_CLS_TIMEOUT = 10.0  # seconds for nsqd to answer CLS


@dataclass(slots=True)
class Chunk:
    """Messages that were pulled together, none of them answered."""

    started_at: float
    columns: list[Columns] = field(default_factory=list)
    count: int = 0
    size: int = 0
    max_attempts: int = 0
    idle: bool = False
    """It ended because no more messages arrived."""

    def add(self, batch: MessageBatch) -> None:
        """Add messages that arrived together."""
        self.columns.append(batch.columns())
        self.count += len(batch)
        self.size += batch.bounds[-1] - batch.bounds[0]
        self.max_attempts = max(self.max_attempts, batch.most_attempts)

    def messages(self) -> list[Chunk]:
        """Return each message as a chunk of its own."""
        if self.count == 1:
            return [self]
        singles = [part.one(index) for part in self.columns for index in range(len(part))]
        return [
            Chunk(
                self.started_at,
                [each],
                count=1,
                size=each.bounds[1] - each.bounds[0],
                max_attempts=each.attempts[0],
            )
            for each in singles
        ]

    def ids(self) -> bytes:
        """Return all ids, 16 bytes each."""
        return b"".join(columns.ids for columns in self.columns)


class PullSubscription:
    """Requests messages, answers them, and records which FINs were too late."""

    def __init__(self, link: SyncConnection, stop: threading.Event) -> None:
        self._link = link
        self._stop = stop
        self.failed: set[bytes] = set()
        """Ids whose FIN nsqd rejected."""
        self.all_failures_identified = True
        """Every rejected FIN named its message."""
        self._pending = 0  # messages that were requested and have not arrived

    def set_rdy(self, count: int) -> None:
        """Set the number of messages in flight; it is sent with the next flush."""
        self._link.session.send(Rdy(count))
        self._pending = max(self._pending, count)

    def finish(self, ids: bytes) -> None:
        """Finish messages by their packed ids."""
        if ids:
            self._link.session.finish_packed(ids, last_first=True)
        self._link.flush()

    def requeue(self, ids: Iterable[bytes]) -> None:
        """Requeue messages, for another consumer at once."""
        self._link.session.requeue(ids)
        self._link.flush()

    def requeue_all(self, ids: Iterable[bytes]) -> None:
        """Stop the subscription and requeue messages; if that fails, nsqd does it by timeout."""
        try:
            self.set_rdy(0)  # first, or nsqd would push the requeued messages again
            self.requeue(ids)
            self.barrier()
        except NsqError as error:
            logger.warning("%s; messages come back after their timeout", error)

    def touch(self, ids: Iterable[bytes]) -> None:
        """Restart the messages' timeout."""
        self._link.session.touch(ids)
        self._link.flush()

    def next_chunk(self, want: int, idle: float, max_age: float) -> Chunk:
        """Read ``want`` messages; fewer if none arrives for ``idle`` seconds.

        The first message does not wait for the others much longer than ``max_age`` seconds.
        """
        chunk = Chunk(monotonic())
        self._link.flush()
        last = chunk.started_at
        while chunk.count < want and chunk.size < MAX_CHUNK and not self._stop.is_set():
            before = chunk.count
            self._process(self._link.receive(min(_STOP_INTERVAL, idle)), chunk)
            now = monotonic()
            if chunk.count > before:
                last = now
                if not before:
                    chunk.started_at = now
            elif now - last >= idle:
                chunk.idle = True
                break
            if chunk.count and now - chunk.started_at >= max_age:
                chunk.idle = True  # the backlog would be here by now: these trickle in
                break
        self._pending = max(0, self._pending - chunk.count)
        return chunk

    def barrier(self) -> int:
        """Stop the subscription, and wait until nsqd has processed every answer.

        Messages that nsqd was sending are requeued; returns their number.
        """
        started_at = monotonic()
        rest = Chunk(started_at)
        self._link.send(Rdy(0), Cls())
        while not self._process(self._link.receive(_STOP_INTERVAL), rest):
            if monotonic() - started_at >= _CLS_TIMEOUT:
                raise NetworkError(f"{self._link.address}: CLS not answered in {_CLS_TIMEOUT:g} s")
        if self._pending > rest.count:
            # nsqd may have taken one from the channel, which then follows its answer.
            self._process(self._link.receive(_LATE_MESSAGE_TIMEOUT), rest)
        if rest.count:
            self.requeue(split_ids(rest.ids()))
        return rest.count

    def _process(self, events: list[Event], chunk: Chunk) -> bool:
        """Add messages to the chunk and record failures; return whether CLS was answered."""
        closed = False
        for event in events:
            if type(event) is MessageBatch:
                chunk.add(event)
            elif type(event) is AnswerFailed:
                self._answer_failed(event)
            elif type(event) is CommandFailed:
                raise event.error
            elif type(event) is CloseWait:
                closed = True
        return closed

    def _answer_failed(self, event: AnswerFailed) -> None:
        if event.command != "FIN":
            return  # a message to be requeued was requeued by its timeout
        if event.id is None:
            self.all_failures_identified = False
        else:
            self.failed.add(event.id)
