"""Silence: noticing that a peer is gone which has not said so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SERVER_HEARTBEAT = 30.0  # seconds: nsqd's own interval, if it is told no other
_SECOND_LOOK = 1.0  # seconds


class Silence:
    """Watches how long nothing was read; one timer, however much is read."""

    def __init__(self, too_long: Callable[[float], None]) -> None:
        self.last_read = 0.0
        self._too_long = too_long
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, heartbeat_interval: float | None) -> None:
        """Call back once two heartbeats are missing; -1: there are none to be missed."""
        if heartbeat_interval != -1:
            self._look_later(2 * (heartbeat_interval or SERVER_HEARTBEAT))

    def cancel(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self, allowed: float) -> None:
        self._timer = self._loop.call_at(self.last_read + allowed, self._look, allowed, False)

    def _look(self, allowed: float, second: bool) -> None:
        silence = self._loop.time() - self.last_read
        if silence < allowed:
            self._look_later(allowed)
        elif second:
            self._too_long(silence)
        else:
            # If this process itself was held up, what arrived meanwhile is yet to be read.
            self._timer = self._loop.call_later(_SECOND_LOOK, self._look, allowed, True)
