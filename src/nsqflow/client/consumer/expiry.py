"""Messages that must not be handed out any more: expired, delivered again, or exhausted.

A message that waits in the client beyond its deadline is dropped, as nsqd delivers it again.
A later copy of a message that was just answered is dropped with it. One that user code has
seen ``max_attempts`` times is given up when its turn comes.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import groupby
from math import inf

from nsqflow.client.consumer.dead_letters import DeadLetters
from nsqflow.client.consumer.queue import MessageQueue
from nsqflow.client.consumer.rdy import RdyDistributor
from nsqflow.client.consumer.stats import Counts
from nsqflow.client.consumer.subscription import Subscription
from nsqflow.client.events import EventEmitter
from nsqflow.client.message import Message

logger = logging.getLogger(__name__)

_REMEMBERED = 20_000  # messages whose unseen deliveries are counted
_CHECK_INTERVAL = 0.05  # seconds between checks for messages that timed out in user code


class UnseenDeliveries:
    """Counts deliveries that user code never saw, by nsqd and message id.

    nsqd counts each delivery as an attempt. Those that time out in the client, or are requeued
    when it closes, must not bring a message closer to being given up. Beyond ``capacity``
    messages the oldest are forgotten.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._counts: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, nsqd: str, id: bytes) -> None:
        """Count one delivery."""
        key = nsqd, id
        self._counts[key] = self._counts.get(key, 0) + 1
        self._counts.move_to_end(key)
        if len(self._counts) > self._capacity:
            self._counts.popitem(last=False)

    def seen(self, nsqd: str, id: bytes, attempts: int) -> int:
        """Return how many of a message's ``attempts`` user code has seen, including this one."""
        return attempts - self._counts.get((nsqd, id), 0)


class MessageExpiry:
    """Takes messages out of the queue before user code gets them."""

    def __init__(
        self,
        name: str,
        max_attempts: int,
        queue: MessageQueue,
        dead_letters: DeadLetters,
        subscriptions: Mapping[str, Subscription],
        rdy: RdyDistributor[Subscription],
        counts: Counts,
        events: EventEmitter,
    ) -> None:
        self.next_at = inf  # nothing in flight times out before
        self.unseen = UnseenDeliveries(_REMEMBERED)
        self.copies: set[bytes] = set()  # ids in flight that were delivered before
        self._name = name
        self.max_attempts = max_attempts  # 0: no message is given up
        self._queue = queue
        self._dead_letters = dead_letters
        self._subscriptions = subscriptions
        self._rdy = rdy
        self._counts = counts
        self._events = events
        self._some_exhausted = False  # a queued message may have been delivered too often
        self._reported_at = -inf

    def received(self, messages: list[Message], deadline: float, max_attempts: int) -> None:
        """Watch messages that have arrived; ``max_attempts`` is the highest among them."""
        if max_attempts > 1:
            self.copies.update(m.id for m in messages if m.attempts > 1)
            # They are given up when their turn comes: an earlier copy may still be queued.
            if 0 < self.max_attempts < max_attempts:
                self._some_exhausted = True
        self._check_by(min(deadline, self.next_at))

    def check(self, now: float) -> None:
        """Drop messages that have expired; give up exhausted ones at the front of the queue."""
        if now >= self.next_at:
            self.expire(now)
        messages = self._queue.messages
        while self._some_exhausted and messages and self._is_exhausted(messages[0]):
            self._dead_letters.add(messages.popleft())
        if self._some_exhausted and not messages:
            self._some_exhausted = False
            self._check_by(self.next_at)

    def expire(self, now: float) -> None:
        """Drop messages whose deadline passed in the client.

        Those that timed out in user code stop counting against their connection's RDY.
        """
        dropped = self.take_back(lambda m: m.delivery.deadline <= now)
        if dropped:
            expired = sum(not m.delivery.subscription.removed for m in dropped)
            self.drop(dropped)
            if expired:
                self._report_expired(expired, now)
        next_check = inf
        for subscription in self._subscriptions.values():
            count, soonest = subscription.expire(now)
            next_check = min(next_check, max(soonest, now + _CHECK_INTERVAL))
            if count:
                self._rdy.expired(subscription, count)
        queued = min(self._queue.next_deadline(), self._dead_letters.next_deadline())
        self._check_by(min(next_check, queued))

    def take_back(self, unwanted: Callable[[Message], bool]) -> list[Message]:
        """Take out messages that user code never had."""
        return self._queue.remove(unwanted) + self._dead_letters.remove(unwanted)

    def drop(self, messages: list[Message]) -> None:
        """Forget messages that nsqd delivers again."""
        for message in messages:
            subscription = message.delivery.subscription
            if subscription.counts_lost_deliveries or not subscription.lost:
                self.unseen.add(message.nsqd, message.id)
            self.copies.discard(message.id)
        for subscription, group in groupby(messages, lambda m: m.delivery.subscription):
            dropped = list(group)
            expired = subscription.drop(dropped)
            if subscription.removed:
                self._rdy.orphans_answered(len(dropped))
            else:
                self._rdy.answered(subscription, len(dropped) - expired)
                self._rdy.orphans_answered(expired)

    def drop_copies(self, subscription: Subscription, answered: list[Message]) -> None:
        """Drop later copies of messages that were answered: the answer holds for them, too."""
        ids = self.copies.intersection(message.id for message in answered)
        self.copies -= ids
        if ids and not subscription.lost:
            self.drop(
                self.take_back(lambda m: m.id in ids and m.delivery.subscription is subscription)
            )

    # Private methods

    def _check_by(self, deadline: float) -> None:
        self.next_at = deadline
        self._queue.set_check_at(-inf if self._some_exhausted else deadline)

    def _is_exhausted(self, message: Message) -> bool:
        seen = self.unseen.seen(message.nsqd, message.id, message.attempts)
        return seen > self.max_attempts

    def _report_expired(self, count: int, now: float) -> None:
        self._counts.expired += count
        timeouts = (each.msg_timeout for each in self._subscriptions.values())
        if now >= self._reported_at + min(timeouts, default=60.0):  # once per burst
            text = (
                f"messages time out before a handler is free, {count} so far; nsqd delivers them "
                "again. Handlers are slower than msg_timeout allows"
            )
            logger.warning("%s: %s", self._name, text)
            self._events.emit("expired", None, text)
        self._reported_at = now
