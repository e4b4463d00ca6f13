"""The units that wait for the writer's thread, and how many of them share a transaction.

A publisher that is answered publishes again a moment later. If the next transaction began at
once, with those that came meanwhile, it would have to wait for that one: two publishers would
take turns, each with a sync of its own. So a transaction waits until as many are there as are
at work: those that were answered last and those that came meanwhile. It waits for a part of what
the last transaction took, and not if that is over; a publisher that is alone never waits.
"""

from __future__ import annotations

import queue
import time

from nsqflow.broker.storage.writer import Unit

_SHARE = 0.5  # of the time of the last transaction
_MAX_WAIT = 0.005  # seconds


class UnitQueue:
    """Takes units from the event loop, and gives them to one thread in groups."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Unit | None] = queue.SimpleQueue()  # None: the end
        self._taken: list[Unit] = []  # for the next transaction
        self._ended = False
        self._expected = 0  # publishers that are at work
        self._wait_until = 0.0

    def put(self, unit: Unit) -> None:
        """Add a unit."""
        self._queue.put(unit)

    def end(self) -> None:
        """Let there be no more."""
        self._queue.put(None)

    def written(self, answered: int, seconds: float) -> None:
        """Note that a transaction answers publishers now, and how long it took.

        Call it before they are answered, or those that come again would count twice.
        """
        self._drain()
        self._expected = answered + self._waiting
        self._wait_until = time.monotonic() + min(_SHARE * seconds, _MAX_WAIT)

    def take(self, timeout: float | None) -> tuple[list[Unit], bool]:
        """Wait for units, and return those of a transaction; and whether they are the last.

        After ``timeout`` seconds without any it returns none.
        """
        self._drain()
        if not self._taken and not self._ended:
            self._get(timeout)
            self._drain()
        while self._taken and not self._ended and self._waiting < self._expected:
            left = self._wait_until - time.monotonic()
            if left <= 0 or not self._get(left):
                break
            self._drain()
        units, self._taken = self._taken, []
        return units, self._ended

    @property
    def _waiting(self) -> int:
        return sum([unit.waiting for unit in self._taken])

    def _drain(self) -> None:
        while not self._ended and self._get(0):
            pass

    def _get(self, timeout: float | None) -> bool:
        try:
            unit = self._queue.get(timeout=timeout) if timeout != 0 else self._queue.get_nowait()
        except queue.Empty:
            return False
        if unit is None:
            self._ended = True
        else:
            self._taken.append(unit)
        return True
