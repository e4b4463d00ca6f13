"""A message as it waits in one place: a topic's backlog, or a channel's."""

from __future__ import annotations

MOST_ATTEMPTS = 0xFFFF  # two bytes on the wire; nsqd lets them begin anew at 0
COST = 300  # bytes that an entry takes beside its body: the object, its id, its places


class Entry:
    """One message of one channel, or of a topic that has no channel to give it to."""

    __slots__ = ("attempts", "body", "deadline", "delivered", "due", "id", "timestamp")

    def __init__(
        self, id: bytes, timestamp: int, body: bytes, attempts: int = 0, due: int = 0
    ) -> None:
        self.id = id
        self.timestamp = timestamp
        self.body = body
        self.attempts = attempts
        self.due = due
        """When it may be delivered at the earliest; 0 if it was never put off."""
        # Set when it is delivered.
        self.delivered = 0
        self.deadline = 0

    def __repr__(self) -> str:
        return f"Entry({self.id!r}, attempts={self.attempts}, due={self.due})"

    @property
    def size(self) -> int:
        """What it takes of memory, about."""
        return COST + len(self.body)

    def copy(self) -> Entry:
        """The same message for another channel; the body is shared."""
        return Entry(self.id, self.timestamp, self.body, self.attempts, self.due)
