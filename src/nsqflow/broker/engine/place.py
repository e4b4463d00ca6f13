"""What a topic and a channel have in common: a name, a backlog, and a place in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqflow.protocol.names import is_ephemeral

if TYPE_CHECKING:
    from nsqflow.broker.engine.engine import Engine


class Place:
    """Where messages wait."""

    def __init__(self, engine: Engine, name: str, place: int, spilled: int) -> None:
        self.name = name
        self.paused = False
        self.message_count = 0
        self._engine = engine
        self._journal = engine.journal_of(place)
        self._backlog = engine.backlog(place, self.ephemeral, spilled)

    @property
    def place(self) -> int:
        """Where its messages are in the journal."""
        return self._backlog.place

    @property
    def ephemeral(self) -> bool:
        """It vanishes when nobody needs it: a topic with its last channel, that with its client."""
        return is_ephemeral(self.name)

    @property
    def depth(self) -> int:
        """How many messages wait: for a subscriber, or in a topic for a channel."""
        return len(self._backlog)

    @property
    def backend_depth(self) -> int:
        """How many of those are not in memory."""
        return self._backlog.spilled

    def _set_paused(self, paused: bool) -> None:
        self.paused = paused
        self._journal.pause(self.place, paused)
