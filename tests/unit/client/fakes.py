"""Messages that no server sent, and fakes of the parts that receive their answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from nsqflow.client.consumer.coordinator import Coordinator
from nsqflow.client.consumer.queue import MessageQueue
from nsqflow.client.consumer.subscription import Subscription
from nsqflow.client.message import ABANDONED, Delivery, Message

DEADLINE = 1e9  # on the clock of time.monotonic(): never reached


class FakeSubscription:
    """A subscription as messages see it: it keeps their answers."""

    topic = "orders"
    channel = "billing"
    address = "10.0.0.1:4150"
    msg_timeout = 60.0
    lost = removed = False
    flush_scheduled = True

    def __init__(self) -> None:
        self.answers: list[Message] = []
        self.touches: list[Message] = []
        self.failures: list[tuple[Message, BaseException]] = []

    def message(
        self, body: bytes = b"x", *, attempts: int = 1, id: bytes = b"0123456789abcdef"
    ) -> Message:
        subscription = cast("Subscription", self)
        header = b"\0\0\0\0\0\0\0\1" + attempts.to_bytes(2, "big") + id
        return Message(Delivery(subscription, time.monotonic(), DEADLINE), header, body)

    def messages(self, count: int) -> list[Message]:
        return [self.message(b"%d" % number) for number in range(count)]

    # Called by messages

    def queue_answer(self, message: Message) -> None:
        self.answers.append(message)

    def queue_touch(self, message: Message) -> float:
        self.touches.append(message)
        return DEADLINE + 5

    def handler_failed(self, message: Message, error: BaseException, *, others: int = 0) -> bool:
        self.failures.append((message, error))
        if not message.answered:
            message.requeue(0, backoff=False)
        return isinstance(error, Exception)

    # Called by tests

    def abandon(self, message: Message) -> None:
        message.answer = ABANDONED

    def release(self, queue: MessageQueue) -> bool:
        """Release all answers, as if they were written; return whether there were any."""
        count = len(self.answers)
        self.answers.clear()
        if count:
            queue.release(count)
        return count > 0


class FakeCoordinator(Coordinator):
    """A coordinator as readers see it."""

    def __init__(
        self,
        max_in_flight: int = 10,
        flush: Callable[[], object] = lambda: None,
        *,
        starved: bool = False,
    ) -> None:
        self.queue = MessageQueue(max_in_flight)
        self._flush = flush
        self.starved = starved
        self.updates = 0
        self.given_back: list[Message] = []
        self.checks: list[float] = []

    def flush_all(self) -> None:
        self._flush()

    def update_rdy(self) -> None:
        self.updates += 1

    def check(self, now: float) -> None:
        self.checks.append(now)

    def expire(self, now: float) -> None:
        self.checks.append(now)

    def give_back(self, messages: list[Message]) -> None:
        self.given_back += messages

    def is_starved(self) -> bool:
        return self.starved


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]
