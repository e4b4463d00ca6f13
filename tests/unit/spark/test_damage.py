"""Missing, truncated and altered slots: a task fails, or continues without them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqflow.spark.spool.local_store import LocalStore
from nsqflow.spark.spool.slot_format import (
    DamagedSlotError,
    FinConfirmation,
    PartitionTotals,
    SlotFooter,
)
from nsqflow.spark.spool.slots import Slots
from nsqflow.spark.spool.store import Buffers
from tests.unit.spark.spool_rows import ids_of, numbers_of, rows_of

if TYPE_CHECKING:
    import pyarrow as pa


# --- what else reads slots ------------------------------------------------------------------------


def test_a_damaged_confirmation_leaves_its_ids_unconfirmed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = LocalStore(str(tmp_path))
    slots = Slots(store, "gen/batches/00000001/key-0")
    slots.create(0, rows_of(range(5)), SlotFooter(writer="w", last=True))
    slots.confirm("w", FinConfirmation(slots=[0]))
    assert slots.unconfirmed() == (b"", b"")
    store.write("gen/batches/00000001/key-0/fin-w", b'{"slots": [')
    with caplog.at_level(logging.WARNING, "nsqflow.spark.spool.slots"):
        assert slots.unconfirmed() == (ids_of(range(5)), b"")
    assert "fin-w is damaged and not used" in caplog.text


# --- the format -------------------------------------------------------------------------------


def written_by_the_first_version(rows: pa.RecordBatch, *, last: bool = True) -> bytes:
    """A slot as nsqflow wrote it when slots had no checksums."""
    data: bytes = rows.serialize().to_pybytes()
    footer = json.dumps(
        {
            "writer": "w",
            "last": last,
            "totals": {
                "rows": len(rows),
                "bytes": len(data),
                "bodies": 50,
                "duplicates": 0,
                "requeued": 0,
                "dead_lettered": 0,
            },
            "size": len(data),
        }
    ).encode()
    return data + footer + Struct(">I8s").pack(len(footer), b"nsqslot1")


def test_a_slot_of_the_first_version_is_read(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    slots = Slots(store, "share")
    store.create("share/000000", [written_by_the_first_version(rows_of(range(5)))])
    slot = slots.read(0)
    assert slot is not None
    assert numbers_of(slot.rows) == [*range(5)]
    assert slot.footer.last
    assert slots.totals()[0].rows == 5


@pytest.mark.parametrize("cut", [slice(None, -1), slice(1, None), slice(100, None)])
def test_a_truncated_slot_of_the_first_version_is_damaged(tmp_path: Path, cut: slice) -> None:
    store = LocalStore(str(tmp_path))
    store.create("share/000000", [written_by_the_first_version(rows_of(range(5)))[cut]])
    with pytest.raises(DamagedSlotError, match="share/000000 is damaged"):
        Slots(store, "share").read(0)


def test_altered_offsets_in_a_slot_of_the_first_version_are_noticed(
    tmp_path: Path,
) -> None:
    rows = rows_of(range(5))
    offsets = Struct("<6i").pack(0, 10, 20, 30, 40, 50)
    data = written_by_the_first_version(rows)
    assert offsets in data
    store = LocalStore(str(tmp_path))
    altered = data.replace(offsets, Struct("<6i").pack(0, 10, 2**30, 30, 40, 50))
    store.create("share/000000", [altered])
    with pytest.raises(DamagedSlotError, match="its rows can't be read: "):
        Slots(store, "share").read(0)


@settings(max_examples=300)
@given(st.data())
def test_no_byte_of_a_slot_can_change_unnoticed(data: st.DataObject) -> None:
    class Memory(LocalStore):
        content = b""

        def create(self, name: str, data: Buffers, *, durable: bool = True) -> bool:
            type(self).content = b"".join(data)
            return True

        def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
            pass

        def read(self, name: str) -> bytes:
            return self.content

    store = Memory("/nowhere")
    slots = Slots(store, "share")
    slots.create(
        0, rows_of(range(3)), SlotFooter(writer="w", last=True, totals=PartitionTotals(rows=3))
    )
    assert slots.read(0) is not None
    whole = Memory.content
    place = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[place]))
    how = data.draw(st.sampled_from(["alter", "cut the end", "cut the start", "insert", "drop"]))
    Memory.content = {
        "alter": whole[:place] + bytes([other]) + whole[place + 1 :],
        "cut the end": whole[:place],
        "cut the start": whole[place + 1 :],
        "insert": whole[:place] + bytes([other]) + whole[place:],
        "drop": whole[:place] + whole[place + 1 :],
    }[how]
    with pytest.raises(DamagedSlotError):
        slots.read(0)
