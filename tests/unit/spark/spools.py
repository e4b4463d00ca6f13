"""Spools as queries of earlier runs have left them, for the tests of what reads them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsqflow.spark.source.offsets import Offset, PartitionId, make_key
from nsqflow.spark.spool.generation import GenerationMarker
from nsqflow.spark.spool.layout import (
    committed_marker,
    generation_marker,
    heartbeat_name,
    lease_name,
    planned_marker,
)
from nsqflow.spark.spool.lease import RELEASED, LeaseRecord
from nsqflow.spark.spool.slot_format import FinConfirmation, PartitionTotals, SlotFooter
from nsqflow.spark.spool.slots import Slots
from nsqflow.spark.spool.store import ObjectStore
from tests.unit.spark.spool_rows import rows_of

if TYPE_CHECKING:
    import pyarrow as pa

OLD, NEW = "0" * 31 + "1", "f" * 31 + "2"
"""Two generations of streams."""
NSQD = "127.0.0.1:4150"
TIMEOUT = 30.0
HERE = LeaseRecord.of_this_process("", "spark", ("orders",), TIMEOUT)


def elsewhere(**change: Any) -> LeaseRecord:
    """The lease of a query on another machine."""
    return replace(HERE, machine="another", host="far", **change)


class SpoolBuilder:
    """Writes what queries write, in the order in which they do it."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def lease(
        self, number: int, generation: str, *, record: LeaseRecord = HERE, released: bool = True
    ) -> LeaseRecord:
        """Have a query take the lease, and perhaps end."""
        taken = replace(record, number=number, generation=generation)
        self.store.write(lease_name(number), taken.encode())
        self.store.write(heartbeat_name(number), RELEASED if released else b"reader 1")
        return taken

    def generation(self, name: str, *, committed: int | None = None, **marker: Any) -> None:
        """Have a query, or a read, begin."""
        about = GenerationMarker(**{"channel": "spark", "topics": ("orders",)} | marker)
        self.store.write(generation_marker(name), about.encode())
        if committed is not None:
            self.store.write(committed_marker(name), b"%d" % committed)

    def batch(
        self,
        generation: str,
        seq: int,
        numbers: Iterable[int],
        *,
        topic: str = "orders",
        finished: bool = True,
        refused: bytes = b"",
        slot_size: int = 10,
    ) -> Slots:
        """Have a batch with these messages read, into slots of ``slot_size``."""
        key, ids = make_key(topic, NSQD), [*numbers]
        end = Offset(generation, seq, len(ids), {key: [len(ids)]})
        self.store.write(planned_marker(generation, seq), b"%s" % repr(end).encode())
        folder = PartitionId(generation, seq, key, 0).folder
        slots = Slots(self.store, folder, planned_marker(generation, seq))
        parts = [ids[at : at + slot_size] for at in range(0, len(ids), slot_size)]
        rows = 0
        for number, part in enumerate(parts):
            rows += len(part)
            footer = SlotFooter(
                writer="writer",
                last=number == len(parts) - 1,
                totals=PartitionTotals(rows=rows),
            )
            assert slots.create(number, rows_of(part), footer) is not None
        if finished:
            confirmation = FinConfirmation(slots=[*range(len(parts))], failed=refused)
            slots.confirm("writer", confirmation)
        return slots

    def partition(
        self,
        generation: str,
        seq: int,
        number: int,
        rows: pa.RecordBatch,
        *,
        topic: str = "orders",
        leader: str = NSQD,
    ) -> None:
        """Have a batch with these rows of a partition of the redesigned NSQ read, into one slot."""
        key = make_key(topic, number)
        end = Offset(generation, seq, len(rows), {key: [len(rows)]})
        self.store.write(planned_marker(generation, seq), b"%s" % repr(end).encode())
        slots = Slots(
            self.store,
            PartitionId(generation, seq, key, 0).folder,
            planned_marker(generation, seq),
        )
        totals = PartitionTotals(rows=len(rows))
        footer = SlotFooter(writer="writer", last=True, totals=totals, leader=leader)
        assert slots.create(0, rows, footer) is not None
        slots.confirm("writer", FinConfirmation(slots=[0]))
