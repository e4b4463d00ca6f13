"""What an engine should have: plain records, and a comparison with what it really has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.entry import COST, Entry
from nsqflow.broker.engine.subscriber import Subscriber
from nsqflow.broker.engine.topic import Topic
from tests.unit.broker.engine.ledger import Row


@dataclass
class Copy:
    """A message as one topic or channel should have it."""

    id: bytes
    body: bytes
    timestamp: int
    due: int = 0
    attempts: int = 0
    noted: int = 0
    """The attempts that the journal knows of."""
    deferred: bool = False
    owner: Subscriber | None = None
    delivered: int = 0
    deadline: int = 0

    @property
    def waiting(self) -> bool:
        return self.owner is None and not self.deferred

    def handed_on(self, now: int) -> Copy:
        """The same for a channel."""
        return Copy(self.id, self.body, self.timestamp, self.due, deferred=self.due > now)

    def again(self, due: int, now: int) -> None:
        self.owner, self.due, self.deferred = None, due, due > now
        self.noted = self.attempts

    def is_like(self, entry: Entry) -> bool:
        return (self.id, self.body, self.timestamp, self.due, self.attempts) == (
            *(entry.id, entry.body, entry.timestamp, entry.due, entry.attempts),
        )

    def is_kept_as(self, row: Row) -> bool:
        return (self.body, self.timestamp, self.due, self.noted) == (
            *(row.body, row.timestamp, row.due, row.attempts),
        )


@dataclass
class ExpectedChannel:
    """A channel, and who has which of its messages."""

    real: Channel
    kept: bool
    paused: bool = False
    copies: dict[bytes, Copy] = field(default_factory=dict)
    subscribers: list[Subscriber] = field(default_factory=list)
    departed: list[Subscriber] = field(default_factory=list)
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    last_in_order: bytes = b""
    """The last message delivered of those that were never put off."""

    @property
    def ephemeral(self) -> bool:
        return self.real.name.endswith("#ephemeral")

    def in_flight(self) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.owner is not None]

    def deferred(self) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.deferred]

    def waiting(self) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.waiting]

    def check(self, rows: dict[bytes, Row] | None) -> int:
        """Compare all there is with all there should be; returns how much memory it takes."""
        real = self.real
        assert real.paused is self.paused
        assert [*real.subscribers] == self.subscribers
        assert (real.message_count, real.requeue_count, real.timeout_count) == (
            *(self.message_count, self.requeue_count, self.timeout_count),
        )
        ready = [*real._backlog.ready]
        deferred = [*real._deferred]
        held = [entry for each in self.everyone() for entry in each.held.values()]
        self._check_states(ready, deferred, held)
        in_memory = [*ready, *deferred, *held]
        _check_copies(self.copies, in_memory, rows, real.backend_depth)
        assert real.depth == len(self.waiting())
        assert real.deferred_count == len(deferred)
        assert real.in_flight_count == len(held)
        return memory_of(in_memory)

    def everyone(self) -> Iterator[Subscriber]:
        """Those that are subscribed, and those that left."""
        yield from self.subscribers
        yield from self.departed

    def _check_states(self, ready: list[Entry], deferred: list[Entry], held: list[Entry]) -> None:
        assert all(self.copies[entry.id].waiting for entry in ready)
        assert {entry.id for entry in deferred} == {copy.id for copy in self.deferred()}
        assert {entry.id for entry in held} == {copy.id for copy in self.in_flight()}
        for subscriber in self.everyone():
            for entry in subscriber.held.values():
                copy = self.copies[entry.id]
                assert copy.owner is subscriber
                assert (entry.delivered, entry.deadline) == (copy.delivered, copy.deadline)


@dataclass
class ExpectedTopic:
    """A topic, its channels, and what none of them has yet."""

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
        """Compare all there is with all there should be; returns how much memory it takes."""
        real = self.real
        assert real.paused is self.paused
        assert real.channels == {name: each.real for name, each in self.channels.items()}
        assert (real.message_count, real.message_bytes) == (self.message_count, self.message_bytes)
        in_memory = [*real._backlog.ready]
        _check_copies(self.copies, in_memory, rows, real.backend_depth)
        assert real.depth == len(self.copies)
        return memory_of(in_memory)


@dataclass
class ExpectedPublication:
    """Messages that the journal was given and has not confirmed, and where they are to go."""

    topic: ExpectedTopic
    copies: list[Copy]
    channels: list[ExpectedChannel] | None
    """``None``: the topic keeps them."""

    @property
    def size(self) -> int:
        return sum(COST + len(copy.body) for copy in self.copies)

    def goes_to(self, at: ExpectedTopic | ExpectedChannel) -> bool:
        if self.channels is None:
            return self.topic is at
        return any(channel is at for channel in self.channels)

    def spread(self, topic: ExpectedTopic) -> None:
        """Go to the channels of a topic that would have kept it."""
        if self.channels is None and self.topic is topic:
            self.channels = [*topic.channels.values()]

    def forget(self, at: ExpectedTopic | ExpectedChannel) -> None:
        """Go there no more: what is there is lost."""
        if self.channels is not None:
            self.channels = [channel for channel in self.channels if channel is not at]
        elif self.topic is at:
            self.channels = []


def _check_copies(
    copies: dict[bytes, Copy], in_memory: list[Entry], rows: dict[bytes, Row] | None, spilled: int
) -> None:
    ids = {entry.id for entry in in_memory}
    assert len(ids) == len(in_memory), "something is there twice"
    assert all(copies[entry.id].is_like(entry) for entry in in_memory)
    if rows is None:
        assert ids == copies.keys()
        assert spilled == 0
    else:
        assert rows.keys() == copies.keys()
        assert all(copies[id].is_kept_as(row) for id, row in rows.items())
        elsewhere = rows.keys() - ids
        assert spilled == len(elsewhere)
        assert not any(rows[id].due for id in elsewhere), "what was put off stays in memory"


def memory_of(entries: Iterable[Entry]) -> int:
    return sum(COST + len(entry.body) for entry in entries)
