"""The state of the live view of ``nsqflow stat``: order, scrolling, and what its rows are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from nsqflow.cli.keys import ESCAPE

T = TypeVar("T")


class Sort(StrEnum):
    """A column that rows can be sorted by."""

    NAME = "name"
    DEPTH = "depth"
    IN_FLIGHT = "in-flight"
    DEFERRED = "deferred"
    IN_RATE = "in/s"
    OUT_RATE = "out/s"
    CLIENTS = "clients"
    AGE = "age"


_SORTS = [*Sort]
_BY_KEY = {"n": Sort.NAME, "d": Sort.DEPTH, "f": Sort.IN_FLIGHT, "i": Sort.IN_RATE}
_STEPS = {"up": -1, "k": -1, "down": 1, "j": 1}
_PAGES = {"page up": -1, "b": -1, "page down": 1, " ": 1}
_QUIT = ("q", "Q", ESCAPE)


@dataclass(slots=True)
class StatView:
    """The state of the live view; ``press`` changes it."""

    sort: Sort = Sort.NAME
    reverse: bool = False
    """Reverse the default order: names from A, numbers from the largest."""
    clients: bool = False
    """Whether clients are shown instead of channels."""
    partitions: bool = False
    """Whether channels are shown for each partition; not with clients."""
    offset: int = 0
    """Rows above the screen."""
    is_over: bool = False
    rows: int = 0
    """The number of rows."""
    height: int = 1
    """The number of rows that fit on the screen, as of the last ``window``."""

    def press(self, key: str) -> None:
        """Handle a key; unknown keys do nothing."""
        if key in _QUIT:
            self.is_over = True
        elif key == "s":
            self._sort_by(_SORTS[(_SORTS.index(self.sort) + 1) % len(_SORTS)])
        elif key in _BY_KEY:
            self._sort_by(_BY_KEY[key])
        elif key == "r":
            self.reverse = not self.reverse
        elif key == "c":
            self.clients, self.partitions, self.offset = not self.clients, False, 0
        elif key == "p":
            self.clients, self.partitions, self.offset = False, not self.partitions, 0
        else:
            self._scroll(key)

    def window(self, rows: int, height: int) -> range:
        """Return the rows that are on screen: a full screen if there are enough."""
        self.rows, self.height = rows, max(height, 1)
        self.offset = min(max(self.offset, 0), max(rows - self.height, 0))
        return range(self.offset, min(self.offset + self.height, rows))

    def _sort_by(self, sort: Sort) -> None:
        self.sort, self.reverse, self.offset = sort, False, 0

    def _scroll(self, key: str) -> None:
        if key in ("home", "g"):
            self.offset = 0
        elif key in ("end", "G"):
            self.offset = self.rows
        else:
            self.offset += _STEPS.get(key, 0) + _PAGES.get(key, 0) * self.height
        self.window(self.rows, self.height)


def sort_rows(
    rows: Iterable[T],
    name: Callable[[T], tuple[str, ...]],
    value: Callable[[T], float | None] | None,
    *,
    reverse: bool = False,
) -> list[T]:
    """Sort by a number, largest first, or by name if ``value`` is None.

    Rows without a number come last in either order; equal rows are sorted by name.
    """
    named = sorted(rows, key=name)
    if value is None:
        return named[::-1] if reverse else named
    numbers = [(value(row), row) for row in named]
    known = [(number, row) for number, row in numbers if number is not None]
    known.sort(key=lambda pair: pair[0] if reverse else -pair[0])
    return [row for _, row in known] + [row for number, row in numbers if number is None]
