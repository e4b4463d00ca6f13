"""Slots: written once, and the same to everybody who reads them."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqflow.spark.local_store import LocalStore
from nsqflow.spark.offsets import ShareName, make_key, planned_mark
from nsqflow.spark.options import parse_stream
from nsqflow.spark.reading import read_share
from nsqflow.spark.share import Share
from nsqflow.spark.slots import Confirmation, Footer, Slots, SpoolError, Totals, slot_numbers
from tests.fixtures.servers import Nsqd
from tests.fixtures.spark import published
from tests.spark.queries import await_answers, post
from tests.unit.spark.spool import ids_of, numbers_of, rows_of, write_slot

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "gen/batches/00000001/key-0"
MARK = "gen/batches/00000001/_planned"

totals = st.builds(
    Totals,
    **dict.fromkeys(
        ("rows", "bytes", "bodies", "duplicates", "requeued", "dead_lettered"),
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


def test_a_slot_that_nobody_wrote_is_not_there(slots: Slots) -> None:
    assert slots.read(0) is None


def test_a_slot_is_read_as_it_was_written(slots: Slots) -> None:
    rows = rows_of(range(100))
    footer = Footer(writer="w", last=True, totals=Totals(rows=100, duplicates=3))
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
    assert slots.create(0, rows_of([3]), Footer(writer="late")) is None
    slot = slots.read(0)
    assert slot is not None
    assert numbers_of(slot.rows) == [1, 2]


def test_the_last_slot_may_be_without_rows(slots: Slots) -> None:
    assert slots.create(0, None, Footer(writer="w", last=True)) is not None
    slot = slots.read(0)
    assert slot is not None
    assert slot.rows is None
    assert slot.footer.last
    assert slots.ids(0) == b""


@given(totals, st.booleans(), st.integers(0, 2**40))
def test_a_footer_says_what_it_was_told_in_few_bytes(totals: Totals, last: bool, size: int) -> None:
    footer = Footer(writer=uuid4().hex, last=last, totals=totals)
    data = footer.encode(size)
    assert Footer.decode(b"rows" + data, "somewhere") == (footer, size)
    assert len(data) <= 4096  # what is read of a slot's end


@given(totals, totals)
def test_totals_add_up(one: Totals, other: Totals) -> None:
    both = one + other
    assert both == other + one
    assert both.rows == one.rows + other.rows
    assert both + Totals() == both


@pytest.mark.parametrize(
    "data", [b"", b"short", b"x" * 100, b"{}" + b"\0\0\0\2nsqslot1", b"[]" + b"\0\0\0\2nsqslot1"]
)
def test_an_object_that_is_no_slot_is_named(store: LocalStore, slots: Slots, data: bytes) -> None:
    store.create(f"{FOLDER}/000000", [data])
    with pytest.raises(SpoolError, match=f"{FOLDER}/000000 is not a slot of the spool"):
        slots.read(0)
    with pytest.raises(SpoolError, match=f"{FOLDER}/000000 is not a slot of the spool"):
        slots.totals()


# --- a batch that has left the spool --------------------------------------------------------------


def test_a_slot_of_a_batch_that_has_left_the_spool_is_not_written(store: LocalStore) -> None:
    slots = Slots(store, FOLDER, MARK)
    with pytest.raises(SpoolError, match=f"{FOLDER} is not in the spool: this task comes too late"):
        slots.create(0, rows_of([1]), Footer(writer="w"))
    assert store.tree("") == []


def test_a_slot_of_a_batch_that_is_in_the_spool_is_written(store: LocalStore) -> None:
    store.write(MARK, b"{}")
    slots = Slots(store, FOLDER, MARK)
    assert slots.create(0, rows_of([1]), Footer(writer="w")) is not None


# --- a whole share ------------------------------------------------------------------------------


def test_a_share_that_nobody_read_has_come_to_nothing(slots: Slots) -> None:
    assert slots.totals() == (Totals(), False)
    assert slots.unconfirmed() == (b"", b"")


def test_the_totals_of_a_share_are_those_of_its_last_slot_and_what_went_back_since(
    slots: Slots,
) -> None:
    for number, last in enumerate([False, False, True]):
        footer = Footer(writer="w", last=last, totals=Totals(rows=10 * (number + 1), requeued=1))
        slots.create(number, rows_of([number]), footer)
    slots.confirm("w", Confirmation(slots=[0, 1, 2], requeued=4))
    slots.confirm("loser", Confirmation(slots=[], requeued=2))
    came_to, complete = slots.totals()
    assert (came_to.rows, came_to.requeued, complete) == (30, 7, True)


def test_ids_are_in_doubt_until_their_writer_says_they_are_finished(slots: Slots) -> None:
    write_slot(slots, 0, [1, 2], last=False)
    write_slot(slots, 1, [3, 4], last=False)
    write_slot(slots, 2, [5, 6])
    assert slots.unconfirmed()[0] == ids_of(range(1, 7))
    slots.confirm("one", Confirmation(slots=[0], settled=ids_of([9])))
    slots.confirm("two", Confirmation(slots=[1], failed=ids_of([4])))
    assert slots.unconfirmed() == (ids_of([4, 5, 6]), ids_of([9]))


@given(st.lists(st.integers(0, 10**6)), st.binary(max_size=64), st.binary(max_size=64))
def test_a_confirmation_is_read_as_it_was_written(
    wrote: list[int], failed: bytes, settled: bytes
) -> None:
    said = Confirmation(slots=wrote, failed=failed, settled=settled, requeued=3)
    assert Confirmation.decode(said.encode()) == said


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
                footer = Footer(writer=str(self._name), last=number == LENGTH - 1)
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
def test_tasks_that_race_see_the_same_slots_whoever_dies(
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


def test_readers_of_one_share_see_the_same_rows_and_leave_the_others_in_the_channel(
    store: LocalStore, nsqd: Nsqd
) -> None:
    topic = f"t{uuid4().hex[:16]}"
    options = parse_stream(
        {
            "topic": topic,
            "channel": "spark",
            "nsqd": nsqd.tcp_address,
            "nsqdHttp": nsqd.http_address,
            "spoolLocation": store.location,
            "msgTimeout": "5s",
        }
    )
    post(nsqd, "/topic/create", topic)
    post(nsqd, "/channel/create", topic)
    bodies = published(nsqd, topic, 6000)

    def read(seq: int, into: list[list[bytes]]) -> None:
        share = Share(ShareName("gen", seq, make_key(topic, nsqd.tcp_address), 0), 6000)
        batches: list[pa.RecordBatch] = [*read_share(share, options)]
        into.append([body for batch in batches for body in batch.column("body").to_pylist()])

    saw: list[list[bytes]] = []
    store.write(planned_mark("gen", 1), b"{}")
    readers = [threading.Thread(target=read, args=(1, saw)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(saw) == 3
    assert saw[0] == saw[1] == saw[2] != []
    # Each held messages that the others waited for, so the share may have ended without some;
    # and nsqd may push one behind its answer to CLS, which is away until its time is over.
    await_answers(nsqd, topic)
    rest: list[list[bytes]] = []
    store.write(planned_mark("gen", 2), b"{}")
    read(2, rest)
    assert sorted(saw[0] + rest[0]) == bodies
