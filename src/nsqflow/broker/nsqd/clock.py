"""The time as nsqd needs it: since 1970, and never backwards."""

from __future__ import annotations

import time


class Clock:
    """Nanoseconds since 1970, by the clock on the wall when it was made."""

    def __init__(self) -> None:
        self._base = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        """What time it is."""
        return self._base + time.monotonic_ns()
