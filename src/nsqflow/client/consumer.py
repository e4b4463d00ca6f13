"""The consumer: messages of one channel, as an iterator, in batches, or into a handler."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, Unpack

from nsqflow.client.batch import Batch, Batches
from nsqflow.client.config import ConsumerConfig
from nsqflow.client.draining import drain
from nsqflow.client.explanation import explain
from nsqflow.client.intake import Intake
from nsqflow.client.message import Message
from nsqflow.client.options import ConsumerOptions
from nsqflow.client.signals import stopping
from nsqflow.client.stats import ConnectionStats, ConsumerStats, Counts, Drained
from nsqflow.client.workers import Handler, make_workers
from nsqflow.errors import ConfigError
from nsqflow.protocol import check_channel, check_topic

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT = 30.0  # seconds
_REPORT_AFTER = 0.5  # seconds until a close that waits says what for


class Consumer:
    """Consumes a channel of a topic from nsqd given directly or found through nsqlookupd.

        async with Consumer("orders", "billing", lookupd=["127.0.0.1:4161"]) as consumer:
            async for message in consumer:
                async with message:
                    await charge(message.body)

    Iterating ends when the consumer is closed; it raises what no second try can mend, such
    as a secret that nsqd refuses.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd: str | Iterable[str] = (),
        lookupd: str | Iterable[str] = (),
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self.topic = check_topic(topic)
        self.channel = check_channel(channel)
        self._config = ConsumerConfig.of("Consumer", nsqd, lookupd, options)
        self._intake: Intake | None = None
        self._closing: asyncio.Task[Drained] | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._drain_timeout = DRAIN_TIMEOUT  # after a signal

    def __repr__(self) -> str:
        return f"<Consumer {self.topic}/{self.channel}>"

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an exception nobody is left to answer what is in hands: it is given back at once.
        await self.close(DRAIN_TIMEOUT if error is None else 0)

    # Consuming

    def __aiter__(self) -> Self:
        self._start()
        return self

    def __anext__(self) -> Coroutine[Any, Any, Message]:
        return self._start().inbox.next()

    def batches(self, size: int = 100, max_wait: float = 0.5) -> AsyncIterator[Batch]:
        """Give messages in batches of up to ``size``.

        A batch comes early, with what there is, ``max_wait`` seconds after its first message,
        or when nothing more can come before some messages are answered; at the latest when
        half of ``msg_timeout`` is over. What was gathered when a caller is cancelled waits
        for the next one.
        """
        if size < 1 or not 0 <= max_wait < float("inf"):
            raise ConfigError(f"size {size!r}, max_wait {max_wait!r}; 1 or more, 0 or more seconds")
        return Batches(self._start().inbox, size, max_wait)

    async def run(
        self,
        handler: Handler,
        concurrency: int = 1,
        *,
        signals: bool = True,
        auto_answer: bool = True,
        drain_timeout: float = DRAIN_TIMEOUT,
    ) -> Drained:
        """Give each message to ``handler`` until the consumer is closed; return the counts.

        What the handler returns from is finished, what it raises on is requeued with a
        delay. An ``async def`` runs in the loop, ``concurrency`` at a time; a plain ``def``
        on as many threads. SIGINT and SIGTERM close the consumer and wait up to
        ``drain_timeout`` seconds for its handlers; a second one requeues what they have and
        ends at once. ``auto_answer=False`` leaves it to the handler to answer, now or later.
        """
        self._drain_timeout = _checked_drain_timeout(drain_timeout)
        workers = make_workers(handler, concurrency, auto_answer)
        task = asyncio.create_task(workers.run(self._start().inbox), name=f"nsqflow {self!r}")
        self._workers.add(task)
        try:
            with stopping(self._stop, wanted=signals):
                await asyncio.wait([task])
                return await self._result(task)
        finally:
            # First the inbox: a handler that ignores its cancelling gets no other message.
            if self._closing is None:
                self._begin_closing(self._drain_timeout)
            task.cancel()
            await asyncio.wait([task])
            self._workers.discard(task)
            await self.close()
            await workers.part()

    # Control

    def is_starved(self) -> bool:
        """Tell whether nothing more can come from some nsqd before messages are answered."""
        return self._intake is not None and self._intake.is_starved()

    def pause(self) -> None:
        """Stop the flow (RDY 0); what has arrived is still handed out."""
        self._start().pause(True)

    def resume(self) -> None:
        """Let messages flow again."""
        self._start().pause(False)

    def set_max_in_flight(self, count: int) -> None:
        """Allow so many messages in your hands from now on."""
        self._start().set_max_in_flight(count)

    def stats(self) -> ConsumerStats:
        """Return what was counted so far, and how things stand."""
        intake = self._intake
        if intake is None:
            return ConsumerStats(Counts(), (), 0, 0, self._config.max_in_flight, 0, False)
        counts = intake.counts
        return ConsumerStats(
            counts=Counts(*(getattr(counts, name) for name in Counts.__slots__)),
            connections=tuple(map(self._connection_stats, sorted(intake.sources.endpoints))),
            in_hands=intake.inbox.outstanding,
            waiting=intake.inbox.queued,
            max_in_flight=intake.inbox.max_in_flight,
            backoff_level=intake.backoff.level,
            paused=intake.paused,
        )

    def explain(self) -> str:
        """Say in words how each connection stands, and why nothing arrives where it does not."""
        if self._intake is None:
            return f"{self!r} was not started"
        return explain(self._intake)

    async def close(self, drain_timeout: float = DRAIN_TIMEOUT) -> Drained:
        """Take no more messages, wait for unanswered ones, give back the rest; return the counts.

        After ``drain_timeout`` seconds, handlers that still run are cancelled and their
        messages requeued. Code that holds a message must answer it before it waits here.
        """
        _checked_drain_timeout(drain_timeout)
        # Who waits may be cancelled; the draining goes on.
        return await asyncio.shield(self._closing or self._begin_closing(drain_timeout))

    # Private methods

    def _start(self) -> Intake:
        if self._intake is None:
            intake = Intake(self.topic, self.channel, self._config)
            intake.sources.start()
            self._intake = intake
        return self._intake

    def _begin_closing(self, drain_timeout: float) -> asyncio.Task[Drained]:
        if self._intake is None:  # never started: there is nothing to connect to any more
            self._intake = Intake(self.topic, self.channel, self._config)
        work = self._drain(self._intake, drain_timeout)
        self._closing = asyncio.create_task(work, name=f"nsqflow closes {self!r}")
        return self._closing

    async def _drain(self, intake: Intake, timeout: float) -> Drained:
        loop = asyncio.get_running_loop()
        remark = loop.call_later(_REPORT_AFTER, self._report_waiting, intake, timeout)
        try:
            drained = await drain(intake, timeout)
        finally:
            remark.cancel()
            for task in self._workers:
                task.cancel()
        logger.info("%r closed: %s", self, drained)
        return drained

    def _report_waiting(self, intake: Intake, timeout: float) -> None:
        count = intake.inbox.in_hands
        if count:
            logger.warning(
                "%r is closing: waiting for %d unanswered message%s, %g s at most; "
                "finish or requeue, or close(drain_timeout=0)",
                self, count, "" if count == 1 else "s", timeout,
            )  # fmt: skip

    async def _result(self, task: asyncio.Task[None]) -> Drained:
        # If nobody closes it, it was cancelled by a handler, and that is not the end expected.
        if self._closing is None or not task.cancelled():
            task.result()
        return await self.close()

    def _stop(self, number: signal.Signals) -> None:
        name = signal.Signals(number).name
        if self._closing is None:
            logger.info("%r: %s, closing", self, name)
            self._begin_closing(self._drain_timeout)
            return
        logger.warning("%r: %s while closing, ending at once", self, name)
        self._start().inbox.hurry()
        for task in self._workers:
            task.cancel()

    def _connection_stats(self, address: str) -> ConnectionStats:
        assert self._intake is not None
        subscription = self._intake.subscriptions.get(address)
        failures = self._intake.sources.endpoints[address].failures
        if subscription is None:
            return ConnectionStats(address, False, 0, 0, 0, 0, failures)
        s = subscription
        return ConnectionStats(address, True, s.rdy, s.in_flight, s.received, s.finished, failures)


def _checked_drain_timeout(seconds: float) -> float:
    if not seconds >= 0:
        raise ConfigError(f"drain_timeout={seconds!r} is invalid: must be 0 or more seconds")
    return seconds
