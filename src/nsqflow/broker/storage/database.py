"""The stored messages in SQLite, and the SQL of each operation.

Python's sqlite3 releases the GIL at every row, and while the event loop is busy it gets it back
only milliseconds later. So one statement handles many rows: an INSERT has hundreds of messages, and
a page is read as a single row.

A *queue id* is the column ``place`` of the tables.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from nsqflow.broker.engine.engine import RestoredQueue
from nsqflow.broker.engine.journal import (
    Clear,
    Create,
    Drop,
    FanOut,
    Load,
    MessageOperation,
    Operation,
    Pause,
    QueueOperation,
)
from nsqflow.broker.engine.message import QueuedMessage
from nsqflow.broker.storage import schema
from nsqflow.broker.storage.operations import MergedOperations
from nsqflow.errors import ConfigError, StorageError

_LOCK_NAME = "nsqd.lock"


class DataPathLock:
    """The lock of a data path; it ends with the process, even after a crash."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError(f"data_path={str(folder)!r} is invalid: there is no such folder")
        try:
            self._file = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self._take(folder)
            except BaseException:
                os.close(self._file)
                raise
        except OSError as error:
            raise ConfigError(
                f"data_path={str(folder)!r} is invalid: must be a folder that can be written to "
                f"and locked: {error.strerror}"
            ) from error

    def release(self) -> None:
        """Release the lock."""
        # Closing is not enough: a forked child may have the same file open.
        fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)

    def _take(self, folder: Path) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._file, 20, 0).decode("ascii", "replace").strip()
            raise ConfigError(
                f"data_path={str(folder)!r} is invalid: it is in use by another nsqd"
                + (f" (process {owner})" if owner else "")
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, b"%d\n" % os.getpid(), 0)


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

_ROWS = 500  # per statement; more gain nothing, and SQLite allows 32766 values
_STATEMENTS = 64  # kept compiled; the largest take about 100 kB each
_PIECE = 1000  # messages
_PAGE_ROWS = 2500
_PAGE_BYTES = 4 * 1024 * 1024


class Page(NamedTuple):
    """The result of a ``Load``; empty only if there are no more messages."""

    queue_id: int
    messages: list[QueuedMessage]


@dataclass(frozen=True, slots=True)
class StoredState:
    """All that an engine needs to continue."""

    queues: list[RestoredQueue]
    """Topics come before their channels."""
    last_id: bytes
    """The highest id ever used; empty if there was none."""
    last_queue_id: int


