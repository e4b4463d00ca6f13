"""The timers of a connection, each by a name: setting one again replaces it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timers:
    """What a connection does when nothing comes from the other end."""

    def __init__(self) -> None:
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def set(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        """Do something after some time, and not what was to be done before by this name."""
        self.cancel(name)
        self._handles[name] = asyncio.get_running_loop().call_later(seconds, act)

    def cancel(self, name: str) -> None:
        """Don't do it."""
        if handle := self._handles.pop(name, None):
            handle.cancel()

    def cancel_all(self) -> None:
        """Do nothing of it."""
        for name in [*self._handles]:
            self.cancel(name)
