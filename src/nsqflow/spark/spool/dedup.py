"""The ids of messages that are in the spool and may be delivered again.

A FIN has no response: it may arrive too late, or its sender may have died. Until it is confirmed,
nsqd may deliver the message again, after any time, because the message goes to the end of the
queue. So ids are kept until they are known to be finished, not for some batches or minutes. When
a batch leaves the spool, its unconfirmed ids move to a folder of their own (see ``cleaner``).
"""

from __future__ import annotations

from nsqflow.spark.spool.layout import (
    PLANNED,
    RECENT,
    batches_folder,
    parse_partition,
    slot_numbers,
    unconfirmed_folder,
)
from nsqflow.spark.spool.slots import Slots
from nsqflow.spark.spool.store import ObjectStore

ID_SIZE = 16


class SeenIds:
    """The ids of one key that a task must treat as duplicates.

    ``everything`` includes the ids whose FIN was confirmed.
    """

    def __init__(
        self, store: ObjectStore, generation: str, key: str, *, everything: bool = False
    ) -> None:
        self._store = store
        self._generation = generation
        self._key = key
        self._everything = everything
        self._ids: set[bytes] = set()
        self._read: set[str] = set()  # names of the slots and objects read so far
        self._final: set[str] = set()  # partitions of earlier batches with nothing unconfirmed

    def refresh(self) -> None:
        """Read what was added to the spool since the last call."""
        # Batches before unconfirmed ids: ids move in this direction, so none is missed.
        batches = batches_folder(self._generation)
        seqs = self._store.names(batches)
        for seq in seqs:
            names = self._store.names(f"{batches}/{seq}")
            if PLANNED not in names:
                continue  # the batch has left the spool; its slots come from late tasks
            for name in names:
                folder = f"{batches}/{seq}/{name}"
                partition = parse_partition(name)
                ours = partition is not None and partition[0] == self._key
                if ours and folder not in self._final:
                    unconfirmed = self._read_partition(folder, f"{batches}/{seq}/{PLANNED}")
                    if not unconfirmed and seq != seqs[-1]:
                        self._final.add(folder)
        folder = unconfirmed_folder(self._generation, self._key)
        for name in self._store.names(folder):
            self._read_ids(f"{folder}/{name}")

    def find_repeated(self, ids: bytes) -> set[int]:
        """Return the indexes of the packed ids that were seen before, here or in the spool."""
        repeated: set[int] = set()
        fresh: set[bytes] = set()
        for index, id in enumerate(split_ids(ids)):
            if id in self._ids or id in fresh:
                repeated.add(index)
            fresh.add(id)
        return repeated

    def _read_partition(self, folder: str, marker: str) -> bool:
        """Read the new slots of a partition; return whether some are still unconfirmed."""
        slots = Slots(self._store, folder)
        names = self._store.names(folder)
        unconfirmed = set(slot_numbers(names))
        ids: set[bytes] = set()
        for confirmation in slots.confirmations(names):
            if not self._everything:
                unconfirmed.difference_update(confirmation.slots)
            ids.update(split_ids(confirmation.failed))
        unread = {number: f"{folder}/{number}" for number in unconfirmed}
        unread = {number: name for number, name in unread.items() if name not in self._read}
        for number in unread:
            ids.update(split_ids(slots.ids(number)))
        # If the batch has left the spool meanwhile, a slot may come from a late task.
        if (ids or unread) and self._store.age(marker) is not None:
            self._ids |= ids
            self._read.update(unread.values())
        return bool(unconfirmed)

    def _read_ids(self, name: str) -> None:
        if name in self._read:
            return
        if not name.endswith(RECENT):  # this one is replaced with each batch
            self._read.add(name)
        try:
            self._ids.update(split_ids(bytes(self._store.read(name))))
        except FileNotFoundError:  # all of its ids were finished just now
            return


def split_ids(ids: bytes) -> list[bytes]:
    """Split packed ids into single ones."""
    return [ids[at : at + ID_SIZE] for at in range(0, len(ids), ID_SIZE)]
