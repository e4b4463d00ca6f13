"""A topic: takes published messages and copies them to its channels."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.journal import NOT_PERSISTED, Clear, Create, Drop, FanOut, Put
from nsqflow.broker.engine.message import MESSAGE_OVERHEAD, QueuedMessage
from nsqflow.broker.engine.queue import NamedQueue
from nsqflow.protocol.names import is_ephemeral

if TYPE_CHECKING:
    from nsqflow.broker.engine.engine import Engine


@dataclass(slots=True, eq=False)
class PendingPublish:
    """Messages of one publish that the journal has not confirmed yet.

    They are in no queue until they are stored, so none of them is delivered, counted or loaded
    before that. If they cannot be stored, no queue has ever had them.
    """

    topic: Topic
    messages: Sequence[QueuedMessage]
    body_bytes: int
    channels: list[Channel] | None
    """The channels that the journal puts them into; None for the topic itself."""

    @property
    def size(self) -> int:
        """Approximate size in memory."""
        return self.body_bytes + MESSAGE_OVERHEAD * len(self.messages)


class OutOfMemory(Exception):
    """``max_memory`` is exhausted; nothing of the publish was taken."""


class Topic(NamedQueue):
    """A stream of messages; it keeps them while it has no channels."""

    def __init__(self, engine: Engine, name: str, queue_id: int, *, spilled: int = 0) -> None:
        super().__init__(engine, name, queue_id, spilled)
        self.message_bytes = 0
        self.channels: dict[str, Channel] = {}
        self.waiting = False
        """True while the channels to create are being looked up; nothing goes to the channels yet.
        """
        self._unstored: deque[PendingPublish] = deque()  # the oldest first

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    def publish(self, bodies: Sequence[bytes], now: int, delay: int = 0) -> bool:
        """Take messages, or raise ``OutOfMemory`` and take none of them.

        Returns whether the journal must store them; until it has, they are in no queue.
        """
        if not bodies:
            return False
        size = sum(map(len, bodies))
        self._check_memory(size + MESSAGE_OVERHEAD * len(bodies), spillable=not delay)
        due = now + delay if delay else 0
        ids = self._engine.ids.take(len(bodies), now)
        messages = [*map(QueuedMessage, ids, repeat(now), bodies, repeat(0), repeat(due))]
        keep = self.paused or self.waiting or not self.channels
        channels = None if keep else [*self.channels.values()]
        if self.queue_id == NOT_PERSISTED:
            self._accept(messages, size, channels, now)
            return False
        self._await_storage(PendingPublish(self, messages, size, channels))
        return True

    def stored(self, publication: PendingPublish, now: int) -> None:
        """Queue the messages of a publish, which are stored now."""
        self._unstored.remove(publication)
        self._accept(publication.messages, publication.body_bytes, publication.channels, now)

    def not_stored(self, publication: PendingPublish) -> None:
        """Drop the messages of a publish, which could not be stored."""
        self._unstored.remove(publication)

    def channel(self, name: str, now: int) -> Channel:
        """Return the channel of this name; create it if it does not exist."""
        channel = self.channels.get(name)
        if channel is None:
            queue_id = self._engine.new_queue_id(
                kept=self.queue_id != NOT_PERSISTED and not is_ephemeral(name)
            )
            channel = self.add_channel(name, queue_id)
            self._engine.record(Create(queue_id, self.name, name))
            self._engine.observer.created(self.name, name)
            self.fan_out(now)
        return channel

    def delete_channel(self, name: str) -> None:
        """Delete a channel with its messages; raise ``KeyError`` if it does not exist."""
        self._drop(self.channels.pop(name))
        if self.ephemeral and not self.channels:
            self._engine.delete_topic(self.name)

    def add_channel(self, name: str, queue_id: int, spilled: int = 0) -> Channel:
        """Add a channel that the journal has, or is about to have."""
        channel = Channel(self._engine, self.name, name, queue_id, spilled=spilled)
        self.channels[name] = channel
        if queue_id != NOT_PERSISTED:
            self._engine.stored_channels[queue_id] = channel
        return channel

    def restore(self, message: QueuedMessage) -> None:
        """Restore a message that was deferred."""
        self._queue.put_deferred(message)

    def start(self, channels: Iterable[str], now: int) -> None:
        """Create these channels and stop waiting for others."""
        for name in channels:
            self.channel(name, now)
        self.waiting = False
        self.fan_out(now)

    def pause(self) -> None:
        """Keep new messages in the topic instead of the channels."""
        self._set_paused(True)

    def unpause(self, now: int) -> None:
        """Copy messages to the channels again, beginning with those kept meanwhile."""
        self._set_paused(False)
        self.fan_out(now)

    def fan_out(self, now: int) -> None:
        """Move the messages kept in the topic to its channels."""
        if self.paused or self.waiting or not self.channels:
            return
        unstored = self._unstored_in_topic()
        if not self._queue and not unstored:
            return
        spilled, messages = self._queue.spilled, [*self._queue.ready]
        self._queue.clear()
        queues = [
            each.queue_id for each in self.channels.values() if each.queue_id != NOT_PERSISTED
        ]
        self._engine.record(FanOut(self.queue_id, queues))
        for channel in self.channels.values():
            self._put_into(channel, [message.copy() for message in messages], now)
            channel.add_spilled(spilled)
        # The journal moves these too.
        for publication in unstored:
            publication.channels = [*self.channels.values()]

    def empty(self) -> None:
        """Drop the messages that no channel has."""
        self._engine.record(Clear(self.queue_id))
        self._clear()

    def drop_unstored(self, channel: Channel) -> None:
        """Keep unstored messages out of a channel that is being emptied or deleted."""
        for publication in self._unstored:
            if publication.channels is not None and channel in publication.channels:
                publication.channels.remove(channel)

    def close(self) -> None:
        """Delete all channels and drop the messages, because the topic is being deleted."""
        while self.channels:
            self._drop(self.channels.popitem()[1])
        self._clear()

    # Private methods

    def _check_memory(self, size: int, spillable: bool) -> None:
        # Persisted messages need not be in memory, unless they are deferred.
        engine = self._engine
        if spillable and engine.durable and self.queue_id != NOT_PERSISTED:
            return
        size *= max(len(self.channels), 1)
        if engine.memory.used + size > engine.memory.limit:
            raise OutOfMemory(
                f"{size} bytes beside {engine.memory.used} of at most {engine.memory.limit} "
                "in memory (max-memory)"
            )

    def _await_storage(self, publication: PendingPublish) -> None:
        channels = publication.channels
        for queue in [self] if channels is None else channels:
            if queue.queue_id != NOT_PERSISTED:
                self._engine.record(Put.of(queue.queue_id, publication.messages))
        self._unstored.append(publication)
        self._engine.await_storage(publication)

    def _unstored_in_topic(self) -> list[PendingPublish]:
        return [each for each in self._unstored if each.channels is None]

    def _accept(
        self,
        messages: Sequence[QueuedMessage],
        size: int,
        channels: Sequence[Channel] | None,
        now: int,
    ) -> None:
        self.message_count += len(messages)
        self.message_bytes += size
        if channels is None:
            self._keep(messages)
            return
        for number, channel in enumerate(channels):
            # The first channel takes the messages themselves, the others copies.
            self._put_into(
                channel, [message.copy() for message in messages] if number else messages, now
            )

    def _keep(self, messages: Sequence[QueuedMessage]) -> None:
        if messages[0].due:
            for message in messages:
                self._queue.put_deferred(message)
        else:
            self._queue.put(messages)

    def _clear(self) -> None:
        for publication in self._unstored_in_topic():
            publication.channels = []
        self._queue.clear()

    @staticmethod
    def _put_into(channel: Channel, messages: Sequence[QueuedMessage], now: int) -> None:
        deferred = [message for message in messages if message.due]
        for message in deferred:
            channel.put_deferred(message, now)
        if len(deferred) < len(messages):
            channel.put(
                [message for message in messages if not message.due] if deferred else messages
            )

    def _drop(self, channel: Channel) -> None:
        subscribers = [*channel.subscribers]
        self.drop_unstored(channel)
        channel.close()
        self._engine.stored_channels.pop(channel.queue_id, None)
        self._engine.record(Drop(channel.queue_id))
        self._engine.observer.deleted(self.name, channel.name)
        self._engine.observer.closed(subscribers)
