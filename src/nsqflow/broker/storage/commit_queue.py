"""Commit requests that wait for the writer thread, grouped into transactions.

A publisher that gets its response publishes again a moment later. If the next transaction started
at once, with the requests that arrived meanwhile, that publish would wait for it: two publishers
would take turns, each with a sync of its own. So a transaction waits until as many publishers have
arrived as are active: those acknowledged last and those that arrived meanwhile. It waits at most
for a part of the last transaction's duration; a single publisher never waits.
"""

from __future__ import annotations

import queue
import time

from nsqflow.broker.storage.writer import CommitRequest

_SHARE = 0.5  # of the duration of the last transaction
_MAX_WAIT = 0.005  # seconds


class CommitQueue:
    """Takes requests from the event loop and returns them to one thread in groups."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[CommitRequest | None] = queue.SimpleQueue()  # None: the end
        self._taken: list[CommitRequest] = []  # for the next transaction
        self._ended = False
        self._expected = 0  # active publishers
        self._wait_until = 0.0

    def put(self, request: CommitRequest) -> None:
        """Add a request."""
        self._queue.put(request)

    def end(self) -> None:
        """Add no more requests."""
        self._queue.put(None)

    def written(self, answered: int, seconds: float) -> None:
        """Report a finished transaction: how many publishers it acknowledges and its duration.

        Call it before they are acknowledged, or those that publish again would count twice.
        """
        self._drain()
        self._expected = answered + self._waiters
        self._wait_until = time.monotonic() + min(_SHARE * seconds, _MAX_WAIT)

    def take(self, timeout: float | None) -> tuple[list[CommitRequest], bool]:
        """Wait for requests; return those of the next transaction, and whether they are the last.

        Returns none after ``timeout`` seconds without a request.
        """
        self._drain()
        if not self._taken and not self._ended:
            self._get(timeout)
            self._drain()
        while self._taken and not self._ended and self._waiters < self._expected:
            left = self._wait_until - time.monotonic()
            if left <= 0 or not self._get(left):
                break
            self._drain()
        requests, self._taken = self._taken, []
        return requests, self._ended

    @property
    def _waiters(self) -> int:
        return sum([request.waiters for request in self._taken])

    def _drain(self) -> None:
        while not self._ended and self._get(0):
            pass

    def _get(self, timeout: float | None) -> bool:
        try:
            request = self._queue.get(timeout=timeout) if timeout != 0 else self._queue.get_nowait()
        except queue.Empty:
            return False
        if request is None:
            self._ended = True
        else:
            self._taken.append(request)
        return True
