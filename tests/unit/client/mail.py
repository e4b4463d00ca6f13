"""Messages that no server sent, and the desk where their answers end up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from nsqflow.client.message import ABANDONED, Delivery, Message

if TYPE_CHECKING:
    from nsqflow.client.inbox import Inbox
    from nsqflow.client.subscription import Subscription

DEADLINE = 1e9  # on the clock of time.monotonic(): never reached


class Desk:
    """A subscription as messages see it: it writes down their answers."""

    topic = "orders"
    channel = "billing"
    address = "10.0.0.1:4150"
    msg_timeout = 60.0
    lost = gone = False
    _flush_comes = True

    def __init__(self) -> None:
        self.answers: list[Message] = []
        self._answers = self.answers
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

    # What messages call

    def answered(self, message: Message) -> None:
        self.answers.append(message)

    def touched(self, message: Message) -> float:
        self.touches.append(message)
        return DEADLINE + 5

    def failed(self, message: Message, error: BaseException, *, others: int = 0) -> bool:
        self.failures.append((message, error))
        if not message.answered:
            message.requeue(0, backoff=False)
        return isinstance(error, Exception)

    # What tests do

    def abandon(self, message: Message) -> None:
        message._answer = ABANDONED

    def settle(self, inbox: Inbox) -> bool:
        """Settle all answers, as when they are written; return whether there were any."""
        count = len(self.answers)
        self.answers.clear()
        if count:
            inbox.released(count)
        return count > 0


class FakeCoordinator:
    """A consumer as its inbox sees it."""

    def __init__(
        self, flush: Callable[[], object] = lambda: None, *, starved: bool = False
    ) -> None:
        self._flush = flush
        self.starved = starved
        self.reviews = 0
        self.given_back: list[Message] = []
        self.checks: list[float] = []

    def flush(self) -> None:
        self._flush()

    def review(self) -> None:
        self.reviews += 1

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
