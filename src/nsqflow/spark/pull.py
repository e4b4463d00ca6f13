"""Pull: one subscription, read in chunks.

nsqd pushes while fewer messages are in flight than RDY says, and none of a chunk is finished
before it is in the spool. So asking for exactly as many as are wanted gets exactly those; and
the next RDY must go out before the FINs, or nsqd would push by the old one.
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
from nsqflow.spark.link import Link
from nsqflow.spark.seen import split_ids

logger = logging.getLogger(__name__)

MAX_CHUNK = 32 * 1024 * 1024  # bytes; what has arrived by then becomes a slot

_SLICE = 0.2  # seconds after which a wait looks whether it shall stop
_STRAGGLER = 0.02  # seconds in which a message comes that was on its way
_BARRIER = 10.0  # seconds in which nsqd answers CLS


@dataclass(slots=True)
class Chunk:
    """Messages that were pulled together, none of them answered."""

    began: float
    columns: list[Columns] = field(default_factory=list)
    count: int = 0
    size: int = 0
    most_attempts: int = 0
    idle: bool = False
    """It ended because nothing came any more."""

    def add(self, batch: MessageBatch) -> None:
        """Take what arrived in a row."""
        self.columns.append(batch.columns())
        self.count += len(batch)
        self.size += batch.bounds[-1] - batch.bounds[0]
        self.most_attempts = max(self.most_attempts, batch.most_attempts)

    def ids(self) -> bytes:
        """Return all ids, 16 bytes each."""
        return b"".join(columns.ids for columns in self.columns)


class Pull:
    """Asks for messages, answers them, and learns which answers came too late."""

    def __init__(self, link: Link, stop: threading.Event) -> None:
        self._link = link
        self._stop = stop
        self.failed: set[bytes] = set()
        """Ids that nsqd took no FIN for."""
        self.clear = True
        """Every failure named its message."""
        self._due = 0  # messages that were asked for and have not come

    def ask(self, count: int) -> None:
        """Want so many messages at a time from now on; goes out with what is sent next."""
        self._link.session.send(Rdy(count))
        self._due = max(self._due, count)

    def finish(self, ids: bytes) -> None:
        """Finish messages by their packed ids."""
        if ids:
            self._link.session.finish_packed(ids, last_first=True)
        self._link.flush()

    def requeue(self, ids: Iterable[bytes]) -> None:
        """Give messages back, for somebody else at once."""
        self._link.session.requeue(ids)
        self._link.flush()

    def put_back(self, ids: Iterable[bytes]) -> None:
        """Give back what was only looked at; what this does not reach comes back by timeout."""
        try:
            self.ask(0)  # first, or nsqd would push again what has just gone back
            self.requeue(ids)
            self.barrier()
        except NsqError as error:
            logger.warning("%s; messages come back after their timeout", error)

    def touch(self, ids: Iterable[bytes]) -> None:
        """Ask for more time."""
        self._link.session.touch(ids)
        self._link.flush()

    def chunk(self, want: int, idle: float, age: float) -> Chunk:
        """Read ``want`` messages; fewer if nothing comes for ``idle`` seconds.

        What came first must not wait for the rest much longer than ``age`` seconds.
        """
        chunk = Chunk(monotonic())
        self._link.flush()
        last = chunk.began
        while chunk.count < want and chunk.size < MAX_CHUNK and not self._stop.is_set():
            before = chunk.count
            self._take(self._link.receive(min(_SLICE, idle)), chunk)
            now = monotonic()
            if chunk.count > before:
                last = now
                if not before:
                    chunk.began = now
            elif now - last >= idle:
                chunk.idle = True
                break
            if chunk.count and now - chunk.began >= age:
                chunk.idle = True  # what waited would be here: these trickle in
                break
        self._due = max(0, self._due - chunk.count)
        return chunk

    def barrier(self) -> int:
        """Take no more, and wait until nsqd has dealt with every answer.

        What was on its way already is given back; returns how many messages that were.
        """
        began = monotonic()
        rest = Chunk(began)
        self._link.send(Rdy(0), Cls())
        while not self._take(self._link.receive(_SLICE), rest):
            if monotonic() - began >= _BARRIER:
                raise NetworkError(f"{self._link.address}: CLS not answered in {_BARRIER:g} s")
        if self._due > rest.count:
            # nsqd may have had one in its hand, which then follows its answer.
            self._take(self._link.receive(_STRAGGLER), rest)
        if rest.count:
            self.requeue(split_ids(rest.ids()))
        return rest.count

    def _take(self, events: list[Event], chunk: Chunk) -> bool:
        """Sort what arrived; tell whether CLS was answered."""
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
            return  # a message to be given back is on its way back already
        if event.id is None:
            self.clear = False
        else:
            self.failed.add(event.id)
