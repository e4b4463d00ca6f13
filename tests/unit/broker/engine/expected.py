"""The expected state of an engine, and its comparison with the real one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nsqflow.broker.engine.channel import Channel, Subscriber
from nsqflow.broker.engine.message import MESSAGE_OVERHEAD, QueuedMessage
from nsqflow.broker.engine.topic import Topic
from tests.unit.broker.engine.ledger import Row


@dataclass
class Copy:
    """The expected state of a message in one topic or channel."""

    id: bytes
    body: bytes
    timestamp: int
    due: int = 0
    attempts: int = 0
    stored_attempts: int = 0
    """The attempts that the journal has stored."""
    deferred: bool = False
    owner: Subscriber | None = None
    delivered: int = 0
    deadline: int = 0

    @property
    def waiting(self) -> bool:
        return self.owner is None and not self.deferred

    def for_channel(self, now: int) -> Copy:
        """Return the copy that a channel gets."""
        return Copy(self.id, self.body, self.timestamp, self.due, deferred=self.due > now)

    def put_back(self, due: int, now: int) -> None:
        self.owner, self.due, self.deferred = None, due, due > now
        self.stored_attempts = self.attempts

    def is_like(self, message: QueuedMessage) -> bool:
        return (self.id, self.body, self.timestamp, self.due, self.attempts) == (
            *(message.id, message.body, message.timestamp, message.due, message.attempts),
        )

    def is_kept_as(self, row: Row) -> bool:
        return (self.body, self.timestamp, self.due, self.stored_attempts) == (
            *(row.body, row.timestamp, row.due, row.attempts),
        )


@dataclass
class ExpectedChannel:
    """The expected state of a channel."""

    real: Channel
    kept: bool
    paused: bool = False
    copies: dict[bytes, Copy] = field(default_factory=dict)
    subscribers: list[Subscriber] = field(default_factory=list)
    former_subscribers: list[Subscriber] = field(default_factory=list)
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    last_in_order: bytes = b""
    """The last message delivered of those that were never deferred."""

    @property
    def ephemeral(self) -> bool:
        return self.real.name.endswith("#ephemeral")

    def in_flight_copies(self) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.owner is not None]

    def deferred(self) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.deferred]

    def waiting(self) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.waiting]

    def check(self, rows: dict[bytes, Row] | None) -> int:
        """Compare with the real state; return the bytes that it takes in memory."""
        real = self.real
        assert real.paused is self.paused
        assert [*real.subscribers] == self.subscribers
        assert (real.message_count, real.requeue_count, real.timeout_count) == (
            *(self.message_count, self.requeue_count, self.timeout_count),
        )
        ready = [*real._queue.ready]
        deferred = [*real._deferred.values()]
        held = [message for each in self.all_subscribers() for message in each.in_flight.values()]
        self._check_states(ready, deferred, held)
        in_memory = [*ready, *deferred, *held]
        _check_copies(self.copies, in_memory, rows, real.backend_depth)
        assert real.depth == len(self.waiting())
        assert real.deferred_count == len(deferred)
        assert real.in_flight_count == len(held)
        return memory_of(in_memory)

    def all_subscribers(self) -> Iterator[Subscriber]:
        """Yield current and former subscribers."""
        yield from self.subscribers
        yield from self.former_subscribers

    def _check_states(
        self, ready: list[QueuedMessage], deferred: list[QueuedMessage], held: list[QueuedMessage]
    ) -> None:
        assert all(self.copies[message.id].waiting for message in ready)
        assert {message.id for message in deferred} == {copy.id for copy in self.deferred()}
        assert {message.id for message in held} == {copy.id for copy in self.in_flight_copies()}
        for subscriber in self.all_subscribers():
            for message in subscriber.in_flight.values():
                copy = self.copies[message.id]
                assert copy.owner is subscriber
                assert (message.delivered, message.deadline) == (copy.delivered, copy.deadline)


@dataclass
class ExpectedTopic:
    """The expected state of a topic and its channels."""

    real: Topic
    kept: bool
    paused: bool = False
    copies: dict[bytes, Copy] = field(default_factory=dict)
    channels: dict[str, ExpectedChannel] = field(default_factory=dict)
    message_count: int = 0
    message_bytes: int = 0

    @property
    def ephemeral(self) -> bool:
        return self.real.name.endswith("#ephemeral")

    def check(self, rows: dict[bytes, Row] | None) -> int:
        """Compare with the real state; return the bytes that it takes in memory."""
        real = self.real
        assert real.paused is self.paused
        assert real.channels == {name: each.real for name, each in self.channels.items()}
        assert (real.message_count, real.message_bytes) == (self.message_count, self.message_bytes)
        in_memory = [*real._queue.ready]
        _check_copies(self.copies, in_memory, rows, real.backend_depth)
        assert real.depth == len(self.copies)
        return memory_of(in_memory)


@dataclass
class ExpectedPublication:
    """An unconfirmed publish, and the channels that get it."""

    topic: ExpectedTopic
    copies: list[Copy]
    channels: list[ExpectedChannel] | None
    """``None``: the topic keeps them."""

    @property
    def size(self) -> int:
        return sum(MESSAGE_OVERHEAD + len(copy.body) for copy in self.copies)

    def goes_to(self, at: ExpectedTopic | ExpectedChannel) -> bool:
        if self.channels is None:
            return self.topic is at
        return any(channel is at for channel in self.channels)

    def fan_out(self, topic: ExpectedTopic) -> None:
        """Go to the topic's channels if the topic would have kept it."""
        if self.channels is None and self.topic is topic:
            self.channels = [*topic.channels.values()]

    def forget(self, at: ExpectedTopic | ExpectedChannel) -> None:
        """Don't go to a queue that is being emptied or deleted."""
        if self.channels is not None:
            self.channels = [channel for channel in self.channels if channel is not at]
        elif self.topic is at:
            self.channels = []


def _check_copies(
    copies: dict[bytes, Copy],
    in_memory: list[QueuedMessage],
    rows: dict[bytes, Row] | None,
    spilled: int,
) -> None:
    ids = {message.id for message in in_memory}
    assert len(ids) == len(in_memory), "a message is there twice"
    assert all(copies[message.id].is_like(message) for message in in_memory)
    if rows is None:
        assert ids == copies.keys()
        assert spilled == 0
    else:
        assert rows.keys() == copies.keys()
        assert all(copies[id].is_kept_as(row) for id, row in rows.items())
        elsewhere = rows.keys() - ids
        assert spilled == len(elsewhere)
        assert not any(rows[id].due for id in elsewhere), "deferred messages stay in memory"


def memory_of(messages: Iterable[QueuedMessage]) -> int:
    return sum(MESSAGE_OVERHEAD + len(message.body) for message in messages)
