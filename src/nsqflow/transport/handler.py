"""What an asyncio connection calls: its handler, and a timer for a peer that falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nsqflow.errors import NsqError
from nsqflow.protocol import AnswerFailed, CommandFailed, MessageBatch, Receipt

_RECHECK_DELAY = 1.0  # seconds


class ConnectionHandler:
    """Receives a connection's events; subclasses override some, and must not raise or block."""

    def messages_received(self, batch: MessageBatch) -> None:
        """Handle messages that were read together."""

    def published(self, receipt: Receipt | None) -> None:
        """Handle the OK to the oldest unanswered publish."""

    def command_failed(self, event: CommandFailed) -> None:
        """Handle a refused command; ``connection_lost`` follows if nsqd closes."""

    def answer_failed(self, event: AnswerFailed) -> None:
        """Handle a FIN, REQ or TOUCH that came too late."""

    def writable(self) -> None:
        """Handle that the write buffer, which was full, has drained."""

    def connection_lost(self, error: NsqError) -> None:
        """Handle the end of the connection; called once, and only after ``open`` succeeded."""


class ReadTimeout:
    """Calls back if nothing was read for too long; uses one timer however much is read."""

    def __init__(self, expired: Callable[[float], None]) -> None:
        self.last_read = 0.0
        self._expired = expired
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, timeout: float) -> None:
        """Start, ``timeout`` seconds from the last read."""
        self._timer = self._loop.call_at(self.last_read + timeout, self._check, timeout, False)

    def cancel(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self, timeout: float, is_recheck: bool) -> None:
        silence = self._loop.time() - self.last_read
        if silence < timeout:
            self.start(timeout)
        elif is_recheck:
            self._expired(silence)
        else:
            # If this process was blocked, data that arrived meanwhile must be read first.
            self._timer = self._loop.call_later(_RECHECK_DELAY, self._check, timeout, True)
