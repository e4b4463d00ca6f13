"""Seen: messages of an nsqd that are in the spool, and may be delivered again all the same.

A FIN has no answer; it may come too late, or the one who should have sent it died. Until it is
confirmed the message may come again, after any time at all: it joins the back of the queue. So
ids are kept, not for some batches or minutes, but until they are seen to be finished. Where a
batch leaves the spool its ids in doubt move to ``unfin`` (see ``cleaning``).
"""

from __future__ import annotations

from nsqflow.spark.offsets import batches_folder, quoted, unfin_folder
from nsqflow.spark.slots import Slots, slot_numbers
from nsqflow.spark.store import Store

ID_SIZE = 16


class Seen:
    """The ids of one key that a task must not take for new."""

    def __init__(self, store: Store, gen: str, key: str, *, everything: bool = False) -> None:
        self._store = store
        self._gen = gen
        self._key = key
        self._everything = everything  # those too whose FIN was confirmed
        self._ids: set[bytes] = set()
        self._read: set[str] = set()  # what can't change any more, and was read

    def refresh(self) -> None:
        """Read what has come into the spool since the last time."""
        # The batches first: what leaves them meanwhile is found in unfin, not the reverse.
        batches = batches_folder(self._gen)
        prefix = f"{quoted(self._key)}-"
        for seq in self._store.names(batches):
            for share in self._store.names(f"{batches}/{seq}"):
                if share.startswith(prefix) and share.removeprefix(prefix).isdecimal():
                    self._read_share(f"{batches}/{seq}/{share}")
        folder = unfin_folder(self._gen, self._key)
        for name in self._store.names(folder):
            self._read_unfin(f"{folder}/{name}")

    def among(self, ids: bytes) -> set[int]:
        """Return which of the packed ids were seen, or stand there for the second time."""
        repeated: set[int] = set()
        fresh: set[bytes] = set()
        for place, id in enumerate(split_ids(ids)):
            if id in self._ids or id in fresh:
                repeated.add(place)
            fresh.add(id)
        return repeated

    def _read_share(self, folder: str) -> None:
        slots = Slots(self._store, folder)
        names = self._store.names(folder)
        doubtful = set(slot_numbers(names))
        for confirmation in slots.confirmations(names):
            if not self._everything:
                doubtful.difference_update(confirmation.slots)
            self._ids.update(split_ids(confirmation.failed))
        for number in doubtful:
            place = f"{folder}/{number}"
            if place not in self._read:
                self._read.add(place)
                self._ids.update(split_ids(slots.ids(number)))

    def _read_unfin(self, name: str) -> None:
        if name in self._read:
            return
        self._read.add(name)
        try:
            self._ids.update(split_ids(bytes(self._store.read(name))))
        except FileNotFoundError:  # all of it was settled just now
            return


def split_ids(ids: bytes) -> list[bytes]:
    """Cut packed ids apart."""
    return [ids[at : at + ID_SIZE] for at in range(0, len(ids), ID_SIZE)]
