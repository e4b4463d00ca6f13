"""The intake: all that comes in for one consumer, from all its nsqd.

RDY, prefetch, backoff, giving up and draining are separate state machines; this class feeds
them events and applies what they decide.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from math import inf
from random import Random

from nsqflow.client.backoff import Backoff, Phase
from nsqflow.client.config import ConsumerConfig
from nsqflow.client.connection import Connection
from nsqflow.client.dead_letter import DeadLetters
from nsqflow.client.inbox import Inbox
from nsqflow.client.message import FIN, Message
from nsqflow.client.news import Newsroom
from nsqflow.client.prefetch import Prefetch
from nsqflow.client.rdy import RdyPlan, Throttle, needs_refresh
from nsqflow.client.sources import Sources
from nsqflow.client.stats import Counts
from nsqflow.client.subscription import Subscription
from nsqflow.client.unseen import UnseenDeliveries
from nsqflow.errors import NsqError
from nsqflow.protocol import AnswerFailed, Sub

logger = logging.getLogger(__name__)

_REMEMBERED = 20_000  # messages whose unseen deliveries are known
_CHECK_GAP = 0.05  # seconds between checks for messages that timed out in user code


class Intake:
    """What a consumer has running."""

    def __init__(self, topic: str, channel: str, config: ConsumerConfig) -> None:
        self.topic = topic
        self.channel = channel
        self.config = config
        self.counts = Counts()
        self.paused = False
        self.subscriptions: dict[str, Subscription] = {}
        self.inbox = Inbox(config.max_in_flight, self)
        self.prefetch = Prefetch(config.max_in_flight)
        self.unseen = UnseenDeliveries(_REMEMBERED)
        self.backoff = Backoff(config.max_backoff_duration, config.backoff_multiplier)
        self.rdy: RdyPlan[Subscription] = RdyPlan(
            config.max_in_flight,
            random=Random(),
            redistribute_interval=config.rdy_redistribute_interval,
            low_rdy_idle_timeout=config.low_rdy_idle_timeout,
            low_rdy_timeout=config.low_rdy_timeout,
        )
        self.news = Newsroom(config.on_event)
        self.sources = Sources(config, topic, self._dial, self.news, self.end)
        self._letters = DeadLetters(config, self.inbox, self._gave_up)
        self._tls = config.ssl_context()
        self._loop = asyncio.get_running_loop()
        self._review_at = inf
        self._reviewer: asyncio.TimerHandle | None = None
        self._expires_at = inf  # nothing in flight times out before
        self._exhausted = False  # some that wait may have been delivered too often
        self._copies: set[bytes] = set()  # ids in flight that were delivered before
        self._expired_told = -inf
        self._prefetch_at = -inf
        self._quiet_until = -inf

    def now(self) -> float:
        """The time on the loop's clock."""
        return self._loop.time()

    def set_max_in_flight(self, count: int) -> None:
        """Allow so many messages at a time from now on."""
        self.config = replace(self.config, max_in_flight=count)  # which checks it
        self.rdy.set_max_in_flight(count)
        self.prefetch.max_in_flight = count
        self.inbox.max_in_flight = count
        self._prefetch_at = -inf
        self.review()

    def pause(self, paused: bool) -> None:
        """Stop the flow, or let it go on."""
        self.paused = paused
        self.review()

    # RDY and backoff

    def review(self) -> None:
        """Send the RDY that is due, and see when to look again."""
        now = self._loop.time()
        throttle = self._throttle(now)
        if now < self._quiet_until and not self.rdy.dirty and throttle is self.rdy.throttle:
            return  # nearly always: this is called for every read and every flush
        if now >= self._expires_at:
            self.expire(now)
        if self.inbox.restrained or now >= min(self._prefetch_at, self.prefetch.next_update_at):
            self._follow_readers(now)
        self.rdy.throttle = throttle
        for subscription, count in self.rdy.changes(now).items():
            subscription.send_rdy(count)
        self._review_later(self._next_review(now))

    def is_starved(self) -> bool:
        """Return whether nothing more can come from some nsqd before messages are answered."""
        if not self.rdy.is_starved():
            return False
        self.review()  # RDY may be about to be raised
        return self.rdy.is_starved()

    def _next_review(self, now: float) -> float:
        at = self.rdy.next_review(now) or inf
        if not self.inbox.closed:
            until = self.backoff.until
            if until is not None and until > now:
                at = min(at, until)
            at = min(at, self._expires_at, self.prefetch.next_update_at)
        self._quiet_until = -inf if self.inbox.restrained else min(at, self._prefetch_at)
        return at

    def _follow_readers(self, now: float) -> None:
        readers = self.inbox.readers(now)
        readers.outstanding = max(0, readers.outstanding - self.rdy.orphans)
        readers.stuck = min(readers.total - readers.free, self.rdy.orphans)
        window = self.prefetch.update(readers, now)
        self.rdy.window = window
        self.inbox.restrained = window < self.config.max_in_flight
        self._prefetch_at = now + self.prefetch.msg_timeout / 64

    def _throttle(self, now: float) -> Throttle:
        if self.paused or self.inbox.closed:
            return Throttle.STOPPED
        if not self.backoff.level:
            return Throttle.FULL
        testing = self.backoff.phase(now) is Phase.TESTING
        return Throttle.TESTING if testing else Throttle.STOPPED

    def _review_later(self, at: float) -> None:
        # A timer that goes off too early finds nothing to do; one that is moved each time costs.
        if (self._reviewer is not None and at < self._review_at) or at == inf:
            self._stop_reviewing()
        if self._reviewer is None and at < inf:
            self._review_at = at
            self._reviewer = self._loop.call_at(at, self._review_now)

    def _stop_reviewing(self) -> None:
        if self._reviewer is not None:
            self._reviewer.cancel()
            self._reviewer = None

    def _review_now(self) -> None:
        self._reviewer = None
        self._quiet_until = -inf
        self.review()

    def _count_results(self, messages: list[Message]) -> None:
        now = self._loop.time()
        # What was requeued without counting for backoff says nothing, neither good nor bad.
        answers = {m._answer for m in messages if m._answer is not None and m._answer.counts}
        if answers - {FIN}:
            changed = self.backoff.failed(now)
        else:
            changed = bool(answers) and self.backoff.succeeded(now)
        if changed:
            self.review()
            self._tell_backoff(now)

    def _tell_backoff(self, now: float) -> None:
        if self.backoff.until is None:
            logger.info("%s/%s: backoff is over", self.topic, self.channel)
            self.news.tell("resumed")
        else:
            seconds = self.backoff.until - now
            text = f"level {self.backoff.level}, no messages for {seconds:.1f} s"
            logger.warning("%s/%s backs off: %s", self.topic, self.channel, text)
            self.news.tell("backoff", None, text)

    # What subscriptions tell

    async def _dial(self, address: str) -> Connection:
        subscription = Subscription(address, self.topic, self.channel, self)
        connection = Connection(address, self.config, subscription, self._tls)
        await connection.open(Sub(self.topic, self.channel))
        subscription.opened(connection)
        self.subscriptions[address] = subscription
        self._set_msg_timeout()
        self.rdy.add(subscription, connection.reply.max_rdy_count, self.now())
        self.review()
        return connection

    def arrived(
        self, subscription: Subscription, messages: list[Message], now: float, most_attempts: int
    ) -> None:
        """Put them into the inbox."""
        self.counts.received += len(messages)
        self.rdy.received(subscription, len(messages), now)
        if self.inbox.closed:
            self.give_back(messages)
        else:
            if most_attempts > 1:
                self._copies.update(m.id for m in messages if m.attempts > 1)
                # Whether they are given up is decided when their turn comes: an earlier copy
                # may still wait.
                if 0 < self.config.max_attempts < most_attempts:
                    self._exhausted = True
            deadline = now + subscription.msg_timeout
            if self._exhausted or deadline < self._expires_at:
                self._check_by(min(deadline, self._expires_at))
            self.inbox.put(messages)
        if needs_refresh(subscription.rdy, subscription.in_flight):
            self.review()

    def answering(self, messages: list[Message], finished: int) -> None:
        """See what the results mean for backoff.

        Before nsqd has them: if RDY 0 came behind them, it would send others in their place,
        or the failed ones again, at once.
        """
        if finished < len(messages) or self.backoff.level:
            self._count_results(messages)

    def settled(
        self, subscription: Subscription, messages: list[Message], finished: int, expired: int
    ) -> None:
        """Count them, and let others come in their place."""
        count = len(messages)
        if subscription.gone:
            self.rdy.orphans_answered(count)
        else:
            self.rdy.answered(subscription, count - expired)
            self.rdy.orphans_answered(expired)
        if subscription.lost:
            self.counts.orphaned += count
            logger.warning(
                "%d messages of %s answered after it was lost; nsqd will deliver them again",
                count, subscription.address,
            )  # fmt: skip
        else:
            self.counts.finished += finished
            self.counts.requeued += count - finished
        if self._copies:
            self._drop_copies(subscription, messages)
        self.inbox.released(count)
        self.review()

    def failed(self, message: Message, error: BaseException, *, others: int = 0) -> bool:
        """Answer for a handler that raised, from any thread.

        ``others`` of its batch failed with it; -1: it is one of those, and was told of.
        """
        if not isinstance(error, Exception):
            if not message.answered:
                message.requeue(0, backoff=False)
            return False
        self.counts.failed += 1
        if others >= 0:
            more = f" and {others} others of its batch" if others else ""
            logger.error("handler failed on %r%s", message, more, exc_info=error)
        self._letters.remember(message, error)
        if not message.answered:
            message.requeue()
        return True

    def requeue_delay(self, message: Message) -> float:
        """Grow with the attempts, up to a limit."""
        delay = self.config.default_requeue_delay * message.attempts
        return min(delay, self.config.max_requeue_delay)

    def answer_failed(self, subscription: Subscription, event: AnswerFailed) -> None:
        """Count and log it; the message belongs to somebody else by now."""
        self.counts.refused += 1
        text = f"{event.error} (message {event.id!r})"
        logger.warning("%s did not take %s: %s", subscription.address, event.command, text)
        self.news.tell("answer_failed", subscription.address, text, event.error)

    def answer_late(self, subscription: Subscription, messages: list[Message]) -> None:
        """Count and log them: most likely nsqd has given them to somebody else."""
        self.counts.late += len(messages)
        text = f"{len(messages)} answered after their deadline, the first {messages[0]!r}"
        logger.warning("%s: %s", subscription.address, text)
        self.news.tell("answer_late", subscription.address, text)

    def subscription_lost(self, subscription: Subscription, error: NsqError) -> None:
        """Forget what waited; what is in hands still counts until it is answered."""
        self._drop(self._take_back(lambda m: m._delivery.subscription is subscription))
        subscription.gone = True
        self._letters.forget(subscription.address)
        self.rdy.remove(subscription, subscription.in_flight)
        if self.subscriptions.get(subscription.address) is subscription:
            del self.subscriptions[subscription.address]
        self._set_msg_timeout()
        self.review()

    def _set_msg_timeout(self) -> None:
        timeouts = [each.msg_timeout for each in self.subscriptions.values()]
        self.prefetch.msg_timeout = min(timeouts, default=self.prefetch.msg_timeout)

    # What the inbox asks for

    def flush(self) -> None:
        """Write the answers of this turn of the loop."""
        for subscription in list(self.subscriptions.values()):
            subscription.flush()

    def check(self, now: float) -> None:
        """Drop what has expired; give up what stands at the front and is exhausted."""
        if now >= self._expires_at:
            self.expire(now)
        messages = self.inbox.messages
        while self._exhausted and messages and self._seen(messages[0]) > self.config.max_attempts:
            self._letters.add(messages.popleft())
        if self._exhausted and not messages:
            self._exhausted = False
            self._check_by(self._expires_at)

    def give_back(self, messages: list[Message]) -> None:
        """Requeue messages that user code never had."""
        self.inbox.in_hands += len(messages)
        for message in messages:
            self.unseen.add(message.nsqd, message.id)
            message.requeue(0, backoff=False)

    # Messages that time out

    def expire(self, now: float) -> None:
        """Drop messages that timed out while they waited; take those in user code off RDY."""
        dropped = self._take_back(lambda m: m._delivery.deadline <= now)
        if dropped:
            expired = sum(not m._delivery.subscription.gone for m in dropped)
            self._drop(dropped)
            if expired:
                self._count_expired(expired, now)
        next_check = inf
        for subscription in self.subscriptions.values():
            count, soonest = subscription.expire(now)
            next_check = min(next_check, max(soonest, now + _CHECK_GAP))
            if count:
                self.rdy.expired(subscription, count)
        waiting = min(self.inbox.next_deadline(), self._letters.next_deadline())
        self._check_by(min(next_check, waiting))

    def _check_by(self, deadline: float) -> None:
        self._expires_at = deadline
        self._quiet_until = min(self._quiet_until, deadline)
        self.inbox.set_check_at(-inf if self._exhausted else deadline)

    def _take_back(self, unwanted: Callable[[Message], bool]) -> list[Message]:
        """Take out messages that user code never had."""
        return self.inbox.remove(unwanted) + self._letters.remove(unwanted)

    def _drop(self, messages: list[Message]) -> None:
        """Forget messages that nsqd has again."""
        for message in messages:
            self.unseen.add(message.nsqd, message.id)
            self._copies.discard(message.id)
        for subscription, group in groupby(messages, lambda m: m._delivery.subscription):
            dropped = list(group)
            expired = subscription.drop(dropped)
            if subscription.gone:
                self.rdy.orphans_answered(len(dropped))
            else:
                self.rdy.answered(subscription, len(dropped) - expired)
                self.rdy.orphans_answered(expired)

    def _drop_copies(self, subscription: Subscription, answered: list[Message]) -> None:
        """Drop later copies of messages that were answered: the answer was theirs, too."""
        ids = self._copies.intersection(message.id for message in answered)
        self._copies -= ids
        if ids and not subscription.lost:
            self._drop(
                self._take_back(lambda m: m.id in ids and m._delivery.subscription is subscription)
            )

    def _count_expired(self, count: int, now: float) -> None:
        self.counts.expired += count
        if now >= self._expired_told + self.prefetch.msg_timeout:  # once per burst
            text = (
                f"messages time out before a handler is free, {count} so far; nsqd delivers them "
                "again. Handlers are slower than msg_timeout allows"
            )
            logger.warning("%s/%s: %s", self.topic, self.channel, text)
            self.news.tell("expired", None, text)
        self._expired_told = now

    def _seen(self, message: Message) -> int:
        """How many deliveries of a message user code has seen, with this one."""
        return self.unseen.seen(message.nsqd, message.id, message.attempts)

    def _gave_up(self, message: Message) -> None:
        self.counts.gave_up += 1
        self.news.tell("gave_up", message.nsqd, repr(message))

    # The end

    def end(self, error: BaseException) -> None:
        """Hand out no more: whoever waits for messages gets the error."""
        logger.error("consumer of %s/%s ends: %s", self.topic, self.channel, error)
        self.close_inbox(error)

    def close_inbox(self, error: BaseException | None = None) -> None:
        """Hand out no more, and let no more come; requeue what nobody was given."""
        self.give_back(self.inbox.close(error) + self._letters.remove(lambda _: True))
        self.review()

    async def end_letters(self) -> None:
        """Give nothing up any more."""
        await self._letters.close()
        self._stop_reviewing()
