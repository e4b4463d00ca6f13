"""The coordinator of a consumer: connects its subscriptions, its queue and its decisions.

RDY, prefetch, backoff, expiry and dead letters are separate parts; this class feeds them
events and applies what they decide. Subscriptions report what arrives and queue answers;
``flush`` writes those answers and accounts for them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from math import inf
from random import Random

from nsqflow.client.consumer.backoff import Backoff, BackoffPhase
from nsqflow.client.consumer.config import ConsumerConfig
from nsqflow.client.consumer.connections import Endpoint, NsqdConnections
from nsqflow.client.consumer.dead_letters import DeadLetters
from nsqflow.client.consumer.expiry import MessageExpiry
from nsqflow.client.consumer.prefetch import Prefetch
from nsqflow.client.consumer.queue import MessageQueue
from nsqflow.client.consumer.rdy import RdyDistributor, needs_refresh
from nsqflow.client.consumer.rdy_policy import FlowState
from nsqflow.client.consumer.stats import Counts, DrainResult
from nsqflow.client.consumer.subscription import CLOSE_TIMEOUT, MIN_SURPLUS, Subscription
from nsqflow.client.events import EventEmitter
from nsqflow.client.message import FIN, Message, finished_ids
from nsqflow.protocol import Sub
from nsqflow.transport.connection import Connection

logger = logging.getLogger(__name__)


class Coordinator:
    """The state of a running consumer."""

    def __init__(self, topic: str, channel: str, config: ConsumerConfig) -> None:
        self.topic = topic
        self.channel = channel
        self.config = config
        self.counts = Counts()
        self.paused = False
        self.subscriptions: dict[str, Subscription] = {}
        self.queue = MessageQueue(config.max_in_flight)
        self.prefetch = Prefetch(config.max_in_flight)
        self.backoff = Backoff(config.max_backoff_duration, config.backoff_multiplier)
        self.rdy: RdyDistributor[Subscription] = RdyDistributor(
            config.max_in_flight,
            random=Random(),
            redistribute_interval=config.rdy_redistribute_interval,
            low_rdy_idle_timeout=config.low_rdy_idle_timeout,
            low_rdy_timeout=config.low_rdy_timeout,
        )
        self.events = EventEmitter(config.on_event)
        self.connections = NsqdConnections(config, topic, self._connect, self.events, self.fail)
        self.dead_letters = DeadLetters(config, self.queue, self.counts, self.events)
        self.expiry = MessageExpiry(
            f"{topic}/{channel}",
            config.max_attempts,
            self.queue,
            self.dead_letters,
            self.subscriptions,
            self.rdy,
            self.counts,
            self.events,
        )
        self._settings = config.connection_settings()
        self._loop = asyncio.get_running_loop()
        self._update_at = inf
        self._timer: asyncio.TimerHandle | None = None
        self._prefetch_at = -inf  # when prefetch is updated even if nothing calls for it
        self._unchanged_until = -inf  # no update of RDY is due before, unless an event asks

    def now(self) -> float:
        """Return the time on the loop's clock."""
        return self._loop.time()

    @property
    def postponed_count(self) -> int:
        """The number of failed messages that wait in the client to be requeued."""
        return 0

    def set_max_in_flight(self, count: int) -> None:
        """Allow ``count`` messages at a time."""
        self.config = replace(self.config, max_in_flight=count)  # which checks it
        self.rdy.set_max_in_flight(count)
        self.prefetch.max_in_flight = count
        self.queue.set_max_in_flight(count)
        self._prefetch_at = -inf
        self.update_rdy()

    def pause(self, paused: bool) -> None:
        """Stop the flow of messages, or resume it."""
        self.paused = paused
        self.update_rdy()

    # RDY and backoff

    def update_rdy(self) -> None:
        """Send the RDY that is due, and schedule the next update."""
        now = self._loop.time()
        flow_state = self._flow_state(now)
        if now < self._unchanged_until and not self.rdy.dirty and flow_state is self.rdy.flow_state:
            return  # nearly always: this is called for every read and every flush
        if now >= self.expiry.next_at:
            self.expire(now)
        update_at = min(self._prefetch_at, self.prefetch.next_update_at)
        if self.queue.prefetch_limited or now >= update_at:
            self._update_prefetch(now)
        self.rdy.flow_state = flow_state
        for subscription, count in self.rdy.pending_updates(now).items():
            subscription.send_rdy(count)
        self._schedule_update(self._next_update(now))

    def is_starved(self) -> bool:
        """Return whether nothing more can come from some nsqd before messages are answered."""
        if not self.rdy.is_starved():
            return False
        self.update_rdy()  # RDY may be about to be raised
        return self.rdy.is_starved()

    def _next_update(self, now: float) -> float:
        at = self.rdy.next_update_at(now) or inf
        if not self.queue.closed:
            until = self.backoff.until
            if until is not None and until > now:
                at = min(at, until)
            at = min(at, self.expiry.next_at, self.prefetch.next_update_at)
        limited = self.queue.prefetch_limited
        self._unchanged_until = -inf if limited else min(at, self._prefetch_at)
        return at

    def _update_prefetch(self, now: float) -> None:
        readers = self.queue.readers(now)
        readers.outstanding = max(0, readers.outstanding - self.rdy.orphans)
        readers.stuck = min(readers.total - readers.free, self.rdy.orphans)
        window = self.prefetch.update(readers, now)
        self.rdy.window = window
        self.queue.prefetch_limited = window < self.config.max_in_flight
        self._prefetch_at = now + self.prefetch.msg_timeout / 64

    def _flow_state(self, now: float) -> FlowState:
        if self.paused or self.queue.closed:
            return FlowState.STOPPED
        if not self.backoff.level:
            return FlowState.FULL
        testing = self.backoff.phase(now) is BackoffPhase.TESTING
        return FlowState.TESTING if testing else FlowState.STOPPED

    def _schedule_update(self, at: float) -> None:
        # A timer that fires too early is cheap; moving it on every update is not.
        if (self._timer is not None and at < self._update_at) or at == inf:
            self._cancel_timer()
        if self._timer is None and at < inf:
            self._update_at = at
            self._timer = self._loop.call_at(at, self._timer_fired)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _timer_fired(self) -> None:
        self._timer = None
        self._unchanged_until = -inf
        self.update_rdy()

    def _in_backoff(self, subscription: Subscription) -> bool:
        return self.backoff.level > 0

    def _count_results(self, subscription: Subscription, messages: list[Message]) -> None:
        now = self._loop.time()
        # A REQ that does not count for backoff is neither a success nor a failure.
        answers = {m.answer for m in messages if m.answer is not None and m.answer.counts}
        if answers - {FIN}:
            changed = self.backoff.failed(now)
        else:
            changed = bool(answers) and self.backoff.succeeded(now)
        if changed:
            self.update_rdy()
            self._report_backoff(now)

    def _report_backoff(self, now: float) -> None:
        if self.backoff.until is None:
            logger.info("%s/%s: backoff is over", self.topic, self.channel)
            self.events.emit("resumed")
        else:
            seconds = self.backoff.until - now
            text = f"level {self.backoff.level}, no messages for {seconds:.1f} s"
            logger.warning("%s/%s backs off: %s", self.topic, self.channel, text)
            self.events.emit("backoff", None, text)

    # Events of subscriptions

    async def _connect(self, endpoint: Endpoint) -> Connection:
        subscription = Subscription(
            endpoint.nsqd, self.topic, self.channel, self, self.counts, self.events
        )
        connection = Connection(endpoint.nsqd, self._settings, subscription)
        await connection.open(Sub(self.topic, self.channel))
        self._opened(subscription, connection, connection.reply.max_rdy_count)
        return connection

    def _opened(self, subscription: Subscription, connection: Connection, max_rdy: int) -> None:
        """Use a connection that has subscribed."""
        subscription.opened(connection)
        self.subscriptions[subscription.name] = subscription
        self._update_msg_timeout()
        self.rdy.add(subscription, max_rdy, self.now())
        self.update_rdy()

    def messages_received(
        self, subscription: Subscription, messages: list[Message], now: float, max_attempts: int
    ) -> None:
        """Queue messages that have arrived; ``max_attempts`` is the highest among them."""
        self.counts.received += len(messages)
        self.rdy.received(subscription, len(messages), now)
        if self.queue.closed:
            self.give_back(messages)
        else:
            deadline = now + subscription.msg_timeout
            if max_attempts > 1 or deadline < self.expiry.next_at:
                self.expiry.received(messages, deadline, max_attempts)
                self._unchanged_until = min(self._unchanged_until, self.expiry.next_at)
            self.queue.put(messages)
        if needs_refresh(subscription.rdy, subscription.in_flight):
            self.update_rdy()
        if subscription.in_flight > MIN_SURPLUS:
            self._check_surplus(subscription, now)

    def flush(self, subscription: Subscription) -> None:
        """Write the answers that a subscription has queued, and account for them."""
        messages = subscription.take_answers()
        if messages:
            self._settle(subscription, messages)

    def _settle(self, subscription: Subscription, messages: list[Message]) -> None:
        """Write answers, and account for them."""
        count = len(messages)
        finished = finished_ids(messages)
        # Backoff first: if RDY 0 followed the answers, nsqd would send other messages in
        # between, or the failed ones again.
        if len(finished) < count or self._in_backoff(subscription):
            self._count_results(subscription, messages)
        if subscription.lost:
            self.counts.orphaned += count
            logger.warning(
                "%d messages of %s answered after it was lost; nsqd will deliver them again",
                count, subscription.address,
            )  # fmt: skip
        else:
            late = subscription.write_answers(messages, finished, self._requeue_delay)
            if late:
                self._report_late(subscription, late)
            self.counts.finished += len(finished)
            self.counts.requeued += count - len(finished)
        expired = subscription.release(messages)
        if subscription.removed:
            self.rdy.orphans_answered(count)
        else:
            self.rdy.answered(subscription, count - expired)
            if expired:
                self.rdy.orphans_answered(expired)
        if self.expiry.copies:
            self.expiry.drop_copies(subscription, messages)
        self.queue.release(count)
        if self.queue.gate is not None:
            self.queue.answered(messages)
        self.update_rdy()

    def handler_failed(self, message: Message, error: BaseException, *, others: int = 0) -> bool:
        """Answer for a handler that raised, from any thread; return whether to suppress it.

        ``others`` of its batch failed with it; -1: it was logged with another message.
        """
        if not isinstance(error, Exception):
            if not message.answered:
                message.requeue(0, backoff=False)
            return False
        self.counts.failed += 1
        if others >= 0:
            more = f" and {others} others of its batch" if others else ""
            logger.error("handler failed on %r%s", message, more, exc_info=error)
        self.dead_letters.remember(message, error)
        if not message.answered:
            message.requeue()
        return True

    def connection_lost(self, subscription: Subscription) -> None:
        """Drop the queued messages of a lost connection.

        Those that user code holds count towards ``max_in_flight`` until they are answered.
        """
        expiry = self.expiry
        expiry.drop(expiry.take_back(lambda m: m.delivery.subscription is subscription))
        subscription.removed = True
        self.dead_letters.forget(subscription.address)
        self.rdy.remove(subscription, subscription.in_flight)
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
        self._update_msg_timeout()
        self.update_rdy()

    def _requeue_delay(self, message: Message) -> float:
        config = self.config
        return min(config.default_requeue_delay * message.attempts, config.max_requeue_delay)

    def _report_late(self, subscription: Subscription, messages: list[Message]) -> None:
        """Count and log late answers: nsqd has most likely delivered the messages again."""
        self.counts.late += len(messages)
        text = f"{len(messages)} answered after their deadline, the first {messages[0]!r}"
        logger.warning("%s: %s", subscription.address, text)
        self.events.emit("answer_late", subscription.address, text)

    def _check_surplus(self, subscription: Subscription, now: float) -> None:
        limit = subscription.max_surplus(now)
        if subscription.in_flight > limit:
            self.check(now)
            if subscription.in_flight > limit:
                subscription.abort_for_surplus(now)

    def _update_msg_timeout(self) -> None:
        timeouts = [each.msg_timeout for each in self.subscriptions.values()]
        self.prefetch.msg_timeout = min(timeouts, default=self.prefetch.msg_timeout)

    # For readers

    def flush_all(self) -> None:
        """Write all answers that are queued."""
        for subscription in list(self.subscriptions.values()):
            self.flush(subscription)

    def check(self, now: float) -> None:
        """Drop messages that have expired; give up exhausted ones at the front."""
        self.expiry.check(now)
        self._unchanged_until = min(self._unchanged_until, self.expiry.next_at)

    def expire(self, now: float) -> None:
        """Drop messages that have expired."""
        self.expiry.expire(now)
        self._unchanged_until = min(self._unchanged_until, self.expiry.next_at)

    def give_back(self, messages: list[Message]) -> None:
        """Requeue messages that user code never had."""
        self.queue.taken += len(messages)
        for message in messages:
            self.expiry.unseen.add(message.nsqd, message.id)
            message.requeue(0, backoff=False)

    # Closing

    def fail(self, error: BaseException) -> None:
        """End the consumer: readers get the error."""
        logger.error("consumer of %s/%s ends: %s", self.topic, self.channel, error)
        self._close_queue(error)

    async def drain(self, timeout: float) -> DrainResult:
        """Stop receiving, wait for unanswered messages, requeue the rest, disconnect."""
        self._close_queue()
        for subscription in self.subscriptions.values():
            subscription.send_cls()
        await self.connections.close()
        abandoned, requeued = await self._wait_for_answers(timeout)
        await asyncio.gather(*map(self._disconnect, self.subscriptions.values()))
        await self.dead_letters.close()
        self._cancel_timer()
        return DrainResult(self.counts.finished, self.counts.requeued - requeued, abandoned)

    def _close_queue(self, error: BaseException | None = None) -> None:
        """Hand out no more messages, and requeue those that were not handed out."""
        self.give_back(self.queue.close(error) + self.dead_letters.remove(lambda _: True))
        self.update_rdy()

    async def _wait_for_answers(self, timeout: float) -> tuple[int, int]:
        """Wait until all messages are answered; after ``timeout`` seconds requeue the rest.

        Return how many were abandoned, and for how many of them a REQ could be written.
        """
        try:
            async with asyncio.timeout(timeout):
                await self.queue.wait_idle()
        except TimeoutError:
            logger.warning(
                "%s/%s: %d messages not answered in time; they are requeued",
                self.topic, self.channel, self.queue.taken,
            )  # fmt: skip
            before, abandoned = self.counts.requeued, 0
            for subscription in list(self.subscriptions.values()):
                abandoned += subscription.abandon()
                self.flush(subscription)
            return abandoned, self.counts.requeued - before
        return 0, 0

    async def _disconnect(self, subscription: Subscription) -> None:
        await subscription.wait_closed()
        self.flush(subscription)
        assert subscription.connection is not None
        await subscription.connection.finish(CLOSE_TIMEOUT)
