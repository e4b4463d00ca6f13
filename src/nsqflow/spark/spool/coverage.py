"""What of a partition of the redesigned NSQ has been read, by ids and by offsets.

nsqd may deliver a message again as if for the first time: after a change of leaders, after a
disconnect, after a seek. Its internal id says whether it was read before. Offsets say up to where
everything was read: a channel whose cursor is beyond that has to be moved back.

Both are nearly always one range, however many messages there were. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_RANGES = 5000
"""Ranges that are kept of a partition. nsqd delivers fewer than 2500 messages out of order; more
ranges come from other readers of the channel."""


@dataclass(frozen=True, slots=True)
class RangeSet:
    """A set of integers, as ranges that do not touch each other, in order."""

    ranges: tuple[tuple[int, int], ...] = ()
    """From each start to the end, exclusive."""

    @staticmethod
    def of(ranges: Iterable[Iterable[int]]) -> RangeSet:
        """Return the set of all integers in these ranges; raise ``ValueError`` if one is none."""
        merged: list[tuple[int, int]] = []
        for start, end in sorted((int(start), int(end)) for start, end in ranges):
            if start > end:
                raise ValueError(f"a range from {start} to {end}")
            if merged and start <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            elif start < end:
                merged.append((start, end))
        return RangeSet(tuple(merged))

    @staticmethod
    def of_numbers(numbers: Collection[int]) -> RangeSet:
        """Return the set of these integers."""
        if not len(numbers):
            return RangeSet()
        low, high = min(numbers), max(numbers)
        if high - low + 1 == len(numbers) == len(set(numbers)):
            return RangeSet(((low, high + 1),))  # nearly always
        return RangeSet.of((number, number + 1) for number in numbers)

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self.ranges, (number, float("inf"))) - 1
        return index >= 0 and number < self.ranges[index][1]

    def __or__(self, other: RangeSet) -> RangeSet:
        if not other.ranges:
            return self
        return RangeSet.of((*self.ranges, *other.ranges)) if self.ranges else other

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __len__(self) -> int:
        return sum(end - start for start, end in self.ranges)

    @property
    def first(self) -> int:
        """The lowest integer; -1 if there is none."""
        return self.ranges[0][0] if self.ranges else -1

    @property
    def last(self) -> int:
        """The highest integer; -1 if there is none."""
        return self.ranges[-1][1] - 1 if self.ranges else -1

    def end_from(self, start: int) -> int:
        """Return the first integer from ``start`` on that is not in the set."""
        index = bisect_right(self.ranges, (start, float("inf"))) - 1
        return max(start, self.ranges[index][1]) if index >= 0 else start

    def start_from(self, start: int, otherwise: int) -> int:
        """Return the first integer from ``start`` on that is in the set; else ``otherwise``."""
        index = bisect_right(self.ranges, (start, float("inf"))) - 1
        if index >= 0 and start < self.ranges[index][1]:
            return start
        return self.ranges[index + 1][0] if index + 1 < len(self.ranges) else otherwise

    def encode(self) -> list[list[int]]:
        """Return the ranges for JSON."""
        return [[start, end] for start, end in self.ranges]


def join_ids(one: RangeSet, other: RangeSet) -> RangeSet:
    """Return the ids of both; beyond ``MAX_RANGES`` without the lowest.

    Their messages are the least likely to be delivered again.
    """
    both = one | other
    return both if len(both.ranges) <= MAX_RANGES else RangeSet(both.ranges[-MAX_RANGES:])


def join_offsets(one: RangeSet, other: RangeSet) -> RangeSet:
    """Return the offsets of both; beyond ``MAX_RANGES`` without the highest.

    So it stays known up to where everything was read.
    """
    both = one | other
    return both if len(both.ranges) <= MAX_RANGES else RangeSet(both.ranges[:MAX_RANGES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What of a partition has been read, since the query began with it."""

    base: int = 0
    """The offset at which the query began, or goes on after a loss."""
    first: int = 0
    """The offset before which messages are not for the query. 0 if it began with what waited in the
    channel: some of that may come from before the offset, after a long delay."""
    since: int = 0
    """The time at which it began, in nanoseconds; older messages are not for the query."""
    ids: RangeSet = field(default_factory=RangeSet)
    """The internal ids that were read."""
    offsets: RangeSet = field(default_factory=RangeSet)
    """The bytes of the partition that were read."""
    newest: int = 0
    """The highest timestamp that was read, in nanoseconds; 0 if there was none."""

    @property
    def resume(self) -> int:
        """The offset from which on not everything was read."""
        return self.offsets.end_from(self.base)

    def __or__(self, other: Coverage) -> Coverage:
        """Return both; the beginning is that of the first."""
        return Coverage(
            base=self.base,
            first=self.first,
            since=self.since,
            ids=join_ids(self.ids, other.ids),
            offsets=join_offsets(self.offsets, other.offsets),
            newest=max(self.newest, other.newest),
        )

    def encode(self) -> dict[str, Any]:
        """Return the coverage for JSON."""
        return {
            "base": self.base,
            "first": self.first,
            "since": self.since,
            "ids": self.ids.encode(),
            "offsets": self.offsets.encode(),
            "newest": self.newest,
        }

    @staticmethod
    def decode(values: Mapping[str, Any]) -> Coverage:
        """Read what ``encode`` returned; raise ``ValueError``, ``TypeError`` or ``KeyError``."""
        return Coverage(
            base=int(values["base"]),
            first=int(values["first"]),
            since=int(values["since"]),
            ids=RangeSet.of(values["ids"]),
            offsets=RangeSet.of(values["offsets"]),
            newest=int(values["newest"]),
        )
