"""A channel: its backlog, what is put off, what is in flight, and who gets it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqflow.broker.engine.deferred import Deferred
from nsqflow.broker.engine.entry import COST, MOST_ATTEMPTS, Entry
from nsqflow.broker.engine.journal import NOWHERE
from nsqflow.broker.engine.place import Place
from nsqflow.broker.engine.subscriber import Subscriber

if TYPE_CHECKING:
    from nsqflow.broker.engine.engine import Engine

# What one subscriber is given in one go: more would only wait in the buffer of its socket.
_MOST_BYTES = 256 * 1024


class NotInFlight(Exception):
    """A FIN, REQ or TOUCH for a message that the subscriber does not have; says why."""


class TooManyConsumers(Exception):
    """The channel has as many subscribers as it may have."""


class Channel(Place):
    """A copy of a topic's messages, shared by its subscribers."""

    def __init__(
        self, engine: Engine, topic: str, name: str, place: int, *, spilled: int = 0
    ) -> None:
        super().__init__(engine, name, place, spilled)
        self.topic = topic
        self.requeue_count = 0
        self.timeout_count = 0
        self.in_flight_count = 0
        self.subscribers: dict[Subscriber, None] = {}
        self.gone = False
        """It was deleted."""
        self._deferred = Deferred(engine.timers, self._come_due)
        self._turns: deque[Subscriber] = deque()  # the subscribers, whose turn is next comes last
        self._departed: dict[Subscriber, None] = {}  # those that left with messages in flight

    def __repr__(self) -> str:
        return f"Channel({self.topic!r}, {self.name!r})"

    @property
    def deferred_count(self) -> int:
        """How many messages are put off."""
        return len(self._deferred)

    # Messages come in.

    def put(self, entries: Sequence[Entry]) -> None:
        """Take new messages, of which none is put off."""
        self.message_count += len(entries)
        self._backlog.put(entries)
        self._engine.wake(self)

    def hold(self, entry: Entry, now: int) -> None:
        """Take a message that was put off, be it due or not."""
        self.message_count += 1
        self.restore(entry, now)

    def restore(self, entry: Entry, now: int) -> None:
        """Take a message that was put off and is not counted as new."""
        self._engine.memory.used += entry.size
        self._defer(entry, now)

    def take_spilled(self, count: int) -> None:
        """Know of messages that only the journal has; they are dropped if it is not kept there."""
        self.message_count += count
        if self.place != NOWHERE:
            self._backlog.take_spilled(count)
            self._engine.wake(self)

    def loaded(self, entries: Sequence[Entry]) -> None:
        """Take a page from the journal."""
        self._backlog.loaded(entries)
        self._engine.wake(self)

    # Messages go out.

    def deliver(self, now: int) -> list[tuple[Subscriber, list[Entry]]]:
        """Decide who gets what, and put it in flight."""
        given: list[tuple[Subscriber, list[Entry]]] = []
        if not self.paused:
            hungry = [each for each in self._turns if each.room]
            self._turns.rotate(1)
            while hungry and self._backlog.ready:
                share = -(-len(self._backlog.ready) // len(hungry))
                subscriber = hungry.pop()
                if entries := self._give(subscriber, min(share, subscriber.room), now):
                    given.append((subscriber, entries))
            if self._backlog.ready and any(each.room for each in self._turns):
                self._engine.wake(self)  # there was more than goes out in one go
        self._backlog.want()
        return given

    def _give(self, subscriber: Subscriber, most: int, now: int) -> list[Entry]:
        ready, held = self._backlog.ready, subscriber.held
        deadline = now + subscriber.msg_timeout
        entries: list[Entry] = []
        size = 0
        while ready and len(entries) < most and size < _MOST_BYTES:
            entry = ready.popleft()
            if subscriber.sample_rate and self._engine.chance() > subscriber.sample_rate:
                self._finished((entry,))
                continue
            if entry.attempts < MOST_ATTEMPTS:
                entry.attempts += 1
            entry.delivered = now
            entry.deadline = deadline
            held[entry.id] = entry
            entries.append(entry)
            size += len(entry.body)
        self.in_flight_count += len(entries)
        subscriber.message_count += len(entries)
        if entries and not subscriber.armed:
            subscriber.armed = True
            self._engine.timers.at(deadline, self._expire, subscriber)
        return entries

    # What subscribers say.

    def add(self, subscriber: Subscriber) -> None:
        """Subscribe."""
        if subscriber in self.subscribers:
            return
        most = self._engine.max_channel_consumers
        if most and len(self.subscribers) >= most:
            raise TooManyConsumers(
                f"consumers for {self.topic}:{self.name} exceeds limit of {most}"
            )
        self.subscribers[subscriber] = None
        self._turns.append(subscriber)
        self._engine.wake(self)

    def remove(self, subscriber: Subscriber) -> None:
        """Forget a subscriber; what it has in flight stays so until its time is over."""
        if self.subscribers.pop(subscriber, 0) == 0:
            return
        self._turns.remove(subscriber)
        if subscriber.held:
            self._departed[subscriber] = None
        if self.ephemeral and not self.subscribers:
            self._engine.topics[self.topic].delete_channel(self.name)

    def finish(self, subscriber: Subscriber, ids: Sequence[bytes]) -> list[tuple[bytes, str]]:
        """Be done with messages; returns those that could not be finished, and why."""
        done: list[Entry] = []
        failed: list[tuple[bytes, str]] = []
        take = subscriber.held.pop
        for id in ids:
            entry = take(id, None)
            if entry is not None:
                done.append(entry)
            else:
                failed.append((id, self._why_not(id)))
        if done:
            subscriber.finish_count += len(done)
            self.in_flight_count -= len(done)
            self._finished(done)
            self._engine.wake(self)
        return failed

    def requeue(self, subscriber: Subscriber, id: bytes, delay: int, now: int) -> None:
        """Have a message come again, after a delay."""
        entry = self._owned(subscriber, id)
        del subscriber.held[id]
        self.in_flight_count -= 1
        self.requeue_count += 1
        subscriber.requeue_count += 1
        self._again(entry, now + delay, now)
        self._engine.wake(self)

    def touch(self, subscriber: Subscriber, id: bytes, now: int) -> None:
        """Let the time of a message begin anew, up to the utmost since its delivery."""
        entry = self._owned(subscriber, id)
        utmost = entry.delivered + self._engine.max_msg_timeout
        deadline = min(now + subscriber.msg_timeout, utmost)
        if deadline == entry.deadline:
            return  # it has had all it can get, and its place among the others is the right one
        entry.deadline = deadline
        subscriber.held[id] = subscriber.held.pop(id)  # behind the others now
        if deadline == utmost:
            self._engine.timers.at(utmost, self._expire_one, (subscriber, id))

    def changed(self) -> None:
        """Look again: a subscriber takes more than before, or reads again."""
        self._engine.wake(self)

    # What operators say.

    def pause(self) -> None:
        """Deliver nothing."""
        self._set_paused(True)

    def unpause(self) -> None:
        """Deliver again."""
        self._set_paused(False)
        self._engine.wake(self)

    def empty(self) -> None:
        """Forget all messages, those in flight included."""
        self._journal.clear(self.place)
        self._engine.topics[self.topic].forget_unstored(self)
        self._forget()
        self._engine.wake(self)

    def close(self) -> None:
        """Forget all messages, and all subscribers: the channel is being deleted."""
        self.gone = True
        self._forget()
        self.subscribers.clear()
        self._turns.clear()

    def recall(self, now: int) -> None:
        """Take back what is in flight, as a server does that stops: its subscribers are lost."""
        for subscriber in (*self.subscribers, *self._departed):
            for entry in subscriber.held.values():
                self._again(entry, now, now)
            subscriber.held.clear()
        self.in_flight_count = 0
        self.subscribers.clear()
        self._turns.clear()
        self._departed.clear()

    # Private methods

    def _owned(self, subscriber: Subscriber, id: bytes) -> Entry:
        entry = subscriber.held.get(id)
        if entry is None:
            raise NotInFlight(self._why_not(id))
        return entry

    def _why_not(self, id: bytes) -> str:
        if any(id in each.held for each in (*self.subscribers, *self._departed)):
            return "client does not own message"
        return "ID not in flight"

    def _finished(self, entries: Sequence[Entry]) -> None:
        ids = [entry.id for entry in entries]
        self._engine.memory.used -= COST * len(ids) + sum([len(each.body) for each in entries])
        self._journal.finish(self.place, ids)

    def _again(self, entry: Entry, due: int, now: int) -> None:
        entry.due = due
        self._journal.requeue(self.place, entry.id, entry.attempts, due)
        self._defer(entry, now)

    def _defer(self, entry: Entry, now: int) -> None:
        if entry.due <= now:
            self._backlog.again(entry)
            self._engine.wake(self)
        else:
            self._deferred.add(entry)

    def _come_due(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._backlog.again(entry)
        self._engine.wake(self)

    def _expire(self, subscriber: Subscriber, now: int) -> None:
        held = subscriber.held
        while held:
            entry = next(iter(held.values()))
            if entry.deadline > now:
                self._engine.timers.at(entry.deadline, self._expire, subscriber)
                return
            self._time_out(subscriber, entry, now)
        subscriber.armed = False
        self._departed.pop(subscriber, None)

    def _expire_one(self, which: tuple[Subscriber, bytes], now: int) -> None:
        subscriber, id = which
        entry = subscriber.held.get(id)
        if entry is not None and entry.deadline <= now:
            self._time_out(subscriber, entry, now)

    def _time_out(self, subscriber: Subscriber, entry: Entry, now: int) -> None:
        del subscriber.held[entry.id]
        self.in_flight_count -= 1
        self.timeout_count += 1
        self._again(entry, now, now)

    def _forget(self) -> None:
        memory = self._engine.memory
        memory.used -= sum(entry.size for entry in self._deferred)
        for subscriber in (*self.subscribers, *self._departed):
            memory.used -= sum(entry.size for entry in subscriber.held.values())
            subscriber.held.clear()
        self._departed.clear()
        self._deferred.clear()
        self.in_flight_count = 0
        self._backlog.clear()
