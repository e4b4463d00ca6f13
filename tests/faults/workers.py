"""Clients that work while servers come and go: publishers, and readers of each kind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

from nsqflow import Consumer, Message, Producer
from nsqflow.errors import NsqError, PublishUncertain
from tests.faults.cluster import Member
from tests.faults.ledger import Ledger, Result, body_of

PUBLISH_TIMEOUT = 5.0  # seconds


class HandlerError(Exception):
    """What a handler raises on purpose."""


class Publisher:
    """Publishes in every way, and records the results."""

    def __init__(
        self, producer: Producer, topic: str, ledger: Ledger, random: Random, member: Member | None
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._ledger = ledger
        self._random = random
        self._member = member

    async def work(self, over: asyncio.Event) -> None:
        """Publish until it is over."""
        while not over.is_set():
            await asyncio.sleep(self._random.uniform(0, 0.02))
            choice = self._random.random()
            timeout = 0.1 if self._random.random() < 0.2 else None
            if choice < 0.1:
                await self._publish_many(self._random.randrange(1, 30), timeout)
            else:
                await self._publish(0.3 if choice < 0.2 else None, timeout)

    async def _publish(self, delay: float | None, timeout: float | None) -> None:
        numbers = self._ledger.open()
        body = body_of(numbers[0])
        try:
            await self._producer.publish(self._topic, body, delay=delay, timeout=timeout)
        except PublishUncertain:
            self._record(numbers, Result.UNCERTAIN)
        except NsqError:
            self._record(numbers, Result.REFUSED)
        else:
            self._record(numbers, Result.ACKNOWLEDGED)

    async def _publish_many(self, count: int, timeout: float | None) -> None:
        numbers = self._ledger.open(count)
        bodies = map(body_of, numbers)
        try:
            await self._producer.publish_many(self._topic, bodies, timeout=timeout)
        except NsqError as error:
            self._record_ranges(numbers, error)
        else:
            self._record(numbers, Result.ACKNOWLEDGED)

    def _record_ranges(self, numbers: range, error: NsqError) -> None:
        ranges = error.ranges
        assert ranges is not None, f"publish_many does not say which were stored: {error!r}"
        for parts, result in (
            (ranges.accepted, Result.ACKNOWLEDGED),
            (ranges.refused, Result.REFUSED),
            (ranges.uncertain, Result.UNCERTAIN),
        ):
            for part in parts:
                self._record(numbers[part.start : part.stop], result)

    def _record(self, numbers: Sequence[int], result: Result) -> None:
        assert isinstance(numbers, range)
        self._ledger.record(numbers, result, self._member)


class Reader:
    """Handles messages in one way, and records what it has handled."""

    def __init__(self, name: str, consumer: Consumer, ledger: Ledger, random: Random) -> None:
        self.name = name
        self.consumer = consumer
        self.most = 0
        """The highest number of outstanding messages."""
        self._outstanding = 0
        self._lock = threading.Lock()
        self._ledger = ledger
        self._random = random

    async def work(self) -> None:
        """Consume until the consumer is closed."""
        raise NotImplementedError

    @contextmanager
    def _holding(self, messages: Sequence[Message]) -> Iterator[float]:
        """Count them as outstanding, and record them unless it fails; yield how long to take."""
        with self._lock:
            self._outstanding += len(messages)
            self.most = max(self.most, self._outstanding)
        try:
            yield self._random.uniform(0, 0.01)
            if messages[0].attempts == 1 and b"13:" in messages[0].body[:9]:
                raise HandlerError
            for message in messages:
                self._ledger.consume(message.body)
        finally:
            with self._lock:
                self._outstanding -= len(messages)


class CoroutineReader(Reader):
    """More workers than messages allowed: what holds them back is max_in_flight alone."""

    async def work(self) -> None:
        await self.consumer.run(self._handle, concurrency=40, signals=False)

    async def _handle(self, message: Message) -> None:
        with self._holding([message]) as seconds:
            await asyncio.sleep(seconds)


class ThreadReader(Reader):
    """A plain handler, on threads."""

    async def work(self) -> None:
        await self.consumer.run(self._handle, concurrency=4, signals=False)

    def _handle(self, message: Message) -> None:
        with self._holding([message]) as seconds:
            time.sleep(seconds / 10)


class BatchReader(Reader):
    """Batches as large as can be."""

    async def work(self) -> None:
        async for batch in self.consumer.batches(size=100, max_wait=0.05):
            async with batch:
                with self._holding(batch) as seconds:
                    await asyncio.sleep(seconds)


class LoopReader(Reader):
    """A plain loop."""

    async def work(self) -> None:
        async for message in self.consumer:
            async with message:
                with self._holding([message]):
                    await asyncio.sleep(0)
