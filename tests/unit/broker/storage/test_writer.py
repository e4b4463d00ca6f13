from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from nsqflow.broker.engine.journal import Clear, Create, Finish, Load, Operation, Pause, Requeue
from nsqflow.broker.storage.database import Database, Page
from nsqflow.broker.storage.writer import CommitRequest, CommitResult, GroupCommitWriter
from tests.unit.broker.storage.rows import id_of, put, rows, stored


class CountingDatabase(Database):
    """Counts transactions, and can refuse to write."""

    broken = False  # it can be read, but not written

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tried = 0
        self.max_operations = 0

    def write(self, operations: Iterable[Operation]) -> list[Page]:
        operations = [*operations]
        self.tried += 1
        self.max_operations = max(self.max_operations, len(operations))
        if self.broken and not all(isinstance(operation, Load) for operation in operations):
            raise OSError("the disk is broken")
        return super().write(operations)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[CountingDatabase]:
    database = CountingDatabase(tmp_path)
    yield database
    database.close()


def failed(results: list[CommitResult]) -> list[CommitRequest]:
    return [request for result in results if result.error for request in result.requests]


def pages(results: list[CommitResult]) -> list[Page]:
    return [page for result in results for page in result.pages]


def test_all_waiting_requests_share_one_transaction(database: CountingDatabase) -> None:
    requests = [
        CommitRequest([Create(1, "t", None)]),
        *(CommitRequest([put(1, n)]) for n in range(1_000)),
    ]
    (result,) = GroupCommitWriter(database).write(requests)
    assert (result.requests, result.error) == (requests, None)
    assert database.tried == 1
    assert stored(database) == {1: rows(1, range(1_000))}


def test_one_invalid_request_fails_alone(database: CountingDatabase) -> None:
    requests = [
        CommitRequest([Create(1, "t", None)]),
        *(CommitRequest([put(1, n)]) for n in range(1_000)),
    ]
    bad = requests[500] = CommitRequest([put(1, 5_000), put(1, 5_001, due=2**64)])
    results = GroupCommitWriter(database).write(requests)
    assert failed(results) == [bad]
    assert [request for result in results for request in result.requests] == requests
    assert database.tried < 30
    assert stored(database) == {1: rows(1, [n for n in range(1_000) if n != 499])}


def test_a_request_without_operations_writes_nothing(database: CountingDatabase) -> None:
    request = CommitRequest([])
    (result,) = GroupCommitWriter(database).write([request])
    assert (result.requests, result.error) == ([request], None)
    assert database.tried == 0


def test_queue_operations_of_a_failed_request_are_applied_and_its_page_is_read(
    database: CountingDatabase,
) -> None:
    writer = GroupCommitWriter(database)
    request = CommitRequest(
        [Create(1, "t", None), put(1, 1, due=2**64), Load(1, b"", 9), Pause(1, True)]
    )
    results = writer.write([request])
    assert failed(results) == [request]
    assert pages(results) == [Page(1, [])]
    assert not writer.has_retries
    assert database.contents().queues[0].paused


def test_failed_operations_are_retried_before_new_ones(database: CountingDatabase) -> None:
    writer = GroupCommitWriter(database)
    writer.write([CommitRequest([Create(1, "t", None), put(1, 1)])])
    database.broken = True
    results = writer.write(
        [CommitRequest([Clear(1), put(1, 2), Load(1, b"", 9)]), CommitRequest([put(1, 3)])]
    )
    assert len(failed(results)) == 2
    assert writer.has_retries
    assert writer.write([]) == []

    database.broken = False
    request = CommitRequest([put(1, 4)])
    retried, written = writer.write([request])
    assert (retried.requests, retried.pages, retried.error) == ((), [Page(1, [])], None)
    assert (written.requests, written.error) == ([request], None)
    assert not writer.has_retries
    assert stored(database) == {1: rows(1, [4])}


def test_failed_operations_are_retried_without_a_new_request(database: CountingDatabase) -> None:
    writer = GroupCommitWriter(database)
    database.broken = True
    writer.write([CommitRequest([Create(1, "t", None), Finish(1, [id_of(1)])])])
    database.broken = False
    assert failed(writer.write([])) == []
    assert stored(database) == {1: []}
    assert not writer.has_retries


def test_while_a_retry_fails_new_requests_fail_without_being_tried(
    database: CountingDatabase,
) -> None:
    writer = GroupCommitWriter(database)
    database.broken = True
    writer.write([CommitRequest([Create(1, "t", None)])])
    database.tried = 0
    requests = [CommitRequest([put(1, n)]) for n in range(100)]
    assert failed(writer.write(requests)) == requests
    assert database.tried == 1
    assert database.max_operations == 1


def test_a_page_can_be_read_while_nothing_can_be_written(database: CountingDatabase) -> None:
    writer = GroupCommitWriter(database)
    writer.write(
        [CommitRequest([Create(1, "t", None), Create(2, "u", None), put(1, 1, 2), put(2, 3)])]
    )
    database.broken = True
    request = CommitRequest(
        [Finish(1, [id_of(1)]), Load(1, id_of(1), 9), Clear(2), Load(2, b"", 9)]
    )
    first = writer.write([request])
    assert failed(first) == [request]
    assert [(page.queue_id, len(page.messages)) for page in pages(first)] == [(1, 1)]
    assert writer.write([]) == []
    another = CommitRequest([Load(1, b"", 9), put(1, 9)])
    second = writer.write([another])
    assert failed(second) == [another]
    assert [(page.queue_id, len(page.messages)) for page in pages(second)] == [(1, 2)]

    database.broken = False
    assert pages(writer.write([])) == [Page(2, [])]
    assert not writer.has_retries


def test_repeated_requeues_on_a_full_disk_are_written_once(
    database: CountingDatabase,
) -> None:
    writer = GroupCommitWriter(database)
    writer.write([CommitRequest([Create(1, "t", None), put(1, 1, 2, 3)])])
    database.broken = True
    for attempts in range(1, 201):
        requests = [
            CommitRequest([Requeue(1, id_of(n), attempts, 10 * attempts)]) for n in (1, 2, 3)
        ]
        assert failed(writer.write(requests)) == requests
    writer.write([CommitRequest([Finish(1, [id_of(2)])])])
    assert database.max_operations <= 3

    database.broken = False
    writer.write([])
    assert stored(database) == {
        1: [(1, id_of(n), 1_000 + n, 200, 2_000, b"body %d" % n) for n in (1, 3)]
    }


def test_a_stopped_writer_starts_no_transaction(database: CountingDatabase) -> None:
    writer = GroupCommitWriter(database, lambda: True)
    assert writer.write([CommitRequest([Create(1, "t", None)])]) == []
    assert database.tried == 0
