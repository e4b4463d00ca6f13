"""A subscription to a partition of the redesigned NSQ, and the trace lines of its messages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from nsqflow.client.consumer.connections import Endpoint
from nsqflow.client.consumer.ordered import PartitionOrder, place
from nsqflow.client.consumer.stats import Counts
from nsqflow.client.consumer.subscription import Subscription
from nsqflow.client.events import EventEmitter
from nsqflow.client.message import FIN, Delivery, Message
from nsqflow.client.partition_message import ExtendedMessage, PartitionMessage
from nsqflow.protocol import AnswerFailed, MessageBatch
from nsqflow.protocol.messages import PLAIN
from nsqflow.trace import write_line

if TYPE_CHECKING:
    from nsqflow.client.consumer.partition_coordinator import PartitionCoordinator

_SLOW_DOWN = 5  # failed answers from which on nsqd applies less than RDY
_MAX_ERRORS = 4 * _SLOW_DOWN  # above RDY


class PartitionSubscription(Subscription):
    """The messages of one partition."""

    counts_lost_deliveries = False

    def __init__(
        self,
        endpoint: Endpoint,
        topic: str,
        channel: str,
        handler: PartitionCoordinator,
        counts: Counts,
        events: EventEmitter,
        *,
        order: PartitionOrder | None,
    ) -> None:
        super().__init__(endpoint.nsqd, topic, channel, handler, counts, events)
        self.endpoint = endpoint
        self.name = endpoint.name
        self.partition = endpoint.partition
        self.order = order
        self.ordered = order is not None
        self._errors = 0  # as nsqd counts them

    @property
    def effective_rdy(self) -> int:
        """The RDY that nsqd applies after failed answers and timeouts."""
        if self._errors < _SLOW_DOWN or self.rdy <= 1:
            return self.rdy
        return min(self.rdy, max(1, self.rdy - self._errors + _SLOW_DOWN))

    def answer_failed(self, event: AnswerFailed) -> None:
        """Count and log an answer that nsqd refused."""
        self._count_errors(1)
        super().answer_failed(event)

    def drop(self, messages: list[Message]) -> int:
        """Forget messages that were never handed out: nsqd delivers them again."""
        if self.order is not None:
            for message in messages:
                assert isinstance(message, PartitionMessage)
                self.order.dropped(*place(message))
        return super().drop(messages)

    def expire(self, now: float) -> tuple[int, float]:
        """Take messages out of flight that timed out in user code."""
        expired, soonest = super().expire(now)
        self._count_errors(expired)
        return expired, soonest

    def count_finished(self, messages: Iterable[Message]) -> None:
        """Lower the number of errors as nsqd does: by two or more for each FIN."""
        if not self._errors:  # nearly always
            return
        for _ in range(sum(message.answer is FIN for message in messages)):
            if not self._errors:
                break
            errors = self._errors - 2
            if 0 < errors < self.rdy:
                errors -= (self.rdy - errors) // 4
            self._errors = max(errors, 0)

    def _count_errors(self, count: int) -> None:
        self._errors = min(self._errors + count, self.rdy + _MAX_ERRORS)

    def _build(self, batch: MessageBatch, delivery: Delivery) -> list[Message]:
        if batch.layout == PLAIN:
            return [*batch.build(partial(PartitionMessage, delivery))]
        return [*batch.build_extended(partial(ExtendedMessage, delivery))]


# Trace lines


def trace_received(subscription: Subscription, messages: Iterable[Message]) -> None:
    """Write a line for each message that has arrived."""
    for message in messages:
        _write("receive", subscription, message, None)


def trace_answers(subscription: Subscription, messages: Iterable[Message]) -> None:
    """Write a line for each message that was finished or requeued."""
    outcome = "connection lost" if subscription.lost else "sent"
    for message in messages:
        _write("finish" if message.answer is FIN else "requeue", subscription, message, outcome)


def _write(event: str, subscription: Subscription, message: Message, outcome: str | None) -> None:
    connection = subscription.connection
    names = ("partition", "internal_id", "trace_id", "offset", "size", "timestamp", "attempts")
    values: dict[str, Any] = {name: getattr(message, name) for name in names}
    write_line(
        event,
        subscription.topic,
        channel=subscription.channel,
        client="" if connection is None else connection.local_address,
        nsqd=subscription.address,
        outcome=outcome,
        **values,
    )
