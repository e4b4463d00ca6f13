"""The producer: publishes messages and returns nsqd's answer to each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self, Unpack

from nsqflow.client.events import EventEmitter
from nsqflow.client.options import ProducerOptions
from nsqflow.client.producer.accumulator import Accumulator
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.client.producer.message_options import check_key, check_partition, make_batch
from nsqflow.client.producer.multi_publish import MultiPublish
from nsqflow.client.producer.partitioned import PartitionedAccumulator
from nsqflow.client.producer.pool import ConnectionPool
from nsqflow.client.producer.publish_batch import (
    PublishBatch,
    TopicPartition,
    check_bodies,
    check_body,
)
from nsqflow.config.numbers import PUBLISH_TIMEOUT
from nsqflow.config.reference import with_options
from nsqflow.errors import LocalProtocolError
from nsqflow.protocol import Receipt, check_topic
from nsqflow.protocol.publish import Bodies
from nsqflow.trace import TRACED_TOPICS


@with_options(ProducerConfig, omit=("nsqd", "lookupd"))
class Producer:
    """Publishes to one nsqd, several, or those that nsqlookupd names.

        async with Producer("127.0.0.1:4150") as producer:
            await producer.publish("orders", b"...")

    ``publish`` returns once nsqd has stored the message; ``send`` returns a future.
    """

    def __init__(
        self,
        nsqd: str | Iterable[str] = (),
        *,
        lookupd: str | Iterable[str] = (),
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._config = ProducerConfig.of("Producer", nsqd, lookupd, options)
        self._events = EventEmitter(self._config.on_event)
        self._publish_timeout = self._config.publish_timeout  # read at each publish
        self._max_msg_size = self._config.max_msg_size
        self._codecs = self._config.body_compression  # by topic
        self._accumulator: Accumulator | None = None
        self._closing: Accumulator | None = None  # from close() on
        self._closed = False

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        delay: float | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        trace: int | None = None,
        headers: Mapping[str, Any] | None = None,
        tag: str | None = None,
        timeout: float | None = None,
        wait: bool = False,
    ) -> asyncio.Future[Receipt | None]:
        """Publish a message without waiting; return the future of ``publish``'s result.

        Messages are sent in the order of the calls. While ``max_pending`` bytes are pending this
        raises ``BufferFullError``: await earlier futures first. With ``wait=True`` the message
        waits instead, as in ``publish``, and your code must limit how many do. Cancelling the
        future cancels the message if it was not sent yet. Must be called in the producer's event
        loop; invalid arguments and a closed producer raise at once.
        """
        plain = delay is key is partition is trace is headers is tag is None  # type: ignore[comparison-overlap]
        if plain and topic not in self._codecs and topic not in TRACED_TOPICS:
            return self._send_plain(topic, body, timeout, wait)
        accumulator = self._accumulator or self._start()
        body = check_body(body, self._max_msg_size)
        seconds = self._publish_timeout if timeout is None else _checked_timeout(timeout)
        batch = make_batch(
            topic,
            body,
            asyncio.get_running_loop().time() + seconds,
            delay=delay,
            key=key,
            partition=partition,
            trace=trace,
            headers=headers,
            tag=tag,
            is_traced=topic in TRACED_TOPICS,
            codec=self._codecs.get(topic),
        )
        destination = accumulator.find_destination(batch)
        if batch.has_only_destination and batch.key is None:
            return accumulator.send(destination, body, seconds, wait)
        return accumulator.send_batch(batch, wait)

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        delay: float | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        trace: int | None = None,
        headers: Mapping[str, Any] | None = None,
        tag: str | None = None,
        timeout: float | None = None,
    ) -> Receipt | None:
        """Publish a message; return once nsqd has stored it.

        ``delay`` defers its delivery. ``RequestTimeout`` is raised if the message was not sent
        in time, ``PublishUncertain`` if it was sent and not answered.
        """
        plain = delay is key is partition is trace is headers is tag is None  # type: ignore[comparison-overlap]
        if plain and topic not in self._codecs and topic not in TRACED_TOPICS:
            # As send() would: to pass ten arguments on costs 5 % of a publish.
            return await self._send_plain(topic, body, timeout, True)
        return await self.send(
            topic,
            body,
            delay=delay,
            key=key,
            partition=partition,
            trace=trace,
            headers=headers,
            tag=tag,
            timeout=timeout,
            wait=True,
        )

    async def publish_many(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish several messages, in as few commands as fit; return once all are stored.

        If it fails, the exception's ``ranges`` say which messages were accepted, refused or
        are uncertain. One command is stored as a whole or not at all.
        """
        accumulator = self._accumulator or self._start()
        seconds = self._publish_timeout if timeout is None else _checked_timeout(timeout)
        checked = check_bodies(bodies, self._max_msg_size)
        if not checked:
            check_topic(topic)
            return
        deadline = asyncio.get_running_loop().time() + seconds
        make: Callable[[Bodies], PublishBatch] = partial(PublishBatch, topic, deadline)
        max_size = self._config.max_body_size
        codec, is_traced = self._codecs.get(topic), topic in TRACED_TOPICS
        if key is not None or partition is not None:
            make = partial(_make_pinned, topic, deadline, key, partition)
        if codec is not None or is_traced:  # each has headers or a trace id of its own
            max_size = 0
            make = lambda bodies: make_batch(  # noqa: E731
                topic, bodies[0], deadline, key=key, partition=partition, codec=codec,
                is_traced=is_traced,
            )  # fmt: skip
        await MultiPublish(accumulator, checked, make).run(max_size)

    async def close(self) -> None:
        """Wait for the results of all messages, then disconnect.

        Each has a result within its own timeout. If this call is cancelled, unsent messages
        fail, and unanswered ones are uncertain.
        """
        self._closed = True
        accumulator = self._closing = self._closing or self._accumulator
        self._accumulator = None
        if accumulator is None:
            return
        try:
            await accumulator.drain()
        finally:
            await accumulator.close(LocalProtocolError("the producer is closed"))

    def _send_plain(
        self, topic: str, body: bytes, timeout: float | None, wait: bool
    ) -> asyncio.Future[Receipt | None]:
        """Send a message without options."""
        accumulator = self._accumulator or self._start()
        if type(body) is not bytes or not 0 < len(body) <= self._max_msg_size:
            body = check_body(body, self._max_msg_size)
        seconds = self._publish_timeout if timeout is None else _checked_timeout(timeout)
        return accumulator.send(topic, body, seconds, wait)

    def _start(self) -> Accumulator:
        if self._closed:
            raise LocalProtocolError("the producer is closed")
        if self._accumulator is None:
            pool = ConnectionPool(self._config, self._events)
            kind = PartitionedAccumulator if self._config.lookupd else Accumulator
            self._accumulator = kind(self._config, pool, self._events)
        return self._accumulator


def _make_pinned(
    topic: str, deadline: float, key: bytes | None, partition: int | None, bodies: Bodies
) -> PublishBatch:
    """Return a batch for one partition."""
    batch = PublishBatch(topic, deadline, bodies)
    batch.key = check_key(key, partition)
    batch.destination = TopicPartition(topic, check_partition(partition))
    return batch


def _checked_timeout(timeout: float) -> float:
    PUBLISH_TIMEOUT.check("timeout", timeout)
    return timeout
