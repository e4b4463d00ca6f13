"""Slots: written once, and the same for every reader."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqflow.errors import SpoolError
from nsqflow.spark.source.offsets import PartitionId, make_key
from nsqflow.spark.spool.layout import slot_numbers
from nsqflow.spark.spool.local_store import LocalStore
from nsqflow.spark.spool.slot_format import (
    DamagedSlotError,
    FinConfirmation,
    PartitionTotals,
    SlotFooter,
    SlotParts,
)
from nsqflow.spark.spool.slots import Slots
from tests.unit.spark.spool_rows import ids_of, numbers_of, rows_of, write_slot

FOLDER = "gen/batches/00000001/key-0"


MARK = "gen/batches/00000001/_planned"


totals = st.builds(
    PartitionTotals,
    **dict.fromkeys(
        ("rows", "bytes", "bodies", "duplicates", "requeued", "dead_lettered", "lost"),
        st.integers(0, 2**50),
    ),
)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "spool"))


@pytest.fixture
def slots(store: LocalStore) -> Slots:
    return Slots(store, FOLDER)


# --- one slot -----------------------------------------------------------------------------------


def test_a_slot_that_was_not_written_does_not_exist(slots: Slots) -> None:
    assert slots.read(0) is None


def test_a_slot_is_read_as_it_was_written(slots: Slots) -> None:
    rows = rows_of(range(100))
    footer = SlotFooter(writer="w", last=True, totals=PartitionTotals(rows=100, duplicates=3))
    written = slots.create(7, rows, footer)
    slot = slots.read(7)
    assert written is not None
    assert slot is not None
    assert slot.footer == written
    assert (written.writer, written.last) == ("w", True)
    assert (written.totals.rows, written.totals.duplicates) == (100, 3)
    assert written.totals.bytes >= rows.nbytes
    assert slot.rows is not None
    assert slot.rows.equals(rows)
    assert slots.ids(7) == ids_of(range(100))


def test_a_slot_that_exists_is_not_written_again(slots: Slots) -> None:
    write_slot(slots, 0, [1, 2])
    assert slots.create(0, rows_of([3]), SlotFooter(writer="late")) is None
    slot = slots.read(0)
    assert slot is not None
    assert numbers_of(slot.rows) == [1, 2]


def test_the_last_slot_may_be_without_rows(slots: Slots) -> None:
    assert slots.create(0, None, SlotFooter(writer="w", last=True)) is not None
    slot = slots.read(0)
    assert slot is not None
    assert slot.rows is None
    assert slot.footer.last
    assert slots.ids(0) == b""


@given(totals, st.booleans(), st.integers(0, 2**40))
def test_a_footer_is_decoded_as_it_was_encoded_and_small(
    totals: PartitionTotals, last: bool, size: int
) -> None:
    footer = SlotFooter(writer=uuid4().hex, last=last, totals=totals)
    key = make_key("t" * 64, f"{'h' * 253}:65535")
    name = f"{PartitionId(uuid4().hex, 99_999_999, key, 999).folder}/000001"
    data = footer.encode(name, size, 2**32 - 1)
    frame = SlotParts(size, len(data), 2**32 - 1)
    assert SlotFooter.decode(b"rows" + data, name) == (footer, frame)
    assert len(data) <= 4096  # what is read of a slot's end


@given(totals, totals)
def test_totals_add_up(one: PartitionTotals, other: PartitionTotals) -> None:
    both = one + other
    assert both == other + one
    assert both.rows == one.rows + other.rows
    assert both + PartitionTotals() == both


@pytest.mark.parametrize(
    "data", [b"", b"short", b"x" * 100, b"{}" + b"\0\0\0\2nsqslot1", b"[]" + b"\0\0\0\2nsqslot1"]
)
def test_an_object_that_is_not_a_slot_is_named(
    store: LocalStore, slots: Slots, data: bytes
) -> None:
    store.create(f"{FOLDER}/000000", [data])
    with pytest.raises(
        DamagedSlotError, match=f"{FOLDER}/000000 is damaged: not a slot of the spool"
    ):
        slots.read(0)
    assert slots.totals() == (PartitionTotals(), False)


# --- a batch that has left the spool --------------------------------------------------------------


def test_a_slot_of_a_batch_that_has_left_the_spool_is_not_written(store: LocalStore) -> None:
    slots = Slots(store, FOLDER, MARK)
    with pytest.raises(SpoolError, match=f"{FOLDER} is not in the spool: this task comes too late"):
        slots.create(0, rows_of([1]), SlotFooter(writer="w"))
    assert store.tree("") == []


def test_a_slot_of_a_batch_that_is_in_the_spool_is_written(store: LocalStore) -> None:
    store.write(MARK, b"{}")
    slots = Slots(store, FOLDER, MARK)
    assert slots.create(0, rows_of([1]), SlotFooter(writer="w")) is not None


def test_slots_are_marked_before_fins_for_them_are_sent_without_a_new_slot(
    store: LocalStore, slots: Slots
) -> None:
    slots.mark_count(0)  # there is none
    assert store.tree("") == []
    slots.mark_count(2)
    assert slots.inventory().count == 2
    slots.create(2, rows_of([1]), SlotFooter(writer="w", last=True))
    Slots(store, FOLDER).mark_count(1)  # not over the mark of the end
    assert slots.inventory().ended


# --- a whole share ------------------------------------------------------------------------------


def test_a_partition_that_was_not_read_has_no_totals(slots: Slots) -> None:
    assert slots.totals() == (PartitionTotals(), False)
    assert slots.unconfirmed() == (b"", b"")


def test_the_totals_of_a_partition_are_those_of_its_last_slot_and_later_requeues(
    slots: Slots,
) -> None:
    for number, last in enumerate([False, False, True]):
        footer = SlotFooter(
            writer="w", last=last, totals=PartitionTotals(rows=10 * (number + 1), requeued=1)
        )
        slots.create(number, rows_of([number]), footer)
    slots.confirm("w", FinConfirmation(slots=[0, 1, 2], requeued=4))
    slots.confirm("loser", FinConfirmation(slots=[], requeued=2))
    came_to, complete = slots.totals()
    assert (came_to.rows, came_to.requeued, complete) == (30, 7, True)


def test_ids_are_unconfirmed_until_their_writer_confirms_the_fins(slots: Slots) -> None:
    write_slot(slots, 0, [1, 2], last=False)
    write_slot(slots, 1, [3, 4], last=False)
    write_slot(slots, 2, [5, 6])
    assert slots.unconfirmed()[0] == ids_of(range(1, 7))
    slots.confirm("one", FinConfirmation(slots=[0], settled=ids_of([9])))
    slots.confirm("two", FinConfirmation(slots=[1], failed=ids_of([4])))
    assert slots.unconfirmed() == (ids_of([4, 5, 6]), ids_of([9]))


@given(st.lists(st.integers(0, 10**6)), st.binary(max_size=64), st.binary(max_size=64))
def test_a_confirmation_is_read_as_it_was_written(
    wrote: list[int], failed: bytes, settled: bytes
) -> None:
    said = FinConfirmation(slots=wrote, failed=failed, settled=settled, requeued=3)
    assert FinConfirmation.decode(said.encode()) == said


def test_only_numbers_name_slots() -> None:
    assert slot_numbers(["000010", "000002", "fin-1", "_planned", "x"]) == [2, 10]


# --- races --------------------------------------------------------------------------------------


LENGTH = 4


class Task:
    """Reads a share and writes what is missing, one step at a time."""

    def __init__(self, store: LocalStore, name: int) -> None:
        self.saw: list[tuple[str, list[int]]] = []
        self._slots = Slots(store, FOLDER)
        self._name = name
        self.steps = self._run()

    def _run(self) -> Iterator[None]:
        number, last = 0, False
        while not last:
            slot = self._slots.read(number)
            yield
            if slot is None:
                footer = SlotFooter(writer=str(self._name), last=number == LENGTH - 1)
                self._slots.create(number, rows_of([100 * self._name + number]), footer)
                yield
                slot = self._slots.read(number)
            assert slot is not None
            self.saw.append((slot.footer.writer, numbers_of(slot.rows)))
            number, last = number + 1, slot.footer.last


@settings(max_examples=40)
@given(
    turns=st.lists(st.integers(0, 2), max_size=40),
    survivors=st.sets(st.integers(0, 2), min_size=1),
)
def test_tasks_that_race_see_the_same_slots_whichever_dies(
    turns: list[int], survivors: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tasks = [Task(LocalStore(folder), name) for name in range(3)]
        for turn in turns:
            next(tasks[turn].steps, None)
        for survivor in survivors:
            for _ in tasks[survivor].steps:
                pass
        (whole,) = {str(tasks[survivor].saw) for survivor in survivors}
        assert len(tasks[min(survivors)].saw) == LENGTH
        for task in tasks:
            assert task.saw == tasks[min(survivors)].saw[: len(task.saw)], whole
