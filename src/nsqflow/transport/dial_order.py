"""Which nsqd is dialled next, and how many at a time.

An nsqlookupd may list thousands of addresses that accept a connection and never answer. The
limit keeps them from using up file descriptors and time. Preferred nsqd go first; the others
are shared equally among the nsqlookupd that named them, of which none gets all.

No I/O or clock here: ``nsqflow.transport.dial`` does the waiting.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_DIALS = 32
"""Dials under way per client: each holds a file descriptor for up to ``dial_timeout``, and a
process may have as few as 256 of them."""

_RESERVED = 8  # of them, for preferred nsqd: all others may hang


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
        """Queue a ticket; ``lookupd`` is the only one that named its nsqd, None if preferred."""
        waiting = self._preferred if lookupd is None else self._others.setdefault(lookupd, {})
        waiting[ticket] = None

    def next(self) -> T | None:
        """Start the next dial and return its ticket; None if no ticket may start."""
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
        """Remove a ticket whose dial has ended, or that no longer waits."""
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
