"""Which nsqd is dialled next, and how many at a time.

A nsqlookupd may name thousands of addresses that accept and never answer. So that they use
neither all file descriptors nor all the time, the dials under way are limited; nsqd that are
preferred go first, and among the others each nsqlookupd has the same share, never all.

No I/O or clock here: ``nsqflow.client.dialling`` waits for the turns.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_DIALS = 32
"""Dials under way per client: each holds a file descriptor for up to ``dial_timeout``, and a
process may have as few as 256 of them."""

_RESERVED = 8  # of them for preferred nsqd: the others may all hang


class DialOrder(Generic[T]):
    """Tickets that wait for a dial, and those whose dial is under way."""

    def __init__(self, limit: int = MAX_DIALS, reserved: int = _RESERVED) -> None:
        self._limit = limit
        self._unreserved = limit - reserved
        self._max_share = max(self._unreserved // 2, 1)
        self._preferred: dict[T, None] = {}  # in the order they came
        self._others: dict[str, dict[T, None]] = {}  # by the nsqlookupd that named them
        self._under_way: dict[T, str | None] = {}
        self._shares: Counter[str] = Counter()  # dials under way by nsqlookupd

    def add(self, ticket: T, lookupd: str | None) -> None:
        """Let a ticket wait; ``lookupd`` alone named its nsqd, None: it is preferred."""
        waiting = self._preferred if lookupd is None else self._others.setdefault(lookupd, {})
        waiting[ticket] = None

    def next(self) -> T | None:
        """Start the next dial; None: there is none, or as many as allowed are under way."""
        if len(self._under_way) >= self._limit:
            return None
        if self._preferred:
            return self._start(self._preferred, None)
        if not self._others or self._shares.total() >= self._unreserved:
            return None
        lookupd = min(self._others, key=self._shares.__getitem__)
        if self._shares[lookupd] >= self._max_share:
            return None
        return self._start(self._others[lookupd], lookupd)

    def remove(self, ticket: T) -> None:
        """End a dial, or give up waiting for it."""
        if ticket in self._under_way:
            lookupd = self._under_way.pop(ticket)
            if lookupd is not None:
                self._shares[lookupd] -= 1
                self._forget_empty(lookupd)
            return
        self._preferred.pop(ticket, None)
        for lookupd, waiting in list(self._others.items()):
            if ticket in waiting:
                del waiting[ticket]
                self._forget_empty(lookupd)

    def _start(self, waiting: dict[T, None], lookupd: str | None) -> T:
        ticket = next(iter(waiting))
        del waiting[ticket]
        self._under_way[ticket] = lookupd
        if lookupd is not None:
            self._shares[lookupd] += 1
            self._forget_empty(lookupd)
        return ticket

    def _forget_empty(self, lookupd: str) -> None:
        if not self._others.get(lookupd, True):
            del self._others[lookupd]
        if not self._shares[lookupd]:
            del self._shares[lookupd]
