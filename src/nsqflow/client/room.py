"""Room: how many bytes may be under way; who comes when it is full waits, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from nsqflow.client.parcel import copy_of
from nsqflow.errors import NsqError, RequestTimeout


class Room:
    """Bytes out of a limited number of them."""

    def __init__(self, limit: int, wake_by: Callable[[float], None]) -> None:
        self.taken = 0
        self._limit = limit
        self._wake_by = wake_by  # whoever keeps the time is to call expire() then
        self._crowd: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        self._closed: NsqError | None = None

    def has(self, size: int) -> bool:
        """Tell whether so many bytes more can be taken at once."""
        return not self._crowd and self.taken + size <= self._limit

    async def wait(self, size: int, deadline: float) -> None:
        """Wait, in line, until they can be taken; raise ``RequestTimeout`` at the deadline."""
        if self._closed is not None:
            raise copy_of(self._closed)
        if self.has(size):
            return
        place = asyncio.get_running_loop().create_future()
        self._crowd.append((size, deadline, place))
        self._wake_by(deadline)
        try:
            await place
        except BaseException:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.taken -= size
            place.cancel()
            self._admit()
            raise
        self.taken -= size  # it was kept free for the caller, who now fills it

    def free(self, size: int) -> None:
        """Give bytes back, to those who wait."""
        self.taken -= size
        if self._crowd:
            self._admit()

    def waiting(self) -> Iterator[asyncio.Future[None]]:
        """The places of those who wait."""
        return (place for _, _, place in self._crowd if not place.done())

    def expire(self, now: float) -> float:
        """Fail those whose time is up; return the next deadline."""
        for size, deadline, place in self._crowd:
            if deadline <= now and not place.done():
                text = f"no room for {size} bytes in time: max_pending is {self._limit}"
                place.set_exception(RequestTimeout(text))
        deadlines = (deadline for _, deadline, place in self._crowd if not place.done())
        return min(deadlines, default=float("inf"))

    def close(self, error: NsqError) -> None:
        """Fail all who wait, and who comes later."""
        self._closed = error
        for place in self.waiting():
            place.set_exception(copy_of(error))

    def _admit(self) -> None:
        while self._crowd:
            size, _, place = self._crowd[0]
            if not place.done():
                if self.taken + size > self._limit:
                    return
                self.taken += size
                place.set_result(None)
            self._crowd.popleft()
