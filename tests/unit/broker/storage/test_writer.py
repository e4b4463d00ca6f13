from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from nsqflow.broker.storage.changes import Change, Clear, Create, Finish, Load, Pause
from nsqflow.broker.storage.database import Database, Page
from nsqflow.broker.storage.writer import Outcome, Unit, Writer
from tests.unit.broker.storage.rows import id_of, put, rows, stored


class CountingDatabase(Database):
    """Knows how many transactions there have been, and can have a broken disk."""

    broken = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tried = 0

    def write(self, changes: Iterable[Change]) -> list[Page]:
        self.tried += 1
        if self.broken:
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
    (outcome,) = writer.write([Unit([put(1, 4)])])
    assert (outcome.error, outcome.pages) == (None, [Page(1, [])])
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


def test_a_writer_that_is_stopped_begins_nothing(database: CountingDatabase) -> None:
    writer = Writer(database, lambda: True)
    assert writer.write([Unit([Create(1, "t", None)])]) == []
    assert database.tried == 0
