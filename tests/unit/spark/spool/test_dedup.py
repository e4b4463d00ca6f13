"""Seen: whatever is in the spool and may come again is known."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.spark.source.offsets import PartitionId, make_key
from nsqflow.spark.spool.dedup import SeenIds, split_ids
from nsqflow.spark.spool.layout import unconfirmed_folder
from nsqflow.spark.spool.local_store import LocalStore
from nsqflow.spark.spool.slot_format import FinConfirmation
from nsqflow.spark.spool.slots import Slots
from tests.unit.spark.spool_rows import ids_of, write_slot

KEY = make_key("orders", "127.0.0.1:4150")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def slots_of(store: LocalStore, seq: int = 1, *, key: str = KEY, part: int = 0) -> Slots:
    return Slots(store, PartitionId("gen", seq, key, part).folder)


def known(store: LocalStore, *, everything: bool = False) -> list[int]:
    """Which of the first 20 messages are taken for seen."""
    seen = SeenIds(store, "gen", KEY, everything=everything)
    seen.refresh()
    return sorted(seen.find_repeated(ids_of(range(20))))


def test_nothing_is_known_of_an_empty_spool(store: LocalStore) -> None:
    assert known(store) == []


def test_unconfirmed_ids_are_known(store: LocalStore) -> None:
    write_slot(slots_of(store, 1), 0, [1, 2])
    write_slot(slots_of(store, 2), 0, [3])
    write_slot(slots_of(store, 2, part=1), 0, [4])
    assert known(store) == [1, 2, 3, 4]


def test_confirmed_ids_are_not_known_but_failed_ones_are(store: LocalStore) -> None:
    slots = slots_of(store)
    write_slot(slots, 0, [1, 2], last=False)
    write_slot(slots, 1, [3, 4])
    slots.confirm("w", FinConfirmation(slots=[0, 1], failed=ids_of([2])))
    assert known(store) == [2]
    assert known(store, everything=True) == [1, 2, 3, 4]


def test_unconfirmed_ids_of_removed_batches_are_known(store: LocalStore) -> None:
    store.write(f"{unconfirmed_folder('gen', KEY)}/00000001-0", ids_of([5, 6]))
    assert known(store) == [5, 6]


def test_other_keys_and_other_generations_do_not_matter(store: LocalStore) -> None:
    for key in (f"{KEY}0", f"{KEY}-0", make_key("orders", "127.0.0.1:415"), make_key("o", "")):
        write_slot(slots_of(store, key=key), 0, [1])
        store.write(f"{unconfirmed_folder('gen', key)}/00000001-0", ids_of([2]))
    write_slot(Slots(store, PartitionId("another", 1, KEY, 0).folder), 0, [3])
    assert known(store) == []


def test_ids_added_to_the_spool_later_are_known_after_a_refresh(store: LocalStore) -> None:
    slots = slots_of(store)
    write_slot(slots, 0, [1], last=False)
    seen = SeenIds(store, "gen", KEY)
    seen.refresh()
    write_slot(slots, 1, [2])
    write_slot(slots_of(store, 2), 0, [3])
    assert seen.find_repeated(ids_of([1, 2, 3])) == {0}
    seen.refresh()
    assert seen.find_repeated(ids_of([1, 2, 3])) == {0, 1, 2}


def test_known_ids_stay_known_when_their_batch_leaves_the_spool(store: LocalStore) -> None:
    write_slot(slots_of(store), 0, [1])
    seen = SeenIds(store, "gen", KEY)
    seen.refresh()
    store.remove("gen")
    seen.refresh()
    assert seen.find_repeated(ids_of([1, 2])) == {0}


@given(st.lists(st.integers(0, 9), max_size=20))
def test_an_id_that_occurs_twice_is_new_only_once(numbers: list[int]) -> None:
    repeated = SeenIds(LocalStore("/nowhere"), "gen", KEY).find_repeated(ids_of(numbers))
    new = [number for place, number in enumerate(numbers) if place not in repeated]
    assert new == [*dict.fromkeys(numbers)]


@given(st.lists(st.binary(min_size=16, max_size=16)))
def test_packed_ids_come_apart_as_they_were_put_together(ids: list[bytes]) -> None:
    assert split_ids(b"".join(ids)) == ids
