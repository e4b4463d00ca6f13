"""The consumer: iterates over messages of one channel, in batches, or runs a handler."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from math import inf
from typing import Any, NoReturn, Self, Unpack

from nsqflow.client.consumer.batch import Batch, Batches
from nsqflow.client.consumer.config import ConsumerConfig
from nsqflow.client.consumer.coordinator import Coordinator
from nsqflow.client.consumer.explain import explain
from nsqflow.client.consumer.partition_coordinator import PartitionCoordinator
from nsqflow.client.consumer.reader import MessageReader
from nsqflow.client.consumer.stats import ConnectionStats, ConsumerStats, Counts, DrainResult
from nsqflow.client.consumer.workers import Handler, make_workers
from nsqflow.client.message import Message
from nsqflow.client.options import ConsumerOptions
from nsqflow.config.numbers import BATCH_SIZE, DRAIN_TIMEOUT_RANGE, MAX_WAIT
from nsqflow.config.reference import with_options
from nsqflow.protocol import check_channel, check_topic
from nsqflow.signals import handle_signals_in_loop

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT = 30.0  # seconds
_REPORT_AFTER = 0.5  # seconds until close() logs what it waits for


@with_options(ConsumerConfig, omit=("nsqd", "lookupd"))
class Consumer:
    """Consumes a channel of a topic from nsqd given directly or found through nsqlookupd.

        async with Consumer("orders", "billing", lookupd=["127.0.0.1:4161"]) as consumer:
            async for message in consumer:
                async with message:
                    await charge(message.body)

    Iterating ends when the consumer is closed; it raises errors that no retry can fix, such
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
        self._coordinator: Coordinator | None = None
        self._reader: MessageReader | None = None
        self._closing: asyncio.Task[DrainResult] | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._drain_timeout = DRAIN_TIMEOUT  # of a close by a signal

    def __repr__(self) -> str:
        return f"<Consumer {self.topic}/{self.channel}>"

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # After an exception no code is left that would answer: requeue at once.
        await self.close(DRAIN_TIMEOUT if error is None else 0)

    # Consuming

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.start()

    def __anext__(self) -> Coroutine[Any, Any, Message]:
        return self.start().__anext__()

    def batches(self, size: int = 100, max_wait: float = 0.5) -> AsyncIterator[Batch]:
        """Return an iterator over batches of up to ``size`` messages.

        A batch is smaller if ``max_wait`` seconds have passed since its first message, if
        nothing more can arrive before some messages are answered, or if half of
        ``msg_timeout`` is over. If a caller is cancelled, its messages go to the next one.
        """
        BATCH_SIZE.check("size", size)
        MAX_WAIT.check("max_wait", max_wait)
        return Batches(self.start(), size, max_wait)

    async def run(
        self,
        handler: Handler,
        concurrency: int = 1,
        *,
        signals: bool = True,
        auto_answer: bool = True,
        drain_timeout: float = DRAIN_TIMEOUT,
    ) -> DrainResult:
        """Call ``handler`` with each message until the consumer is closed; return the counts.

        When the handler returns, the message is finished; when it raises, the message is
        requeued with a delay. An ``async def`` runs in the event loop, ``concurrency`` calls
        at a time; a plain ``def`` on as many threads. SIGINT and SIGTERM close the consumer
        and wait up to ``drain_timeout`` seconds for its handlers; a second signal requeues
        their messages and ends at once. With ``auto_answer=False`` the handler answers
        itself, now or later.
        """
        self._drain_timeout = _checked_drain_timeout(drain_timeout)
        workers = make_workers(handler, concurrency, auto_answer)
        task = asyncio.create_task(workers.run(self.start()), name=f"nsqflow {self!r}")
        self._workers.add(task)
        try:
            with handle_signals_in_loop(self.stop, enabled=signals):
                await asyncio.wait([task])
                return await self._result(task)
        finally:
            # Close first: a handler that ignores its cancellation gets no other message.
            if self._closing is None:
                self._begin_closing(self._drain_timeout)
            task.cancel()
            await asyncio.wait([task])
            self._workers.discard(task)
            await self.close()
            await workers.join()

    # Control

    def is_starved(self) -> bool:
        """Return whether nothing more can come from some nsqd before messages are answered."""
        return self._coordinator is not None and self._coordinator.is_starved()

    def pause(self) -> None:
        """Stop receiving (RDY 0); messages that have arrived are still handed out."""
        self._started().pause(True)

    def resume(self) -> None:
        """Receive messages again after ``pause``."""
        self._started().pause(False)

    def set_max_in_flight(self, count: int) -> None:
        """Change ``max_in_flight`` to ``count``."""
        self._started().set_max_in_flight(count)

    def stats(self) -> ConsumerStats:
        """Return the counts since the start and the current state."""
        coordinator = self._coordinator
        if coordinator is None:
            return ConsumerStats(Counts(), (), 0, 0, self._config.max_in_flight, 0, False)
        counts = coordinator.counts
        return ConsumerStats(
            counts=Counts(*(getattr(counts, name) for name in Counts.__slots__)),
            connections=tuple(
                map(self._connection_stats, sorted(coordinator.connections.reconnectors))
            ),
            outstanding=coordinator.queue.outstanding,
            queued=coordinator.queue.queued,
            max_in_flight=coordinator.queue.max_in_flight,
            backoff_level=coordinator.backoff.level,
            paused=coordinator.paused,
        )

    def explain(self) -> str:
        """Return the state of each connection in words, and why no messages arrive if so."""
        if self._coordinator is None:
            return f"{self!r} was not started"
        return explain(self._coordinator)

    async def close(self, drain_timeout: float = DRAIN_TIMEOUT) -> DrainResult:
        """Stop receiving, wait for unanswered messages, requeue the rest; return the counts.

        After ``drain_timeout`` seconds, handlers that still run are cancelled and their
        messages requeued. Code that holds a message must answer it before it awaits this.
        """
        _checked_drain_timeout(drain_timeout)
        # If the caller is cancelled, draining goes on.
        return await asyncio.shield(self._closing or self._begin_closing(drain_timeout))

    # For nsqflow.run() and nsqflow.blocking

    def start(self) -> MessageReader:
        """Connect, unless it is connected already; every use of the consumer does so by itself."""
        if self._reader is None:
            self._reader = MessageReader(self._started())
        return self._reader

    def stop(self, number: signal.Signals) -> None:
        """Begin to close, as ``run`` does on a signal; the second time, end at once."""
        name = signal.Signals(number).name
        if self._closing is None:
            logger.info("%r: %s, closing", self, name)
            self._begin_closing(self._drain_timeout)
            return
        logger.warning("%r: %s while closing, ending at once", self, name)
        self._started().queue.abort_wait()
        for task in self._workers:
            task.cancel()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` is complete."""
        return self._closing is not None and self._closing.done()

    def detach_after_fork(self, refuse: Callable[..., NoReturn]) -> None:
        """Refuse answers in a forked process: the connections belong to the parent."""
        if self._coordinator is not None:
            for subscription in self._coordinator.subscriptions.values():
                subscription.detach_after_fork(refuse)

    # Private methods

    def _started(self) -> Coordinator:
        if self._coordinator is None:
            coordinator = self._make_coordinator()
            coordinator.connections.start()
            self._coordinator = coordinator
        return self._coordinator

    def _make_coordinator(self) -> Coordinator:
        kind = PartitionCoordinator if self._config.lookupd else Coordinator
        return kind(self.topic, self.channel, self._config)

    def _begin_closing(self, drain_timeout: float) -> asyncio.Task[DrainResult]:
        if self._coordinator is None:  # never started, and not needed any more
            self._coordinator = self._make_coordinator()
        work = self._drain(self._coordinator, drain_timeout)
        self._closing = asyncio.create_task(work, name=f"nsqflow closes {self!r}")
        return self._closing

    async def _drain(self, coordinator: Coordinator, timeout: float) -> DrainResult:
        loop = asyncio.get_running_loop()
        reporter = loop.call_later(_REPORT_AFTER, self._report_waiting, coordinator, timeout)
        try:
            result = await coordinator.drain(timeout)
        finally:
            reporter.cancel()
            for task in self._workers:
                task.cancel()
        logger.info("%r closed: %s", self, result)
        return result

    def _report_waiting(self, coordinator: Coordinator, timeout: float) -> None:
        count = coordinator.queue.taken
        if count:
            logger.warning(
                "%r is closing: waiting for %d unanswered message%s, %g s at most; "
                "finish or requeue, or close(drain_timeout=0)",
                self, count, "" if count == 1 else "s", timeout,
            )  # fmt: skip

    async def _result(self, task: asyncio.Task[None]) -> DrainResult:
        # Unless the consumer was closed, a cancelled task is an error of a handler.
        if self._closing is None or not task.cancelled():
            task.result()
        return await self.close()

    def _connection_stats(self, name: str) -> ConnectionStats:
        assert self._coordinator is not None
        reconnector = self._coordinator.connections.reconnectors[name]
        subscription = self._coordinator.subscriptions.get(name)
        s = subscription
        counts = (s.rdy, s.in_flight, s.received, s.finished) if s is not None else (0, 0, 0, 0)
        return ConnectionStats(
            *(reconnector.address, reconnector.partition, subscription is not None),
            *counts,
            reconnector.failures,
        )


def _checked_drain_timeout(seconds: float) -> float:
    if seconds != inf:
        DRAIN_TIMEOUT_RANGE.check("drain_timeout", seconds)
    return seconds
