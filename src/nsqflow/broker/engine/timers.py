"""What is to happen when: one heap for an engine."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")


class Timers:
    """Calls ``act(thing, now)`` at its time. What is no longer true by then, ``act`` must see."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[Any, int], None], Any]] = []
        self._order = count()  # so that nothing else of two equal times is ever compared

    def at(self, when: int, act: Callable[[T, int], None], thing: T) -> None:
        """Have something done at a time."""
        heappush(self._heap, (when, next(self._order), act, thing))

    @property
    def next_at(self) -> int | None:
        """The time of what comes first."""
        return self._heap[0][0] if self._heap else None

    def tick(self, now: int) -> None:
        """Do all whose time has come."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, act, thing = heappop(heap)
            act(thing, now)
