from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from nsqflow.broker.storage.changes import Change, Clear, Create, Finish, Load, Pause, Requeue
from nsqflow.broker.storage.database import Database, Page
from nsqflow.broker.storage.writer import Outcome, Unit, Writer
from tests.unit.broker.storage.rows import id_of, put, rows, stored


class CountingDatabase(Database):
    """Knows how many transactions there have been, and can have a broken disk."""

    broken = False  # it can be read, and not written

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tried = 0
        self.most_changes = 0

    def write(self, changes: Iterable[Change]) -> list[Page]:
        changes = [*changes]
        self.tried += 1
        self.most_changes = max(self.most_changes, len(changes))
        if self.broken and not all(isinstance(change, Load) for change in changes):
            raise OSError("the disk is broken")
        return super().write(changes)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[CountingDatabase]:
    database = CountingDatabase(tmp_path)
    yield database
    database.close()


def failed(outcomes: list[Outcome]) -> list[Unit]:
    return [unit for outcome in outcomes if outcome.error for unit in outcome.units]


def pages(outcomes: list[Outcome]) -> list[Page]:
    return [page for outcome in outcomes for page in outcome.pages]


def test_all_units_that_wait_share_one_transaction(database: CountingDatabase) -> None:
    units = [Unit([Create(1, "t", None)]), *(Unit([put(1, n)]) for n in range(1_000))]
    (outcome,) = Writer(database).write(units)
    assert (outcome.units, outcome.error) == (units, None)
    assert database.tried == 1
    assert stored(database) == {1: rows(1, range(1_000))}


def test_one_bad_unit_fails_alone(database: CountingDatabase) -> None:
    units = [Unit([Create(1, "t", None)]), *(Unit([put(1, n)]) for n in range(1_000))]
    bad = units[500] = Unit([put(1, 5_000), put(1, 5_001, due=2**64)])
    outcomes = Writer(database).write(units)
    assert failed(outcomes) == [bad]
    assert [unit for outcome in outcomes for unit in outcome.units] == units
    assert database.tried < 30
    assert stored(database) == {1: rows(1, [n for n in range(1_000) if n != 499])}


def test_a_unit_that_waits_for_those_before_it_writes_nothing(database: CountingDatabase) -> None:
    unit = Unit([])
    (outcome,) = Writer(database).write([unit])
    assert (outcome.units, outcome.error) == ([unit], None)
    assert database.tried == 0


def test_what_a_failed_unit_says_of_places_holds_and_its_page_is_read(
    database: CountingDatabase,
) -> None:
    writer = Writer(database)
    unit = Unit([Create(1, "t", None), put(1, 1, due=2**64), Load(1, b"", 9), Pause(1, True)])
    outcomes = writer.write([unit])
    assert failed(outcomes) == [unit]
    assert pages(outcomes) == [Page(1, [])]
    assert not writer.owes
    assert database.contents().places[0].paused


def test_what_is_owed_comes_before_anything_else(database: CountingDatabase) -> None:
    writer = Writer(database)
    writer.write([Unit([Create(1, "t", None), put(1, 1)])])
    database.broken = True
    outcomes = writer.write([Unit([Clear(1), put(1, 2), Load(1, b"", 9)]), Unit([put(1, 3)])])
    assert len(failed(outcomes)) == 2
    assert writer.owes
    assert writer.write([]) == []

    database.broken = False
    unit = Unit([put(1, 4)])
    paid, written = writer.write([unit])
    assert (paid.units, paid.pages, paid.error) == ((), [Page(1, [])], None)
    assert (written.units, written.error) == ([unit], None)
    assert not writer.owes
    assert stored(database) == {1: rows(1, [4])}


def test_what_is_owed_can_be_paid_without_a_new_unit(database: CountingDatabase) -> None:
    writer = Writer(database)
    database.broken = True
    writer.write([Unit([Create(1, "t", None), Finish(1, [id_of(1)])])])
    database.broken = False
    assert failed(writer.write([])) == []
    assert stored(database) == {1: []}
    assert not writer.owes


def test_while_something_is_owed_a_new_unit_is_not_even_tried(database: CountingDatabase) -> None:
    writer = Writer(database)
    database.broken = True
    writer.write([Unit([Create(1, "t", None)])])
    database.tried = 0
    units = [Unit([put(1, n)]) for n in range(100)]
    assert failed(writer.write(units)) == units
    assert database.tried == 1
    assert database.most_changes == 1


def test_a_page_is_read_from_a_disk_that_can_not_be_written(database: CountingDatabase) -> None:
    writer = Writer(database)
    writer.write([Unit([Create(1, "t", None), Create(2, "u", None), put(1, 1, 2), put(2, 3)])])
    database.broken = True
    unit = Unit([Finish(1, [id_of(1)]), Load(1, id_of(1), 9), Clear(2), Load(2, b"", 9)])
    first = writer.write([unit])
    assert failed(first) == [unit]
    assert [(page.place, len(page.entries)) for page in pages(first)] == [(1, 1)]
    assert writer.write([]) == []
    another = Unit([Load(1, b"", 9), put(1, 9)])
    second = writer.write([another])
    assert failed(second) == [another]
    assert [(page.place, len(page.entries)) for page in pages(second)] == [(1, 2)]

    database.broken = False
    assert pages(writer.write([])) == [Page(2, [])]
    assert not writer.owes


def test_what_comes_again_and_again_while_the_disk_is_full_is_written_once(
    database: CountingDatabase,
) -> None:
    writer = Writer(database)
    writer.write([Unit([Create(1, "t", None), put(1, 1, 2, 3)])])
    database.broken = True
    for attempts in range(1, 201):
        units = [Unit([Requeue(1, id_of(n), attempts, 10 * attempts)]) for n in (1, 2, 3)]
        assert failed(writer.write(units)) == units
    writer.write([Unit([Finish(1, [id_of(2)])])])
    assert database.most_changes <= 3

    database.broken = False
    writer.write([])
    assert stored(database) == {
        1: [(1, id_of(n), 1_000 + n, 200, 2_000, b"body %d" % n) for n in (1, 3)]
    }


def test_a_writer_that_is_stopped_begins_nothing(database: CountingDatabase) -> None:
    writer = Writer(database, lambda: True)
    assert writer.write([Unit([Create(1, "t", None)])]) == []
    assert database.tried == 0
