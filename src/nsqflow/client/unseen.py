"""Deliveries that user code never saw.

nsqd counts each delivery as an attempt. Some never reach user code: they time out in the
client, or are given back when the consumer closes. They must not bring a message closer to
being given up, so they are counted here and subtracted.
"""

from __future__ import annotations

from collections import OrderedDict


class UnseenDeliveries:
    """Counts by nsqd and message id; the oldest are forgotten beyond ``capacity`` messages."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._counts: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, nsqd: str, id: bytes) -> None:
        """Count one delivery."""
        key = nsqd, id
        self._counts[key] = self._counts.get(key, 0) + 1
        self._counts.move_to_end(key)
        if len(self._counts) > self._capacity:
            self._counts.popitem(last=False)

    def seen(self, nsqd: str, id: bytes, attempts: int) -> int:
        """Return how many of a message's ``attempts`` user code has seen, this one included."""
        return attempts - self._counts.get((nsqd, id), 0)
