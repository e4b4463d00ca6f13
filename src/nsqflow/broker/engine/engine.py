"""The engine of an nsqd: its topics, timers and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, TypeVar

from nsqflow.broker.engine.channel import Channel, Subscriber
from nsqflow.broker.engine.journal import NOT_PERSISTED, Create, Drop, Journal, Operation
from nsqflow.broker.engine.message import GuidFactory, QueuedMessage
from nsqflow.broker.engine.queue import MemoryBudget, MemoryQueue
from nsqflow.broker.engine.topic import PendingPublish, Topic
from nsqflow.protocol.names import is_ephemeral

# Even with a small mem_queue_size there must be space for a page from the journal, and for what
# arrives between two deliveries of an ephemeral channel, which would drop it.
_MIN_CAPACITY = 100
T = TypeVar("T")


class TimerHeap:
    """Calls ``act(thing, now)`` when due; ``act`` must check whether it still applies."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[Any, int], None], Any]] = []
        self._order = count()  # breaks ties, so that callbacks are never compared

    def at(self, when: int, act: Callable[[T, int], None], thing: T) -> None:
        """Call ``act(thing, now)`` at the time ``when``."""
        heappush(self._heap, (when, next(self._order), act, thing))

    def cancel(self, act: Callable[[T, int], None]) -> None:
        """Remove all timers that call ``act``."""
        self._heap[:] = [each for each in self._heap if each[2] != act]
        heapify(self._heap)

    @property
    def next_at(self) -> int | None:
        """The time of the next timer."""
        return self._heap[0][0] if self._heap else None

    def tick(self, now: int) -> None:
        """Run all timers that are due."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, act, thing = heappop(heap)
            act(thing, now)


class EngineObserver:
    """Receives notifications from an engine; a subclass overrides what it needs."""

    def created(self, topic: str, channel: str | None) -> None:
        """Called after a topic or channel was created."""

    def deleted(self, topic: str, channel: str | None) -> None:
        """Called after a topic or channel was deleted."""

    def closed(self, subscribers: Sequence[Subscriber]) -> None:
        """Called after the channel of these subscribers was deleted."""


@dataclass(frozen=True, slots=True)
class RestoredQueue:
    """A topic or channel as the journal has stored it."""

    queue_id: int
    topic: str
    channel: str | None = None
    paused: bool = False
    spilled: int = 0
    """Number of messages that were never deferred; they are loaded when needed."""
    messages: Sequence[QueuedMessage] = field(default=(), repr=False)
    """The messages that were deferred."""


class Engine:
    """All topics of one nsqd."""

    def __init__(
        self,
        *,
        node_id: int = 0,
        mem_queue_size: int = 10_000,
        max_memory: int = 256 * 1024 * 1024,
        max_msg_timeout: int = 900 * 10**9,
        max_channel_consumers: int = 0,
        journal: Journal | None = None,
        observer: EngineObserver | None = None,
        random_percent: Callable[[], int] = lambda: 0,
    ) -> None:
        self.topics: dict[str, Topic] = {}
        self.stored_channels: dict[int, Channel] = {}
        """The persisted channels by their queue ids."""
        self.durable = journal is not None
        self.observer = observer or EngineObserver()
        self.memory = MemoryBudget(max_memory)
        self.timers = TimerHeap()
        self.ids = GuidFactory(node_id)
        self.max_msg_timeout = max_msg_timeout
        self.max_channel_consumers = max_channel_consumers
        self.random_percent = random_percent
        """Returns a number from 0 to 99, for the sample rate."""
        self._journal = journal
        self._node_id = node_id
        self._mem_queue_size = mem_queue_size
        self._queue_ids = count(1)
        self._dirty_channels: dict[Channel, None] = {}
        self._unstored: list[PendingPublish] = []  # published since the last take_unstored()

    # Public methods

    def topic(self, name: str, now: int) -> Topic:
        """Return the topic of this name; create it if it does not exist."""
        topic = self.topics.get(name)
        if topic is None:
            queue_id = self.new_queue_id(kept=not is_ephemeral(name))
            topic = self.topics[name] = Topic(self, name, queue_id)
            self.record(Create(queue_id, name))
            self.observer.created(name, None)
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its channels; raise ``KeyError`` if it does not exist."""
        topic = self.topics.pop(name)
        topic.close()
        self.record(Drop(topic.queue_id))
        self.observer.deleted(name, None)

    def tick(self, now: int) -> None:
        """Run the timers that are due: message timeouts and deferred messages."""
        self.timers.tick(now)

    @property
    def next_at(self) -> int | None:
        """The time of the next timer."""
        return self.timers.next_at

    @property
    def has_work(self) -> bool:
        """Whether ``deliver`` may have something to deliver."""
        return bool(self._dirty_channels)

    def deliver(self, now: int) -> list[tuple[Subscriber, list[QueuedMessage]]]:
        """Put messages in flight; return which subscriber gets which."""
        channels, self._dirty_channels = self._dirty_channels, {}
        return [
            each for channel in channels if not channel.deleted for each in channel.deliver(now)
        ]

    def page_loaded(self, queue_id: int, messages: Sequence[QueuedMessage]) -> None:
        """Take a page that was requested from the journal."""
        if (channel := self.stored_channels.get(queue_id)) is not None:
            channel.page_loaded(messages)

    def take_unstored(self) -> list[PendingPublish]:
        """Return what was passed to the journal since the last call.

        Each such group must be passed to ``stored`` or ``not_stored``, in the order of these calls.
        """
        group, self._unstored = self._unstored, []
        return group

    def stored(self, group: Iterable[PendingPublish], now: int) -> None:
        """Queue messages that the journal has stored."""
        for publication in group:
            self.memory.used -= publication.size
            publication.topic.stored(publication, now)

    def not_stored(self, group: Iterable[PendingPublish]) -> None:
        """Drop messages that the journal could not store."""
        for publication in group:
            self.memory.used -= publication.size
            publication.topic.not_stored(publication)

    def requeue_in_flight(self, now: int) -> None:
        """Requeue all messages in flight, as a server does when it stops."""
        for topic in self.topics.values():
            topic.start((), now)
            for channel in topic.channels.values():
                channel.requeue_in_flight(now)

    def without_messages(self) -> Engine:
        """Return the engine of a server that was killed and restarted without a journal.

        nsqd keeps the names of topics and channels, and which of them are paused.
        """
        survivor = Engine(
            node_id=self._node_id,
            mem_queue_size=self._mem_queue_size,
            max_memory=self.memory.limit,
            max_msg_timeout=self.max_msg_timeout,
            max_channel_consumers=self.max_channel_consumers,
            random_percent=self.random_percent,
        )
        survivor.ids = self.ids
        for topic in self.topics.values():
            if topic.ephemeral:
                continue
            copy = survivor.topics[topic.name] = Topic(survivor, topic.name, NOT_PERSISTED)
            copy.paused = topic.paused
            for channel in topic.channels.values():
                if not channel.ephemeral:
                    copy.add_channel(channel.name, NOT_PERSISTED).paused = channel.paused
        return survivor

    def restore(
        self, queues: Iterable[RestoredQueue], last_id: bytes, last_queue_id: int, now: int
    ) -> None:
        """Restore what the journal has stored; topics come before their channels."""
        self.ids = GuidFactory(self._node_id, last_id)
        self._queue_ids = count(last_queue_id + 1)
        for each in queues:
            at: Topic | Channel
            if each.channel is None:
                at = self.topics[each.topic] = Topic(
                    self, each.topic, each.queue_id, spilled=each.spilled
                )
                for message in each.messages:
                    at.restore(message)
            else:
                topic = self.topics[each.topic]
                at = topic.add_channel(each.channel, each.queue_id, each.spilled)
                for message in each.messages:
                    at.restore(message, now)
                self.mark_dirty(at)
            at.paused = each.paused
        for topic in self.topics.values():
            topic.fan_out(now)

    # For topics and channels

    def await_storage(self, publication: PendingPublish) -> None:
        """Hold messages that were passed to the journal until they are stored."""
        self.memory.used += publication.size
        self._unstored.append(publication)

    def mark_dirty(self, channel: Channel) -> None:
        """Include a channel in the next ``deliver``."""
        self._dirty_channels[channel] = None

    def record(self, operation: Operation) -> None:
        """Pass an operation on a persisted queue to the journal."""
        if self._journal is not None and operation.queue_id != NOT_PERSISTED:
            self._journal.record(operation)

    def new_queue_id(self, *, kept: bool) -> int:
        """Return a new id for a queue that is persisted, else ``NOT_PERSISTED``."""
        return next(self._queue_ids) if kept and self.durable else NOT_PERSISTED

    def new_queue(self, queue_id: int, ephemeral: bool, spilled: int) -> MemoryQueue:
        """Return an empty queue; bounded if excess messages can be loaded again or are dropped."""
        bounded = queue_id != NOT_PERSISTED or ephemeral
        capacity = max(self._mem_queue_size, _MIN_CAPACITY) if bounded else None
        return MemoryQueue(queue_id, self.record, self.memory, capacity, spilled)
