"""A channel: its queue, its deferred and in-flight messages, and its subscribers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsqflow.broker.engine.journal import NOT_PERSISTED, Clear, Finish, Requeue
from nsqflow.broker.engine.message import MAX_ATTEMPTS, MESSAGE_OVERHEAD, QueuedMessage
from nsqflow.broker.engine.queue import NamedQueue

if TYPE_CHECKING:
    from nsqflow.broker.engine.engine import Engine


@dataclass(slots=True, eq=False)
class Subscriber:
    """A subscribed client as the engine sees it: RDY, message timeout and messages in flight."""

    owner: Any
    """Opaque reference to the client connection; unused by the engine."""
    msg_timeout: int
    sample_rate: int = 0
    """Percentage of messages to deliver, the others are dropped; 0 delivers all."""
    rdy: int = 0
    closing: bool = False
    """The client has sent CLS: it gets no more messages."""
    blocked: bool = False
    """The client does not read: it gets no messages until it does."""
    # Ordered by deadline. A message that was touched up to its maximum may come after others with
    # later deadlines; it has a timer of its own.
    in_flight: dict[bytes, QueuedMessage] = field(default_factory=dict)
    timer_set: bool = False
    """There is a timer for the first message in flight."""
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0

    @property
    def in_flight_count(self) -> int:
        """The number of messages in flight."""
        return len(self.in_flight)

    @property
    def capacity(self) -> int:
        """The number of further messages that it accepts."""
        if self.closing or self.blocked:
            return 0
        return max(self.rdy - len(self.in_flight), 0)


# Bytes that one subscriber gets per delivery; more would only wait in the socket's buffer.
_MAX_BYTES = 256 * 1024


class NotInFlight(Exception):
    """A FIN, REQ or TOUCH for a message that is not in flight to the subscriber."""


class TooManyConsumers(Exception):
    """The channel has reached ``max_channel_consumers``."""


class Channel(NamedQueue):
    """A copy of a topic's messages, shared by the channel's subscribers."""

    def __init__(
        self, engine: Engine, topic: str, name: str, queue_id: int, *, spilled: int = 0
    ) -> None:
        super().__init__(engine, name, queue_id, spilled)
        self.topic = topic
        self.requeue_count = 0
        self.timeout_count = 0
        self.in_flight_count = 0
        self.subscribers: dict[Subscriber, None] = {}
        self.deleted = False
        """The channel was deleted."""
        self._deferred: dict[bytes, QueuedMessage] = {}
        self._round_robin: deque[Subscriber] = deque()  # the next subscriber comes last
        self._disconnected: dict[Subscriber, None] = {}  # with messages still in flight

    def __repr__(self) -> str:
        return f"Channel({self.topic!r}, {self.name!r})"

    @property
    def deferred_count(self) -> int:
        """The number of deferred messages."""
        return len(self._deferred)

    # Incoming messages

    def put(self, messages: Sequence[QueuedMessage]) -> None:
        """Add new messages that are not deferred."""
        self.message_count += len(messages)
        self._queue.put(messages)
        self._engine.mark_dirty(self)

    def put_deferred(self, message: QueuedMessage, now: int) -> None:
        """Add a deferred message, even if it is already due."""
        self.message_count += 1
        self.restore(message, now)

    def restore(self, message: QueuedMessage, now: int) -> None:
        """Add a deferred message that does not count as new."""
        self._engine.memory.used += message.size
        self._defer(message, now)

    def add_spilled(self, count: int) -> None:
        """Count messages that only the journal has; dropped if the channel is not persisted."""
        self.message_count += count
        if self.queue_id != NOT_PERSISTED:
            self._queue.add_spilled(count)
            self._engine.mark_dirty(self)

    def page_loaded(self, messages: Sequence[QueuedMessage]) -> None:
        """Add a page from the journal."""
        self._queue.page_loaded(messages)
        self._engine.mark_dirty(self)

    # Delivery

    def deliver(self, now: int) -> list[tuple[Subscriber, list[QueuedMessage]]]:
        """Choose messages for subscribers with capacity and put them in flight."""
        deliveries: list[tuple[Subscriber, list[QueuedMessage]]] = []
        if not self.paused:
            ready_subscribers = [each for each in self._round_robin if each.capacity]
            self._round_robin.rotate(1)
            while ready_subscribers and self._queue.ready:
                share = -(-len(self._queue.ready) // len(ready_subscribers))
                subscriber = ready_subscribers.pop()
                if messages := self._deliver_to(subscriber, min(share, subscriber.capacity), now):
                    deliveries.append((subscriber, messages))
            if self._queue.ready and any(each.capacity for each in self._round_robin):
                self._engine.mark_dirty(self)  # one delivery was not enough
        self._queue.request_page()
        return deliveries

    def _deliver_to(self, subscriber: Subscriber, most: int, now: int) -> list[QueuedMessage]:
        ready, in_flight = self._queue.ready, subscriber.in_flight
        deadline = now + subscriber.msg_timeout
        messages: list[QueuedMessage] = []
        size = 0
        while ready and len(messages) < most and size < _MAX_BYTES:
            message = ready.popleft()
            if subscriber.sample_rate and self._engine.random_percent() > subscriber.sample_rate:
                self._finished((message,))
                continue
            if message.attempts < MAX_ATTEMPTS:
                message.attempts += 1
            message.delivered = now
            message.deadline = deadline
            in_flight[message.id] = message
            messages.append(message)
            size += len(message.body)
        self.in_flight_count += len(messages)
        subscriber.message_count += len(messages)
        if messages and not subscriber.timer_set:
            subscriber.timer_set = True
            self._engine.timers.at(deadline, self._expire, subscriber)
        return messages

    # Commands of subscribers

    def add(self, subscriber: Subscriber) -> None:
        """Subscribe."""
        if subscriber in self.subscribers:
            return
        limit = self._engine.max_channel_consumers
        if limit and len(self.subscribers) >= limit:
            raise TooManyConsumers(
                f"consumers for {self.topic}:{self.name} exceeds limit of {limit}"
            )
        self.subscribers[subscriber] = None
        self._round_robin.append(subscriber)
        self._engine.mark_dirty(self)

    def remove(self, subscriber: Subscriber) -> None:
        """Unsubscribe; messages in flight are requeued when they time out."""
        if self.subscribers.pop(subscriber, 0) == 0:
            return
        self._round_robin.remove(subscriber)
        if subscriber.in_flight:
            self._disconnected[subscriber] = None
        if self.ephemeral and not self.subscribers:
            self._engine.topics[self.topic].delete_channel(self.name)

    def finish(self, subscriber: Subscriber, ids: Sequence[bytes]) -> list[tuple[bytes, str]]:
        """Finish messages; return those that could not be finished, and why."""
        done: list[QueuedMessage] = []
        failed: list[tuple[bytes, str]] = []
        take = subscriber.in_flight.pop
        for id in ids:
            message = take(id, None)
            if message is not None:
                done.append(message)
            else:
                failed.append((id, self._not_in_flight_reason(id)))
        if done:
            subscriber.finish_count += len(done)
            self.in_flight_count -= len(done)
            self._finished(done)
            self._engine.mark_dirty(self)
        return failed

    def requeue(self, subscriber: Subscriber, id: bytes, delay: int, now: int) -> None:
        """Requeue a message, after a delay."""
        message = self._find_in_flight(subscriber, id)
        del subscriber.in_flight[id]
        self.in_flight_count -= 1
        self.requeue_count += 1
        subscriber.requeue_count += 1
        self._requeue(message, now + delay, now)
        self._engine.mark_dirty(self)

    def touch(self, subscriber: Subscriber, id: bytes, now: int) -> None:
        """Restart the timeout of a message, up to ``max_msg_timeout`` after its delivery."""
        message = self._find_in_flight(subscriber, id)
        max_deadline = message.delivered + self._engine.max_msg_timeout
        deadline = min(now + subscriber.msg_timeout, max_deadline)
        if deadline == message.deadline:
            return  # already at its maximum, and in the right order
        message.deadline = deadline
        # To the end: it has the latest deadline now.
        subscriber.in_flight[id] = subscriber.in_flight.pop(id)
        if deadline == max_deadline:
            self._engine.timers.at(max_deadline, self._expire_one, (subscriber, id))

    def subscriber_changed(self) -> None:
        """Deliver soon: a subscriber has more capacity, or reads again."""
        self._engine.mark_dirty(self)

    # Administration

    def pause(self) -> None:
        """Stop delivering."""
        self._set_paused(True)

    def unpause(self) -> None:
        """Deliver again."""
        self._set_paused(False)
        self._engine.mark_dirty(self)

    def empty(self) -> None:
        """Drop all messages, including those in flight."""
        self._engine.record(Clear(self.queue_id))
        self._engine.topics[self.topic].drop_unstored(self)
        self._drop_messages()
        self._engine.mark_dirty(self)

    def close(self) -> None:
        """Drop all messages and subscribers, because the channel is being deleted."""
        self.deleted = True
        self._drop_messages()
        self.subscribers.clear()
        self._round_robin.clear()

    def requeue_in_flight(self, now: int) -> None:
        """Requeue all messages in flight and drop the subscribers: the server is stopping."""
        for subscriber in (*self.subscribers, *self._disconnected):
            for message in subscriber.in_flight.values():
                self._requeue(message, now, now)
            subscriber.in_flight.clear()
        self.in_flight_count = 0
        self.subscribers.clear()
        self._round_robin.clear()
        self._disconnected.clear()

    # Private methods

    def _find_in_flight(self, subscriber: Subscriber, id: bytes) -> QueuedMessage:
        message = subscriber.in_flight.get(id)
        if message is None:
            raise NotInFlight(self._not_in_flight_reason(id))
        return message

    def _not_in_flight_reason(self, id: bytes) -> str:
        if any(id in each.in_flight for each in (*self.subscribers, *self._disconnected)):
            return "client does not own message"
        return "ID not in flight"

    def _finished(self, messages: Sequence[QueuedMessage]) -> None:
        size = sum([len(message.body) for message in messages])
        self._engine.memory.used -= MESSAGE_OVERHEAD * len(messages) + size
        if self.queue_id != NOT_PERSISTED:
            self._engine.record(Finish(self.queue_id, [message.id for message in messages]))

    def _requeue(self, message: QueuedMessage, due: int, now: int) -> None:
        message.due = due
        self._engine.record(Requeue(self.queue_id, message.id, message.attempts, due))
        self._defer(message, now)

    def _defer(self, message: QueuedMessage, now: int) -> None:
        if message.due <= now:
            self._queue.put_back(message)
            self._engine.mark_dirty(self)
        else:
            self._deferred[message.id] = message
            self._engine.timers.at(message.due, self._on_due, message.id)

    def _on_due(self, id: bytes, now: int) -> None:
        self._queue.put_back(self._deferred.pop(id))
        self._engine.mark_dirty(self)

    def _expire(self, subscriber: Subscriber, now: int) -> None:
        in_flight = subscriber.in_flight
        while in_flight:
            message = next(iter(in_flight.values()))
            if message.deadline > now:
                self._engine.timers.at(message.deadline, self._expire, subscriber)
                return
            self._time_out(subscriber, message, now)
        subscriber.timer_set = False
        self._disconnected.pop(subscriber, None)

    def _expire_one(self, which: tuple[Subscriber, bytes], now: int) -> None:
        subscriber, id = which
        message = subscriber.in_flight.get(id)
        if message is not None and message.deadline <= now:
            self._time_out(subscriber, message, now)

    def _time_out(self, subscriber: Subscriber, message: QueuedMessage, now: int) -> None:
        del subscriber.in_flight[message.id]
        self.in_flight_count -= 1
        self.timeout_count += 1
        self._requeue(message, now, now)

    def _drop_messages(self) -> None:
        memory = self._engine.memory
        memory.used -= sum(message.size for message in self._deferred.values())
        for subscriber in (*self.subscribers, *self._disconnected):
            memory.used -= sum(message.size for message in subscriber.in_flight.values())
            subscriber.in_flight.clear()
        self._disconnected.clear()
        if self._deferred:
            self._deferred.clear()
            self._engine.timers.cancel(self._on_due)
        self.in_flight_count = 0
        self._queue.clear()
