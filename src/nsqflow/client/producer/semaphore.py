"""A weighted semaphore: caps the bytes of all messages that have no result yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nsqflow.errors import BufferFullError, NsqError, RequestTimeout, copy_error


class _Waiter(NamedTuple):
    size: int
    deadline: float
    future: asyncio.Future[Any]  # fails at the deadline; no longer waits once it is done
    start: Callable[[], None]  # called when the bytes are acquired


class WeightedSemaphore:
    """A limit on a sum of bytes; callers beyond it wait in order.

    ``wake_at`` is called with each waiter's deadline: its owner then calls ``expire``.
    """

    def __init__(self, limit: int, wake_at: Callable[[float], None]) -> None:
        self.used = 0
        self.limit = limit
        self.waiters: deque[_Waiter] = deque()
        self._wake_at = wake_at
        self._closed: NsqError | None = None

    def try_acquire(self, size: int) -> bool:
        """Acquire ``size`` bytes if they are free and there is no waiter before."""
        if self.waiters or self.used + size > self.limit:
            return False
        self.used += size
        return True

    def call_when_acquired(
        self,
        size: int,
        deadline: float,
        future: asyncio.Future[Any],
        start: Callable[[], None],
        wait: bool = True,
    ) -> None:
        """Wait in line for ``size`` bytes, then call ``start``.

        ``future`` fails with ``RequestTimeout`` at the deadline; cancelling it ends the wait.
        With ``wait=False`` this raises ``BufferFullError`` instead of waiting.
        """
        if self._closed is not None:
            future.set_exception(copy_error(self._closed))
        elif not wait:
            raise BufferFullError(
                f"{size} bytes do not fit: max_pending={self.limit} bytes are pending; await "
                "futures of earlier messages, or publish()"
            )
        else:
            self.waiters.append(_Waiter(size, deadline, future, start))
            future.add_done_callback(self._admit)
            self._wake_at(deadline)

    def release(self, size: int) -> None:
        """Return bytes, and let waiters acquire them."""
        self.used -= size
        if self.waiters:
            self._admit()

    def pending(self) -> Iterator[asyncio.Future[Any]]:
        """Iterate over the futures of all waiters."""
        return (waiter.future for waiter in self.waiters if not waiter.future.done())

    def expire(self, now: float) -> float:
        """Fail the waiters whose deadline has passed; return the next deadline."""
        for waiter in self.waiters:
            if waiter.deadline <= now and not waiter.future.done():
                waiter.future.set_exception(
                    RequestTimeout(
                        f"publish of {waiter.size} bytes was not sent in time: "
                        f"max_pending={self.limit} bytes are waiting already"
                    )
                )
        deadlines = (waiter.deadline for waiter in self.waiters if not waiter.future.done())
        return min(deadlines, default=float("inf"))

    def close(self, error: NsqError) -> None:
        """Fail all waiters, and every later call, with ``error``."""
        self._closed = error
        self.limit = -1
        for future in self.pending():
            future.set_exception(copy_error(error))

    def _admit(self, *_: object) -> None:
        # Also called when a waiter's future is done: a cancelled one may have kept others waiting.
        while self.waiters:
            waiter = self.waiters[0]
            if not waiter.future.done():
                if self.used + waiter.size > self.limit:
                    return
                self.used += waiter.size
            self.waiters.popleft()
            if not waiter.future.done():
                waiter.start()
