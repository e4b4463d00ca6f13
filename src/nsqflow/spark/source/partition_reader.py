"""Reads the rows of a partition: from its slots and, where those end, from nsqd."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING

from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.data_loss import MISSING, SlotGap, describe_gap, find_gap, report_loss
from nsqflow.spark.source.offsets import describe_place
from nsqflow.spark.source.ordered_writer import OrderedSlotWriter
from nsqflow.spark.source.rows import RowConverter
from nsqflow.spark.source.seen_ranges import SeenRanges
from nsqflow.spark.source.slot_writer import SlotWriter
from nsqflow.spark.spool.dedup import SeenIds
from nsqflow.spark.spool.layout import planned_marker
from nsqflow.spark.spool.lease import LeaseGuard, ReadGuard
from nsqflow.spark.spool.slot_format import DamagedSlotError, LostSlotMarker, PartitionTotals, Slot
from nsqflow.spark.spool.slots import Slots
from nsqflow.spark.spool.store import open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqflow.spark.source.reader import NsqInputPartition

_NEXT_SLOT_TIMEOUT = 1.0  # seconds for a task that was faster to write its next slot
_POLL_INTERVAL = 0.02
_VISIBILITY_TIMEOUT = 1.0  # seconds until a slot of another machine is visible here, as over NFS
_STOP_TIMEOUT = 15.0  # seconds for the writer's thread to end


def read_partition(
    partition: NsqInputPartition, options: SourceOptions, *, positions: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield a partition's rows in Spark's format, the same rows for every task.

    ``positions`` says whether they have the columns of the redesigned NSQ.
    """
    converter = RowConverter(
        partition.id.key,
        options.channel,
        metadata=options.include_metadata,
        positions=positions,
    )
    for slot in PartitionReader(partition, options).slots():
        if slot.rows is not None:
            yield from converter.convert(slot.rows, slot.footer.leader)


