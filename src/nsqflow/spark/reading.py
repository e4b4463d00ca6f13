"""Reading: the rows of a share, from its slots and, where those end, from nsqd."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic, sleep
from typing import TYPE_CHECKING

from nsqflow.spark.offsets import planned_mark
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.rows import Outward
from nsqflow.spark.seen import Seen
from nsqflow.spark.share import Share
from nsqflow.spark.slots import Slot, Slots, SpoolError, Totals
from nsqflow.spark.store import open_store
from nsqflow.spark.writing import Writing

if TYPE_CHECKING:
    import pyarrow as pa

_FOLLOW = 1.0  # seconds in which a task that was faster writes its next slot
_LOOK = 0.02
_LEAVE = 15.0  # seconds in which a thread that was told to stop has ended


def read_share(share: Share, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield a share's rows as Spark wants them; the same ones to everybody who reads it."""
    outward = Outward(share.topic, options.channel, share.nsqd, options.include_metadata)
    for slot in Reading(share, options).slots():
        if slot.rows is not None:
            yield outward.rows(slot.rows)


class Reading:
    """One task's reading of one share."""

    def __init__(self, share: Share, options: SourceOptions) -> None:
        assert options.spool is not None
        self._share = share
        self._options = options
        self._store = open_store(options.spool)
        name = share.name
        self._slots = Slots(self._store, name.folder, planned_mark(name.gen, name.seq))
        self._number = 0
        self._totals = Totals()
        self._complete = False

    def slots(self) -> Iterator[Slot]:
        """Yield the slots in order, and write those that nobody has written."""
        followed = False
        while not self._complete:
            yield from self._existing(_FOLLOW if followed else 0.0)
            if not self._complete:
                yield from self._write()
                followed = True

    def _existing(self, patience: float) -> Iterator[Slot]:
        """Yield what others wrote; whoever was faster than us is given time to go on."""
        deadline = monotonic() + patience
        while not self._complete:
            slot = self._slots.read(self._number)
            if slot is not None:
                self._passed(slot)
                yield slot
                deadline = monotonic() + patience
            elif monotonic() >= deadline:
                return
            else:
                sleep(_LOOK)

    def _write(self) -> Iterator[Slot]:
        name = self._share.name
        self._slots.check()
        everything = self._options.dedupe == "always"
        seen = Seen(self._store, name.gen, name.key, everything=everything)
        writing = Writing(self._share, self._options, self._slots, seen, self._number, self._totals)
        writing.start()
        try:
            while (written := writing.written.get()) is not None:
                if isinstance(written, BaseException):
                    raise written
                slot = self._slots.read(written) if isinstance(written, int) else written
                if slot is None:
                    raise SpoolError(f"slot {self._number} of {name.folder} is gone")
                self._passed(slot)
                yield slot
        finally:
            writing.stop()
            writing.join(_LEAVE)

    def _passed(self, slot: Slot) -> None:
        self._number += 1
        self._totals = slot.footer.totals
        self._complete = slot.footer.last
