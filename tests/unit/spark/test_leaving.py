"""What leaves the spool: tasks that come after it, and ids that stay unconfirmed.

A reader that is not Spark's reads shares of an nsqd here; the rules are the same for it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from nsqflow.spark.source.offsets import PartitionId
from nsqflow.spark.spool import cleaner
from nsqflow.spark.spool.cleaner import SpoolCleaner
from nsqflow.spark.spool.dedup import SeenIds
from nsqflow.spark.spool.layout import planned_marker
from nsqflow.spark.spool.slot_format import STORED, FinConfirmation, SlotFooter
from nsqflow.spark.spool.slots import Slots
from nsqflow.spark.spool.store import ObjectStore, open_store

if TYPE_CHECKING:
    import pytest

GEN = "generation"


KEY = "orders|127.0.0.1:4150"


# --- unconfirmed ids ----------------------------------------------------------------------------


def ids_from(first: int, count: int = 10) -> list[bytes]:
    return [b"%016d" % number for number in range(first, first + count)]


def write_slot(store: ObjectStore, seq: int, number: int, ids: list[bytes]) -> None:
    """A slot whose writer died before it could confirm anything."""
    store.write(planned_marker(GEN, seq), b"{}")
    rows = pa.RecordBatch.from_pylist(
        [{"body": b"-", "id": id, "attempts": 1, "timestamp_ns": 0} for id in ids], schema=STORED
    )
    slots = Slots(store, PartitionId(GEN, seq, KEY, 0).folder)
    assert slots.create(number, rows, SlotFooter(writer=f"writer-{seq}-{number}"))


def known(store: ObjectStore, ids: list[bytes]) -> list[bytes]:
    """Those of the ids that a task would drop."""
    seen = SeenIds(store, GEN, KEY)
    seen.refresh()
    places = seen.find_repeated(b"".join(ids))
    return [ids[place] for place in sorted(places)]


def test_a_crash_while_a_batch_is_removed_keeps_its_unconfirmed_ids(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    write_slot(store, 1, 0, ids_from(0))
    write_slot(store, 1, 1, ids_from(10))
    left = f"{PartitionId(GEN, 1, KEY, 0).folder}/000001"
    content = store.read(left)
    clean = SpoolCleaner(store, retain=1, everything=False).clean
    clean(GEN, 2)
    store.write(left, content)  # as if it had come to the other slot only
    clean(GEN, 3)
    assert known(store, ids_from(0, 20)) == ids_from(0, 20)
    assert store.tree(f"{GEN}/batches") == []


def test_a_confirmation_after_its_batch_was_removed_confirms_nothing(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    write_slot(store, 1, 0, ids_from(0))
    write_slot(store, 1, 1, ids_from(10))
    clean = SpoolCleaner(store, retain=1, everything=False).clean
    clean(GEN, 2)
    late = FinConfirmation(slots=[1], failed=ids_from(10)[0])
    Slots(store, PartitionId(GEN, 1, KEY, 0).folder).confirm("writer-1-1", late)
    clean(GEN, 3)
    assert known(store, ids_from(0, 20)) == ids_from(0, 20)


def test_beyond_the_limit_the_oldest_unconfirmed_ids_are_forgotten_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cleaner, "MAX_IDS", 25)
    store = open_store(str(tmp_path))
    for seq in range(1, 5):
        write_slot(store, seq, 0, ids_from(seq * 10))
    spool_cleaner = SpoolCleaner(store, retain=1, everything=False)
    with caplog.at_level(logging.WARNING, "nsqflow.spark.spool.cleaner"):
        spool_cleaner.clean(GEN, 5)
    assert known(store, ids_from(10, 40)) == ids_from(30, 20)
    assert spool_cleaner.forgotten == 20
    assert caplog.messages == [
        f"10 unconfirmed ids of {KEY} are dropped: {name}" for name in ("00000001-0", "00000002-0")
    ]
