"""A client that has subscribed to a channel, as the engine knows it."""

from __future__ import annotations

from typing import Any

from nsqflow.broker.engine.entry import Entry


class Subscriber:
    """Who gets messages: how many at a time, for how long, and which it has."""

    __slots__ = (
        *("armed", "blocked", "closing", "finish_count", "held", "message_count"),
        *("msg_timeout", "owner", "rdy", "requeue_count", "sample_rate"),
    )

    def __init__(self, owner: Any, msg_timeout: int, sample_rate: int = 0) -> None:
        self.owner = owner
        """Whoever asked for the messages; of no account here."""
        self.msg_timeout = msg_timeout
        self.sample_rate = sample_rate
        """Of a hundred messages so many are delivered, the others dropped; 0: all are."""
        self.rdy = 0
        self.closing = False
        """It has said CLS: nothing more for it."""
        self.blocked = False
        """It does not read what it was sent: nothing for it until it does."""
        # What it has in flight, in the order of the deadlines; but one that was touched up to
        # its utmost may stand behind others with later deadlines (it has a timer of its own).
        self.held: dict[bytes, Entry] = {}
        self.armed = False  # there is a timer for the first of them
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    @property
    def in_flight(self) -> int:
        """How many messages it has."""
        return len(self.held)

    @property
    def room(self) -> int:
        """How many more messages it takes."""
        if self.closing or self.blocked:
            return 0
        return max(self.rdy - len(self.held), 0)
