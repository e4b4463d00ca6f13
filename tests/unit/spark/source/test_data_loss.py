"""Evidence of slots: what is named must be there, and what is not decided is never named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from nsqflow.spark.source.data_loss import find_gap
from nsqflow.spark.spool.slot_format import SlotCountMarker
from nsqflow.spark.spool.slots import SlotInventory

LENGTH = 4

numbers = st.frozensets(st.integers(0, 20), max_size=8)
marks = st.builds(
    SlotCountMarker,
    slots=st.integers(1, 20),
    ended=st.booleans(),
    rows=st.none() | st.integers(0, 1000),
)
inventories = st.builds(
    SlotInventory,
    present=numbers,
    confirmed=numbers,
    count_marker=st.none() | marks,
    lost=numbers,
)


@dataclass
class Folder:
    """A share as tasks leave it, with all slots that were ever written."""

    written: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)
    count_marker: SlotCountMarker | None = None

    def inventory(self, lost: frozenset[int] = frozenset()) -> SlotInventory:
        return SlotInventory(
            present=frozenset(self.written - lost),
            confirmed=frozenset(self.confirmed),
            count_marker=self.count_marker,
        )


def task(folder: Folder) -> Iterator[None]:
    """Write what is missing, in the order in which tasks do; each step may be the last one."""
    wrote: set[int] = set()
    for number in range(LENGTH):
        last = number == LENGTH - 1
        while number not in folder.written:
            folder.written.add(number)
            yield
            if last:
                folder.count_marker = SlotCountMarker(slots=LENGTH, ended=True, rows=10 * LENGTH)
            elif not wrote and folder.count_marker is None:
                folder.count_marker = SlotCountMarker(slots=number + 1, rows=10)
            wrote.add(number)
            yield
        yield
    folder.confirmed |= wrote


turns = st.lists(st.integers(0, 2), max_size=40)


def played(turns: list[int]) -> Folder:
    """The folder after tasks have run in turns; all of them are dead now."""
    folder = Folder()
    tasks = [task(folder) for _ in range(3)]
    for turn in turns:
        next(tasks[turn], None)
    return folder


@given(turns)
def test_whichever_tasks_die_no_slot_is_named_that_was_never_written(turns: list[int]) -> None:
    folder = played(turns)
    found = folder.inventory()
    assert set(range(found.count)) == folder.written
    assert not found.ended or found.count == LENGTH


@given(turns, st.frozensets(st.integers(0, LENGTH - 1), max_size=LENGTH))
def test_a_slot_that_is_gone_is_noticed_if_a_later_one_or_a_mark_names_it(
    turns: list[int], lost: frozenset[int]
) -> None:
    folder = played(turns)
    lost &= folder.written
    found = folder.inventory(lost)
    marked = folder.count_marker.slots if folder.count_marker else 0
    named = {number for number in lost if number < marked} | (lost & folder.confirmed)
    named |= {number for number in lost if any(later > number for later in found.present)}
    missing = set(range(found.count)) - found.present
    assert named <= missing <= lost


@given(inventories, st.integers(0, 25))
def test_a_gap_holds_only_slots_that_were_decided_and_ends_before_the_next_good_one(
    found: SlotInventory, start: int
) -> None:
    reasons: dict[int, str] = {}
    for number in range(start, start + 30):
        if number in found.present:
            break
        reasons[number] = "missing"
    gap = find_gap(found, reasons, 0, None)
    if start >= found.count or start in found.present:
        assert gap is None
        return
    assert gap is not None
    assert list(gap.reasons) == list(range(start, gap.next))
    assert gap.next == found.count or gap.next in found.present
    assert gap.ended == (found.ended and gap.next == found.count)


def test_how_many_rows_are_lost_is_known_from_the_slot_after_them_or_from_the_end() -> None:
    ended = SlotInventory(
        present=frozenset({0}), count_marker=SlotCountMarker(slots=3, ended=True, rows=30)
    )
    lost = {1: "missing", 2: "missing"}
    gap = find_gap(ended, lost, 10, None)
    assert gap is not None
    assert (gap.next, gap.ended, gap.rows) == (3, True, 20)
    middle = find_gap(SlotInventory(present=frozenset({0, 2})), {1: "altered"}, 10, 17)
    assert middle is not None
    assert (middle.next, middle.ended, middle.rows) == (2, False, 7)
    unknown = find_gap(SlotInventory(confirmed=frozenset({0, 1})), {1: "missing"}, 10, None)
    assert unknown is not None
    assert (unknown.next, unknown.ended, unknown.rows) == (2, False, None)


@given(marks)
def test_a_mark_is_read_as_it_was_written(mark: SlotCountMarker) -> None:
    assert SlotCountMarker.decode(mark.encode("writer")) == mark
    old = {"slots": mark.slots, "ended": mark.ended, "rows": mark.rows, "writer": "w"}
    assert (
        SlotCountMarker.decode(json.dumps(old).encode()) == mark
    )  # of a release without checksums


@given(marks, st.data())
def test_a_mark_with_one_bit_altered_never_names_more_slots(
    mark: SlotCountMarker, data: st.DataObject
) -> None:
    altered = bytearray(mark.encode("writer"))
    altered[data.draw(st.integers(0, len(altered) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert SlotCountMarker.decode(bytes(altered)) in (mark, SlotCountMarker(slots=1))


@given(st.binary() | st.sampled_from([b"[]", b"{}", b'{"slots": "x"}']))
def test_a_mark_that_is_damaged_still_says_that_there_was_a_slot(data: bytes) -> None:
    assert SlotCountMarker.decode(data).slots == 1
