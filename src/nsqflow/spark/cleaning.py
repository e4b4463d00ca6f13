"""Cleaning: batches leave the spool, and what is still in doubt of them stays behind.

It runs on a thread of its own, as Spark waits for ``commit``. It may end at any moment with
the driver's process: every step can be done again, and is, with the next commit.
"""

from __future__ import annotations

import logging
import queue
import threading

from nsqflow.spark.offsets import (
    ShareName,
    batches_folder,
    planned_mark,
    unfin_folder,
    unquoted,
)
from nsqflow.spark.seen import ID_SIZE, RECENT, split_ids
from nsqflow.spark.slots import Slots, slot_numbers
from nsqflow.spark.store import Store

logger = logging.getLogger(__name__)

MAX_IDS = 2_000_000  # of one key that are kept in doubt: 200 MB where a task must look at them
MAX_AGE = 24 * 3600.0  # seconds for which they are
RECENT_IDS = 100_000  # of one key that dedupe=always keeps beyond the batches in the spool


class Cleaning(threading.Thread):
    """Removes batches, one commit after another."""

    def __init__(self, store: Store, *, retain: int, everything: bool) -> None:
        super().__init__(name="nsqflow-spark-cleaning", daemon=True)
        self._store = store
        self._retain = retain
        self._everything = everything
        self._commits: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
        self.forgotten = 0
        """Ids in doubt that were dropped because there were too many, or for too long."""

    def committed(self, gen: str, seq: int) -> None:
        """Have everything removed that is older than the batches to be retained."""
        self._commits.put((gen, seq))

    def finish(self, timeout: float) -> None:
        """Do what was asked for, and end."""
        self._commits.put(None)
        self.join(timeout)

    def run(self) -> None:
        """Clean until it is finished; the thread's own."""
        while (commit := self._commits.get()) is not None:
            try:
                self.clean(*commit)
            except Exception:
                # The next commit tries again; a spool that can't be written stops the query itself.
                logger.warning("the spool could not be cleaned", exc_info=True)

    def clean(self, gen: str, seq: int) -> None:
        """Remove the batches that are no longer retained once ``seq`` is committed."""
        folder = batches_folder(gen)
        for name in self._store.names(folder):
            if name.isdecimal() and int(name) <= seq - self._retain:
                self._remove(gen, int(name), f"{folder}/{name}")

    # Private methods

    def _remove(self, gen: str, seq: int, folder: str) -> None:
        mark = planned_mark(gen, seq)
        # Without its mark it was dealt with before; what is left, or came since, is not all of it.
        if self._store.age(mark) is not None:
            self._settle(gen, seq, folder)
            # First the mark by which a task that comes too late knows it (see Slots.create).
            self._store.remove(mark)
        self._store.remove(folder)

    def _settle(self, gen: str, seq: int, folder: str) -> None:
        settled: dict[str, set[bytes]] = {}
        keys: set[str] = set()
        for name in self._store.names(folder):
            quoted_key, _, index = name.rpartition("-")
            if quoted_key and index.isdecimal():
                share = ShareName(gen, seq, unquoted(quoted_key), int(index))
                if self._keep_doubtful(share, settled.setdefault(share.key, set())):
                    keys.add(share.key)
        for key, ids in settled.items():
            if ids:
                self._drop(gen, key, ids)
        for key in keys:
            self._forget(gen, key)

    def _keep_doubtful(self, share: ShareName, settled: set[bytes]) -> bool:
        """Write down which ids may come again; done before the batch is removed."""
        slots = Slots(self._store, share.folder)
        doubtful, done = slots.unconfirmed()
        settled.update(split_ids(done))
        target = f"{unfin_folder(share.gen, share.key)}/{share.seq:08d}-{share.part}"
        if doubtful:
            # Who is first has read all of it; a second driver may find it half removed.
            self._store.create(target, [doubtful])
        if self._everything:
            self._remember(share, slots)
        return bool(doubtful)

    def _remember(self, share: ShareName, slots: Slots) -> None:
        """Add a share's ids to those that dedupe=always knows beyond the spool."""
        name = f"{unfin_folder(share.gen, share.key)}/{RECENT}"
        numbers = slot_numbers(self._store.names(share.folder))
        ids = b"".join([*self._read(name), *map(slots.ids, numbers)])
        self._store.write(name, ids[-ID_SIZE * RECENT_IDS :])

    def _drop(self, gen: str, key: str, settled: set[bytes]) -> None:
        """Take ids off the books that came again and are finished now."""
        folder = unfin_folder(gen, key)
        for name in self._store.names(folder):
            if name == RECENT:
                continue
            ids = self._read(f"{folder}/{name}")
            rest = [id for id in ids if id not in settled]
            if len(rest) == len(ids):
                continue
            if rest:
                self._store.write(f"{folder}/{name}", b"".join(rest))
            else:
                self._store.remove(f"{folder}/{name}")

    def _forget(self, gen: str, key: str) -> None:
        """Keep the ids in bounds: the oldest go."""
        folder = unfin_folder(gen, key)
        count = 0
        for name in reversed(self._store.names(folder)):
            if name == RECENT:
                continue
            size = len(self._read(f"{folder}/{name}"))
            count += size
            age = self._store.age(f"{folder}/{name}") or 0.0
            if age > MAX_AGE or (count > MAX_IDS and count > size):
                self.forgotten += size
                logger.warning("%d ids in doubt of %s are forgotten: %s", size, key, name)
                self._store.remove(f"{folder}/{name}")

    def _read(self, name: str) -> list[bytes]:
        try:
            return split_ids(bytes(self._store.read(name)))
        except FileNotFoundError:
            return []
