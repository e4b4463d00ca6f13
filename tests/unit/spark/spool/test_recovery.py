"""Rows that were read and never committed, and what Spark's checkpoint says of that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsqflow.client.body_compression import compress_body
from nsqflow.errors import ConfigError
from nsqflow.spark.source.offsets import Offset
from nsqflow.spark.spool.inventory import Generation, read_inventory
from nsqflow.spark.spool.layout import slot_name
from nsqflow.spark.spool.local_store import LocalStore
from nsqflow.spark.spool.recovery import (
    RecoveredSlot,
    SpooledMessage,
    committed_batches,
    read_uncommitted,
)
from nsqflow.spark.spool.slot_format import LostSlotMarker
from nsqflow.spark.spool.slots import Slots
from tests.unit.spark.source.position_rows import rows_with_headers
from tests.unit.spark.spool_rows import ids_of, numbers_of
from tests.unit.spark.spools import NEW, NSQD, OLD, SpoolBuilder


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "spool"))


@pytest.fixture
def builder(store: LocalStore) -> SpoolBuilder:
    return SpoolBuilder(store)


def generation(store: LocalStore, name: str = OLD) -> Generation:
    [found] = read_inventory(store).find(name)
    return found


def slots_of(store: LocalStore, committed: int | None = None) -> list[RecoveredSlot]:
    return [*read_uncommitted(store, generation(store), committed)]


def numbers(slots: list[RecoveredSlot]) -> list[int]:
    return [number for slot in slots for number in numbers_of(slot.rows)]


# --- rows ---------------------------------------------------------------------------------------


def test_the_rows_after_the_last_committed_batch_are_read(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD, committed=2)
    for seq in (2, 3, 4):
        builder.batch(OLD, seq, range(100 * seq, 100 * seq + 25))
    found = slots_of(store)
    assert numbers(found) == [*range(300, 325), *range(400, 425)]
    assert [slot.batch for slot in found] == [3, 3, 3, 4, 4, 4]
    assert {(slot.generation, slot.topic, slot.channel) for slot in found} == {
        (OLD, "orders", "spark")
    }
    assert {(slot.problem, slot.unfinished) for slot in found} == {("", 0)}


def test_what_the_checkpoint_knows_counts_more_than_the_spool(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD, committed=1)
    builder.batch(OLD, 1, range(5))
    builder.batch(OLD, 2, range(5, 10))
    assert numbers(slots_of(store, 2)) == []
    assert numbers(slots_of(store, 0)) == [*range(10)]


def test_rows_are_messages_as_nsqd_delivered_them(store: LocalStore, builder: SpoolBuilder) -> None:
    builder.generation(OLD, channel="spark")
    builder.batch(OLD, 1, [7])
    [slot] = slots_of(store)
    assert [*slot.messages()] == [
        SpooledMessage(
            topic="orders",
            channel="spark",
            nsqd=NSQD,
            id=b"%016d" % 7,
            timestamp=7000,
            attempts=1,
            body=b"0000000007",
        )
    ]


def test_rows_of_the_redesigned_nsq_have_all_that_it_says_of_them(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    packed, packing = compress_body("lz4", b"x" * 100)
    headers = packing | {"region": "eu", "##client_dispatch_tag": "t"}
    builder.generation(OLD, channel="spark")
    builder.partition(
        OLD, 1, 3, rows_with_headers([(packed, headers), (b"y", None)], 7), leader="n:1"
    )
    [slot] = slots_of(store)
    first, second = slot.messages()
    assert first == SpooledMessage(
        topic="orders",
        channel="spark",
        nsqd="n:1",
        id=bytes(15) + b"\7",
        timestamp=1000,
        attempts=1,
        body=b"x" * 100,
        partition=3,
        offset=0,
        size=10,
        headers=headers,
        tag="t",
    )
    assert (first.internal_id, first.trace_id) == (0, 7)
    assert (second.body, second.headers, second.tag, second.offset) == (b"y", None, None, 10)
    assert second.internal_id == 1


def test_one_topic_can_be_read_alone(store: LocalStore, builder: SpoolBuilder) -> None:
    builder.generation(OLD)
    builder.batch(OLD, 1, range(5), topic="orders")
    builder.batch(OLD, 1, range(5, 9), topic="returns")
    found = [*read_uncommitted(store, generation(store), topic="returns")]
    assert {slot.topic for slot in found} == {"returns"}
    assert numbers(found) == [5, 6, 7, 8]


def test_rows_whose_fin_is_not_confirmed_are_unfinished(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    builder.batch(OLD, 1, range(15), finished=False)
    builder.batch(OLD, 2, range(20, 35), refused=ids_of([20, 34]))
    counts = {(slot.batch, len(numbers_of(slot.rows)), slot.unfinished) for slot in slots_of(store)}
    assert counts == {(1, 10, 10), (1, 5, 5), (2, 10, 2), (2, 5, 0)}


def test_slots_that_cannot_be_read_are_named_and_the_others_read(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    slots = builder.batch(OLD, 1, range(80))
    folder = slots.location.removeprefix(f"{store.location}/")
    store.write(slot_name(folder, 0), b"damaged")
    store.remove(slot_name(folder, 2))
    assert Slots(store, folder).write_lost_marker(3, LostSlotMarker(rows=10))
    assert Slots(store, folder).write_lost_marker(4, LostSlotMarker())
    for number in (6, 7):
        store.remove(slot_name(folder, number))
    found = slots_of(store)
    assert numbers(found) == [*range(10, 20), *range(50, 60)]
    problems = [slot.problem.removeprefix(f"{slots.location}/") for slot in found if slot.problem]
    assert problems == [
        "000000 is damaged: not a slot of the spool: it ends with b'damaged': it was truncated or "
        "altered",
        "000002 is missing",
        "000003 was lost before, with 10 rows",
        "000004 was lost before, with an unknown number of rows",
        "000006 to 000007 are missing",
    ]


def test_a_file_that_looks_like_a_late_slot_costs_nothing(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    slots = builder.batch(OLD, 1, range(10))
    folder = slots.location.removeprefix(store.location + "/")
    for name, problems in (("20260101000000", 0), ("999999999", 2)):
        store.write(f"{folder}/{name}", b"?")
        found = slots_of(store)
        assert numbers(found) == [*range(10)]
        assert len([slot for slot in found if slot.problem]) == problems


# --- the checkpoint -----------------------------------------------------------------------------


class CheckpointBuilder:
    """Writes the two logs of a query as Spark does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True)

    def plan(self, batch: int, *lines: str, version: int = 1) -> None:
        text = "\n".join([f"v{version}", '{"batchWatermarkMs":0,"conf":{}}', *lines])
        (self.folder / "offsets" / str(batch)).write_text(text)
        (self.folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")

    def commit(self, batch: int) -> None:
        (self.folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def checkpoint(tmp_path: Path) -> CheckpointBuilder:
    return CheckpointBuilder(tmp_path / "checkpoint")


def offset(generation: str, seq: int) -> str:
    return json.dumps(Offset(generation, seq, 10, {f"orders|{NSQD}": [10]}).encode())


def test_the_last_committed_batch_is_that_of_the_commit_log(checkpoint: CheckpointBuilder) -> None:
    for batch in range(9, 12):
        checkpoint.plan(batch, offset(OLD, batch + 1))
        checkpoint.commit(batch)
    checkpoint.plan(12, offset(OLD, 13))
    assert committed_batches(checkpoint.folder) == {OLD: 12}


def test_without_a_commit_nothing_is_committed(checkpoint: CheckpointBuilder) -> None:
    checkpoint.plan(0, offset(OLD, 1))
    assert committed_batches(checkpoint.folder) == {OLD: 0}
    (checkpoint.folder / "commits").rmdir()
    assert committed_batches(checkpoint.folder) == {OLD: 0}


def test_each_source_of_a_query_has_its_own_generation(checkpoint: CheckpointBuilder) -> None:
    checkpoint.plan(0, "-", offset(OLD, 1), '{"logOffset":3}', "17")
    checkpoint.commit(0)
    checkpoint.plan(1, offset(NEW, 1), offset(OLD, 2), '{"logOffset":3}', "17")
    assert committed_batches(checkpoint.folder) == {NEW: 0, OLD: 1}


def test_offsets_may_have_the_names_of_their_sources(checkpoint: CheckpointBuilder) -> None:
    checkpoint.plan(0, f"orders:{offset(OLD, 1)}", "files:-", f"2:{offset(NEW, 4)}", version=2)
    checkpoint.commit(0)
    assert committed_batches(checkpoint.folder) == {OLD: 1, NEW: 4}


def test_a_folder_that_is_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        committed_batches(tmp_path / "nowhere")
    assert str(caught.value) == (
        f"checkpoint '{tmp_path}/nowhere' is invalid: it has no offsets; must be the "
        "checkpointLocation of a query"
    )


def test_a_checkpoint_of_other_sources_is_an_error(checkpoint: CheckpointBuilder) -> None:
    checkpoint.plan(0, '{"logOffset":3}', "{}", "{", "[1]")
    with pytest.raises(ConfigError, match="no source of its query is NSQ"):
        committed_batches(checkpoint.folder)


def test_a_checkpoint_without_the_offset_of_its_last_commit_is_an_error(
    checkpoint: CheckpointBuilder,
) -> None:
    checkpoint.plan(3, offset(OLD, 4))
    checkpoint.commit(2)
    with pytest.raises(ConfigError, match=r"batch 2 is committed, and .*/offsets/2 is missing"):
        committed_batches(checkpoint.folder)


def test_a_damaged_log_is_an_error(checkpoint: CheckpointBuilder) -> None:
    (checkpoint.folder / "offsets" / "0").write_bytes(b"v1\n\xff\xfe")
    with pytest.raises(ConfigError, match="offsets/0 is damaged"):
        committed_batches(checkpoint.folder)


def test_offsets_of_a_later_release_are_an_error(checkpoint: CheckpointBuilder) -> None:
    checkpoint.plan(0, offset(OLD, 1).replace('"v": 1', '"v": 2'))
    with pytest.raises(ConfigError, match="offset of version 2"):
        committed_batches(checkpoint.folder)
