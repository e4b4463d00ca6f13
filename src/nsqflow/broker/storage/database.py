"""The stored messages: what each change does to them, in SQL.

Python's sqlite3 lets go of the interpreter's lock at every row, and while the event loop is busy
it gets it back only milliseconds later. So a statement here stands for many rows: values of
hundreds of messages go into one INSERT, and a page comes out as one row.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from nsqflow.broker.engine.engine import Restored
from nsqflow.broker.engine.entry import Entry
from nsqflow.broker.storage import schema
from nsqflow.broker.storage.changes import (
    Batch,
    Change,
    Clear,
    Create,
    Drop,
    Load,
    OfMessages,
    OfPlaces,
    Pause,
    Spread,
)
from nsqflow.broker.storage.schema import StorageError

T = TypeVar("T")

FILE_NAME = "nsqd.db"

_INDEX_OF_PAGE = """
SELECT json_group_array(json_array(hex(id), timestamp, attempts, size)) FROM (
    SELECT id, timestamp, attempts, length(body) AS size FROM messages
    WHERE place = ? AND id > ? AND due = 0 ORDER BY id LIMIT ?
)"""
_BODIES_OF_PAGE = """
SELECT group_concat(hex(body), '') FROM (
    SELECT body FROM messages
    WHERE place = ? AND id > ? AND id <= ? AND due = 0 ORDER BY id
)"""

_END_OF_PIECE = """
SELECT max(id) FROM (SELECT id FROM messages WHERE place = ? ORDER BY id LIMIT ?)
"""
_COPY_PIECE = """
INSERT OR IGNORE INTO messages
SELECT ?, id, timestamp, attempts, due, body FROM messages WHERE place = ? AND id <= ?
"""

_ROWS = 500  # of a statement: more would gain nothing, and SQLite takes 32766 values at most
_STATEMENTS = 64  # that are kept compiled; the largest take some 100 kB each
_PIECE = 1000  # messages
_PAGE_ROWS = 2500
_PAGE_BYTES = 4 * 1024 * 1024


class Page(NamedTuple):
    """The answer to a ``Load``; empty only if there is nothing."""

    place: int
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class Contents:
    """All that an engine needs to go on."""

    places: list[Restored]
    """Topics come before their channels."""
    last_id: bytes
    """The highest there has been; empty if there was none."""
    last_place: int


class Database:
    """The messages of one nsqd. Not for two threads at the same time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        with self._explained("can't be opened"):
            # SQLite would let everybody read it. The log gets the mode that the file has.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = sqlite3.connect(
                self._path,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=_STATEMENTS,
            )
        try:
            with self._explained("can't be opened"):
                schema.check(self._connection, self._path)
                schema.set_up(self._connection)
        except BaseException:
            self._connection.close()
            raise

    # Public methods

    def contents(self) -> Contents:
        """Read everything but the messages that only wait: those are counted."""
        with self._explained("can't be read"):
            # One look at every row, a fraction of a second for a million of them. An index would
            # spare that, and cost every message more.
            spilled: dict[int, int] = dict(
                self._run("SELECT place, count(*) FROM messages WHERE due = 0 GROUP BY place")
            )
            put_off: dict[int, list[Entry]] = {}
            for place, *values in self._run(
                "SELECT place, id, timestamp, body, attempts, due FROM messages WHERE due > 0"
            ):
                put_off.setdefault(place, []).append(Entry(*values))
            places = [
                Restored(
                    *(place, topic, channel, bool(paused)),
                    spilled=spilled.get(place, 0),
                    entries=put_off.get(place, ()),
                )
                for place, topic, channel, paused in self._run(
                    "SELECT * FROM places ORDER BY channel IS NOT NULL, place"
                )
            ]
            return Contents(places, *self._run("SELECT * FROM marks").fetchone())

    def write(self, changes: Iterable[Change]) -> list[Page]:
        """Make changes durable, all or none, in their order; return the pages asked for."""
        pages: list[Page] = []
        batch = Batch()
        with self._explained("can't be written"), self._transaction():
            for change in changes:
                if isinstance(change, OfMessages):
                    batch.add(change)
                    continue
                self._store(batch)
                if isinstance(change, Load):
                    pages.append(self._page(change))
                else:
                    self._apply(change)
            self._store(batch)
            if batch.last_id:
                self._run("UPDATE marks SET last_id = max(last_id, ?)", batch.last_id)
        return pages

    def interrupt(self) -> None:
        """Let what another thread has under way here fail."""
        with contextlib.suppress(sqlite3.ProgrammingError):  # it is closed
            self._connection.interrupt()

    def close(self) -> None:
        """Leave one file, not larger than it need be."""
        # Should that fail nothing is lost: whoever opens the file next will do it.
        with contextlib.suppress(sqlite3.Error):
            schema.vacuum(self._connection)
            self._run("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()

    def abandon(self) -> None:
        """Close, and tidy nothing up."""
        self._connection.close()

    # Changes

    def _apply(self, change: OfPlaces) -> None:
        place = change.place
        match change:
            case Create(_, topic, channel):
                self._run(
                    "INSERT OR REPLACE INTO places VALUES (?, ?, ?, 0)", place, topic, channel
                )
                self._run("UPDATE marks SET last_place = max(last_place, ?)", place)
            case Pause(_, paused):
                self._run("UPDATE places SET paused = ? WHERE place = ?", paused, place)
            case Clear():
                self._run("DELETE FROM messages WHERE place = ?", place)
            case Drop():
                self._run("DELETE FROM messages WHERE place = ?", place)
                self._run("DELETE FROM places WHERE place = ?", place)
            case Spread(_, targets):
                self._spread(place, targets)

    def _spread(self, source: int, targets: Sequence[int]) -> None:
        # Piece by piece: all at once, SQLite would copy all of it to a temporary file first.
        while last := self._run(_END_OF_PIECE, source, _PIECE).fetchone()[0]:
            for target in targets:
                self._run(_COPY_PIECE, target, source, last)
            self._run("DELETE FROM messages WHERE place = ? AND id <= ?", source, last)

    def _store(self, batch: Batch) -> None:
        for rows in _parts(batch.put):
            marks = ",".join(["(?,?,?,?,?,?)"] * len(rows))
            self._run(f"INSERT INTO messages VALUES {marks}", *chain.from_iterable(rows))
        for place, ids in batch.finished.items():
            for part in _parts(ids):
                marks = ",".join(["?"] * len(part))
                self._run(f"DELETE FROM messages WHERE place = ? AND id IN ({marks})", place, *part)
        for again in _parts((*key, *values) for key, values in batch.requeued.items()):
            marks = ",".join(["(?,?,?,?)"] * len(again))
            self._run(
                "UPDATE messages SET attempts = again.column3, due = again.column4"
                f" FROM (VALUES {marks}) AS again"
                " WHERE place = again.column1 AND id = again.column2",
                *chain.from_iterable(again),
            )
        batch.clear()

    def _page(self, load: Load) -> Page:
        place, after = load.place, load.after
        limit = min(load.limit, _PAGE_ROWS)
        index = json.loads(self._run(_INDEX_OF_PAGE, place, after, limit).fetchone()[0])
        ends = list(accumulate(size for *_, size in index))
        # At least one, however large.
        index = index[: max(bisect(ends, _PAGE_BYTES), 1)]
        if not index:
            return Page(place, [])
        last = bytes.fromhex(index[-1][0])
        bodies = bytes.fromhex(self._run(_BODIES_OF_PAGE, place, after, last).fetchone()[0])
        return Page(
            place,
            [
                Entry(bytes.fromhex(id), timestamp, bodies[end - size : end], attempts)
                for (id, timestamp, attempts, size), end in zip(index, ends, strict=False)
            ],
        )

    # Statements

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._run("ROLLBACK")

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OverflowError) as error:
            raise StorageError(f"{self._path} {what}: {error}") from error
        except OSError as error:
            raise StorageError(f"{self._path} {what}: {error.strerror}") from error


def _parts(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, _ROWS)):
        yield part
