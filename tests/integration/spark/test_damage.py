"""Missing, truncated and altered slots: a task fails, or continues without them."""

from __future__ import annotations

import errno
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import pytest

from nsqflow.errors import DataLossError, SpoolError
from nsqflow.spark.options import SourceOptions, parse_stream
from nsqflow.spark.source.offsets import PartitionId, make_key
from nsqflow.spark.source.partition_reader import PartitionReader, read_partition
from nsqflow.spark.source.reader import NsqInputPartition
from nsqflow.spark.spool.cleaner import SpoolCleaner
from nsqflow.spark.spool.dedup import SeenIds
from nsqflow.spark.spool.layout import planned_marker, slot_count_marker
from nsqflow.spark.spool.local_store import LocalStore
from nsqflow.spark.spool.slot_format import (
    FinConfirmation,
    PartitionTotals,
    SlotCountMarker,
    SlotFooter,
)
from nsqflow.spark.spool.slots import Slots
from nsqflow.spark.spool.store import Buffers
from tests.fixtures.crashing import await_channel, create_channel, until
from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import published
from tests.unit.spark.spool_rows import rows_of

SLOT = 10


TOTAL = 3 * SLOT


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that fills slots of 10 messages."""
    options = [f"-max-rdy-count={SLOT}"]
    with start_nsqd(tmp_path_factory.mktemp("nsqd"), options=options) as server:
        yield server


@dataclass(frozen=True)
class Batch:
    """A batch of one share, that was read once, and the folder it is in."""

    share: NsqInputPartition
    options: SourceOptions
    store: LocalStore
    slots: list[list[int]]
    """The numbers of the messages in each slot."""

    @property
    def folder(self) -> Path:
        return Path(self.store.location) / self.share.id.folder

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06d}"

    def numbers(self, *, fail: bool = True) -> list[int]:
        """What another task reads."""
        options = replace(self.options, fail_on_data_loss=fail)
        batches = [*read_partition(self.share, options)]
        return [int(body[:10]) for batch in batches for body in batch.column("body").to_pylist()]

    def totals(self) -> PartitionTotals:
        return Slots(self.store, self.share.id.folder).totals()[0]


def planned(
    nsqd: Nsqd, spool: Path, count: int
) -> tuple[NsqInputPartition, SourceOptions, LocalStore]:
    """A batch of messages that wait in a topic of its own."""
    topic = f"damage-{uuid4().hex[:8]}"
    options = parse_stream(
        {
            "topic": topic,
            "channel": "spark",
            "nsqd": nsqd.tcp_address,
            "nsqdHttp": nsqd.http_address,
            "spoolLocation": str(spool),
            "idleTimeout": "200ms",
        }
    )
    create_channel(nsqd, topic)
    published(nsqd, topic, count)
    store = LocalStore(str(spool))
    store.write(planned_marker("gen", 1), b"{}")
    share = NsqInputPartition(PartitionId("gen", 1, make_key(topic, nsqd.tcp_address), 0), count)
    return share, options, store


@pytest.fixture
def batch(nsqd: Nsqd, tmp_path: Path) -> Batch:
    """Three slots, the last of which says that it is; all messages are finished."""
    share, options, store = planned(nsqd, tmp_path / "spool", TOTAL)
    topic = share.topic
    bodies = [
        [int(body[:10]) for body in slot.rows.column("body").to_pylist()]
        for slot in PartitionReader(share, options).slots()
        if slot.rows is not None
    ]
    assert list(map(len, bodies)) == [SLOT] * 3
    await_channel(nsqd, topic, depth=0, in_flight_count=0)
    published(nsqd, topic, TOTAL, first=TOTAL)  # which must not take the place of what is lost
    return Batch(share, options, store, bodies)


def remove(*numbers: int) -> Callable[[Batch], None]:
    def apply(batch: Batch) -> None:
        for number in numbers:
            batch.path(number).unlink()

    return apply


def remove_folder(batch: Batch) -> None:
    shutil.rmtree(batch.folder)


def remove_last_and_the_mark_of_the_end(batch: Batch) -> None:
    """Then only the FIN mark names it."""
    batch.path(2).unlink()
    Path(batch.store.location, slot_count_marker(batch.share.id.folder)).unlink()


def truncate(number: int, size: int) -> Callable[[Batch], None]:
    def apply(batch: Batch) -> None:
        data = batch.path(number).read_bytes()
        batch.path(number).write_bytes(data[:size])

    return apply


def alter(number: int, place: int) -> Callable[[Batch], None]:
    """Change one bit."""

    def apply(batch: Batch) -> None:
        data = bytearray(batch.path(number).read_bytes())
        data[place] ^= 1
        batch.path(number).write_bytes(data)

    return apply


def copy(source: int, target: int) -> Callable[[Batch], None]:
    """Put one slot in the place of another, as a restore by hand may do."""

    def apply(batch: Batch) -> None:
        shutil.copyfile(batch.path(source), batch.path(target))

    return apply


DAMAGE = {
    "first missing": (remove(0), [0], "missing"),
    "middle missing": (remove(1), [1], "missing"),
    "last missing, as its mark says": (remove(2), [2], "missing"),
    "first two missing": (remove(0, 1), [0, 1], "missing"),
    "last two missing": (remove(1, 2), [1, 2], "missing"),
    "folder missing": (remove_folder, [0, 1, 2], "missing"),
    "first truncated": (truncate(0, 500), [0], "truncated or altered"),
    "last truncated": (truncate(2, -1), [2], "truncated or altered"),
    "middle empty": (truncate(1, 0), [1], "truncated or altered"),
    "body altered": (alter(1, 1000), [1], "its rows were altered"),
    "first byte altered": (alter(0, 0), [0], "its rows were altered"),
    "footer altered": (alter(2, -60), [2], "its footer was altered"),
    "magic altered": (alter(0, -1), [0], "not a slot"),
    "first is a copy of the last": (copy(2, 0), [0], "it is a copy of "),
    "middle is a copy of the first": (copy(0, 1), [1], "it is a copy of "),
    "last is a copy of the middle": (copy(1, 2), [2], "it is a copy of "),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_slot_that_is_lost_is_an_error_that_says_what_is_gone(batch: Batch, kind: str) -> None:
    damage, lost, why = DAMAGE[kind]
    damage(batch)
    with pytest.raises(DataLossError) as caught:
        batch.numbers()
    said = str(caught.value)
    assert "\n" not in said
    named = f"slot {lost[0]}" if len(lost) == 1 else f"slots {lost[0]}-{lost[-1]}"
    assert f"lost {named} of batch 1, topic " in said
    assert f"{batch.share.topic!r}, channel 'spark', nsqd {batch.share.nsqd}, partition 0" in said
    assert f", in {batch.folder}: {lost[0]:06d} (" in said
    assert all(f"{number:06d} (" in said for number in lost)
    assert why in said
    assert f"{SLOT * len(lost)} messages may be lost; put the files back, or start once" in said
    assert "failOnDataLoss=false" in said


@pytest.mark.parametrize("kind", DAMAGE)
def test_with_fail_on_data_loss_false_what_is_intact_is_read_and_the_rest_is_counted(
    batch: Batch, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage, lost, why = DAMAGE[kind]
    damage(batch)
    intact = [n for number, rows in enumerate(batch.slots) if number not in lost for n in rows]
    with caplog.at_level(logging.WARNING, "nsqflow.spark.source.data_loss"):
        assert batch.numbers(fail=False) == intact
    (warning,) = caplog.messages
    assert why in warning
    assert f"{SLOT * len(lost)} messages may be lost; continuing without" in warning
    assert batch.totals().lost == SLOT * len(lost)
    assert batch.totals().rows == len(intact)
    # It was accepted, once for all: whatever reads the batch now sees the same.
    caplog.clear()
    assert batch.numbers(fail=True) == intact
    assert caplog.messages == []


def test_a_last_slot_that_only_a_fin_mark_names_is_missed(batch: Batch) -> None:
    remove_last_and_the_mark_of_the_end(batch)
    with pytest.raises(
        DataLossError, match=r"lost slot 2 .* an unknown number of messages may be lost"
    ):
        batch.numbers()


def test_a_partition_not_known_to_have_ended_is_filled_up_after_a_loss(
    batch: Batch,
) -> None:
    remove_last_and_the_mark_of_the_end(batch)
    had = batch.slots[0] + batch.slots[1]
    more = batch.numbers(fail=False)
    assert more[: len(had)] == had
    assert more[len(had) :] == [*range(TOTAL, TOTAL + SLOT)]
    assert batch.numbers() == more
    assert batch.totals().rows == len(more)
    stand_in = Slots(batch.store, batch.share.id.folder).read(2)
    assert stand_in is not None
    assert stand_in.rows is None  # a new one with rows would pass for confirmed


def test_two_gaps_are_two_losses(batch: Batch, caplog: pytest.LogCaptureFixture) -> None:
    remove(0)(batch)
    alter(2, 500)(batch)
    with caplog.at_level(logging.WARNING, "nsqflow.spark.source.data_loss"):
        assert batch.numbers(fail=False) == batch.slots[1]
    assert len(caplog.messages) == 2
    assert batch.totals().lost == 2 * SLOT


def test_slots_that_are_lost_one_after_the_other_are_counted_once(batch: Batch) -> None:
    remove(1)(batch)
    batch.numbers(fail=False)
    remove(2)(batch)
    assert batch.numbers(fail=False) == batch.slots[0]
    assert (batch.totals().rows, batch.totals().lost) == (SLOT, 2 * SLOT)


@pytest.mark.parametrize("damage", [remove(1), truncate(1, 500)])
def test_a_slot_that_is_put_back_stays_given_up_as_its_batch_may_be_committed_without(
    batch: Batch, damage: Callable[[Batch], None]
) -> None:
    data = batch.path(1).read_bytes()
    damage(batch)
    without = batch.slots[0] + batch.slots[2]
    assert batch.numbers(fail=False) == without
    batch.path(1).write_bytes(data)
    assert batch.numbers() == without
    assert batch.numbers(fail=False) == without
    assert (batch.totals().rows, batch.totals().lost) == (2 * SLOT, SLOT)


def test_a_last_slot_that_is_put_back_does_not_hide_what_filled_the_batch_up(batch: Batch) -> None:
    data = batch.path(2).read_bytes()
    remove_last_and_the_mark_of_the_end(batch)
    filled = batch.numbers(fail=False)
    assert len(filled) == TOTAL
    batch.path(2).write_bytes(data)
    assert batch.numbers() == filled


@pytest.mark.parametrize("damage", [remove(2), truncate(2, 100)])
def test_a_partition_whose_last_slot_is_marked_as_lost_has_ended(
    batch: Batch, damage: Callable[[Batch], None]
) -> None:
    damage(batch)
    without = batch.slots[0] + batch.slots[1]
    assert batch.numbers(fail=False) == without
    Path(batch.store.location, slot_count_marker(batch.share.id.folder)).unlink()
    assert batch.numbers() == without
    assert Slots(batch.store, batch.share.id.folder).totals()[1]


def test_a_task_that_dies_while_it_marks_slots_as_lost_leaves_the_rest_to_the_next(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LocalStore.create
    for calls in range(5):
        remove_folder(batch)
        left = calls

        def create(store: LocalStore, name: str, data: Buffers, *, durable: bool = True) -> bool:
            nonlocal left
            if not name.rpartition("/")[2].startswith(".tmp-"):
                left -= 1
            if left < 0:
                raise OSError("killed")
            return original(store, name, data, durable=durable)

        with monkeypatch.context() as patch, pytest.raises(OSError, match="killed"):
            patch.setattr(LocalStore, "create", create)
            batch.numbers(fail=False)
        assert batch.numbers(fail=False) == []
        assert batch.numbers() == []
        assert (batch.totals().rows, batch.totals().lost) == (0, TOTAL)


def test_tasks_that_mark_the_same_slots_as_lost_agree(batch: Batch) -> None:
    remove_last_and_the_mark_of_the_end(batch)
    alter(0, 50)(batch)
    found: list[list[int]] = []
    tasks = [
        threading.Thread(target=lambda: found.append(batch.numbers(fail=False))) for _ in range(3)
    ]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert len(found) == 3
    assert found[0] == found[1] == found[2] == batch.numbers()
    assert found[0][:SLOT] == batch.slots[1]


class NfsClient(LocalStore):
    """A machine that believes for long that a name is free, until it changes the folder itself."""

    def __init__(self, location: str, on_miss: Callable[[str], None]) -> None:
        super().__init__(location)
        self._free: set[str] = set()
        self._on_miss = on_miss

    def read(self, name: str) -> bytes:
        if name in self._free:
            raise FileNotFoundError(name)
        try:
            return super().read(name)
        except FileNotFoundError:
            self._free.add(name)
            self._on_miss(name)
            raise

    def create(self, name: str, data: Buffers, *, durable: bool = True) -> bool:
        try:
            return super().create(name, data, durable=durable)
        finally:
            folder = name.rpartition("/")[0]
            self._free = {name for name in self._free if name.rpartition("/")[0] != folder}


@pytest.mark.parametrize("fail", [True, False])
def test_a_slot_that_this_machine_does_not_see_yet_is_not_lost(
    nsqd: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: bool
) -> None:
    share, options, store = planned(nsqd, tmp_path / "spool", TOTAL)
    other = Slots(store, share.id.folder, planned_marker("gen", 1))

    def put(number: int) -> None:
        footer = SlotFooter(
            writer="w", last=number == 2, totals=PartitionTotals(rows=SLOT * (number + 1))
        )
        assert other.create(number, rows_of(range(number * SLOT, (number + 1) * SLOT)), footer)

    def put_the_rest(name: str) -> None:
        if name.endswith("/000001") and store.age(f"{share.id.folder}/000001") is None:
            put(1)
            put(2)

    put(0)
    client = NfsClient(store.location, put_the_rest)
    monkeypatch.setattr("nsqflow.spark.source.partition_reader.open_store", lambda *_: client)
    options = replace(options, fail_on_data_loss=fail)
    batches = [*read_partition(share, options)]
    bodies = [body for batch in batches for body in batch.column("body").to_pylist()]
    assert bodies == [b"%010d" % number for number in range(TOTAL)]
    assert not [name for name in store.tree("") if "lost-" in name]


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("kind", ["an error of the disk", "a folder"])
def test_a_slot_that_cannot_be_read_from_disk_is_lost(
    batch: Batch, monkeypatch: pytest.MonkeyPatch, kind: str, fail: bool
) -> None:
    said = {"an error of the disk": "Input/output error", "a folder": "Is a directory"}[kind]
    if kind == "a folder":
        batch.path(1).unlink()
        batch.path(1).mkdir()
    else:
        read = LocalStore.read

        def fail_to_read(store: LocalStore, name: str) -> bytes:
            if name.endswith("/000001"):
                raise OSError(errno.EIO, "Input/output error", name)
            return read(store, name)

        monkeypatch.setattr(LocalStore, "read", fail_to_read)
    if fail:
        with pytest.raises(
            DataLossError, match=rf"slot 1 of .*: 000001 \(it can't be read: {said}\)"
        ):
            batch.numbers()
        return
    without = batch.slots[0] + batch.slots[2]
    assert batch.numbers(fail=False) == without
    monkeypatch.undo()
    assert batch.numbers() == without
    assert batch.totals().lost == SLOT


def test_the_mark_outside_of_the_folder_is_written_by_each_task_that_writes(
    nsqd: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share, options, store = planned(nsqd, tmp_path / "spool", 6 * SLOT)
    create = LocalStore.create

    def dies_at(wanted: str) -> None:
        """Have a task that is killed when it creates this object."""

        def create_or_die(
            store: LocalStore, name: str, data: Buffers, *, durable: bool = True
        ) -> bool:
            if name.endswith(wanted):
                raise OSError("killed")
            return create(store, name, data, durable=durable)

        with monkeypatch.context() as patch, pytest.raises(OSError, match="killed"):
            patch.setattr(LocalStore, "create", create_or_die)
            for _ in read_partition(share, options):
                pass

    dies_at(".decided")
    assert store.names(share.id.folder) == ["000000"]
    dies_at("/000004")
    store.remove(share.id.folder)
    with pytest.raises(DataLossError, match=r"lost slots 0-1 of batch 1"):
        [*read_partition(share, options)]


def test_the_text_of_an_error_has_a_bound(
    nsqd: Nsqd, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    share, options, store = planned(nsqd, tmp_path / "spool", SLOT)
    mark = SlotCountMarker(slots=400, ended=True, rows=4000)
    store.write(slot_count_marker(share.id.folder), mark.encode("w"))
    with pytest.raises(DataLossError) as caught:
        [*read_partition(share, options)]
    said = str(caught.value)
    assert "lost slots 0-399 of batch 1" in said
    assert "000002 (missing) and 397 more. 4000 messages may be lost" in said
    assert len(said) < 700
    with caplog.at_level(logging.WARNING, "nsqflow.spark.source.data_loss"):
        assert [*read_partition(share, replace(options, fail_on_data_loss=False))] == []
    (warning,) = caplog.messages
    assert len(warning) < 700


def test_a_task_that_reads_a_slot_of_one_that_came_too_late_fails(batch: Batch) -> None:
    reading = PartitionReader(batch.share, batch.options).slots()
    next(reading)
    Path(batch.store.location, planned_marker("gen", 1)).unlink()
    with pytest.raises(SpoolError, match="comes too late"):
        list(reading)


def test_a_batch_that_has_left_the_spool_is_late_and_not_lost(batch: Batch) -> None:
    # A crash may leave any part of a batch that is removed, once its mark is.
    Path(batch.store.location, planned_marker("gen", 1)).unlink()
    batch.path(1).unlink()
    with pytest.raises(SpoolError, match="is not in the spool: this task comes too late"):
        batch.numbers()


def test_a_mark_outside_of_the_folder_leaves_with_the_batch(batch: Batch) -> None:
    assert slot_count_marker(batch.share.id.folder) in batch.store.tree("")
    SpoolCleaner(batch.store, retain=1, everything=False).clean("gen", 2)
    assert batch.store.tree("gen/batches") == []


@pytest.mark.parametrize("fail", [True, False])
def test_a_slot_that_is_lost_while_its_writer_reads_is_missed_though_nothing_names_it(
    nsqd: Nsqd, tmp_path: Path, fail: bool
) -> None:
    share, options, store = planned(nsqd, tmp_path / "spool", 10 * SLOT)
    reading = PartitionReader(share, replace(options, fail_on_data_loss=fail))
    slots = reading.slots()
    rows = [next(slots).rows]  # the first; some more are kept in memory
    folder = share.id.folder
    until(lambda: any(name.startswith("fin-") for name in store.names(folder)))
    for name in store.names(folder):
        if name.startswith("fin-") or name > "000007":
            store.remove(f"{folder}/{name}")
    store.remove(slot_count_marker(folder))
    said = (
        pytest.raises(DataLossError, match=r"has lost slots 8-9 of batch 1")
        if fail
        else nullcontext()
    )
    with said:
        for slot in slots:
            rows.append(slot.rows)  # noqa: PERF401
    bodies = [body for batch in rows if batch for body in batch.column("body").to_pylist()]
    assert len(bodies) == len(set(bodies)) == 8 * SLOT


# --- what else reads slots ------------------------------------------------------------------------


def test_a_damaged_slot_is_not_counted_and_its_ids_are_not_known(
    batch: Batch, caplog: pytest.LogCaptureFixture
) -> None:
    truncate(2, 100)(batch)
    slots = Slots(batch.store, batch.share.id.folder)
    with caplog.at_level(logging.WARNING, "nsqflow.spark.spool.slots"):
        assert batch.totals().rows == 2 * SLOT
        assert slots.ids(2) == b""
        seen = SeenIds(batch.store, "gen", batch.share.id.key, everything=True)
        seen.refresh()
    assert all("000002 is damaged: " in message for message in caplog.messages)
    assert len(caplog.messages) == 3


def test_a_mark_of_fins_that_was_altered_names_no_slots(
    nsqd: Nsqd, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    share, options, store = planned(nsqd, tmp_path / "spool", SLOT)
    slots = Slots(store, share.id.folder)
    slots.create(0, rows_of(range(5)), SlotFooter(writer="w", totals=PartitionTotals(rows=5)))
    slots.confirm("w", FinConfirmation(slots=[0]))
    name = f"{share.id.folder}/fin-w"
    store.write(name, store.read(name).replace(b"[0]", b"[8]"))
    with caplog.at_level(logging.WARNING, "nsqflow.spark.spool.slots"):
        assert sum(map(len, read_partition(share, options))) == SLOT
    assert "fin-w is damaged and not used: it was altered" in caplog.text
