"""The batches of a query that are in its spool, by their markers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import time
from typing import Any

from nsqflow.errors import SpoolError
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.generation import new_marker
from nsqflow.spark.source.offsets import Offset, partition_of
from nsqflow.spark.source.progress import ReadProgress
from nsqflow.spark.spool.layout import (
    PLANNED,
    batch_folder,
    batch_number,
    batches_folder,
    committed_marker,
    generation_marker,
    planned_marker,
)
from nsqflow.spark.spool.slot_format import PartitionTotals, decode_marker, encode_marker
from nsqflow.spark.spool.slots import Slots
from nsqflow.spark.spool.store import ObjectStore

logger = logging.getLogger(__name__)

_AT = "at"
_PROGRESS = "progress"


class BatchLog:
    """Reads and writes the markers of planned batches."""

    def __init__(self, store: ObjectStore, options: SourceOptions) -> None:
        self._store = store
        self._options = options
        self._planned_at: dict[int, float] = {}  # when each batch was planned here
        self._spooled: set[int] = set()  # batches in the spool that are not in Spark's log

    @property
    def location(self) -> str:
        """Where the spool is."""
        return self._store.location

    def find(self, start: Offset) -> set[int]:
        """Return the batches after ``start`` that are in the spool and not empty."""
        self._spooled = self._find(start) if start.generation else set()
        return self._spooled

    def next(self, start: Offset) -> Offset | None:
        """Return the next batch as it was planned before, if ``find`` has found it.

        Then the checkpoint was restored to an earlier batch, and the messages are finished.
        """
        if start.seq + 1 not in self._spooled:
            return None
        marker = planned_marker(start.generation, start.seq + 1)
        try:
            return Offset.decode(decode_marker(bytes(self._store.read(marker))))
        except ValueError as error:
            folder = self._path(batch_folder(start.generation, start.seq + 1))
            raise SpoolError(
                f"{self._path(marker)} is damaged: {error}. Put the file back, or remove the "
                f"folder {folder} and start once with failOnDataLoss=false to continue without "
                "the batch"
            ) from None

    def exists(self, end: Offset) -> bool:
        """Return whether a batch is in the spool."""
        return self._store.age(planned_marker(end.generation, end.seq)) is not None

    def record(self, end: Offset, progress: ReadProgress) -> Offset:
        """Write the markers before Spark logs the offset, so that a missing one means a loss.

        ``progress`` is what was read before this batch.
        """
        if self._store.age(generation_marker(end.generation)) is None:
            if end.seq > 1:
                logger.warning("%r was emptied under the query", self._store.location)
            marker = new_marker(self._options).encode()
            self._store.write(generation_marker(end.generation), marker)
        self._planned_at[end.seq] = now = time()
        values = end.encode() | {_AT: now}
        if progress.states:
            values[_PROGRESS] = progress.encode()
        self._store.write(planned_marker(end.generation, end.seq), encode_marker(values))
        return end

    def progress(self, end: Offset) -> ReadProgress:
        """Return what was read before a batch; nothing if that is not known."""
        try:
            return ReadProgress.decode(self._marker(end)[_PROGRESS])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return ReadProgress()

    def committed(self, end: Offset) -> None:
        """Record that Spark has committed a batch."""
        name = committed_marker(end.generation)
        self._store.write(name, b"%d" % end.seq, durable=False)

    def totals(self, end: Offset) -> dict[str, PartitionTotals]:
        """Return what was read of each key by a batch."""
        by_key = dict.fromkeys(end.plan, PartitionTotals())
        for id in end.partition_ids():
            by_key[id.key] += Slots(self._store, id.folder).totals()[0]
        return by_key

    def had_leader(self, end: Offset, key: str) -> bool:
        """Return whether the tasks of a batch could read from a key to the end."""
        if partition_of(key) is None:  # else the batch would have failed
            return True
        folders = [id.folder for id in end.partition_ids() if id.key == key]
        return all(Slots(self._store, folder).last_leader() for folder in folders)

    def planned_at(self, end: Offset) -> float | None:
        """Return when a batch was planned, maybe by an earlier run; None if unknown."""
        at = self._planned_at.pop(end.seq, None)
        self._planned_at = {seq: at for seq, at in self._planned_at.items() if seq > end.seq}
        if at is not None:
            return at
        try:
            return float(self._marker(end)[_AT])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    # Private methods

    def _find(self, start: Offset) -> set[int]:
        folder = batches_folder(start.generation)
        later = [
            name for name in self._store.names(folder) if (batch_number(name) or 0) > start.seq
        ]
        contents = {int(name): self._store.names(f"{folder}/{name}") for name in later}
        return {seq for seq, names in contents.items() if PLANNED in names and len(names) > 1}

    def _marker(self, end: Offset) -> Mapping[str, Any]:
        return decode_marker(bytes(self._store.read(planned_marker(end.generation, end.seq))))

    def _path(self, name: str) -> str:
        return f"{self._store.location}/{name}"
