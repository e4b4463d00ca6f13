"""Messages that are put off, the one that comes due first at the head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from nsqflow.broker.engine.entry import Entry
from nsqflow.broker.engine.timers import Timers


class Deferred:
    """The messages of a channel whose time has not come; one timer is enough for all."""

    def __init__(self, timers: Timers, come_due: Callable[[list[Entry]], None]) -> None:
        self._timers = timers
        self._tell = come_due
        self._heap: list[tuple[int, bytes, Entry]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Entry]:
        return (entry for _, _, entry in self._heap)

    def add(self, entry: Entry) -> None:
        """Hold a message until it is due."""
        heappush(self._heap, (entry.due, entry.id, entry))
        if self._heap[0][2] is entry:
            self._set_timer()

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()

    def _set_timer(self) -> None:
        if self._heap:
            self._timers.at(self._heap[0][0], self._ring, None)

    def _ring(self, _: None, now: int) -> None:
        due: list[Entry] = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heappop(self._heap)[2])
        if due:  # else the timer was one of a message that is gone
            self._set_timer()
            self._tell(due)
