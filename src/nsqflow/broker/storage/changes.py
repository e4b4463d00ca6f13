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
    """New messages, at least one, in the order of their ids; an id comes once to a place."""

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

    It is written in this order: what is put, what is finished, what is requeued. So a message
    that is put may be finished or requeued in the same run, but not the other way round.
    """

    def __init__(self) -> None:
        self.put: list[Row] = []
        self.finished: dict[int, list[bytes]] = {}
        self.requeued: dict[tuple[int, bytes], tuple[int, int]] = {}
        self.last_id = b""

    def clear(self) -> None:
        """Begin another run; the last id stays."""
        self.put.clear()
        self.finished.clear()
        self.requeued.clear()

    def add(self, change: OfMessages) -> None:
        """Take in what comes next."""
        if isinstance(change, Put):
            self._put(change)
        elif isinstance(change, Finish):
            self._finish(change)
        else:
            self._requeue(change)

    def _put(self, change: Put) -> None:
        self.put += change.rows
        self.last_id = max(self.last_id, change.rows[-1][1])

    def _finish(self, change: Finish) -> None:
        self.finished.setdefault(change.place, []).extend(change.ids)
        if self.requeued:
            for id in change.ids:
                self.requeued.pop((change.place, id), None)

    def _requeue(self, change: Requeue) -> None:
        self.requeued[change.place, change.id] = change.attempts, change.due
