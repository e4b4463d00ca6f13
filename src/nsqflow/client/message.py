"""A message, and how user code answers it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, NamedTuple, Self

from nsqflow.config.numbers import DELAY, TOUCH_INTERVAL
from nsqflow.errors import LocalProtocolError
from nsqflow.protocol.messages import read_header

if TYPE_CHECKING:
    from nsqflow.client.consumer.subscription import Subscription


class Delivery:
    """What the messages of one read have in common: their origin, arrival and deadline."""

    __slots__ = ("arrived", "deadline", "subscription")

    def __init__(self, subscription: Subscription, arrived: float, deadline: float) -> None:
        self.subscription = subscription
        self.arrived = arrived
        self.deadline = deadline


class Answer(NamedTuple):
    """The answer to a message: FIN or REQ."""

    command: str
    delay: float | None = 0.0  # REQ: seconds; None: grows with the attempts
    counts: bool = True  # whether backoff counts it as a success or failure


FIN = Answer("FIN")
REQ_LATER = Answer("REQ", None)
REQ_LATER_QUIETLY = Answer("REQ", None, counts=False)
REQ_POSTPONED = Answer("REQ", 0.0, counts=False)  # counted when the handler failed
# Requeued by close() while user code still holds the message, or timed out before it did.
ABANDONED = Answer("REQ", 0.0, counts=False)


class Message:
    """One message; finish it or requeue it, or let ``async with`` do so.

        async with message:      # FIN on success, REQ with a delay on an exception
            await charge(message.body)

    Its methods can be called from any thread.
    """

    __slots__ = ("_extended", "_header", "answer", "body", "delivery")

    body: bytes

    def __init__(self, delivery: Delivery, header: bytes, body: bytes) -> None:
        # The header is parsed on demand: most handlers read the body only.
        self.delivery = delivery
        self.answer: Answer | None = None
        self._header = header
        self.body = body

    def __repr__(self) -> str:
        return (
            f"<Message {self.id!r} of {self.topic}/{self.channel} from {self.nsqd}, "
            f"attempt {self.attempts}, {len(self.body)} bytes>"
        )

    @property
    def timestamp(self) -> int:
        """When nsqd received it, in nanoseconds since 1970."""
        return read_header(self._header)[0]

    @property
    def attempts(self) -> int:
        """The number of deliveries, including this one."""
        return read_header(self._header)[1]

    @property
    def id(self) -> bytes:
        """16 bytes; unique only together with ``nsqd`` and ``topic``."""
        return self._header[10:]

    # Origin

    @property
    def topic(self) -> str:
        """The topic it was published to."""
        return self.delivery.subscription.topic

    @property
    def channel(self) -> str:
        """The channel it was delivered through."""
        return self.delivery.subscription.channel

    @property
    def nsqd(self) -> str:
        """The address of the nsqd that sent it."""
        return self.delivery.subscription.address

    @property
    def partition(self) -> int | None:
        """Its partition; None on the classic NSQ."""
        return None

    @property
    def offset(self) -> int | None:
        """Its position in the partition; None on the classic NSQ."""
        return None

    @property
    def size(self) -> int | None:
        """Its size in the partition, in bytes; None on the classic NSQ."""
        return None

    @property
    def internal_id(self) -> int | None:
        """The number that the redesigned NSQ assigns to it; None on the classic NSQ."""
        return None

    @property
    def trace_id(self) -> int | None:
        """Its trace id; None on the classic NSQ."""
        return None

    @property
    def headers(self) -> dict[str, object] | None:
        """Its headers; None on the classic NSQ."""
        return None

    @property
    def tag(self) -> str | None:
        """Its tag; None on the classic NSQ."""
        return None

    @property
    def deadline(self) -> float:
        """When nsqd delivers it again, on the clock of ``time.monotonic()``."""
        try:
            return self._extended
        except AttributeError:
            return self.delivery.deadline

    @property
    def answered(self) -> bool:
        """Whether it was finished or requeued."""
        return self.answer is not None

    # Answers

    def finish(self) -> None:
        """Send FIN: the message is handled."""
        if not self.try_finish():
            raise self._answered_twice("FIN")

    def try_finish(self) -> bool:
        """Finish it unless it was answered before; return whether this call did."""
        # No thread switch can come between the test and the assignment: one call succeeds.
        if self.answer is not None:
            return False
        self.answer = FIN
        subscription = self.delivery.subscription
        # As queue_answer() does: this saves a call for each message.
        subscription.answers.append(self)
        if not subscription.flush_scheduled:
            subscription.schedule_flush()
        return True

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> None:
        """Send REQ: nsqd delivers the message again after ``delay`` seconds.

        None: the delay grows with its attempts. ``backoff=False``: this is not a failure that
        should slow the consumer down.
        """
        if delay is None:
            answer = REQ_LATER if backoff else REQ_LATER_QUIETLY
        else:
            DELAY.check("delay", delay)
            answer = Answer("REQ", delay, backoff)
        if self.answer is not None:
            raise self._answered_twice("REQ")
        self.answer = answer
        self.delivery.subscription.queue_answer(self)

    def touch(self) -> None:
        """Ask for more time (TOUCH): its timeout starts again."""
        if self.answer is not None:
            raise self._answered_twice("TOUCH")
        self._extended = self.delivery.subscription.queue_touch(self)

    @contextlib.asynccontextmanager
    async def keep_alive(self, interval: float | None = None) -> AsyncIterator[None]:
        """Touch it every ``interval`` seconds while the block runs, up to nsqd's limit.

        The default is half of its timeout. The consumer never does this on its own: a handler
        that hangs would keep its message forever.
        """
        seconds = self.delivery.subscription.msg_timeout / 2 if interval is None else interval
        TOUCH_INTERVAL.check("interval", seconds)
        toucher = asyncio.create_task(self._keep_touching(seconds))
        try:
            yield
        finally:
            toucher.cancel()
            await asyncio.wait([toucher])

    async def _keep_touching(self, seconds: float) -> None:
        while not self.answered:
            self.touch()
            await asyncio.sleep(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            self.try_finish()
            return False
        return self.delivery.subscription.handler_failed(self, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            self.try_finish()
            return False
        return self.delivery.subscription.handler_failed(self, error)

    def _answered_twice(self, command: str) -> LocalProtocolError:
        assert self.answer is not None
        given = "REQ by close()" if self.answer is ABANDONED else self.answer.command
        return LocalProtocolError(f"{command} for {self!r}, which was answered by {given}")


def finish_all(messages: Iterable[Message]) -> None:
    """Finish the messages that were not answered yet."""
    for message in messages:
        if message.answer is None:
            message.answer = FIN
            subscription = message.delivery.subscription
            # As queue_answer() does: this saves a call for each message.
            subscription.answers.append(message)
            if not subscription.flush_scheduled:
                subscription.schedule_flush()


def finished_ids(messages: Iterable[Message]) -> list[bytes]:
    """Return the ids of the messages that were answered with FIN."""
    return [message._header[10:] for message in messages if message.answer is FIN]
