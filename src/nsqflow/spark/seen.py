"""Seen: messages of an nsqd that are in the spool, and may be delivered again all the same.

A FIN has no answer; it may come too late, or the one who should have sent it died. Until it is
confirmed the message may come again, after any time at all: it joins the back of the queue. So
ids are kept, not for some batches or minutes, but until they are seen to be finished. Where a
batch leaves the spool its ids in doubt move to ``unfin`` (see ``cleaning``).
"""

from __future__ import annotations

from nsqflow.spark.offsets import PLANNED, batches_folder, quoted, unfin_folder
from nsqflow.spark.slots import Slots, slot_numbers
from nsqflow.spark.store import Store

ID_SIZE = 16
RECENT = "recent"  # the ids that dedupe=always keeps of batches that have left


class Seen:
    """The ids of one key that a task must not take for new."""

    def __init__(self, store: Store, gen: str, key: str, *, everything: bool = False) -> None:
        self._store = store
        self._gen = gen
        self._key = key
        self._everything = everything  # those too whose FIN was confirmed
        self._ids: set[bytes] = set()
        self._read: set[str] = set()  # slots and objects that were read
        self._final: set[str] = set()  # shares of earlier batches in which nothing is in doubt

    def refresh(self) -> None:
        """Read what has come into the spool since the last time."""
        # The batches first: what leaves them meanwhile is found in unfin, not the reverse.
        batches = batches_folder(self._gen)
        prefix = f"{quoted(self._key)}-"
        seqs = self._store.names(batches)
        for seq in seqs:
            names = self._store.names(f"{batches}/{seq}")
            if PLANNED not in names:
                continue  # it has left; slots in it are of tasks that came too late
            for share in names:
                folder = f"{batches}/{seq}/{share}"
                ours = share.startswith(prefix) and share.removeprefix(prefix).isdecimal()
                if ours and folder not in self._final:
                    doubtful = self._read_share(folder, f"{batches}/{seq}/{PLANNED}")
                    if not doubtful and seq != seqs[-1]:
                        self._final.add(folder)
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

    def _read_share(self, folder: str, mark: str) -> bool:
        """Take in what is new of a share; tell whether more of it may become so."""
        slots = Slots(self._store, folder)
        names = self._store.names(folder)
        doubtful = set(slot_numbers(names))
        ids: set[bytes] = set()
        for confirmation in slots.confirmations(names):
            if not self._everything:
                doubtful.difference_update(confirmation.slots)
            ids.update(split_ids(confirmation.failed))
        unread = {number: f"{folder}/{number}" for number in doubtful}
        unread = {number: place for number, place in unread.items() if place not in self._read}
        for number in unread:
            ids.update(split_ids(slots.ids(number)))
        # If it has left meanwhile, one of those slots may be of a task that came too late.
        if (ids or unread) and self._store.age(mark) is not None:
            self._ids |= ids
            self._read.update(unread.values())
        return bool(doubtful)

    def _read_unfin(self, name: str) -> None:
        if name in self._read:
            return
        if not name.endswith(RECENT):  # which is written anew
            self._read.add(name)
        try:
            self._ids.update(split_ids(bytes(self._store.read(name))))
        except FileNotFoundError:  # all of it was settled just now
            return


def split_ids(ids: bytes) -> list[bytes]:
    """Cut packed ids apart."""
    return [ids[at : at + ID_SIZE] for at in range(0, len(ids), ID_SIZE)]
