"""A channel of a partition: its place in the log, its subscribers, what they have in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import unpack

from nsqflow.broker.engine.channel import NotInFlight
from nsqflow.broker.engine.engine import TimerHeap
from nsqflow.broker.redesigned.engine.log import PartitionLog
from nsqflow.broker.redesigned.engine.log_reader import LogReader, Waiting
from nsqflow.broker.redesigned.engine.rotation import SubscriberRotation
from nsqflow.broker.redesigned.engine.subscriber import (
    DeliverySettings,
    InFlight,
    PartitionSubscriber,
)
from nsqflow.protocol.names import is_ephemeral

_MAX_ATTEMPTS = 4000
_MAX_REQUEUES = _MAX_ATTEMPTS // 2  # a message that was delivered so often is not requeued at once
_MANY_ATTEMPTS = 100  # from which on nsqd slows requeues down
_SECOND = 10**9
_MAX_BYTES = 256 * 1024  # for one subscriber per delivery; more would wait in the socket's buffer
_MAX_PICKED = 1000  # messages per delivery where each is looked at

_NOT_IN_FLIGHT = "Message ID not in flight"
_OF_FIN = "ErrType:7 ErrCode:0 : "  # how nsqd begins the reason of a failed FIN

Given = list[tuple[PartitionSubscriber, bytes]]


class PartitionChannel:
    """A reader of a partition's log, shared by the channel's subscribers."""

    def __init__(
        self,
        name: str,
        log: PartitionLog,
        timers: TimerHeap,
        settings: DeliverySettings,
        mark_dirty: Callable[[PartitionChannel], None],
    ) -> None:
        self.name = name
        self.ordered = False
        """One message is in flight at a time, for all subscribers together."""
        self.paused = False
        self.deleted = False
        self.began = False
        """A message of it was finished."""
        self.repeats = 0
        """How often an ordered channel repeats its next message."""
        self.requeue_count = 0
        self.timeout_count = 0
        self.subscribers = SubscriberRotation()
        self.reader = LogReader(log, settings.max_confirm_win, self._is_in_flight)
        self._log = log
        self._timers = timers
        self._settings = settings
        self._mark_dirty = mark_dirty

    def __repr__(self) -> str:
        return f"PartitionChannel({self.name!r})"

    @property
    def ephemeral(self) -> bool:
        """Deleted with its last client."""
        return is_ephemeral(self.name)

    @property
    def in_flight_count(self) -> int:
        """The number of messages in flight and deferred."""
        return sum(len(each.in_flight) for each in self.subscribers) + len(self.reader.deferred)

    @property
    def oldest(self) -> int:
        """The index of the oldest message that may still be delivered without a seek."""
        reader = self.reader
        held = [index for each in self.subscribers for index in each.in_flight]
        held += [index for index, _ in reader.requeued]
        return min(reader.window.cursor, *held, *reader.delayed, *reader.deferred, reader.read)

    # Delivery

    def deliver(self, now: int) -> Given:
        """Choose messages for subscribers with capacity and put them in flight."""
        if self.paused or not self.subscribers:
            return []
        if self.ordered or self.subscribers.picky:
            return self._deliver_each(now)
        given: Given = []
        ready = self.subscribers.ready()
        while ready and (available := self.reader.available):
            share = -(-available // len(ready))
            subscriber = ready.pop()
            if data := self._deliver_to(subscriber, min(share, subscriber.capacity), now):
                given.append((subscriber, data))
        if self.reader.available and self.subscribers.has_capacity:
            self._mark_dirty(self)  # one delivery was not enough
        return given

    def _deliver_to(self, subscriber: PartitionSubscriber, most: int, now: int) -> bytes:
        reader = self.reader
        parts: list[bytes] = []
        size = count = 0
        while not reader.in_order and count < most and size < _MAX_BYTES:
            if (message := reader.pop()) is None:
                break
            parts.append(self._put_in_flight(subscriber, *message, now))
            size += len(parts[-1])
            count += 1
        if (
            reader.in_order
            and size < _MAX_BYTES
            and (stretch := reader.take(most - count, _MAX_BYTES - size))
        ):
            delivery = InFlight(1, now, now + subscriber.msg_timeout)
            subscriber.in_flight.update(dict.fromkeys(stretch, delivery))
            subscriber.message_count += len(stretch)
            parts.append(self._log.encode(stretch, positioned=subscriber.positioned))
        self._set_timer(subscriber)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _deliver_each(self, now: int) -> Given:
        """Deliver one message after the other: the first that none can take holds up the rest."""
        given: Given = []
        if self.ordered and self.subscribers.has_in_flight:
            return given
        reader = self.reader
        for _ in range(_MAX_PICKED):
            if (message := reader.pop()) is None:
                return given
            index, attempts = message
            subscriber = self.subscribers.pick(self._log.ext_of(index))
            if subscriber is None:
                reader.put_back(index, attempts)
                return given
            if not self._wants(subscriber, index):
                self._finish([index])
                continue
            data = self._put_in_flight(subscriber, index, attempts, now)
            self._set_timer(subscriber)
            if self.ordered:
                data *= 1 + self.repeats
                self.repeats = 0
                return [*given, (subscriber, data)]
            given.append((subscriber, data))
        self._mark_dirty(self)
        return given

    def _wants(self, subscriber: PartitionSubscriber, index: int) -> bool:
        """Return whether a subscriber takes a message; if not, it counts as finished."""
        rate = subscriber.sample_rate
        if rate and self._settings.random_percent() > rate and index not in self.reader.delayed:
            return False
        if subscriber.filter is None or not self._log.extended:
            return True
        return subscriber.filter(self._log.ext_of(index))

    def _put_in_flight(
        self, subscriber: PartitionSubscriber, index: int, attempts: int, now: int
    ) -> bytes:
        attempts = min(attempts + 1, _MAX_ATTEMPTS)
        subscriber.in_flight[index] = InFlight(attempts, now, now + subscriber.msg_timeout)
        subscriber.message_count += 1
        return self._log.encode_one(index, attempts, positioned=subscriber.positioned)

    def _set_timer(self, subscriber: PartitionSubscriber) -> None:
        if subscriber.in_flight and not subscriber.timer_set:
            subscriber.timer_set = True
            deadline = next(iter(subscriber.in_flight.values())).deadline
            self._timers.at(deadline, self._expire, subscriber)

    # Commands of subscribers

    def add(self, subscriber: PartitionSubscriber) -> None:
        """Subscribe."""
        self.subscribers.add(subscriber)
        self._mark_dirty(self)

    def remove(self, subscriber: PartitionSubscriber) -> None:
        """Unsubscribe; what is in flight is requeued at once, as if it had not been delivered."""
        if subscriber not in self.subscribers:
            return
        self.subscribers.remove(subscriber)
        left = [(index, each.attempts - 1) for index, each in subscriber.in_flight.items()]
        self._settings.shuffle(left)
        subscriber.in_flight.clear()
        self.reader.requeued.extend(left)
        self.requeue_count += len(left)
        self._mark_dirty(self)

    def finish(
        self, subscriber: PartitionSubscriber, ids: Sequence[bytes]
    ) -> list[tuple[bytes, str]]:
        """Finish messages; return those that could not be finished, and why.

        Only the internal id counts, the first half of each id.
        """
        numbers = unpack(f">{2 * len(ids)}Q", b"".join(ids))[::2]
        base, take = self._log.base_id, subscriber.in_flight.pop
        done: list[int] = []
        failed: list[tuple[bytes, str]] = []
        for number, id in zip(numbers, ids, strict=True):
            if take(number - base, None) is not None:
                done.append(number - base)
            else:
                failed.append((id, _OF_FIN + self._reason(subscriber, number - base)))
                subscriber.failed()
        if done:
            subscriber.finished(len(done))
            self._finish(done)
        return failed

    def finish_by_id(self, number: int) -> None:
        """Finish a message that any client has in flight, or that is deferred."""
        index = number - self._log.base_id
        if (holder := self.subscribers.holder(index)) is not None:
            del holder.in_flight[index]
            holder.requeue_count += 1  # so nsqd counts it
        elif self.reader.deferred.pop(index, None) is None:
            raise NotInFlight(_OF_FIN + _NOT_IN_FLIGHT)
        self._finish([index])

    def requeue(self, subscriber: PartitionSubscriber, id: bytes, delay: int, now: int) -> None:
        """Requeue a message, after a delay; an ordered channel ignores requests for a delay."""
        if self.ordered and delay:
            return
        index, delivery = self._find(subscriber, id)
        delay = min(delay, self._settings.max_req_timeout)
        if not delay:
            self._requeue_at_once(subscriber, index, delivery, now)
        elif delay > self._settings.req_to_end_threshold and not self.ephemeral:
            self._delay(index, Waiting(now + delay, delivery.attempts))
        else:
            self._defer(subscriber, index, delivery, now + delay)
        del subscriber.in_flight[index]
        subscriber.requeue_count += 1
        self._mark_dirty(self)

    def touch(self, subscriber: PartitionSubscriber, id: bytes, now: int) -> None:
        """Restart the timeout of a message, up to ``max_msg_timeout`` after its delivery."""
        index, delivery = self._find(subscriber, id, counts=False)
        utmost = delivery.delivered + self._settings.max_msg_timeout
        deadline = min(now + subscriber.msg_timeout, utmost)
        if deadline == delivery.deadline:
            return  # already at its maximum, and in the right order
        del subscriber.in_flight[index]  # to the end: it has the latest deadline now
        subscriber.in_flight[index] = InFlight(delivery.attempts, delivery.delivered, deadline)
        if deadline == utmost:
            self._timers.at(utmost, self._expire_one, (subscriber, index))

    def subscriber_changed(self) -> None:
        """Deliver soon: a subscriber has more capacity, or reads again."""
        self._mark_dirty(self)

    def wake(self) -> None:
        """Read on although much is unfinished; nsqd does it with the heartbeat of each client."""
        if not self.ordered and not self.ephemeral:
            self.reader.wake()
            self._mark_dirty(self)

    # Administration

    def pause(self, paused: bool) -> None:
        """Stop delivering, or go on."""
        self.paused = paused
        self._mark_dirty(self)

    def order(self, ordered: bool, repeats: int = 0) -> list[PartitionSubscriber]:
        """Make the channel ordered or not; return the subscribers that must be closed."""
        if ordered is self.ordered:
            return []
        self.ordered, self.repeats = ordered, repeats
        if not ordered:
            return [*self.subscribers]
        self.subscribers.drop_in_flight()
        self.reader.reset(forget_finished=True)
        self._mark_dirty(self)
        return []

    def move(self, index: int) -> None:
        """Move the cursor; what is in flight is forgotten, and what was read ahead comes first."""
        # An ordered channel does not read ahead of the one message that is in flight.
        ahead = not (self.ordered and self.subscribers.has_in_flight)
        self.subscribers.drop_in_flight()
        self.reader.move(index, read_ahead=ahead)
        self._mark_dirty(self)

    def empty(self) -> None:
        """Skip everything that there is."""
        self.move(self._log.end)
        self.reader.requeued.clear()
        self.reader.drop_delayed()

    def close(self) -> list[PartitionSubscriber]:
        """Drop the subscribers, as the channel is deleted or led by another node; return them."""
        self.subscribers.drop_in_flight()
        return self.subscribers.clear()

    # Private methods

    def _finish(self, indexes: Sequence[int]) -> None:
        self.began = True
        self.reader.finish(indexes)
        self._mark_dirty(self)

    def _find(
        self, subscriber: PartitionSubscriber, id: bytes, *, counts: bool = True
    ) -> tuple[int, InFlight]:
        index = int.from_bytes(id[:8], "big") - self._log.base_id
        delivery = subscriber.in_flight.get(index)
        if delivery is None:
            if counts:
                subscriber.failed()
            raise NotInFlight(self._reason(subscriber, index))
        return index, delivery

    def _reason(self, subscriber: PartitionSubscriber, index: int) -> str:
        """Return why a message is not in flight to a subscriber."""
        if index in self.reader.deferred:
            return f"client does not own message : 0 vs {subscriber.client_id}"
        if (holder := self.subscribers.holder(index)) is not None:
            ids = f"{holder.client_id} vs {subscriber.client_id}"
            return f"client does not own message : {ids}"
        return _NOT_IN_FLIGHT

    def _requeue_at_once(
        self, subscriber: PartitionSubscriber, index: int, delivery: InFlight, now: int
    ) -> None:
        attempts = delivery.attempts
        too_soon = attempts > _MANY_ATTEMPTS and now - delivery.delivered < _SECOND // 10
        if attempts >= _MAX_REQUEUES or too_soon:
            subscriber.failed()
            raise NotInFlight("Message too much requeue")
        self._put_back(index, attempts)

    def _defer(
        self, subscriber: PartitionSubscriber, index: int, delivery: InFlight, due: int
    ) -> None:
        if delivery.attempts > _MANY_ATTEMPTS and due - delivery.delivered < _SECOND:
            due += _SECOND
        if self.reader.too_much_unfinished and due >= delivery.deadline:
            subscriber.failed()
            raise NotInFlight("Too much deferred messages in flight")
        self.reader.deferred[index] = Waiting(due, delivery.attempts)
        self._timers.at(due, self._end_deferral, index)

    def _end_deferral(self, index: int, now: int) -> None:
        deferred = self.reader.deferred
        if index in deferred and deferred[index].due <= now:
            self._put_back(index, deferred.pop(index).attempts)

    def _delay(self, index: int, waiting: Waiting) -> None:
        reader = self.reader
        if index not in reader.delayed:
            self._finish([index])
        reader.delayed[index] = waiting
        reader.due.discard(index)
        self._timers.at(waiting.due, self._end_delay, index)

    def _end_delay(self, index: int, now: int) -> None:
        reader = self.reader
        waiting = reader.delayed.get(index)
        if waiting is not None and waiting.due <= now and index not in reader.due:
            reader.due.add(index)
            self._put_back(index, waiting.attempts)

    def _put_back(self, index: int, attempts: int) -> None:
        self.reader.requeued.append((index, attempts))
        self.requeue_count += 1
        self._mark_dirty(self)

    def _expire(self, subscriber: PartitionSubscriber, now: int) -> None:
        in_flight = subscriber.in_flight
        while in_flight:
            index, delivery = next(iter(in_flight.items()))
            if delivery.deadline > now:
                self._timers.at(delivery.deadline, self._expire, subscriber)
                return
            self._time_out(subscriber, index, delivery)
        subscriber.timer_set = False

    def _expire_one(self, which: tuple[PartitionSubscriber, int], now: int) -> None:
        subscriber, index = which
        delivery = subscriber.in_flight.get(index)
        if delivery is not None and delivery.deadline <= now:
            self._time_out(subscriber, index, delivery)

    def _time_out(self, subscriber: PartitionSubscriber, index: int, delivery: InFlight) -> None:
        del subscriber.in_flight[index]
        self.timeout_count += 1
        subscriber.timeout_count += 1
        subscriber.failed()
        self._put_back(index, delivery.attempts)

    def _is_in_flight(self, index: int) -> bool:
        return self.subscribers.holder(index) is not None
