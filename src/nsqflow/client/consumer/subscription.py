"""A subscription: one connection that a consumer receives from, and the answers to its messages.

It queues answers from any thread and writes them when the coordinator flushes it, once per
turn of the event loop. What the answers mean for RDY and backoff is the coordinator's decision.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NoReturn

from nsqflow.client.consumer.stats import Counts
from nsqflow.client.events import EventEmitter
from nsqflow.client.message import ABANDONED, FIN, Delivery, Message
from nsqflow.errors import NsqError, RemoteProtocolError
from nsqflow.protocol import AnswerFailed, Cls, CommandFailed, MessageBatch, Rdy
from nsqflow.transport.connection import Connection
from nsqflow.transport.handler import ConnectionHandler

if TYPE_CHECKING:
    from nsqflow.client.consumer.coordinator import Coordinator

logger = logging.getLogger(__name__)

# A peer ignores RDY if it has sent more than the larger of these two.
_SURPLUS_FACTOR = 4  # times the RDY
MIN_SURPLUS = 1000  # messages

_MIN_MSG_TIMEOUT = 0.1  # seconds
_LATE_ARRIVALS = 0.05  # seconds in which a message may still arrive after CLOSE_WAIT

CLOSE_TIMEOUT = 2.0
"""Seconds for CLOSE_WAIT, and for nsqd to close its side."""


class Subscription(ConnectionHandler):
    """The messages of one connection, in flight until they are answered."""

    ordered = False
    """nsqd delivers one message at a time, and waits for its FIN."""
    counts_lost_deliveries = True
    """nsqd counts an attempt whose connection was lost before the answer."""

    def __init__(
        self,
        address: str,
        topic: str,
        channel: str,
        handler: Coordinator,
        counts: Counts,
        events: EventEmitter,
    ) -> None:
        self.address = address
        self.name = address  # what the consumer keys it by
        self.partition: int | None = None
        self.topic = topic
        self.channel = channel
        self.connection: Connection | None = None
        self.in_flight = 0  # received, not answered and not timed out
        self.rdy = 0  # as last sent
        self.removed = False  # no longer part of the RDY distribution
        self.received = 0
        self.finished = 0
        self.msg_timeout = 60.0
        self.answers: deque[Message] = deque()  # answered, to be written by the next flush
        self.flush_scheduled = False
        self._max_msg_timeout = 900.0
        self._handler = handler
        self._counts = counts
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._held: list[Message] = []  # those in flight, and some that no longer are
        self._expired: set[Message] = set()  # timed out in user code
        self._lowered: deque[tuple[float, int]] = deque()  # when RDY was lowered, and from what
        self._touches: deque[Message] = deque()

    def opened(self, connection: Connection) -> None:
        """Use a connection that has subscribed."""
        self.connection = connection
        # Some peers announce a timeout of 0.
        self.msg_timeout = max(_MIN_MSG_TIMEOUT, connection.reply.msg_timeout / 1000)
        self._max_msg_timeout = connection.reply.max_msg_timeout / 1000

    @property
    def lost(self) -> bool:
        """Whether its connection has ended."""
        return self.connection is None or self.connection.closed

    @property
    def effective_rdy(self) -> int:
        """The RDY that nsqd applies."""
        return self.rdy

    @property
    def unanswered(self) -> list[Message]:
        """The messages that were not answered."""
        return [message for message in self._held if message.answer is None]

    # For messages: called from any thread

    def queue_answer(self, message: Message) -> None:
        """Have the answer of a message written by the next flush."""
        self.answers.append(message)
        if not self.flush_scheduled:
            self.schedule_flush()

    def queue_touch(self, message: Message) -> float:
        """Have a TOUCH written by the next flush; return the message's new deadline."""
        self._touches.append(message)
        if not self.flush_scheduled:
            self.schedule_flush()
        latest = message.delivery.deadline - self.msg_timeout + self._max_msg_timeout
        return min(self._loop.time() + self.msg_timeout, latest)

    def handler_failed(self, message: Message, error: BaseException, *, others: int = 0) -> bool:
        """Answer for a handler that raised; ``others`` of its batch failed with it."""
        return self._handler.handler_failed(message, error, others=others)

    def schedule_flush(self) -> None:
        """Have the coordinator flush this subscription in the next turn of the loop."""
        self.flush_scheduled = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._handler.flush, self)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._handler.flush, self)

    def detach_after_fork(self, refuse: Callable[..., NoReturn]) -> None:
        """Refuse answers in a forked process: the connection belongs to the parent."""
        self.schedule_flush = refuse  # type: ignore[method-assign]
        self.flush_scheduled = False

    # Writing

    def take_answers(self) -> list[Message]:
        """Write the queued TOUCHes; return the messages answered since the last call."""
        # Before the queues are read: an answer queued from now on schedules the next flush.
        self.flush_scheduled = False
        if self._touches:
            self._write_touches()
        take = self.answers.popleft
        return [take() for _ in range(len(self.answers))]

    def write_answers(
        self,
        messages: list[Message],
        finished: list[bytes],
        requeue_delay: Callable[[Message], float],
    ) -> list[Message]:
        """Write FIN for the ids ``finished`` and REQ for the other messages.

        Return those whose deadline had passed.
        """
        assert self.connection is not None
        session = self.connection.session
        if finished:
            session.finish(finished)
            self.finished += len(finished)
        if len(finished) < len(messages):
            for message in messages:
                answer = message.answer
                if answer is not None and answer is not FIN:
                    delay = requeue_delay(message) if answer.delay is None else answer.delay
                    session.requeue((message.id,), round(delay * 1000))
        self.connection.flush()
        now = self._loop.time()
        # The first one held is the oldest: while it is in time, all are.
        if not self._held or self._held[0].delivery.deadline < now:
            return [message for message in messages if message.deadline < now]
        return []

    def release(self, messages: list[Message]) -> int:
        """Take answered messages out of flight; return how many had timed out before."""
        expired = self._forget_expired(messages) if self._expired else 0
        self.in_flight -= len(messages) - expired
        # Let go of answered messages once they are the majority.
        if len(self._held) > 2 * (self.in_flight + len(self._expired)) + 16:
            self._held = self.unanswered
        return expired

    def _write_touches(self) -> None:
        messages = [self._touches.popleft() for _ in range(len(self._touches))]
        if self.connection is not None and not self.lost:
            self.connection.session.touch(m.id for m in messages if m.answer is None)
            self.connection.flush()

    def send_rdy(self, count: int) -> None:
        """Send RDY: how many messages may be in flight."""
        if count < self.rdy:
            while self._lowered and self._lowered[-1][1] <= self.rdy:
                self._lowered.pop()
            self._lowered.append((self._loop.time(), self.rdy))
        self.rdy = count
        if self.connection is not None and not self.lost:
            self.connection.send(Rdy(count))

    def send_cls(self) -> None:
        """Send CLS: nsqd sends no more messages."""
        if self.connection is not None and not self.lost:
            self.connection.send(Cls())

    async def wait_closed(self) -> None:
        """Wait for CLOSE_WAIT, and for messages that may still arrive after it."""
        assert self.connection is not None
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self.connection.close_wait()
                await asyncio.sleep(_LATE_ARRIVALS)
        except (TimeoutError, NsqError) as error:
            logger.warning("%s: no CLOSE_WAIT: %s", self.name, error)

    # Messages that are not answered by user code

    def drop(self, messages: list[Message]) -> int:
        """Forget messages that were never handed out: nsqd delivers them again.

        Return how many of them had timed out before.
        """
        for message in messages:
            message.answer = ABANDONED
        return self.release(messages)

    def expire(self, now: float) -> tuple[int, float]:
        """Take messages out of flight that timed out in user code.

        Return how many, and the next deadline of the others. Messages that are still queued
        in the client must have been dropped before.
        """
        expired, soonest = 0, inf
        for message in self._held:
            if message.answer is not None or message in self._expired:
                continue
            if message.deadline <= now:
                self._expired.add(message)
                expired += 1
            else:
                soonest = min(soonest, message.deadline)
        self.in_flight -= expired
        return expired, soonest

    def abandon(self) -> int:
        """Queue a REQ for every unanswered message; return how many."""
        count = 0
        for message in self.unanswered:
            if message.answer is None:  # a thread may have answered it just now
                message.answer = ABANDONED
                self.answers.append(message)
                count += 1
        return count

    def _forget_expired(self, messages: list[Message]) -> int:
        known = self._expired.intersection(messages)
        self._expired -= known
        return len(known)

    # A peer that ignores RDY

    def max_surplus(self, now: float) -> int:
        """Return how many messages in flight a peer that honours RDY never exceeds."""
        return max(MIN_SURPLUS, _SURPLUS_FACTOR * self._highest_rdy(now))

    def abort_for_surplus(self, now: float) -> None:
        """Close the connection to an nsqd that ignores RDY: it could exhaust the memory."""
        assert self.connection is not None
        self.connection.abort(
            RemoteProtocolError(
                f"{self.address} ignores RDY: {self.in_flight} messages in flight, "
                f"at most {self._highest_rdy(now)} were asked for"
            )
        )

    def _highest_rdy(self, now: float) -> int:
        """Return the highest RDY that messages in flight may have been sent under."""
        while self._lowered and self._lowered[0][0] < now - self.msg_timeout:
            self._lowered.popleft()
        return max(self.rdy, self._lowered[0][1] if self._lowered else 0)

    # Called by the connection

    def messages_received(self, batch: MessageBatch) -> None:
        """Pass the messages of one read to the coordinator."""
        if self.connection is None:
            raise RemoteProtocolError("messages before the first RDY")
        if self.lost:  # closed while earlier data was decoded
            return
        now = self._loop.time()
        delivery = Delivery(self, now, now + self.msg_timeout)
        messages = self._build(batch, delivery)
        self._held += messages
        self.in_flight += len(messages)
        self.received += len(messages)
        self._handler.messages_received(self, messages, now, batch.most_attempts)

    def _build(self, batch: MessageBatch, delivery: Delivery) -> list[Message]:
        return batch.build(partial(Message, delivery))

    def answer_failed(self, event: AnswerFailed) -> None:
        """Count and log an answer that nsqd refused: it has delivered the message again."""
        self._counts.refused += 1
        text = f"{event.error} (message {event.id!r})"
        logger.warning("%s refused %s: %s", self.address, event.command, text)
        self._events.emit("answer_failed", self.address, text, event.error)

    def connection_lost(self, error: NsqError) -> None:
        """Report the end of the connection."""
        self._handler.connection_lost(self)

    def command_failed(self, event: CommandFailed) -> None:
        """Log a refused command; the connection ends with it and reports why."""
        logger.error("%s refused %s: %s", self.address, event.command or "a command", event.error)
