"""What a spool holds: generations, their owners and states, and rows that were never committed."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsqflow.spark.spool.generation import MAX_READ_AGE, GenerationKind
from nsqflow.spark.spool.inventory import (
    FormerTopic,
    Generation,
    GenerationListing,
    SpooledPartition,
    SpoolInventory,
    read_inventory,
)
from nsqflow.spark.spool.layout import (
    committed_marker,
    generation_marker,
    heartbeat_name,
    lease_name,
    planned_marker,
    slot_name,
    unconfirmed_ids,
)
from nsqflow.spark.spool.local_store import LocalStore
from nsqflow.spark.spool.owners import GenerationState
from tests.unit.spark.spools import HERE, NEW, NSQD, OLD, SpoolBuilder, elsewhere

NO_SUCH_PROCESS = 2**22 + 1
BATCH_READ, NAMED_READ = f"batch-{OLD}", "read-nightly"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "spool"))


@pytest.fixture
def builder(store: LocalStore) -> SpoolBuilder:
    return SpoolBuilder(store)


def states(store: LocalStore) -> dict[str, GenerationState]:
    return {each.name: each.state for each in read_inventory(store).generations}


def only(store: LocalStore) -> Generation:
    [generation] = read_inventory(store).generations
    return generation


def grow_older(store: LocalStore, name: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(f"{store.location}/{name}", (then, then))


# --- what is there ------------------------------------------------------------------------------


def test_a_place_without_a_spool_has_nothing_and_is_not_created(store: LocalStore) -> None:
    assert read_inventory(store) == SpoolInventory()
    assert not read_inventory(store).is_spool
    assert not Path(store.location).exists()


def test_a_generation_is_described_by_its_markers_and_slots(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    owner = builder.lease(1, OLD, released=False)
    builder.generation(OLD, committed=6, former_topics=("old",))
    for seq in (5, 6, 7):
        builder.batch(OLD, seq, range(20 * seq, 20 * seq + 20))
    found = only(store)
    folder = f"{OLD}/batches/00000007/orders%7C127.0.0.1%3A4150-0"
    partition = SpooledPartition(f"orders|{NSQD}", folder)
    assert found.batches[7] == (partition,)
    assert partition.topic == "orders"
    assert [*found.batches] == [5, 6, 7]
    assert [*found.batches_after(found.committed)] == [7]
    assert (found.committed, found.uncommitted) == (6, 20)
    assert (found.kind, found.state) == (GenerationKind.STREAM, GenerationState.RUNNING)
    assert (found.owner, found.is_current) == (owner, True)
    assert (found.marker.channel, found.topics) == ("spark", ("orders",))
    files = [each for each in Path(store.location, OLD).rglob("*") if each.is_file()]
    assert found.size == sum(each.stat().st_size for each in files) > 0
    assert found.age is not None
    assert found.age < 3600
    assert found.problems == ()


def test_without_the_marker_of_the_last_commit_all_rows_may_be_uncommitted(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    builder.batch(OLD, 1, range(10))
    builder.batch(OLD, 2, range(10, 25))
    assert (only(store).committed, only(store).uncommitted) == (None, 25)


def test_a_batch_that_is_being_removed_is_not_counted(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    builder.batch(OLD, 1, range(10))
    store.remove(planned_marker(OLD, 1))
    assert (dict(only(store).batches), only(store).uncommitted) == ({}, 0)


def test_topics_of_a_spool_without_a_marker_are_those_of_its_rows(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.batch(OLD, 1, range(10), topic="orders")
    builder.batch(OLD, 1, range(10), topic="returns")
    found = only(store)
    assert found.topics == ("orders", "returns")
    assert found.problems == (f"{generation_marker(OLD)} is missing",)


def test_names_are_found_by_their_beginning(store: LocalStore, builder: SpoolBuilder) -> None:
    for name in (OLD, NEW, BATCH_READ, NAMED_READ, f"{NAMED_READ}-2"):
        builder.generation(name)
    inventory = read_inventory(store)
    assert [each.name for each in inventory.find("00000000")] == [OLD]
    assert [each.name for each in inventory.find("batch-0000")] == [BATCH_READ]
    assert [each.name for each in inventory.find(NAMED_READ)] == [NAMED_READ]
    assert len(inventory.find("read-")) == 2
    assert inventory.find("e") == []
    shown = {each.short_name for each in inventory.generations}
    assert shown == {OLD[:8], NEW[:8], "batch-00000000", NAMED_READ, f"{NAMED_READ}-2"}
    assert {each.read_id for each in inventory.find(f"{NAMED_READ}-2")} == {"nightly-2"}


# --- whose it is --------------------------------------------------------------------------------


def test_a_query_that_has_ended_is_stopped(store: LocalStore, builder: SpoolBuilder) -> None:
    builder.generation(OLD)
    builder.lease(1, OLD)
    assert states(store) == {OLD: GenerationState.STOPPED}
    builder.lease(2, OLD, record=replace(HERE, pid=NO_SUCH_PROCESS), released=False)
    assert states(store) == {OLD: GenerationState.STOPPED}
    assert only(store).is_current


def test_a_query_elsewhere_runs_as_long_as_its_heartbeat_is_fresh(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    builder.lease(1, OLD, record=elsewhere(), released=False)
    assert states(store) == {OLD: GenerationState.RUNNING}
    grow_older(store, heartbeat_name(1), 31)
    assert states(store) == {OLD: GenerationState.UNKNOWN}
    assert only(store).is_current


def test_a_generation_is_abandoned_once_another_one_has_taken_the_spool(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    builder.generation(NEW)
    builder.lease(1, OLD, released=False)
    builder.lease(2, NEW)
    assert states(store) == {OLD: GenerationState.ABANDONED, NEW: GenerationState.STOPPED}
    # A restart with the earlier checkpoint.
    builder.lease(3, OLD)
    assert states(store) == {OLD: GenerationState.STOPPED, NEW: GenerationState.ABANDONED}


def test_a_query_that_failed_before_it_planned_anything_abandons_nothing(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    builder.lease(1, OLD)
    builder.lease(2, NEW)
    assert states(store) == {OLD: GenerationState.STOPPED}


def test_a_running_query_is_listed_before_it_has_planned_anything(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    builder.lease(1, OLD)
    builder.lease(2, NEW, released=False)
    assert states(store) == {OLD: GenerationState.STOPPED, NEW: GenerationState.RUNNING}
    new = read_inventory(store).find(NEW)[0]
    assert (new.topics, new.marker.channel, new.uncommitted) == (("orders",), "spark", 0)


def test_without_leases_as_in_earlier_releases_the_state_is_unknown(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    assert states(store) == {OLD: GenerationState.UNKNOWN}
    # Its query may still run, with that release.
    builder.generation(NEW)
    builder.lease(1, NEW)
    assert states(store) == {OLD: GenerationState.UNKNOWN, NEW: GenerationState.STOPPED}


def test_a_generation_whose_lease_was_removed_long_ago_is_abandoned(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    builder.generation(NEW)
    builder.lease(7, NEW)
    grow_older(store, generation_marker(OLD), 3600)
    assert states(store)[OLD] is GenerationState.ABANDONED
    grow_older(store, lease_name(7), 7200)
    assert states(store)[OLD] is GenerationState.UNKNOWN  # used since


@pytest.mark.parametrize("content", [b"", b"{}", b"7", b"\xff"])
def test_after_a_damaged_lease_it_is_unknown_whose_the_spool_is(
    store: LocalStore, builder: SpoolBuilder, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    builder.generation(OLD)
    builder.generation(NEW)
    builder.lease(1, OLD)
    builder.lease(2, NEW)
    store.write(lease_name(3), content)
    with caplog.at_level(logging.WARNING):
        assert set(states(store).values()) == {GenerationState.UNKNOWN}
    assert "_leases/00000003 is damaged" in caplog.text


def test_a_damaged_lease_before_that_of_the_owner_changes_nothing(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    builder.generation(NEW)
    builder.lease(1, OLD)
    store.write(lease_name(2), b"damaged")
    builder.lease(3, NEW)
    assert states(store) == {OLD: GenerationState.ABANDONED, NEW: GenerationState.STOPPED}


def test_a_lease_with_values_of_other_kinds_is_of_an_unknown_owner(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD)
    builder.lease(1, OLD, record=replace(HERE, pid="many"), released=False)  # type: ignore[arg-type]
    assert states(store) == {OLD: GenerationState.UNKNOWN}


# --- batch reads --------------------------------------------------------------------------------


def test_a_read_without_a_name_is_orphaned_after_a_day(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    for name in (BATCH_READ, NAMED_READ):
        builder.generation(name)
        builder.batch(name, 1, range(10))
    assert set(states(store).values()) == {GenerationState.KEPT}
    for name in (BATCH_READ, NAMED_READ):
        grow_older(store, generation_marker(name), MAX_READ_AGE + 60)
    assert states(store) == {
        BATCH_READ: GenerationState.ORPHANED,
        NAMED_READ: GenerationState.KEPT,
    }
    for each in read_inventory(store).generations:
        assert (each.committed, each.uncommitted, each.owner) == (None, None, None)


def test_a_read_whose_removal_was_interrupted_is_orphaned(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(BATCH_READ)
    builder.batch(BATCH_READ, 1, range(10))
    store.remove(planned_marker(BATCH_READ, 1))
    store.remove(generation_marker(BATCH_READ))
    assert states(store) == {BATCH_READ: GenerationState.ORPHANED}


# --- former topics ------------------------------------------------------------------------------


def test_a_topic_that_is_not_read_any_more_is_named_with_its_channel(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD, former_topics=("b", "a"))
    assert read_inventory(store).former_topics() == [
        FormerTopic("a", "spark"),
        FormerTopic("b", "spark"),
    ]


@pytest.mark.parametrize(
    ("marker", "named"),
    [
        ({"topics": ("a",)}, False),
        ({"topics": (), "pattern": "a|b"}, False),
        ({"topics": ("a",), "channel": "other"}, True),
    ],
)
def test_a_former_topic_that_another_generation_reads_is_not_named(
    store: LocalStore, builder: SpoolBuilder, marker: dict[str, Any], named: bool
) -> None:
    builder.generation(OLD, former_topics=("a",))
    builder.generation(NEW, **marker)
    assert bool(read_inventory(store).former_topics()) == named


def test_former_topics_of_an_abandoned_generation_are_not_named(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD, former_topics=("a",))
    builder.generation(NEW)
    builder.lease(1, OLD)
    builder.lease(2, NEW)
    assert read_inventory(store).former_topics() == []


# --- what is damaged or foreign -----------------------------------------------------------------


def test_what_is_not_of_a_spool_is_named(store: LocalStore, builder: SpoolBuilder) -> None:
    builder.generation(OLD)
    store.write(f"{OLD}/notes.txt", b"?")
    store.write(f"{OLD}/batches/7/_planned", b"?")
    store.write("report.csv", b"?")
    store.write("read-me.txt", b"a file")
    store.write("read-these/first.txt", b"?")
    store.write(f"{NEW}/x", b"?")
    store.write("_probe-1/object", b"?")
    inventory = read_inventory(store)
    assert [each.name for each in inventory.generations] == [OLD]
    assert inventory.foreign == (NEW, "read-me.txt", "read-these", "report.csv")
    assert inventory.probes == ("_probe-1",)
    assert inventory.generations[0].problems == (
        f"{OLD}/batches/7/_planned is not of the spool",
        f"{OLD}/notes.txt is not of the spool",
    )


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b'{"channel": "c", "topics": 7}'])
def test_damaged_markers_are_named(
    store: LocalStore, builder: SpoolBuilder, content: bytes
) -> None:
    builder.batch(OLD, 1, range(10))
    store.write(generation_marker(OLD), content)
    store.write(committed_marker(OLD), b"many")
    found = only(store)
    assert [each.partition(":")[0] for each in found.problems] == [
        f"{generation_marker(OLD)} is damaged",
        f"{committed_marker(OLD)} is damaged",
    ]
    assert (found.committed, found.uncommitted) == (None, 10)


def test_a_folder_in_the_place_of_a_marker_is_damage(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.batch(OLD, 1, range(10))
    os.makedirs(f"{store.location}/{generation_marker(OLD)}")
    assert only(store).problems == (
        f"{generation_marker(OLD)} is damaged: it can't be read: Is a directory",
    )


def test_topics_of_another_kind_are_shown_as_text(store: LocalStore) -> None:
    store.write(generation_marker(OLD), b'{"channel": "c", "topics": [1], "former_topics": [{}]}')
    assert only(store).topics == ("1",)
    assert read_inventory(store).former_topics() == [FormerTopic("{}", "c")]


def test_a_damaged_slot_is_not_counted_and_named(
    store: LocalStore, builder: SpoolBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    builder.generation(OLD)
    slots = builder.batch(OLD, 1, range(20))
    name = slot_name(slots.location.removeprefix(f"{store.location}/"), 1)
    store.write(name, b"damaged")
    with caplog.at_level(logging.WARNING):
        assert only(store).uncommitted == 10
    assert f"{name} is damaged" in caplog.text


def test_a_generation_of_another_user_is_named(
    store: LocalStore, builder: SpoolBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder.generation(OLD)
    builder.generation(NAMED_READ)
    read = LocalStore.read

    def refuse(self: LocalStore, name: str) -> bytes:
        if name.startswith(NAMED_READ):
            with self._reaching(name):
                raise PermissionError(13, "Permission denied")
        return read(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "read", refuse)
        generations = {each.name: each for each in read_inventory(store).generations}
    assert generations[OLD].problems == ()
    assert "has no access to" in generations[NAMED_READ].problems[0]


def test_a_batch_that_lost_its_marker_is_counted_and_named(
    store: LocalStore, builder: SpoolBuilder
) -> None:
    builder.generation(OLD, committed=1)
    builder.batch(OLD, 1, range(10))
    builder.batch(OLD, 2, range(3))
    for seq in (1, 2):  # the first is being removed
        store.remove(planned_marker(OLD, seq))
    (found,) = read_inventory(store).generations
    assert ([*found.batches], found.uncommitted) == ([2], 3)
    assert found.problems == (f"{OLD}/batches/00000002 has lost its marker",)


def test_names_of_objects_alone_say_what_they_are() -> None:
    sizes = {
        "_gen": 3,
        "batches/00000002/_planned": 5,
        "batches/00000002/a%7Cn%3A1-0.decided": 1,
        "batches/00000002/a%7Cn%3A1-0/000000": 7,
        "batches/00000002/a%7Cn%3A1-0/fin-1": 7,
        "batches/00000010/a%7Cn%3A1-10/000000": 7,
        "batches/00000010/_planned": 0,
        "batches/00000001/a%7Cn%3A1-0/000000": 7,
        unconfirmed_ids("", 1, "a|n:1", 0).removeprefix("/"): 16,
        "batches/²/x": 1,
    }
    listing = GenerationListing.of("g", sizes)
    assert listing.batches == {
        1: (SpooledPartition("a|n:1", "g/batches/00000001/a%7Cn%3A1-0"),),
        2: (SpooledPartition("a|n:1", "g/batches/00000002/a%7Cn%3A1-0"),),
        10: (SpooledPartition("a|n:1", "g/batches/00000010/a%7Cn%3A1-10"),),
    }
    assert listing.unmarked == {1}
    assert listing.size == 54
    assert listing.foreign == ("batches/²/x",)
    assert not GenerationListing.of("g", {"x": 1}).is_generation
