"""Removes committed batches from the spool and keeps their unconfirmed ids.

It runs on a thread, because Spark waits for ``commit``. The driver's process may end at any
moment: every step can be repeated, and the next commit does so.
"""

from __future__ import annotations

import logging
import queue
import threading

from nsqflow.spark.source.offsets import partition_of
from nsqflow.spark.spool.dedup import ID_SIZE, split_ids
from nsqflow.spark.spool.layout import (
    RECENT,
    batches_folder,
    parse_partition,
    planned_marker,
    recent_ids,
    slot_numbers,
    unconfirmed_folder,
    unconfirmed_ids,
)
from nsqflow.spark.spool.slots import Slots
from nsqflow.spark.spool.store import ObjectStore

logger = logging.getLogger(__name__)

MAX_IDS = 2_000_000  # unconfirmed ids kept per key: 200 MB in a task that has to compare them
MAX_AGE = 24 * 3600.0  # seconds for which they are kept
RECENT_IDS = 100_000  # ids per key that dedupe=always keeps beyond the batches in the spool


class SpoolCleaner(threading.Thread):
    """Removes batches after each commit."""

    def __init__(self, store: ObjectStore, *, retain: int, everything: bool) -> None:
        super().__init__(name="nsqflow-spark-cleaner", daemon=True)
        self._store = store
        self._retain = retain
        self._everything = everything
        self._commits: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
        self.forgotten = 0
        """Unconfirmed ids dropped because of ``MAX_IDS`` or ``MAX_AGE``."""

    def committed(self, generation: str, seq: int) -> None:
        """Schedule the removal of all batches that are no longer retained."""
        self._commits.put((generation, seq))

    def finish(self, timeout: float) -> None:
        """Process the scheduled commits, then end the thread."""
        self._commits.put(None)
        self.join(timeout)

    def run(self) -> None:
        """Clean after each commit; runs on the thread."""
        while (commit := self._commits.get()) is not None:
            try:
                self.clean(*commit)
            except Exception:
                # The next commit tries again; a spool that can't be written fails the query itself.
                logger.warning("the spool could not be cleaned", exc_info=True)

    def clean(self, generation: str, seq: int) -> None:
        """Remove the batches that are no longer retained once ``seq`` is committed."""
        folder = batches_folder(generation)
        for name in self._store.names(folder):
            if name.isdecimal() and int(name) <= seq - self._retain:
                self._remove(generation, int(name), f"{folder}/{name}")

    # Private methods

    def _remove(self, generation: str, seq: int, folder: str) -> None:
        marker = planned_marker(generation, seq)
        # Without the marker its ids were kept before; what is left now is incomplete.
        if self._store.age(marker) is not None:
            self._keep_unconfirmed(generation, seq, folder)
            # The marker goes first: by it a late task knows that the batch is gone (Slots.create).
            self._store.remove(marker)
        self._store.remove(folder)

    def _keep_unconfirmed(self, generation: str, seq: int, folder: str) -> None:
        confirmed: dict[str, set[bytes]] = {}
        keys: set[str] = set()
        for name in self._store.names(folder):
            partition = parse_partition(name)
            # What was read of a partition of the redesigned NSQ is known by positions (SeenRanges).
            if partition is None or partition_of(partition[0]) is not None:
                continue
            key, index = partition
            slots = Slots(self._store, f"{folder}/{name}")
            ids, finished = slots.unconfirmed()
            confirmed.setdefault(key, set()).update(split_ids(finished))
            if ids:
                # The first writer has read all of it; a second driver may find it half removed.
                self._store.create(unconfirmed_ids(generation, seq, key, index), [ids])
                keys.add(key)
            if self._everything:
                self._keep_recent(generation, key, slots, f"{folder}/{name}")
        for key, finished_ids in confirmed.items():
            if finished_ids:
                self._remove_confirmed(generation, key, finished_ids)
        for key in keys:
            self._enforce_limits(generation, key)

    def _keep_recent(self, generation: str, key: str, slots: Slots, folder: str) -> None:
        """Add a partition's ids to those that dedupe=always keeps beyond the spool."""
        name = recent_ids(generation, key)
        numbers = slot_numbers(self._store.names(folder))
        ids = b"".join([*self._read(name), *map(slots.ids, numbers)])
        self._store.write(name, ids[-ID_SIZE * RECENT_IDS :])

    def _remove_confirmed(self, generation: str, key: str, confirmed: set[bytes]) -> None:
        """Drop ids that were redelivered and have since been finished."""
        folder = unconfirmed_folder(generation, key)
        for name in self._store.names(folder):
            if name == RECENT:
                continue
            ids = self._read(f"{folder}/{name}")
            rest = [id for id in ids if id not in confirmed]
            if len(rest) == len(ids):
                continue
            if rest:
                self._store.write(f"{folder}/{name}", b"".join(rest))
            else:
                self._store.remove(f"{folder}/{name}")

    def _enforce_limits(self, generation: str, key: str) -> None:
        """Drop the oldest ids beyond ``MAX_IDS`` and those older than ``MAX_AGE``."""
        folder = unconfirmed_folder(generation, key)
        count = 0
        for name in reversed(self._store.names(folder)):
            if name == RECENT:
                continue
            size = len(self._read(f"{folder}/{name}"))
            count += size
            age = self._store.age(f"{folder}/{name}") or 0.0
            if age > MAX_AGE or (count > MAX_IDS and count > size):
                self.forgotten += size
                logger.warning("%d unconfirmed ids of %s are dropped: %s", size, key, name)
                self._store.remove(f"{folder}/{name}")

    def _read(self, name: str) -> list[bytes]:
        try:
            return split_ids(bytes(self._store.read(name)))
        except FileNotFoundError:
            return []
