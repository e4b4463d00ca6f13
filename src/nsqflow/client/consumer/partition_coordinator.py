"""The coordinator of a consumer that asks nsqlookupd: it knows partitions of the redesigned NSQ.

A topic of the classic NSQ is handled as by ``Coordinator``. On the redesigned NSQ each partition
has a subscription to its leader; on ordered topics each has one message at a time, backs off by
itself, and waits in the client before it requeues a failed message.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from math import inf

from nsqflow.client.consumer.backoff import Backoff, BackoffPhase
from nsqflow.client.consumer.config import BLOCKED_DECISIONS, ConsumerConfig
from nsqflow.client.consumer.connections import Endpoint
from nsqflow.client.consumer.coordinator import Coordinator
from nsqflow.client.consumer.ordered import OrderedGate, PartitionOrder, place, retry_at
from nsqflow.client.consumer.partition_subscription import (
    PartitionSubscription,
    trace_answers,
    trace_received,
)
from nsqflow.client.consumer.seek import ChannelSeeker
from nsqflow.client.consumer.subscription import Subscription
from nsqflow.client.message import FIN, REQ_POSTPONED, Answer, Message
from nsqflow.client.partition_message import PartitionMessage
from nsqflow.client.position import parse_positions
from nsqflow.errors import BlockedMessageError, ConfigError, OrderViolation
from nsqflow.protocol import Dialect, Sub, SubscribeMode
from nsqflow.trace import TRACED_TOPICS
from nsqflow.transport.connection import Connection
from nsqflow.transport.handshake import ConnectionSettings

logger = logging.getLogger(__name__)


class PartitionCoordinator(Coordinator):
    """The state of a running consumer whose topic may have partitions."""

    def __init__(self, topic: str, channel: str, config: ConsumerConfig) -> None:
        super().__init__(topic, channel, config)
        self._partition_settings = config.connection_settings(Dialect.REDESIGNED)
        self._orders: dict[int, PartitionOrder] = {}
        self._backoffs: dict[int, Backoff] = {}
        self._postponed: dict[Message, float] = {}  # failed messages, and when they are requeued
        self._holds_some = False  # partitions that get no RDY while others do
        self._seeker: ChannelSeeker | None = None
        if config.start_from is not None:
            start = parse_positions("start_from", config.start_from, time.time())
            self._seeker = ChannelSeeker(topic, channel, start, config)

    @property
    def postponed_count(self) -> int:
        """The number of failed messages that wait in the client to be requeued."""
        return len(self._postponed)

    # Subscribing

    async def _connect(self, endpoint: Endpoint) -> Connection:
        if endpoint.partition is None:
            self._check_classic()
            return await super()._connect(endpoint)
        ordered = self._check_topic()
        seeker = self._seeker
        kind = SubscribeMode.PLAIN if seeker is None else SubscribeMode.ADVANCED
        if seeker is not None and not ordered:
            await seeker.seek(endpoint, create=True)
        order = self._orders.setdefault(endpoint.partition, PartitionOrder()) if ordered else None
        subscription = PartitionSubscription(
            endpoint, self.topic, self.channel, self, self.counts, self.events, order=order
        )
        connection = Connection(endpoint.nsqd, self._settings_of_topic(), subscription)
        kind = SubscribeMode.ORDERED if ordered else kind
        await connection.open(Sub(self.topic, self.channel, endpoint.partition, kind))
        if seeker is not None and ordered:
            # Its SUB_ORDERED creates the channel: one that is made ordered later repeats a message.
            try:
                await seeker.seek(endpoint, create=False)
                if connection.error is not None:  # it was lost meanwhile, perhaps with its leader
                    seeker.lost(endpoint.partition)
                    raise connection.error
            except BaseException:
                await connection.drop()
                raise
        self._opened(subscription, connection, 1 if ordered else connection.reply.max_rdy_count)
        return connection

    def _check_classic(self) -> None:
        """Raise ``ConfigError`` if an option is set that the classic NSQ has nothing like."""
        if (name := self.config.redesigned_option()) is not None:
            value = getattr(self.config, name)
            raise ConfigError(
                f"{name}={value!r} is invalid: {self.topic!r} is a topic of the classic NSQ, which "
                "has no partitions, order, headers or positions"
            )

    def _check_topic(self) -> bool:
        """Return whether to subscribe in order; raise for options that the topic does not have."""
        config, meta = self.config, self.connections.meta
        if config.ordered is True and not meta.ordered:
            raise ConfigError(
                f"ordered=True is invalid: {self.topic!r} is not ordered; 'force' makes its "
                "channel so"
            )
        for name in ("desired_tag", "header_filter"):
            if getattr(config, name) is not None and not meta.extend_support:
                raise ConfigError(
                    f"{name}={getattr(config, name)!r} is invalid: {self.topic!r} has no headers, "
                    "so nsqd would ignore it"
                )
        ordered = meta.ordered or config.ordered == "force"
        if ordered and config.sample_rate:
            raise ConfigError(
                f"sample_rate={config.sample_rate} is invalid: {self.topic!r} is ordered"
            )
        if ordered and self.queue.gate is None:
            self.queue.gate = OrderedGate()
        # In an ordered topic a message that is given up would be skipped.
        self.expiry.max_attempts = 0 if ordered else config.max_attempts
        return ordered

    def _settings_of_topic(self) -> ConnectionSettings:
        settings, config = self._partition_settings, self.config
        if not self.connections.meta.extend_support:
            return settings
        rule = config.header_filter
        identify = replace(
            settings.identify,
            extend_support=True,
            desired_tag=config.desired_tag,
            ext_filter=None if rule is None else rule.ext_filter,
        )
        return replace(settings, identify=identify)

    # Events of subscriptions

    def messages_received(
        self, subscription: Subscription, messages: list[Message], now: float, max_attempts: int
    ) -> None:
        """Queue messages that have arrived; ``max_attempts`` is the highest among them."""
        if not isinstance(subscription, PartitionSubscription):
            super().messages_received(subscription, messages, now, max_attempts)
            return
        if self.topic in TRACED_TOPICS:
            trace_received(subscription, messages)
        if self._seeker is not None:
            self._seeker.received(messages)
        if subscription.order is not None:
            self._received_in_order(subscription, messages, now)
        else:
            super().messages_received(subscription, messages, now, max_attempts)

    def _received_in_order(
        self, subscription: PartitionSubscription, messages: list[Message], now: float
    ) -> None:
        order = subscription.order
        assert order is not None
        for message in messages:
            assert isinstance(message, PartitionMessage)
            violation = order.received(subscription, *place(message))
            if violation is not None:
                self._report_violation(message, violation)
            if order.seen > 1:
                # A later copy is dropped with the first one, whatever attempts nsqd counts.
                self.expiry.copies.add(message.id)
            if self._is_for_user(message, order):
                super().messages_received(subscription, [message], now, 1)
            else:
                self.counts.received += 1
                self.rdy.received(subscription, 1, now)
                self.expiry.received([message], message.deadline, 1)

    def flush(self, subscription: Subscription) -> None:
        """Write the answers that a subscription has queued, and account for them."""
        if not isinstance(subscription, PartitionSubscription):
            super().flush(subscription)
            return
        messages = subscription.take_answers()
        if messages and self._seeker is not None:
            self._seeker.answered(messages)
        if messages and subscription.order is not None:
            self._remember_finished(subscription, subscription.order, messages)
            messages = self._postpone(subscription, messages)
        if messages and self.topic in TRACED_TOPICS:
            trace_answers(subscription, messages)
        if messages:
            self._settle(subscription, messages)
            subscription.count_finished(messages)

    def connection_lost(self, subscription: Subscription) -> None:
        """Drop the queued messages of a lost connection."""
        if subscription.connection is None:  # not used yet: its channel is being moved
            return
        if isinstance(subscription, PartitionSubscription):
            self._drop_postponed(subscription)
            if self._seeker is not None and subscription.partition is not None:
                self._seeker.lost(subscription.partition)
        super().connection_lost(subscription)

    # Ordered partitions

    def _is_for_user(self, message: PartitionMessage, order: PartitionOrder) -> bool:
        """Return whether user code is to get the message; take care of it if not."""
        if order.is_finished:  # by user code, after its connection was lost
            self.queue.taken += 1
            message.try_finish()
            return False
        assert self.queue.gate is not None
        if order.unfinished <= self.config.blocked_after or self.queue.gate.is_taken(message):
            return True  # what user code is handling may still succeed
        decision = self._ask_when_blocked(message, order.unfinished)
        if decision == "dead_letter":
            self.dead_letters.add(message)
            return False
        if decision == "stop":
            self.fail(BlockedMessageError(f"{message!r} was delivered {order.unfinished} times"))
        return True

    def _ask_when_blocked(self, message: PartitionMessage, seen: int) -> str:
        decide = self.config.on_blocked
        if callable(decide):
            try:
                decision = decide(message)
            except Exception:
                logger.exception("on_blocked raised on %r; it waits", message)
                decision = "wait"
            if decision not in BLOCKED_DECISIONS:
                logger.error("on_blocked returned %r on %r; it waits", decision, message)
                decision = "wait"
        else:
            decision = decide
        if decision == "dead_letter" and self.config.dead_letter is None:
            logger.error("on_blocked returned 'dead_letter', and there is none; %r waits", message)
            decision = "wait"
        if (seen - 1) % self.config.blocked_after == 0 or decision != "wait":
            text = f"{message!r} blocks its partition: delivered {seen} times; {decision}"
            logger.warning("%s", text)
            self.events.emit("blocked", message.nsqd, text)
        self.counts.blocked += 1
        return decision

    def _report_violation(self, message: Message, text: str) -> None:
        self.counts.order_violations += 1
        error = OrderViolation(f"partition {message.partition} of {self.topic!r}: {text}")
        logger.error("%s", error)
        self.events.emit("order_violation", message.nsqd, str(error), error)
        callback = self.config.on_order_violation
        if callback is not None:
            try:
                callback(message, error)
            except Exception as failure:
                self.fail(failure)

    def _postpone(
        self, subscription: PartitionSubscription, messages: list[Message]
    ) -> list[Message]:
        """Keep failed messages until their delay is over; return the others."""
        now = self.now()
        if subscription.lost:
            return messages
        due = []
        for message in messages:
            answer = message.answer
            assert answer is not None
            delay = self._requeue_delay(message) if answer.delay is None else answer.delay
            if not delay or self.queue.closed:
                if delay:
                    message.answer = Answer("REQ", 0.0, answer.counts)  # nsqd ignores another delay
                due.append(message)
                continue
            at = retry_at(now, delay, message.deadline, subscription.msg_timeout)
            self._postponed[message] = at
            self._count_ordered_results(subscription, [message])
            message.answer = REQ_POSTPONED
            # User code has let go of it, and nsqd sends nothing else before it is requeued: other
            # partitions may use its place.
            if expired := subscription.release([message]):
                self.rdy.orphans_answered(expired)
            else:
                self.rdy.answered(subscription, 1)
            self.queue.release(1)
        self.update_rdy()
        return due

    def _remember_finished(
        self, subscription: Subscription, order: PartitionOrder, messages: list[Message]
    ) -> None:
        for message in messages:
            if message.answer is FIN:
                assert isinstance(message, PartitionMessage)
                order.finished(*place(message))
                if subscription.lost:
                    order.finished_too_late(*place(message))
                    self._finish_copies(message)

    def _finish_copies(self, message: PartitionMessage) -> None:
        """Finish what another leader has sent while user code had the message."""
        assert self.queue.gate is not None
        for copy in self.queue.gate.remove(lambda each: each.id == message.id):
            self.queue.taken += 1
            copy.try_finish()

    def _requeue_due(self, now: float) -> None:
        for message in [each for each, at in self._postponed.items() if at <= now]:
            subscription = message.delivery.subscription
            if not subscription.lost:
                subscription.write_answers([message], [], self._requeue_delay)
                self.counts.requeued += 1
            self._end_delay(subscription, message)

    def _drop_postponed(self, subscription: PartitionSubscription) -> None:
        for message in [m for m in self._postponed if m.delivery.subscription is subscription]:
            self._end_delay(subscription, message)

    def _end_delay(self, subscription: Subscription, message: Message) -> None:
        del self._postponed[message]
        if self.topic in TRACED_TOPICS:
            trace_answers(subscription, [message])
        self.queue.answered([message])

    # RDY and backoff

    def update_rdy(self) -> None:
        """Requeue what is due, and send the RDY that is due."""
        if self._postponed or self._backoffs or self._holds_some:
            now = self.now()
            if self._postponed and min(self._postponed.values()) <= now:
                self._requeue_due(now)
            self._hold_partitions(now)
        super().update_rdy()

    def _hold_partitions(self, now: float) -> None:
        backoffs = self._backoffs.items()
        held = {number for number, each in backoffs if each.phase(now) is BackoffPhase.BLOCKED}
        waiting = {message.partition for message in self._postponed}
        for subscription in self.subscriptions.values():
            number = subscription.partition
            self.rdy.hold(subscription, number in held or number in waiting)
        self._holds_some = bool(held or waiting)

    def _next_update(self, now: float) -> float:
        at = super()._next_update(now)
        if self.queue.closed or not (self._postponed or self._backoffs):
            return at
        untils = [each.until for each in self._backoffs.values() if each.until is not None]
        at = min([at, *self._postponed.values(), *(until for until in untils if until > now)])
        self._unchanged_until = min(self._unchanged_until, at)
        return at

    def _in_backoff(self, subscription: Subscription) -> bool:
        if isinstance(subscription, PartitionSubscription) and subscription.order is not None:
            return subscription.partition in self._backoffs
        return super()._in_backoff(subscription)

    def _count_results(self, subscription: Subscription, messages: list[Message]) -> None:
        if isinstance(subscription, PartitionSubscription) and subscription.order is not None:
            self._count_ordered_results(subscription, messages)
            self.update_rdy()
        else:
            super()._count_results(subscription, messages)

    def _count_ordered_results(
        self, subscription: PartitionSubscription, messages: list[Message]
    ) -> None:
        """Count results for the backoff of their partition."""
        assert subscription.partition is not None
        answers = {m.answer for m in messages if m.answer is not None and m.answer.counts}
        failed, now = bool(answers - {FIN}), self.now()
        backoff = self._backoffs.get(subscription.partition)
        if backoff is None:
            if not failed:
                return
            config = self.config
            backoff = Backoff(config.max_backoff_duration, config.backoff_multiplier)
            self._backoffs[subscription.partition] = backoff
        if backoff.failed(now) if failed else bool(answers) and backoff.succeeded(now):
            self._report_partition_backoff(subscription, backoff, now)
        if not backoff.level:
            del self._backoffs[subscription.partition]

    def _report_partition_backoff(
        self, subscription: PartitionSubscription, backoff: Backoff, now: float
    ) -> None:
        name = f"partition {subscription.partition} of {self.topic}/{self.channel}"
        if backoff.until is None:
            logger.info("%s: backoff is over", name)
            self.events.emit("resumed", subscription.address, name)
        else:
            text = f"{name}: level {backoff.level}, no messages for {backoff.until - now:.1f} s"
            logger.warning("backing off: %s", text)
            self.events.emit("backoff", subscription.address, text)

    # Closing

    def _close_queue(self, error: BaseException | None = None) -> None:
        super()._close_queue(error)
        self._requeue_due(inf)
