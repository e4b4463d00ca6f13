"""The cleaner: batches leave the spool in time, and their unconfirmed ids stay known."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from nsqflow.spark.source.offsets import PartitionId, make_key
from nsqflow.spark.spool import cleaner
from nsqflow.spark.spool.cleaner import SpoolCleaner
from nsqflow.spark.spool.dedup import SeenIds
from nsqflow.spark.spool.layout import planned_marker, unconfirmed_folder
from nsqflow.spark.spool.local_store import LocalStore
from nsqflow.spark.spool.slot_format import FinConfirmation
from nsqflow.spark.spool.slots import Slots
from tests.unit.spark.spool_rows import ids_of, write_slot

KEY = make_key("orders", "127.0.0.1:4150")
UNFIN = unconfirmed_folder("gen", KEY)


class Spool(LocalStore):
    """A spool that can be made to fail."""

    failures = 0

    def batch(
        self,
        seq: int,
        numbers: Iterable[int],
        said: FinConfirmation | None = None,
        part: int = 0,
        key: str = KEY,
    ) -> None:
        """Have a batch of one slot, and what its writer said at the end."""
        self.write(planned_marker("gen", seq), b"{}")
        slots = Slots(self, PartitionId("gen", seq, key, part).folder)
        write_slot(slots, 0, numbers)
        if said is not None:
            slots.confirm("w", said)

    def batches(self) -> list[int]:
        return [*map(int, self.names("gen/batches"))]

    def known(self) -> list[int]:
        """Which of the first 100 messages a task would drop."""
        seen = SeenIds(self, "gen", KEY)
        seen.refresh()
        return sorted(seen.find_repeated(ids_of(range(100))))

    def names(self, folder: str) -> list[str]:
        if self.failures:
            self.failures -= 1
            raise OSError("no luck")
        return super().names(folder)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path))


def make_cleaner(spool: Spool, *, retain: int = 1, everything: bool = False) -> SpoolCleaner:
    return SpoolCleaner(spool, retain=retain, everything=everything)


CONFIRMED = FinConfirmation(slots=[0])


@pytest.mark.parametrize(("retain", "left"), [(1, [5, 6]), (2, [4, 5, 6]), (9, [1, 2, 3, 4, 5, 6])])
def test_batches_leave_that_are_older_than_those_retained(
    spool: Spool, retain: int, left: list[int]
) -> None:
    for seq in range(1, 7):
        spool.batch(seq, [seq], CONFIRMED)
    make_cleaner(spool, retain=retain).clean("gen", 5)
    assert spool.batches() == left
    assert spool.names(UNFIN) == []


def test_other_generations_stay(spool: Spool) -> None:
    spool.batch(1, [1], CONFIRMED)
    make_cleaner(spool).clean("another", 100)
    assert spool.batches() == [1]


def test_unconfirmed_ids_stay_known(spool: Spool) -> None:
    spool.batch(1, [1, 2])
    spool.batch(2, [3, 4], FinConfirmation(slots=[0], failed=ids_of([4])))
    spool.batch(3, [5, 6], CONFIRMED)
    before = spool.known()
    make_cleaner(spool).clean("gen", 4)
    assert spool.batches() == []
    assert spool.known() == before == [1, 2, 4]


def test_ids_of_several_partitions_stay_known(spool: Spool) -> None:
    spool.batch(1, [1])
    spool.batch(1, [2], part=1)
    make_cleaner(spool).clean("gen", 2)
    assert spool.known() == [1, 2]


def test_ids_that_were_redelivered_and_finished_are_forgotten(spool: Spool) -> None:
    spool.batch(1, [1, 2, 3])
    spool.batch(2, [4])
    clean = make_cleaner(spool)
    clean.clean("gen", 3)
    spool.batch(4, [5], FinConfirmation(slots=[0], settled=ids_of([2, 4])))
    clean.clean("gen", 5)
    assert spool.known() == [1, 3]
    assert spool.names(UNFIN) == ["00000001-0"]


def test_cleaning_that_was_cut_short_is_done_again_without_harm(spool: Spool) -> None:
    spool.batch(1, [1, 2])
    spool.batch(2, [3], FinConfirmation(slots=[0], settled=ids_of([1, 2])))
    make_cleaner(spool).clean("gen", 3)
    assert spool.known() == []
    # The driver had died when the mark was gone and the rest was not.
    spool.batch(1, [1, 2])
    spool.remove(planned_marker("gen", 1))
    make_cleaner(spool).clean("gen", 3)
    assert spool.batches() == []
    assert spool.known() == []


def test_where_every_message_is_compared_all_ids_stay_known_for_a_while(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner, "RECENT_IDS", 5)
    for seq in range(1, 5):
        spool.batch(seq, range(3 * seq, 3 * seq + 3), CONFIRMED)
    make_cleaner(spool, everything=True).clean("gen", 5)
    assert spool.batches() == []
    assert spool.known() == [*range(10, 15)]  # the last five


def test_too_many_unconfirmed_ids_are_forgotten_the_oldest_first(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cleaner, "MAX_IDS", 5)
    for seq in range(1, 4):
        spool.batch(seq, range(3 * seq, 3 * seq + 3))
    clean = make_cleaner(spool)
    clean.clean("gen", 4)
    assert spool.known() == [9, 10, 11]
    assert clean.forgotten == 6
    assert "3 unconfirmed ids of orders|127.0.0.1:4150 are dropped" in caplog.text


@pytest.mark.parametrize("everything", [False, True])
def test_no_ids_are_kept_of_partitions_whose_messages_have_positions(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    monkeypatch.setattr(cleaner, "MAX_IDS", 2)
    for seq in range(1, 4):
        spool.batch(seq, range(3 * seq, 3 * seq + 3), key=make_key("orders", 3))
        spool.batch(seq, [seq], CONFIRMED if seq > 1 else None)
    clean = make_cleaner(spool, everything=everything)
    clean.clean("gen", 4)
    assert spool.batches() == []
    assert spool.names("gen/unfin") == [UNFIN.removeprefix("gen/unfin/")]
    assert spool.known() == ([1, 2, 3] if everything else [1])
    assert clean.forgotten == 0


def test_unconfirmed_ids_are_forgotten_after_a_day(spool: Spool, tmp_path: Path) -> None:
    spool.batch(1, [1])
    clean = make_cleaner(spool)
    clean.clean("gen", 2)
    yesterday = time.time() - cleaner.MAX_AGE - 60
    os.utime(tmp_path / UNFIN / "00000001-0", (yesterday, yesterday))
    spool.batch(3, [3])
    clean.clean("gen", 4)
    assert spool.known() == [3]
    assert clean.forgotten == 1


def test_what_could_not_be_removed_is_removed_with_the_next_commit(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    spool.batch(1, [1], CONFIRMED)
    spool.batch(2, [2], CONFIRMED)
    spool.failures = 1
    clean = make_cleaner(spool)
    clean.start()
    clean.committed("gen", 2)
    clean.committed("gen", 3)
    clean.finish(10.0)
    assert not clean.is_alive()
    assert spool.batches() == []
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.getMessage() for each in warnings] == ["the spool could not be cleaned"]


def test_foreign_objects_in_the_spool_are_ignored(spool: Spool) -> None:
    spool.batch(1, [1], CONFIRMED)
    spool.write("gen/batches/notes", b"mine")
    make_cleaner(spool).clean("gen", 9)
    assert spool.names("gen/batches") == ["notes"]
