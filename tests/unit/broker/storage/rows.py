"""Messages for the storage's tests, and functions that read everything stored."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nsqflow.broker.engine.journal import Load, Put, Row
from nsqflow.broker.engine.message import QueuedMessage
from nsqflow.broker.storage.database import Database

EVERYTHING = 1_000_000


def id_of(number: int) -> bytes:
    return b"%016x" % number


def rows(queue_id: int, numbers: Iterable[int], *, due: int = 0, body: bytes = b"") -> list[Row]:
    return [
        (queue_id, id_of(number), 1_000 + number, 0, due, body or b"body %d" % number)
        for number in numbers
    ]


def put(queue_id: int, *numbers: int, due: int = 0, body: bytes = b"") -> Put:
    return Put(queue_id, rows(queue_id, numbers, due=due, body=body))


def messages(numbers: Iterable[int], *, body: bytes = b"") -> list[QueuedMessage]:
    return [
        QueuedMessage(id, timestamp, content, attempts, due)
        for _, id, timestamp, attempts, due, content in rows(0, numbers, body=body)
    ]


def row_of(queue_id: int, message: QueuedMessage) -> Row:
    return (queue_id, message.id, message.timestamp, message.attempts, message.due, message.body)


def waiters(database: Database, queue_id: int, after: bytes = b"") -> list[Row]:
    """Return the messages that were never deferred, page by page."""
    found: list[Row] = []
    while True:
        (page,) = database.write([Load(queue_id, after, EVERYTHING)])
        if not page.messages:
            return found
        found += [row_of(queue_id, message) for message in page.messages]
        after = page.messages[-1].id


def stored(database: Database) -> dict[int, list[Row]]:
    """Return the messages of all queues, by id."""
    return {
        each.queue_id: sorted(
            [*waiters(database, each.queue_id), *(row_of(each.queue_id, e) for e in each.messages)]
        )
        for each in database.contents().queues
    }


def stored_in(folder: Path) -> dict[int, list[Row]]:
    database = Database(folder)
    try:
        return stored(database)
    finally:
        database.close()
