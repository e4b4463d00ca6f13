"""What can happen to the stored messages, and what a run of it comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Row = tuple[int, bytes, int, int, int, bytes]
"""A message: place, id, timestamp, attempts, due, body."""


@dataclass(frozen=True, slots=True)
class Create:
    """A place begins."""

    place: int
    topic: str
    channel: str | None


@dataclass(frozen=True, slots=True)
class Drop:
    """A place ends, with its messages."""

    place: int


@dataclass(frozen=True, slots=True)
class Pause:
    """A place is paused, or goes on."""

    place: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Clear:
    """A place loses its messages."""

    place: int


@dataclass(frozen=True, slots=True)
class Spread:
    """The messages of one place become those of each of the others."""

    place: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Somebody wants to read on in a place."""

    place: int
    after: bytes
    limit: int


@dataclass(frozen=True, slots=True)
class Put:
    """New messages; an id comes once to a place."""

    place: int
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Finish:
    """Messages are done with."""

    place: int
    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Requeue:
    """A message comes again."""

    place: int
    id: bytes
    attempts: int
    due: int


OfPlaces = Create | Drop | Pause | Clear | Spread
OfMessages = Put | Finish | Requeue
Change = OfPlaces | OfMessages | Load


class Batch:
    """What a run of puts, finishes and requeues comes to, in as few rows as can be.

    A message that is put and finished in the same run leaves no trace but its id in ``last_id``.
    """

    def __init__(self) -> None:
        self.put: dict[int, dict[bytes, Row]] = {}
        self.finished: dict[int, list[bytes]] = {}
        self.requeued: dict[tuple[int, bytes], tuple[int, int]] = {}
        self.last_id = b""

    def clear(self) -> None:
        """Begin another run; the last id stays."""
        for rows in (self.put, self.finished, self.requeued):
            rows.clear()

    def add(self, change: OfMessages) -> None:
        """Take in what comes next."""
        if isinstance(change, Put):
            self._put(change)
        elif isinstance(change, Finish):
            self._finish(change)
        else:
            self._requeue(change)

    def _put(self, change: Put) -> None:
        rows = {row[1]: row for row in change.rows}
        self.put.setdefault(change.place, {}).update(rows)
        self.last_id = max(self.last_id, max(rows, default=b""))

    def _finish(self, change: Finish) -> None:
        ids = change.ids
        if fresh := self.put.get(change.place):
            ids = [id for id in ids if fresh.pop(id, None) is None]
        self.finished.setdefault(change.place, []).extend(ids)
        if self.requeued:
            for id in ids:
                self.requeued.pop((change.place, id), None)

    def _requeue(self, change: Requeue) -> None:
        fresh = self.put.get(change.place, {})
        row = fresh.get(change.id)
        if row is None:
            self.requeued[change.place, change.id] = change.attempts, change.due
        else:
            fresh[change.id] = (*row[:3], change.attempts, change.due, row[5])
