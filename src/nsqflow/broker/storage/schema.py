"""The SQLite file: its identification, settings, tables and size."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from nsqflow.errors import StorageError

VERSION = 1  # of the tables

_SQLITE = (3, 33)  # the first with UPDATE ... FROM
_APPLICATION = 0x4E535146  # "NSQF": identifies a file of ours

_SETTINGS = """
PRAGMA page_size = 8192;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA fullfsync = ON;
PRAGMA cache_size = -16384;
PRAGMA wal_autocheckpoint = 2000;
PRAGMA journal_size_limit = 33554432;
"""

# The body is the last column: counting messages, or reading `due`, need not read large bodies. The
# marks are the highest id and queue id ever used, as their rows may be deleted.
_TABLES = f"""
BEGIN;
CREATE TABLE places (
    place INTEGER PRIMARY KEY, topic TEXT NOT NULL, channel TEXT, paused INTEGER NOT NULL
);
CREATE TABLE messages (
    place INTEGER NOT NULL, id BLOB NOT NULL, timestamp INTEGER NOT NULL,
    attempts INTEGER NOT NULL, due INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (place, id)
) WITHOUT ROWID;
CREATE TABLE marks (last_id BLOB NOT NULL, last_place INTEGER NOT NULL);
INSERT INTO marks VALUES (x'', 0);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {VERSION};
COMMIT;
"""

_VACUUM_LEAST = 1024 * 1024  # bytes; freeing less is not worth the work
_VACUUM_MOST = 64 * 1024 * 1024  # bytes; rewriting these takes well under a second


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise unless the file is ours or new; changes nothing in it."""
    if sqlite3.sqlite_version_info < _SQLITE:
        raise StorageError(
            f"SQLite {'.'.join(map(str, _SQLITE))} or later is needed, and this Python has "
            f"{sqlite3.sqlite_version}"
        )
    # Before the first read: avoids the WAL's shared index, which only a second process needs.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    if _is_new(connection):
        return
    if _number(connection, "application_id") != _APPLICATION:
        raise StorageError(f"{path} is an SQLite file of another program")
    if (version := _number(connection, "user_version")) != VERSION:
        raise StorageError(
            f"{path} has tables of version {version}, of another release of nsqflow; "
            f"this one reads version {VERSION}"
        )


def set_up(connection: sqlite3.Connection) -> None:
    """Apply the settings, and create the tables if there are none."""
    connection.executescript(_SETTINGS)
    if _is_new(connection):
        connection.executescript(_TABLES)


def vacuum(connection: sqlite3.Connection) -> None:
    """Free the space of deleted messages, if that is quick.

    While nsqd runs, SQLite reuses free pages. Stopping must not take long, and where many messages
    are left, the space will be needed.
    """
    size, free = _number(connection, "page_size"), _number(connection, "freelist_count")
    used = _number(connection, "page_count") - free
    if free > used and free * size >= _VACUUM_LEAST and used * size <= _VACUUM_MOST:
        connection.execute("VACUUM")


def _is_new(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    number: int = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
    return number
