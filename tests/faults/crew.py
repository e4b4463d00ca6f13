"""Who works while servers come and go: publishers, and readers of each kind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

from nsqflow import Consumer, Message, Producer
from nsqflow.errors import NsqError, PublishUncertain
from tests.faults.fleet import Member
from tests.faults.ledger import Fate, Ledger, body_of

PUBLISH_TIMEOUT = 5.0  # seconds


class Fumble(Exception):
    """A handler that fails, as handlers do."""


class Publisher:
    """Publishes in all ways there are, and books what it was told."""

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
            chance = self._random.random()
            timeout = 0.1 if self._random.random() < 0.2 else None
            if chance < 0.1:
                await self._publish_many(self._random.randrange(1, 30), timeout)
            else:
                await self._publish(0.3 if chance < 0.2 else None, timeout)

    async def _publish(self, delay: float | None, timeout: float | None) -> None:
        numbers = self._ledger.open()
        body = body_of(numbers[0])
        try:
            await self._producer.publish(self._topic, body, delay=delay, timeout=timeout)
        except PublishUncertain:
            self._book(numbers, Fate.UNCERTAIN)
        except NsqError:
            self._book(numbers, Fate.REFUSED)
        else:
            self._book(numbers, Fate.ACKNOWLEDGED)

    async def _publish_many(self, count: int, timeout: float | None) -> None:
        numbers = self._ledger.open(count)
        bodies = map(body_of, numbers)
        try:
            await self._producer.publish_many(self._topic, bodies, timeout=timeout)
        except NsqError as error:
            self._book_ranges(numbers, error)
        else:
            self._book(numbers, Fate.ACKNOWLEDGED)

    def _book_ranges(self, numbers: range, error: NsqError) -> None:
        ranges = error.ranges
        assert ranges is not None, f"publish_many does not tell what became of which: {error!r}"
        for parts, fate in (
            (ranges.accepted, Fate.ACKNOWLEDGED),
            (ranges.refused, Fate.REFUSED),
            (ranges.uncertain, Fate.UNCERTAIN),
        ):
            for part in parts:
                self._book(numbers[part.start : part.stop], fate)

    def _book(self, numbers: Sequence[int], fate: Fate) -> None:
        assert isinstance(numbers, range)
        self._ledger.book(numbers, fate, self._member)


class Reader:
    """Handles messages in one of the ways there are, and books what it has handled."""

    def __init__(self, name: str, consumer: Consumer, ledger: Ledger, random: Random) -> None:
        self.name = name
        self.consumer = consumer
        self.most = 0
        """The most messages it had in hands at a time."""
        self._hands = 0
        self._lock = threading.Lock()
        self._ledger = ledger
        self._random = random

    async def work(self) -> None:
        """Consume until the consumer is closed."""
        raise NotImplementedError

    @contextmanager
    def _holding(self, messages: Sequence[Message]) -> Iterator[float]:
        """Count them as in hands, and book them unless it fails; gives seconds to take over it."""
        with self._lock:
            self._hands += len(messages)
            self.most = max(self.most, self._hands)
        try:
            yield self._random.uniform(0, 0.01)
            if messages[0].attempts == 1 and b"13:" in messages[0].body[:9]:
                raise Fumble
            for message in messages:
                self._ledger.consume(message.body)
        finally:
            with self._lock:
                self._hands -= len(messages)


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