class Database:
    """The messages of one nsqd. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._lock = DataPathLock(folder)
        try:
            with self._storage_errors("can't be opened"):
                self.connection = self._connect()
        except BaseException:
            self._lock.release()
            raise

    # Public methods

    def contents(self) -> StoredState:
        """Read everything; messages that were never deferred are only counted."""
        with self._storage_errors("can't be read"):
            # This scans every row, a fraction of a second for a million. An index would avoid that,
            # but make every message more expensive.
            spilled: dict[int, int] = dict(
                self._run("SELECT place, count(*) FROM messages WHERE due = 0 GROUP BY place")
            )
            put_off: dict[int, list[QueuedMessage]] = {}
            for queue_id, *values in self._run(
                "SELECT place, id, timestamp, body, attempts, due FROM messages WHERE due > 0"
            ):
                put_off.setdefault(queue_id, []).append(QueuedMessage(*values))
            queues = [
                RestoredQueue(
                    *(queue_id, topic, channel, bool(paused)),
                    spilled=spilled.get(queue_id, 0),
                    messages=put_off.get(queue_id, ()),
                )
                for queue_id, topic, channel, paused in self._run(
                    "SELECT * FROM places ORDER BY channel IS NOT NULL, place"
                )
            ]
            return StoredState(queues, *self._run("SELECT * FROM marks").fetchone())

    def write(self, operations: Iterable[Operation]) -> list[Page]:
        """Commit operations in order, all or none; return the requested pages."""
        pages: list[Page] = []
        merged = MergedOperations()
        with self._storage_errors("can't be written"), self._transaction():
            for operation in operations:
                if isinstance(operation, MessageOperation):
                    merged.add(operation)
                    continue
                self._store(merged)
                if isinstance(operation, Load):
                    pages.append(self._page(operation))
                else:
                    self._apply(operation)
            self._store(merged)
            if merged.last_id:
                self._run("UPDATE marks SET last_id = max(last_id, ?)", merged.last_id)
        return pages

    def interrupt(self) -> None:
        """Abort the statement that another thread is executing."""
        with contextlib.suppress(sqlite3.ProgrammingError):  # it is closed
            self.connection.interrupt()

    def close(self) -> None:
        """Close, leaving one file without much free space, and release the data path."""
        # If that fails nothing is lost: the next process that opens the file does it.
        with contextlib.suppress(sqlite3.Error):
            schema.vacuum(self.connection)
            self._run("PRAGMA wal_checkpoint(TRUNCATE)")
        self.abandon()

    def abandon(self) -> None:
        """Close without cleaning up."""
        self.connection.close()
        self._lock.release()

    # Operations

    def _apply(self, operation: QueueOperation) -> None:
        queue_id = operation.queue_id
        match operation:
            case Create(_, topic, channel):
                self._run(
                    "INSERT OR REPLACE INTO places VALUES (?, ?, ?, 0)", queue_id, topic, channel
                )
                self._run("UPDATE marks SET last_place = max(last_place, ?)", queue_id)
            case Pause(_, paused):
                self._run("UPDATE places SET paused = ? WHERE place = ?", paused, queue_id)
            case Clear():
                self._run("DELETE FROM messages WHERE place = ?", queue_id)
            case Drop():
                self._run("DELETE FROM messages WHERE place = ?", queue_id)
                self._run("DELETE FROM places WHERE place = ?", queue_id)
            case FanOut(_, targets):
                self._fan_out(queue_id, targets)

    def _fan_out(self, source: int, targets: Sequence[int]) -> None:
        # In chunks: for all at once, SQLite would first copy everything to a temporary file.
        while last := self._run(_END_OF_PIECE, source, _PIECE).fetchone()[0]:
            for target in targets:
                self._run(_COPY_PIECE, target, source, last)
            self._run("DELETE FROM messages WHERE place = ? AND id <= ?", source, last)

    def _store(self, merged: MergedOperations) -> None:
        for rows in _chunks(merged.put):
            marks = ",".join(["(?,?,?,?,?,?)"] * len(rows))
            self._run(f"INSERT INTO messages VALUES {marks}", *chain.from_iterable(rows))
        for queue_id, ids in merged.finished.items():
            for chunk in _chunks(ids):
                marks = ",".join(["?"] * len(chunk))
                self._run(
                    f"DELETE FROM messages WHERE place = ? AND id IN ({marks})", queue_id, *chunk
                )
        for again in _chunks((*key, *values) for key, values in merged.requeued.items()):
            marks = ",".join(["(?,?,?,?)"] * len(again))
            self._run(
                "UPDATE messages SET attempts = again.column3, due = again.column4"
                f" FROM (VALUES {marks}) AS again"
                " WHERE place = again.column1 AND id = again.column2",
                *chain.from_iterable(again),
            )
        merged.clear()

    def _page(self, load: Load) -> Page:
        queue_id, after = load.queue_id, load.after
        limit = min(load.limit, _PAGE_ROWS)
        index = json.loads(self._run(_INDEX_OF_PAGE, queue_id, after, limit).fetchone()[0])
        ends = list(accumulate(size for *_, size in index))
        # At least one message, even a large one.
        index = index[: max(bisect(ends, _PAGE_BYTES), 1)]
        if not index:
            return Page(queue_id, [])
        last = bytes.fromhex(index[-1][0])
        bodies = bytes.fromhex(self._run(_BODIES_OF_PAGE, queue_id, after, last).fetchone()[0])
        return Page(
            queue_id,
            [
                QueuedMessage(bytes.fromhex(id), timestamp, bodies[end - size : end], attempts)
                for (id, timestamp, attempts, size), end in zip(index, ends, strict=False)
            ],
        )

    # Statements

    def _connect(self) -> sqlite3.Connection:
        # SQLite would create a file that all users can read. The WAL gets the mode of the file.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(
            self._path,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS,
        )
        try:
            schema.check(connection, self._path)
            schema.set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self.connection.execute(statement, values)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        finally:
            if self.connection.in_transaction:
                self._run("ROLLBACK")

    @contextlib.contextmanager
    def _storage_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OverflowError) as error:
            raise StorageError(f"{self._path} {what}: {error}") from error
        except OSError as error:
            raise StorageError(f"{self._path} {what}: {error.strerror}") from error


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while chunk := list(islice(rest, _ROWS)):
        yield chunk
