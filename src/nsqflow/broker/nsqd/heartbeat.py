"""Heartbeats: the client is told that we live, and must show that it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nsqflow.broker.nsqd.timers import Timers


class Heartbeat:
    """Beats at an interval, and notices when no command came for twice as long."""

    def __init__(
        self, timers: Timers, beat: Callable[[], None], silent: Callable[[], None]
    ) -> None:
        self.excused = False
        """Nothing can come: we don't read."""
        self._timers = timers
        self._tell = beat
        self._silent = silent
        self._interval = 0.0
        self._heard_at = 0.0

    def start(self, interval: float) -> None:
        """Beat at this interval from now on; 0: not at all."""
        self._interval = interval
        self.heard()
        if interval:
            self._timers.set("heartbeat", interval, self._beat)
            self._timers.set("silence", 2 * interval, self._check)
        else:
            self._timers.cancel("heartbeat")
            self._timers.cancel("silence")

    def heard(self) -> None:
        """Take note that a command came."""
        self._heard_at = asyncio.get_running_loop().time()

    def excuse(self, excused: bool) -> None:
        """Expect nothing of it, or do so again: from now on."""
        self.excused = excused
        self.heard()

    def _beat(self) -> None:
        self._timers.set("heartbeat", self._interval, self._beat)
        self._tell()

    def _check(self) -> None:
        left = self._heard_at + 2 * self._interval - asyncio.get_running_loop().time()
        if self.excused:
            left = self._interval
        if left > 0:
            self._timers.set("silence", left, self._check)
        else:
            self._silent()
