"""Messages for the tests of the storage, and a look at all that is stored."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nsqflow.broker.engine.entry import Entry
from nsqflow.broker.storage.changes import Load, Put, Row
from nsqflow.broker.storage.database import Database

EVERYTHING = 1_000_000


def id_of(number: int) -> bytes:
    return b"%016x" % number


def rows(place: int, numbers: Iterable[int], *, due: int = 0, body: bytes = b"") -> list[Row]:
    return [
        (place, id_of(number), 1_000 + number, 0, due, body or b"body %d" % number)
        for number in numbers
    ]


def put(place: int, *numbers: int, due: int = 0, body: bytes = b"") -> Put:
    return Put(place, rows(place, numbers, due=due, body=body))


def entries(numbers: Iterable[int], *, body: bytes = b"") -> list[Entry]:
    return [
        Entry(id, timestamp, content, attempts, due)
        for _, id, timestamp, attempts, due, content in rows(0, numbers, body=body)
    ]


def row_of(place: int, entry: Entry) -> Row:
    return (place, entry.id, entry.timestamp, entry.attempts, entry.due, entry.body)


def waiting(database: Database, place: int, after: bytes = b"") -> list[Row]:
    """All that was never put off, page by page."""
    found: list[Row] = []
    while True:
        (page,) = database.write([Load(place, after, EVERYTHING)])
        if not page.entries:
            return found
        found += [row_of(place, entry) for entry in page.entries]
        after = page.entries[-1].id


def stored(database: Database) -> dict[int, list[Row]]:
    """All messages of all places, by id."""
    return {
        each.place: sorted(
            [*waiting(database, each.place), *(row_of(each.place, e) for e in each.entries)]
        )
        for each in database.contents().places
    }


def stored_in(folder: Path) -> dict[int, list[Row]]:
    database = Database(folder)
    try:
        return stored(database)
    finally:
        database.close()
