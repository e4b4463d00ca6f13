"""Messages that the journal was given, and has not confirmed.

They are in no queue until they are stored, so that none of them is delivered, counted or
loaded before; if they can't be stored, the queues have never had them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqflow.broker.engine.entry import COST, Entry

if TYPE_CHECKING:
    from nsqflow.broker.engine.channel import Channel
    from nsqflow.broker.engine.topic import Topic


class Publication:
    """The messages of one publish to a topic that is kept."""

    __slots__ = ("body_bytes", "channels", "entries", "topic")

    def __init__(
        self,
        topic: Topic,
        entries: Sequence[Entry],
        body_bytes: int,
        channels: list[Channel] | None,
    ) -> None:
        self.topic = topic
        self.entries = entries
        self.body_bytes = body_bytes
        self.channels = channels
        """The channels whose places the journal puts them in; ``None``: the topic's own place."""

    @property
    def size(self) -> int:
        """What they take of memory, about."""
        return self.body_bytes + COST * len(self.entries)
