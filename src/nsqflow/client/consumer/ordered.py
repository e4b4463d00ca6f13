"""Ordered partitions: one message at a time each, in order, and what blocks them.

nsqd has one message of an ordered channel in flight, over all consumers. While leaders change, or
after a timeout, it may send a message that user code still holds, or several times in a row. So
the gate here passes one message of each partition at a time to user code.

No I/O, clock or randomness: the coordinator passes in what arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqflow.client.message import Message
    from nsqflow.client.partition_message import PartitionMessage


class OrderedGate:
    """Passes one message of each partition, and the next one when it was answered."""

    def __init__(self) -> None:
        self._passed: dict[int | None, Message] = {}  # the one of each partition
        self._waiting: dict[int | None, deque[Message]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Message]:
        return (message for waiting in self._waiting.values() for message in waiting)

    def is_taken(self, message: Message) -> bool:
        """Return whether another message of the partition has passed and is not answered."""
        return message.partition in self._passed

    def admit(self, messages: Iterable[Message]) -> list[Message]:
        """Return those messages that may pass now; keep the others."""
        passed = []
        for message in messages:
            ordered = message.delivery.subscription.ordered  # a topic may be created again
            if not ordered or self._passed.setdefault(message.partition, message) is message:
                passed.append(message)
            else:
                self._waiting.setdefault(message.partition, deque()).append(message)
        return passed

    def leave(self, messages: Iterable[Message]) -> list[Message]:
        """Return the messages that may pass now that these are answered."""
        following = []
        for message in messages:
            partition = message.partition
            if self._passed.get(partition) is not message:
                continue
            if waiting := self._waiting.get(partition):
                self._passed[partition] = waiting.popleft()
                following.append(self._passed[partition])
            else:
                del self._passed[partition]
        return following

    def remove(self, unwanted: Callable[[Message], bool]) -> list[Message]:
        """Take out messages that wait here; return them."""
        removed: list[Message] = []
        for partition, waiting in self._waiting.items():
            removed += filter(unwanted, waiting)
            self._waiting[partition] = deque(m for m in waiting if not unwanted(m))
        return removed


class PartitionOrder:
    """The last message of an ordered partition: whether the next one follows it.

    nsqd's attempts do not count all deliveries: they begin again with each leader.
    """

    def __init__(self) -> None:
        self.seen = 0
        """How often the last message was delivered to this consumer."""
        self.unfinished = 0
        """The same since user code has last finished it (nsqd may repeat it nevertheless), less
        the deliveries that user code never had.
        """
        self._source: object = None  # of the last message
        self._last = (0, 0, 0)  # internal id, offset and timestamp
        self._finished = (0, 0, 0)  # by user code, after its connection was lost

    def received(self, source: object, internal_id: int, offset: int, timestamp: int) -> str | None:
        """Record a message; return how it violates the order, None if it does not.

        The same message may come again. Another source, a new connection, may begin with an older
        one: leaders may have changed meanwhile, or the topic may have been created again.
        """
        message = internal_id, offset, timestamp
        last, self._last = self._last, message
        same_source, self._source = source == self._source, source
        if internal_id > self._finished[0] or (same_source and internal_id < last[0]):
            self._finished = (0, 0, 0)  # nsqd is past it; if it comes again, someone wants it so
        if message != last:
            self.seen = self.unfinished = 0
        self.seen += 1
        self.unfinished += 1
        if not same_source or (internal_id >= last[0] and offset >= last[1]):
            return None
        return f"id {internal_id} at offset {offset} came after id {last[0]} at offset {last[1]}"

    def dropped(self, internal_id: int, offset: int, timestamp: int) -> None:
        """Record that a delivery was dropped before user code had it."""
        if self._last == (internal_id, offset, timestamp) and self.unfinished:
            self.unfinished -= 1

    def finished(self, internal_id: int, offset: int, timestamp: int) -> None:
        """Record that user code has finished a message."""
        if self._last == (internal_id, offset, timestamp):
            self.unfinished = 0

    def finished_too_late(self, internal_id: int, offset: int, timestamp: int) -> None:
        """Record a message that user code has finished after its connection was lost."""
        self._finished = internal_id, offset, timestamp

    @property
    def is_finished(self) -> bool:
        """Whether the last message is one that was finished too late: it needs a FIN alone."""
        return self._finished == self._last


def place(message: PartitionMessage) -> tuple[int, int, int]:
    """Return what identifies a message of a partition, whichever nsqd sends it."""
    return message.internal_id, message.offset or 0, message.timestamp


def retry_at(now: float, delay: float, deadline: float, msg_timeout: float) -> float:
    """Return when a failed message of an ordered channel is requeued.

    nsqd ignores a REQ with a delay there, so the client waits, and holds the message meanwhile:
    not beyond its timeout, less a margin for the way to nsqd.
    """
    margin = max(0.05 * msg_timeout, 0.1)
    return max(now, min(now + delay, deadline - margin))
