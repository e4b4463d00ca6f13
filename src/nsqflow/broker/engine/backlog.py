"""Messages that wait in order.

What does not fit into memory is *spilled*: the journal alone has it, and is asked for it page
by page. Once something is spilled all that comes behind it is too, so that the order holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from nsqflow.broker.engine.entry import COST, Entry
from nsqflow.broker.engine.journal import NOWHERE, Journal


class Memory:
    """How many bytes of messages an engine holds, and how many it may."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def full(self) -> bool:
        """Nothing more should be taken in."""
        return self.used >= self.limit


class Backlog:
    """The messages of one place that nobody has been given yet."""

    __slots__ = (
        *("_asked", "_capacity", "_journal", "_loading", "_mark", "_memory", "_stale"),
        *("place", "ready", "spilled"),
    )

    def __init__(
        self, place: int, journal: Journal, memory: Memory, capacity: int | None, spilled: int = 0
    ) -> None:
        self.place = place
        self.ready: deque[Entry] = deque()
        """In memory, the next one first."""
        self.spilled = spilled
        """How many only the journal has."""
        self._journal = journal
        self._memory = memory
        self._capacity = capacity  # None: what comes is never spilled, nor dropped
        self._mark = b""  # the journal's messages up to this id are, or were, in memory
        self._loading = False
        self._asked = 0  # how many were spilled when the page was asked for
        self._stale = 0  # pages asked for, of which nobody wants to know any more

    def __len__(self) -> int:
        return len(self.ready) + self.spilled

    def put(self, entries: Sequence[Entry]) -> None:
        """Take new messages, none of them put off, in the order of their ids."""
        kept = self._fitting(entries)
        self.ready.extend(kept)
        self._memory.used += COST * len(kept) + sum([len(entry.body) for entry in kept])
        if kept:
            self._mark = kept[-1].id
        if self.place != NOWHERE:  # else they are dropped, as nsqd does with what is ephemeral
            self.spilled += len(entries) - len(kept)

    def hold(self, entry: Entry) -> None:
        """Take a message that was put off: those are always in memory."""
        self.ready.append(entry)
        self._memory.used += entry.size

    def again(self, entry: Entry) -> None:
        """Take back a message that is in memory already."""
        self.ready.append(entry)

    def clear(self) -> int:
        """Forget all; returns how many there were."""
        count = len(self)
        self._memory.used -= sum(entry.size for entry in self.ready)
        self.ready.clear()
        self.spilled = 0
        self._forget_page()
        return count

    def take_spilled(self, count: int) -> None:
        """Know of messages that the journal has behind all that was put here."""
        self.spilled += count

    def want(self) -> None:
        """Ask for spilled messages, if there is room for them."""
        if not self.spilled or self._loading or self._capacity is None:
            return
        room = self._capacity - len(self.ready)
        if 2 * room < self._capacity or (self._memory.full and self.ready):
            return
        self._loading = True
        self._asked = self.spilled
        self._journal.load(self.place, self._mark, room)

    def loaded(self, entries: Sequence[Entry]) -> None:
        """Take the page that was asked for."""
        if self._stale:
            self._stale -= 1
            return
        self._loading = False
        self.ready.extend(entries)
        self._memory.used += sum(entry.size for entry in entries)
        # A page without messages says that there were none, whatever was counted by then.
        self.spilled -= min(len(entries), self.spilled) if entries else self._asked
        if entries:
            self._mark = entries[-1].id

    def _fitting(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        if self._capacity is None:
            return entries
        if self.spilled or self._memory.full:
            return ()
        return entries[: max(self._capacity - len(self.ready), 0)]

    def _forget_page(self) -> None:
        self._stale += self._loading
        self._loading = False
