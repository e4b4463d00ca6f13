"""What a channel must do, said simply: sets and counts, without cursors or windows."""

from __future__ import annotations

from dataclasses import dataclass, field

from nsqflow.broker.redesigned.engine.channel import PartitionChannel
from nsqflow.broker.redesigned.engine.subscriber import PartitionSubscriber


@dataclass
class ExpectedChannel:
    """The messages that a channel owes its consumers."""

    owed: set[int]
    """What is not finished."""
    attempts: dict[int, int] = field(default_factory=dict)
    """How often each was delivered."""
    waiting: dict[int, int] = field(default_factory=dict)
    """When those are due that were deferred or delayed."""
    flight: dict[int, PartitionSubscriber] = field(default_factory=dict)
    ordered: bool = False

    def delivered(self, index: int, attempts: int, to: PartitionSubscriber, now: int) -> None:
        """Check a delivery, and note it."""
        assert index in self.owed, "it was finished, or never published to this channel"
        assert index not in self.flight, "it is in flight already"
        assert self.waiting.pop(index, now) <= now, "it was put off"
        assert attempts == self.attempts.get(index, 0) + 1
        if self.ordered:
            assert not self.flight, "one at a time"
            assert index == min(self.owed), "in order"
        self.attempts[index] = attempts
        self.flight[index] = to

    def finished(self, index: int) -> None:
        self.owed.remove(index)
        del self.flight[index]

    def put_off(self, index: int, due: int) -> None:
        del self.flight[index]
        self.waiting[index] = due

    def left(self, subscriber: PartitionSubscriber) -> None:
        """Take back what a consumer had, as if it had not been delivered."""
        for index in [each for each, holder in self.flight.items() if holder is subscriber]:
            del self.flight[index]
            self.attempts[index] -= 1

    def forget(self, *, delayed: dict[int, int]) -> None:
        """Begin again, as another node leads; only long delays are remembered."""
        self.flight.clear()
        self.waiting = dict(delayed)
        self.attempts = {index: self.attempts[index] for index in delayed}

    def check(self, channel: PartitionChannel, end: int) -> None:
        """Compare with a real channel."""
        reader = channel.reader
        of_log = self.owed - reader.delayed.keys()
        assert reader.window.cursor == min(of_log, default=end)
        behind = {index for index in range(reader.window.cursor, end) if index not in of_log}
        assert reader.window.finished == behind
        stretches = sum(1 for index in behind if index - 1 not in behind)
        assert reader.window.stretches == stretches
        held = {index: each for each in channel.subscribers for index in each.in_flight}
        assert held == self.flight
        for subscriber in channel.subscribers:
            assert subscriber.in_flight_count <= max(subscriber.rdy, subscriber.in_flight_count)