class PartitionReader:
    """Reads one partition in one task."""

    def __init__(self, partition: NsqInputPartition, options: SourceOptions) -> None:
        assert options.spool is not None
        self._partition = partition
        self._options = options
        self._store = open_store(options.spool, options.spool_permissions)
        id = partition.id
        self._slots = Slots(self._store, id.folder, planned_marker(id.generation, id.seq))
        self._number = 0  # the next slot
        self._totals = PartitionTotals()
        self._lost_rows = 0  # rows of lost slots since the last good one
        self._complete = False
        self._slot_count = 0  # slots at the last search for a gap
        self._written_count = 0  # slots that certainly exist, as this task wrote the last one

    def slots(self) -> Iterator[Slot]:
        """Yield the slots in order, and write those that no task has written."""
        followed = False
        self._slots.read_lost_markers()
        while not self._complete:
            yield from self._existing(_NEXT_SLOT_TIMEOUT if followed else 0.0)
            if not self._complete:
                yield from self._write()
                followed = True
        # If the batch has left the spool, a slot may have come from a late task.
        self._slots.check_batch()

    def _existing(self, timeout: float) -> Iterator[Slot]:
        """Yield slots of other tasks, waiting ``timeout`` seconds for each."""
        deadline = monotonic() + timeout
        while not self._complete:
            slot = self._next()
            if slot is not None:
                self._passed(slot)
                yield slot
                deadline = monotonic() + timeout
            elif monotonic() < deadline:
                sleep(_POLL_INTERVAL)
            elif not self._skip_lost():
                return

    def _write(self) -> Iterator[Slot]:
        options = self._options
        self._slots.check_batch()
        finishes_ahead = self._partition.ordered and not options.allow_shared_channel
        writer_class = OrderedSlotWriter if finishes_ahead else SlotWriter
        writer = writer_class(
            self._partition,
            options,
            self._slots,
            self._seen(),
            self._guard(),
            self._number,
            self._totals,
        )
        writer.start()
        try:
            while (written := writer.written.get()) is not None:
                if isinstance(written, BaseException):
                    raise written
                slot = self._next() if isinstance(written, int) else written
                if slot is None:
                    return  # it was lost since: _existing() handles that
                self._passed(slot)
                yield slot
        finally:
            writer.stop()
            writer.join(_STOP_TIMEOUT)
            self._written_count = writer.number

    def _seen(self) -> SeenIds | SeenRanges:
        id, options, coverage = self._partition.id, self._options, self._partition.coverage
        if coverage is None:
            everything = options.dedupe == "always"
            return SeenIds(self._store, id.generation, id.key, everything=everything)
        place = f"{describe_place(id.key)} of {self._partition.topic!r}"
        dedupe = options.dedupe != "off"
        return SeenRanges(coverage, place, dedupe=dedupe, fail=options.fail_on_data_loss)

    def _guard(self) -> ReadGuard:
        if self._partition.lease:
            return LeaseGuard(self._store, self._partition.lease)
        # Imported late: tasks of streams need no event loop.
        from nsqflow.spark.source.batch_guard import BatchGuard

        return BatchGuard(self._store, self._partition, self._options)

    def _next(self) -> Slot | None:
        """Read the next slot; None if it is missing or damaged."""
        try:
            return self._slots.read(self._number)
        except DamagedSlotError:
            return None

    def _skip_lost(self) -> bool:
        """Skip lost slots where ``failOnDataLoss`` allows it; False if the next is not written.

        Raises ``DataLossError`` where it does not.
        """
        gap = self._await_gap()
        if gap is None:
            return self._number < self._slot_count
        text = describe_gap(gap, self._partition.id, self._options.channel, self._slots.location)
        report_loss(text, fail=self._options.fail_on_data_loss, instead="put the files back, or ")
        for number, why in gap.reasons.items():
            end = number + 1 == gap.next  # the gap is recorded with its last slot
            loss = LostSlotMarker(rows=(end and gap.rows) or 0, ended=end and gap.ended)
            if not self._slots.mark_lost(number, loss, missing=why == MISSING):
                break
        return True

    def _await_gap(self) -> SlotGap | None:
        """Return the lost slots from the next one on, once that is certain."""
        if self._find_gap() is None:
            return None
        deadline = monotonic() + _VISIBILITY_TIMEOUT
        while monotonic() < deadline:
            self._slots.check_batch()
            if self._next() is not None:
                return None
            sleep(_POLL_INTERVAL)
        # A network file system may cache for a minute that a file does not exist.
        self._slots.refresh()
        gap = self._find_gap()
        # If the batch had left the spool, its slots would have been removed after its marker.
        self._slots.check_batch()
        return gap

    def _find_gap(self) -> SlotGap | None:
        """Return the slots from the next one on that were written and can't be read."""
        inventory = self._slots.inventory()
        if self._written_count:
            confirmed = inventory.confirmed | {self._written_count - 1}
            inventory = replace(inventory, confirmed=confirmed)
        self._slot_count = inventory.count
        reasons: dict[int, str] = {}
        rows_after = None
        for number in range(self._number, inventory.count):
            try:
                slot = self._slots.read(number)
            except DamagedSlotError as error:
                reasons[number] = error.why
                continue
            if slot is not None:
                rows_after = None if slot.footer.lost else slot.rows_before
                break
            reasons[number] = MISSING
        return find_gap(inventory, reasons, self._totals.rows + self._lost_rows, rows_after)

    def _passed(self, slot: Slot) -> None:
        footer = slot.footer
        if footer.lost:
            # The task that created the replacement may have died before it wrote the marker.
            loss = LostSlotMarker(rows=footer.totals.lost, ended=footer.last)
            self._slots.write_lost_marker(self._number, loss)
            self._lost_rows += loss.rows
        else:
            self._totals = footer.totals
            self._lost_rows = 0
        self._number += 1
        self._complete = footer.last
