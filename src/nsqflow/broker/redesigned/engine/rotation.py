"""The subscribers of a channel, and which of them gets the next message."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from nsqflow.broker.redesigned.engine.headers import tag_of
from nsqflow.broker.redesigned.engine.subscriber import PartitionSubscriber


class SubscriberRotation:
    """Subscribers that take turns."""

    def __init__(self) -> None:
        self._turns: deque[PartitionSubscriber] = deque()  # the next one comes last
        self.picky = 0
        """How many of them do not take every message."""

    def __iter__(self) -> Iterator[PartitionSubscriber]:
        return iter(self._turns)

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, subscriber: object) -> bool:
        return subscriber in self._turns

    def add(self, subscriber: PartitionSubscriber) -> None:
        """Add a subscriber, whose turn comes last."""
        self._turns.appendleft(subscriber)
        self.picky += subscriber.picky

    def remove(self, subscriber: PartitionSubscriber) -> None:
        """Remove a subscriber."""
        self._turns.remove(subscriber)
        self.picky -= subscriber.picky

    def clear(self) -> list[PartitionSubscriber]:
        """Remove all subscribers and return them."""
        left = [*self._turns]
        self._turns.clear()
        self.picky = 0
        return left

    def ready(self) -> list[PartitionSubscriber]:
        """Return those that accept messages, the next one last; another is the next after it."""
        ready = [each for each in self._turns if each.capacity]
        self._turns.rotate(1)
        return ready

    @property
    def has_capacity(self) -> bool:
        """Whether any of them accepts messages."""
        return any(each.capacity for each in self._turns)

    @property
    def has_in_flight(self) -> bool:
        """Whether any of them has a message in flight."""
        return any(each.in_flight for each in self._turns)

    def holder(self, index: int) -> PartitionSubscriber | None:
        """Return the subscriber that a message is in flight to."""
        return next((each for each in self._turns if index in each.in_flight), None)

    def pick(self, headers: bytes) -> PartitionSubscriber | None:
        """Return the next subscriber that accepts a message with these headers.

        A message whose tag a client asks for is for such clients alone. Clients that ask for a tag
        get nothing else.
        """
        tags = {each.tag for each in self._turns} - {""}
        tag = tag_of(headers) if tags else ""
        tag = tag if tag in tags else ""
        for _ in range(len(self._turns)):
            subscriber = self._turns[-1]
            self._turns.rotate(1)
            if subscriber.tag == tag and subscriber.capacity:
                return subscriber
        return None

    def drop_in_flight(self) -> None:
        """Forget all messages in flight; nsqd counts them as requeued."""
        for subscriber in self._turns:
            subscriber.requeue_count += len(subscriber.in_flight)
            subscriber.in_flight.clear()
