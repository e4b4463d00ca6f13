"""A message in your hands: what it says, and how it is answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from nsqflow.errors import ConfigError, LocalProtocolError
from nsqflow.protocol.messages import read_header

if TYPE_CHECKING:
    from nsqflow.client.subscription import Subscription


class Delivery:
    """What the messages of one read have in common."""

    __slots__ = ("arrived", "deadline", "subscription")

    def __init__(self, subscription: Subscription, arrived: float, deadline: float) -> None:
        self.subscription = subscription
        self.arrived = arrived
        self.deadline = deadline


class Answer(NamedTuple):
    """What nsqd is told about a message."""

    command: str
    delay: float | None = 0.0  # REQ: seconds; None: by its attempts
    counts: bool = True  # for backoff


FIN = Answer("FIN")
REQ_LATER = Answer("REQ", None)
REQ_LATER_QUIETLY = Answer("REQ", None, counts=False)
ABANDONED = Answer("REQ", 0.0, counts=False)  # by close(), over the head of who holds it


class Message:
    """One message; finish it or requeue it, or let ``async with`` do so.

        async with message:      # FIN on success, REQ with a delay on an exception
            await charge(message.body)

    Its methods can be called from any thread.
    """

    __slots__ = ("_answer", "_delivery", "_extended", "_header", "body")

    body: bytes

    def __init__(self, delivery: Delivery, header: bytes, body: bytes) -> None:
        # The header is read when somebody asks: most handlers want the body alone.
        self._delivery = delivery
        self._answer: Answer | None = None
        self._header = header
        self.body = body

    def __repr__(self) -> str:
        return (
            f"<Message {self.id!r} of {self.topic}/{self.channel} from {self.nsqd}, "
            f"attempt {self.attempts}, {len(self.body)} bytes>"
        )

    @property
    def timestamp(self) -> int:
        """When nsqd took it, in nanoseconds since 1970."""
        return read_header(self._header)[0]

    @property
    def attempts(self) -> int:
        """How often it was delivered, this time included."""
        return read_header(self._header)[1]

    @property
    def id(self) -> bytes:
        """16 bytes; unique together with ``nsqd`` and ``topic`` only."""
        return self._header[10:]

    # Where it comes from

    @property
    def topic(self) -> str:
        """The topic it was published to."""
        return self._delivery.subscription.topic

    @property
    def channel(self) -> str:
        """The channel it came through."""
        return self._delivery.subscription.channel

    @property
    def nsqd(self) -> str:
        """The address of the nsqd that sent it."""
        return self._delivery.subscription.address

    @property
    def partition(self) -> int | None:
        """Its partition; None on the classic NSQ."""
        return None

    @property
    def offset(self) -> int | None:
        """Where it stands in its partition; None on the classic NSQ."""
        return None

    @property
    def size(self) -> int | None:
        """How many bytes it takes there; None on the classic NSQ."""
        return None

    @property
    def internal_id(self) -> int | None:
        """The redesigned NSQ's own number of it; None on the classic NSQ."""
        return None

    @property
    def trace_id(self) -> int | None:
        """Under which it is traced; None on the classic NSQ."""
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
        """When nsqd gives it to somebody else, on the clock of ``time.monotonic()``."""
        try:
            return self._extended
        except AttributeError:
            return self._delivery.deadline

    @property
    def answered(self) -> bool:
        """It was finished or requeued."""
        return self._answer is not None

    # Answers

    def finish(self) -> None:
        """Say that it is done with (FIN)."""
        # From here to the next call no other thread gets a turn: only one can pass.
        if self._answer is not None:
            raise self._answered_twice("FIN")
        self._answer = FIN
        self._delivery.subscription.answered(self)

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> None:
        """Say that it shall come again (REQ), after ``delay`` seconds.

        None is a delay that grows with its attempts. ``backoff=False``: it is no failure
        that should slow the consumer down.
        """
        if delay is None:
            answer = REQ_LATER if backoff else REQ_LATER_QUIETLY
        elif 0 <= delay < 10**9:
            answer = Answer("REQ", delay, backoff)
        else:
            raise ConfigError(f"delay {delay!r}; 0 or more seconds, or None")
        if self._answer is not None:
            raise self._answered_twice("REQ")
        self._answer = answer
        self._delivery.subscription.answered(self)

    def touch(self) -> None:
        """Ask for more time (TOUCH): its timeout begins anew."""
        if self._answer is not None:
            raise self._answered_twice("TOUCH")
        self._extended = self._delivery.subscription.touched(self)

    @contextlib.asynccontextmanager
    async def keep_alive(self, interval: float | None = None) -> AsyncIterator[None]:
        """Touch it again and again while the block runs; nsqd sets a limit to that.

        By default at half of its timeout. Never done by itself: a handler that hangs would
        keep its message for ever.
        """
        seconds = self._delivery.subscription.msg_timeout / 2 if interval is None else interval
        if not seconds > 0:
            raise ConfigError(f"interval {interval!r}; above 0 seconds, or None")
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None:
            if self._answer is None:
                self.finish()
            return False
        return self._delivery.subscription.failed(self, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        # Not a coroutine that waits: it is on the path of every message.
        if error is None and self._answer is None:
            self.finish()
            return False
        return self.__exit__(kind, error, traceback)

    def _answered_twice(self, command: str) -> LocalProtocolError:
        assert self._answer is not None
        given = "REQ by close()" if self._answer is ABANDONED else self._answer.command
        return LocalProtocolError(f"{command} for {self!r}, which was answered by {given}")
