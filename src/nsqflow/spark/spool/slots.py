"""Slots: the rows of one partition, in numbered pieces that are written once.

The name of a slot belongs to the task that creates it first; all other tasks read what that task
wrote. So every reader of a partition sees the same rows in the same order, whatever dies and
however many tasks read it at once.

The footer of the last slot says that it is the last; it may have no rows. Beside the slots, each
writer leaves a marker once nsqd has confirmed its FINs. Outside of the folder, a marker says how
many slots there are at least: each writer makes sure of it before the FINs of its first slot, and
replaces it before those of the last slot.

If a slot is lost and the query continues without it, that is decided once for all readers: a slot
without rows is created in the place of a missing one, and the marker of a lost slot overrides
whatever has the slot's name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from nsqflow.errors import SpoolError
from nsqflow.spark.spool.layout import (
    fin_marker,
    fin_markers,
    lost_marker,
    lost_numbers,
    slot_count_marker,
    slot_name,
    slot_numbers,
)
from nsqflow.spark.spool.slot_format import (
    TAIL,
    DamagedSlotError,
    FinConfirmation,
    LostSlotMarker,
    PartitionTotals,
    Slot,
    SlotCountMarker,
    SlotFooter,
    decode_slot,
    encode_slot,
    footer_size,
    packed_ids,
)
from nsqflow.spark.spool.store import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotInventory:
    """What the spool says about the slots of a partition.

    A slot is written only when the one before it exists, and what names a slot is written only
    when that slot exists. So a slot that is named and can't be found was lost, and a slot that a
    task may still have to write is never named.
    """

    present: frozenset[int] = frozenset()
    """Slots that exist, readable or not."""
    confirmed: frozenset[int] = frozenset()
    """Slots whose FINs are confirmed by their writers."""
    count_marker: SlotCountMarker | None = None
    lost: frozenset[int] = frozenset()
    """Slots that were lost before and that the query continues without."""

    @property
    def count(self) -> int:
        """How many slots were written: those from 0 up to this number, exclusive."""
        named = self.present | self.confirmed | self.lost
        marked = self.count_marker.slots if self.count_marker else 0
        return max(max(named, default=-1) + 1, marked)

    @property
    def ended(self) -> bool:
        """Whether no slot comes after those that were written."""
        marker = self.count_marker
        return marker is not None and marker.ended and marker.slots == self.count


class Slots:
    """The slots of one partition; ``batch_marker`` is the object that exists with its batch."""

    def __init__(self, store: ObjectStore, folder: str, batch_marker: str = "") -> None:
        self._store = store
        self._folder = folder
        self._batch_marker = batch_marker
        self._has_count_marker = False
        self._lost: dict[int, LostSlotMarker] = {}  # as far as they were read

    @property
    def location(self) -> str:
        """Where the slots are, for an error."""
        return f"{self._store.location}/{self._folder}"

    def read(self, number: int) -> Slot | None:
        """Return a slot, or None if it does not exist; raise ``DamagedSlotError``.

        A slot that is known to be lost has no rows, whatever its object holds now.
        """
        if (loss := self._lost.get(number)) is not None:
            return Slot(_replacement("", loss), None)
        name = slot_name(self._folder, number)
        try:
            return decode_slot(self._load(name, self._store.read), name)
        except FileNotFoundError:
            return None

    def create(
        self, number: int, rows: pa.RecordBatch | None, footer: SlotFooter
    ) -> SlotFooter | None:
        """Write a slot and return its footer with the size added; None if the slot exists.

        Raises ``SpoolError`` if the batch has left the spool: no task would read the slot.
        """
        name = slot_name(self._folder, number)
        data, footer = encode_slot(name, rows, footer)
        if not self._store.create(name, data):
            return None
        if self._batch_marker and self._store.age(self._batch_marker) is None:
            # Checked after the creation: as long as the marker exists, so do all slots of other
            # tasks, and one of those would have made the creation fail.
            self._store.remove(name)
            raise self._batch_gone()
        self._mark_written(number, footer)
        return footer

    def mark_count(self, count: int, rows: int | None = None) -> None:
        """Record that ``count`` slots exist, before a FIN for their messages is sent."""
        if count and not self._has_count_marker:
            marker = SlotCountMarker(slots=count, rows=rows)
            # Created, not replaced: a faster task may have written the marker of the end.
            name = slot_count_marker(self._folder)
            self._store.create(name, [marker.encode(uuid4().hex)], durable=False)
            self._has_count_marker = True

    def check_batch(self) -> None:
        """Raise ``SpoolError`` if the batch is not in the spool."""
        if self._batch_marker and self._store.age(self._batch_marker) is None:
            raise self._batch_gone()

    def confirm(self, writer: str, confirmation: FinConfirmation) -> None:
        """Record that nsqd has processed all FINs of a writer."""
        self._store.write(fin_marker(self._folder, writer), confirmation.encode())

    def exist(self) -> bool:
        """Return whether a task has written one of them, as far as this machine can see."""
        return bool(slot_numbers(self._store.names(self._folder)))

    def has(self, number: int) -> bool:
        """Return whether a slot was written, readable or not."""
        return number in slot_numbers(self._store.names(self._folder))

    def totals(self) -> tuple[PartitionTotals, bool]:
        """Return the partition's totals, and whether it is complete."""
        names = self._store.names(self._folder)
        self._read_lost_markers(names)
        number, footer = self._last_footer(names)
        losses = self._lost
        requeued = sum(each.requeued for each in self.confirmations(names))
        # A footer counts all rows up to its slot, including those that were lost later.
        counted = sum(loss.rows for other, loss in losses.items() if other < number)
        more = PartitionTotals(
            rows=-min(counted, footer.totals.rows),
            requeued=requeued,
            lost=sum(loss.rows for loss in losses.values()),
        )
        ended = footer.last or any(loss.ended for loss in losses.values())
        return footer.totals + more, ended

    def last_leader(self) -> str:
        """Return the nsqd that led the partition of the redesigned NSQ at the last slot.

        Empty if there was none that a task could read from.
        """
        return self._last_footer(self._store.names(self._folder))[1].leader

    def inventory(self) -> SlotInventory:
        """Return what the spool says about the slots."""
        names = self._store.names(self._folder)
        self._read_lost_markers(names)
        confirmed = (number for each in self.confirmations(names) for number in each.slots)
        return SlotInventory(
            present=frozenset(slot_numbers(names)),
            confirmed=frozenset(confirmed),
            count_marker=self._read_count_marker(),
            lost=frozenset(self._lost),
        )

    def refresh(self) -> None:
        """Read what other machines have written to the folder."""
        self._store.refresh(self._folder)
        self.read_lost_markers()

    def read_lost_markers(self) -> None:
        """Read which slots were marked as lost before."""
        self._read_lost_markers(self._store.names(self._folder))

    def mark_lost(self, number: int, loss: LostSlotMarker, *, missing: bool) -> bool:
        """Go on without a slot, for all readers; False if it must be read again.

        A missing slot gets a replacement under its own name: if that fails, the slot exists, and
        only this machine did not see it.
        """
        if missing and self.create(number, None, _replacement(uuid4().hex, loss)) is None:
            return False
        return self.write_lost_marker(number, loss)

    def write_lost_marker(self, number: int, loss: LostSlotMarker) -> bool:
        """Record that a slot is lost, so that it stays lost if its file is put back."""
        if number in self._lost:
            return True
        name = lost_marker(self._folder, number)
        if not self._store.create(name, [loss.encode(uuid4().hex)]):
            self.read_lost_markers()
            return False
        self.check_batch()
        self._lost[number] = loss
        return True

    def confirmations(self, names: Iterable[str]) -> Iterator[FinConfirmation]:
        """Read the confirmations among the folder's names."""
        for name in fin_markers(names):
            path = f"{self._folder}/{name}"
            try:
                yield FinConfirmation.decode(bytes(self._store.read(path)))
            except FileNotFoundError:  # the folder is being removed
                continue
            except (ValueError, TypeError, KeyError) as error:
                # Without it the ids of its slots stay unconfirmed, which is safe.
                logger.warning("%s is damaged and not used: %s", path, error)

    def unconfirmed(self) -> tuple[bytes, bytes]:
        """Return the ids that may be delivered again, and redelivered ids now finished."""
        names = self._store.names(self._folder)
        numbers = set(slot_numbers(names))
        parts: list[bytes] = []
        settled: list[bytes] = []
        for confirmation in self.confirmations(names):
            numbers.difference_update(confirmation.slots)
            parts.append(confirmation.failed)
            settled.append(confirmation.settled)
        parts += [self.ids(number) for number in sorted(numbers)]
        return b"".join(parts), b"".join(settled)

    def ids(self, number: int) -> bytes:
        """Return the packed ids of a slot; none if it is damaged."""
        try:
            slot = self.read(number)
        except DamagedSlotError as error:
            logger.warning("%s; if its messages are delivered again, they are rows again", error)
            return b""
        return packed_ids(slot.rows) if slot is not None and slot.rows is not None else b""

    # Private methods

    def _load(self, name: str, read: Callable[[str], bytes]) -> bytes:
        """Read an object; raise ``DamagedSlotError`` if its storage has lost the content."""
        try:
            return read(name)
        except OSError as error:
            if error.errno not in self._store.unreadable:
                raise
            raise DamagedSlotError(name, f"it can't be read: {error.strerror}") from None

    def _read_footer(self, name: str) -> bytes:
        """Return the last bytes of a slot, with the whole footer."""
        tail = self._store.read_tail(name, TAIL)
        size = footer_size(tail)
        return tail if size <= TAIL else self._store.read_tail(name, size)

    def _last_footer(self, names: Iterable[str]) -> tuple[int, SlotFooter]:
        """Return number and footer of the last slot whose footer is good and that is not lost."""
        for number in reversed(slot_numbers(names)):
            name = slot_name(self._folder, number)
            if number in self._lost:
                continue
            try:
                footer = SlotFooter.decode(self._load(name, self._read_footer), name)[0]
            except FileNotFoundError:  # it is being removed
                break
            except DamagedSlotError as error:
                logger.warning("%s; it is not counted", error)
                continue
            if not footer.lost:
                return number, footer
            self._lost[number] = LostSlotMarker(rows=footer.totals.lost, ended=footer.last)
        return 0, SlotFooter(writer="")

    def _mark_written(self, number: int, footer: SlotFooter) -> None:
        """Record outside of the folder that slots exist, before nsqd gets a FIN for them.

        The marker is not synced: without it a loss may go unnoticed, but a slot that it names was
        synced before.
        """
        if footer.last and not footer.lost:
            marker = SlotCountMarker(slots=number + 1, ended=True, rows=footer.totals.rows)
            data = marker.encode(footer.writer)
            self._store.write(slot_count_marker(self._folder), data, durable=False)
            self._has_count_marker = True
        else:
            self.mark_count(number + 1, None if footer.lost else footer.totals.rows)

    def _read_count_marker(self) -> SlotCountMarker | None:
        try:
            return SlotCountMarker.decode(self._store.read(slot_count_marker(self._folder)))
        except FileNotFoundError:
            return None

    def _read_lost_markers(self, names: Iterable[str]) -> None:
        for number, name in lost_numbers(names).items():
            if number not in self._lost:
                with suppress(FileNotFoundError):  # the folder is being removed
                    data = self._store.read(f"{self._folder}/{name}")
                    self._lost[number] = LostSlotMarker.decode(data)

    def _batch_gone(self) -> SpoolError:
        return SpoolError(
            f"{self._folder} is not in the spool: this task comes too late, and harms nothing; or "
            f"the batch's marker {self._batch_marker} was lost; or spoolLocation "
            f"{self._store.location!r} is not the same storage here as for the driver"
        )


def _replacement(writer: str, loss: LostSlotMarker) -> SlotFooter:
    """Return the footer of a slot that takes the place of a lost one."""
    return SlotFooter(
        writer=writer, last=loss.ended, totals=PartitionTotals(lost=loss.rows), lost=True
    )
