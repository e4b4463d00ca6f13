"""The intake: all that comes in for one consumer, from all its nsqd.

It shares out RDY, backs off when handlers fail, gives up what was delivered too often, and
drains: each by a machine of its own; here they are told what happens and obeyed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from random import Random

from nsqflow.client.backoff import Backoff, Phase
from nsqflow.client.config import ConsumerConfig
from nsqflow.client.connection import Connection
from nsqflow.client.dead_letter import DeadLetters
from nsqflow.client.draining import drain
from nsqflow.client.inbox import Inbox
from nsqflow.client.message import FIN, Message
from nsqflow.client.news import Newsroom
from nsqflow.client.rdy import RdyPlan, Throttle, needs_refresh
from nsqflow.client.sources import Sources
from nsqflow.client.stats import Counts, Drained
from nsqflow.client.subscription import Subscription
from nsqflow.errors import NsqError
from nsqflow.protocol import AnswerFailed, Sub

logger = logging.getLogger(__name__)


class Intake:
    """What a consumer has running."""

    def __init__(self, topic: str, channel: str, config: ConsumerConfig) -> None:
        self.topic = topic
        self.channel = channel
        self.config = config
        self.counts = Counts()
        self.paused = False
        self.subscriptions: dict[str, Subscription] = {}
        self.inbox = Inbox(config.max_in_flight, self._flush)
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
        self._letters = DeadLetters(config)
        self._worn: deque[Message] = deque()
        self._burying: asyncio.Task[None] | None = None
        self._tls = config.ssl_context()
        self._loop = asyncio.get_running_loop()
        self._review_at: float | None = None
        self._reviewer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """The time on the loop's clock."""
        return self._loop.time()

    def set_max_in_flight(self, count: int) -> None:
        """Allow so many messages at a time from now on."""
        self.config = replace(self.config, max_in_flight=count)  # which checks it
        self.rdy.set_max_in_flight(count)
        self.inbox.max_in_flight = count
        self.review()

    def pause(self, paused: bool) -> None:
        """Stop the flow, or let it go on."""
        self.paused = paused
        self.review()

    # RDY and backoff

    def review(self) -> None:
        """Send the RDY that is due, and see when to look again."""
        now = self._loop.time()
        self.rdy.throttle = self._throttle(now)
        for subscription, count in self.rdy.changes(now).items():
            subscription.send_rdy(count)
        at = self.rdy.next_review(now)
        until = self.backoff.until
        if until is not None and until > now and not self.inbox.closed:
            at = until if at is None else min(at, until)
        if at != self._review_at:
            self._review_later(at)

    def _throttle(self, now: float) -> Throttle:
        if self.paused or self.inbox.closed:
            return Throttle.STOPPED
        if not self.backoff.level:
            return Throttle.FULL
        testing = self.backoff.phase(now) is Phase.TESTING
        return Throttle.TESTING if testing else Throttle.STOPPED

    def _review_later(self, at: float | None) -> None:
        if self._reviewer is not None:
            self._reviewer.cancel()
        self._review_at = at
        self._reviewer = None if at is None else self._loop.call_at(at, self._review_now)

    def _review_now(self) -> None:
        self._review_at = self._reviewer = None
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
        self.rdy.add(subscription, connection.reply.max_rdy_count, self.now())
        self.review()
        return connection

    def arrived(
        self, subscription: Subscription, messages: list[Message], now: float, most_attempts: int
    ) -> None:
        """Put them into the inbox, but for those that came too often."""
        self.counts.received += len(messages)
        self.rdy.received(subscription, len(messages), now)
        if self.inbox.closed:
            self._give_back(messages)
        else:
            if 0 < self.config.max_attempts < most_attempts:
                messages = self._without_worn(messages)
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

    def settled(self, subscription: Subscription, messages: list[Message], finished: int) -> None:
        """Count them, and let others come in their place."""
        count = len(messages)
        if subscription.gone:
            self.rdy.orphans_answered(count)
        else:
            self.rdy.answered(subscription, count)
        if subscription.lost:
            self.counts.orphaned += count
            logger.warning(
                "%d messages of %s answered after it was lost; nsqd will deliver them again",
                count, subscription.address,
            )  # fmt: skip
        else:
            self.counts.finished += finished
            self.counts.requeued += count - finished
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
        waiting = [*self.inbox.messages, *self._worn]
        unread = [m for m in waiting if m._delivery.subscription is subscription]
        if unread:
            subscription.forget(unread)
            self.inbox.discard(lambda m: m.answered)
            self._worn = deque(m for m in self._worn if not m.answered)
        subscription.gone = True
        self._letters.forget(subscription.address)
        self.rdy.remove(subscription, subscription.in_flight)
        if self.subscriptions.get(subscription.address) is subscription:
            del self.subscriptions[subscription.address]
        self.review()

    # Giving up, giving back

    def _without_worn(self, messages: list[Message]) -> list[Message]:
        most = self.config.max_attempts
        self._give_up([message for message in messages if message.attempts > most])
        return [message for message in messages if message.attempts <= most]

    def _give_up(self, messages: list[Message]) -> None:
        self._worn.extend(messages)
        if self._burying is None or self._burying.done():
            self._burying = asyncio.create_task(self._bury(), name="nsqflow dead letters")

    async def _bury(self) -> None:
        while self._worn:
            await self.inbox.hold()
            if not self._worn:  # given back meanwhile, or lost with their connection
                self.inbox.released(1)
                return
            message = self._worn.popleft()
            self.counts.gave_up += 1
            self.news.tell("gave_up", message.nsqd, repr(message))
            await self._letters.give_up(message)

    def _give_back(self, messages: list[Message]) -> None:
        """Requeue what nobody was given."""
        self.inbox.in_hands += len(messages)
        for message in messages:
            message.requeue(0, backoff=False)

    def _flush(self) -> None:
        for subscription in list(self.subscriptions.values()):
            subscription.flush()

    # The end

    def end(self, error: BaseException) -> None:
        """Hand out no more: whoever waits for messages gets the error."""
        logger.error("consumer of %s/%s ends: %s", self.topic, self.channel, error)
        self.close_inbox(error)

    def close_inbox(self, error: BaseException | None = None) -> None:
        """Hand out no more, and let no more come; requeue what nobody was given."""
        self._give_back([*self.inbox.close(error), *self._worn])
        self._worn.clear()
        self.review()

    async def drain(self, timeout: float) -> Drained:
        """Take no more, wait for what is in hands, give back the rest, disconnect."""
        return await drain(self, timeout)

    async def end_letters(self) -> None:
        """Give nothing up any more."""
        if self._burying is not None:
            self._burying.cancel()
            await asyncio.wait([self._burying])
        await self._letters.close()
