"""A subscription: one connection that a consumer receives from, and its answers.

Answers are gathered and written once per turn of the loop, from whatever thread they come.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import NoReturn, Protocol

from nsqflow.client.connection import Connection
from nsqflow.client.message import ABANDONED, FIN, Delivery, Message
from nsqflow.errors import NsqError, RemoteProtocolError
from nsqflow.protocol import (
    AnswerFailed,
    Cls,
    CommandFailed,
    MessageBatch,
    Rdy,
    Receipt,
)

logger = logging.getLogger(__name__)

# What may be in flight before a peer counts as one that ignores RDY.
_SURPLUS = 4  # times the RDY
_MIN_SURPLUS = 1000  # messages

_MIN_MSG_TIMEOUT = 0.1  # seconds


class Recipient(Protocol):
    """The consumer, as its subscriptions see it."""

    def arrived(
        self, subscription: Subscription, messages: list[Message], now: float, most_attempts: int
    ) -> None:
        """Messages have come; the one with the most attempts has so many."""

    def answering(self, messages: list[Message], finished: int) -> None:
        """These were answered, so many of them with FIN; nsqd is told next."""

    def settled(
        self, subscription: Subscription, messages: list[Message], finished: int, expired: int
    ) -> None:
        """Answers are written, unless the connection is lost.

        ``finished`` of them with FIN; ``expired`` of the messages had timed out before.
        """

    def check(self, now: float) -> None:
        """Drop what has expired."""

    def requeue_delay(self, message: Message) -> float:
        """How long a message stays away that failed."""

    def failed(self, message: Message, error: BaseException, *, others: int = 0) -> bool:
        """Answer for a handler that raised; tell whether the exception ends here."""

    def answer_failed(self, subscription: Subscription, event: AnswerFailed) -> None:
        """An answer was not taken."""

    def answer_late(self, subscription: Subscription, messages: list[Message]) -> None:
        """These were answered after their deadline."""

    def subscription_lost(self, subscription: Subscription, error: NsqError) -> None:
        """Nothing more will come."""


class Subscription:
    """One connection's messages: in flight until they are answered."""

    def __init__(self, address: str, topic: str, channel: str, recipient: Recipient) -> None:
        self.address = address
        self.topic = topic
        self.channel = channel
        self.connection: Connection | None = None
        self.in_flight = 0  # received, not answered and not timed out
        self.rdy = 0  # as last sent
        self.gone = False  # the consumer has taken leave of it
        self.received = 0
        self.finished = 0
        self.msg_timeout = 60.0
        self._max_msg_timeout = 900.0
        self._recipient = recipient
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._held: list[Message] = []  # those in flight, and some that were
        self._expired: set[Message] = set()  # timed out in user code
        self._lowered: deque[tuple[float, int]] = deque()  # when RDY was lowered, from what
        self._answers: deque[Message] = deque()
        self._touches: deque[Message] = deque()
        self._flush_comes = False

    def opened(self, connection: Connection) -> None:
        """Take the connection, subscribed."""
        self.connection = connection
        # A peer that announces none at all must not upset the consumer.
        self.msg_timeout = max(_MIN_MSG_TIMEOUT, connection.reply.msg_timeout / 1000)
        self._max_msg_timeout = connection.reply.max_msg_timeout / 1000

    @property
    def lost(self) -> bool:
        """Its connection has ended."""
        return self.connection is None or self.connection.closed

    @property
    def unanswered(self) -> list[Message]:
        """The messages that nobody has answered."""
        return [message for message in self._held if message._answer is None]

    # For messages: called from any thread

    def answered(self, message: Message) -> None:
        """Queue the answer of a message."""
        self._answers.append(message)
        if not self._flush_comes:
            self._schedule()

    def touched(self, message: Message) -> float:
        """Queue a TOUCH; tell the new deadline."""
        self._touches.append(message)
        if not self._flush_comes:
            self._schedule()
        latest = message._delivery.deadline - self.msg_timeout + self._max_msg_timeout
        return min(self._loop.time() + self.msg_timeout, latest)

    def failed(self, message: Message, error: BaseException, *, others: int = 0) -> bool:
        """Answer for a handler that raised; ``others`` of its batch failed with it."""
        return self._recipient.failed(message, error, others=others)

    def disown(self, refuse: Callable[..., NoReturn]) -> None:
        """Take no more answers: in a forked process, the connection is the parent's."""
        self._schedule = refuse  # type: ignore[method-assign]
        self._flush_comes = False

    def _schedule(self) -> None:
        self._flush_comes = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self.flush)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.flush)

    # Writing

    def flush(self) -> None:
        """Write all answers, and settle their accounts."""
        # Before the queues are read: who appends from now on schedules the next flush.
        self._flush_comes = False
        if self._touches:
            self._write_touches()
        if not self._answers:
            return
        take = self._answers.popleft
        messages = [take() for _ in range(len(self._answers))]
        ids = [message._header[10:] for message in messages if message._answer is FIN]
        self._recipient.answering(messages, len(ids))
        finished = 0 if self.lost else self._write(messages, ids)
        expired = self._forget_expired(messages) if self._expired else 0
        self.in_flight -= len(messages) - expired
        self._compact()
        self._recipient.settled(self, messages, finished, expired)

    def _write(self, messages: list[Message], finished: list[bytes]) -> int:
        assert self.connection is not None
        session = self.connection.session
        if finished:
            session.finish(finished)
            self.finished += len(finished)
        if len(finished) < len(messages):
            for message in messages:
                answer = message._answer
                if answer is not None and answer is not FIN:
                    delay = answer.delay
                    if delay is None:
                        delay = self._recipient.requeue_delay(message)
                    session.requeue((message.id,), round(delay * 1000))
        self.connection.flush()
        now = self._loop.time()
        if (
            not self._held or self._held[0]._delivery.deadline < now
        ):  # the oldest; if it is in time, so are all
            late = [message for message in messages if message.deadline < now]
            if late:
                self._recipient.answer_late(self, late)
        return len(finished)

    def _write_touches(self) -> None:
        messages = [self._touches.popleft() for _ in range(len(self._touches))]
        if self.connection is not None and not self.lost:
            self.connection.session.touch(m.id for m in messages if m._answer is None)
            self.connection.flush()

    def send_rdy(self, count: int) -> None:
        """Tell nsqd how many messages may be in flight."""
        if count < self.rdy:
            while self._lowered and self._lowered[-1][1] <= self.rdy:
                self._lowered.pop()
            self._lowered.append((self._loop.time(), self.rdy))
        self.rdy = count
        if self.connection is not None and not self.lost:
            self.connection.send(Rdy(count))

    def send_cls(self) -> None:
        """Tell nsqd to send no more."""
        if self.connection is not None and not self.lost:
            self.connection.send(Cls())

    # Timeouts

    def drop(self, messages: list[Message]) -> int:
        """Forget messages that user code never had: nsqd has them again.

        Return how many of them were counted as expired already.
        """
        for message in messages:
            message._answer = ABANDONED
        expired = self._forget_expired(messages) if self._expired else 0
        self.in_flight -= len(messages) - expired
        self._compact()
        return expired

    def expire(self, now: float) -> tuple[int, float]:
        """Take messages out of flight that timed out in user code.

        Return how many, and the next deadline of the others. Messages that wait in the
        client must have been dropped before.
        """
        expired, soonest = 0, inf
        for message in self._held:
            if message._answer is not None or message in self._expired:
                continue
            if message.deadline <= now:
                self._expired.add(message)
                expired += 1
            else:
                soonest = min(soonest, message.deadline)
        self.in_flight -= expired
        return expired, soonest

    def _compact(self) -> None:
        """Let go of messages that were answered or dropped, once they are the most."""
        if len(self._held) > 2 * (self.in_flight + len(self._expired)) + 16:
            self._held = self.unanswered

    def _forget_expired(self, messages: list[Message]) -> int:
        known = self._expired.intersection(messages)
        self._expired -= known
        return len(known)

    def abandon(self) -> int:
        """Requeue what is in somebody's hands; tell how many that were."""
        count = 0
        for message in self.unanswered:
            if message._answer is None:  # a thread may have answered it just now
                message._answer = ABANDONED
                self._answers.append(message)
                count += 1
        self.flush()
        return count

    # What the connection tells

    def messages_received(self, batch: MessageBatch) -> None:
        """Make messages of them, and pass them on."""
        if self.connection is None:
            raise RemoteProtocolError("messages before the first RDY")
        if self.lost:  # closed over what came before
            return
        now = self._loop.time()
        delivery = Delivery(self, now, now + self.msg_timeout)
        messages = batch.apart(partial(Message, delivery))
        self._held += messages
        self.in_flight += len(messages)
        self.received += len(messages)
        self._recipient.arrived(self, messages, now, batch.most_attempts)
        if self.in_flight > _MIN_SURPLUS:
            self._check_surplus(now)

    def _check_surplus(self, now: float) -> None:
        """Close the connection to an nsqd that ignores RDY: it could fill the memory."""
        while self._lowered and self._lowered[0][0] < now - self.msg_timeout:
            self._lowered.popleft()
        highest = max(self.rdy, self._lowered[0][1] if self._lowered else 0)
        if self.in_flight <= _SURPLUS * highest:
            return
        self._recipient.check(now)
        if self.in_flight > max(_MIN_SURPLUS, _SURPLUS * highest):
            assert self.connection is not None
            self.connection.abort(
                RemoteProtocolError(
                    f"{self.address} ignores RDY: {self.in_flight} messages in flight, "
                    f"at most {highest} were asked for"
                )
            )

    def answer_failed(self, event: AnswerFailed) -> None:
        """An answer was not taken: it came too late."""
        self._recipient.answer_failed(self, event)

    def connection_lost(self, error: NsqError) -> None:
        """Tell the consumer."""
        self._recipient.subscription_lost(self, error)

    def command_failed(self, event: CommandFailed) -> None:
        """Something was refused; the connection ends with it, and says so."""
        logger.error("%s refused %s: %s", self.address, event.command or "a command", event.error)

    def published(self, receipt: Receipt | None) -> None:
        """Can't be: nothing is published here."""

    def writable(self) -> None:
        """Answers are few bytes: they are never held back."""
