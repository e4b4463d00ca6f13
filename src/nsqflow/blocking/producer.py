"""The producer for plain code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from nsqflow.blocking import loop
from nsqflow.blocking.calls import Call
from nsqflow.client import producer as client
from nsqflow.client.options import ProducerOptions
from nsqflow.client.parcel import Outcome, as_body
from nsqflow.errors import LocalProtocolError
from nsqflow.protocol import Receipt


class Producer:
    """Publishes to one nsqd, several, or those that nsqlookupd knows; from any thread.

        with Producer("127.0.0.1:4150") as producer:
            producer.publish("orders", b"...")

    It connects when it is first used. What several threads publish at the same time goes
    out together.
    """

    def __init__(
        self,
        nsqd: str | Iterable[str] = (),
        *,
        lookupd: str | Iterable[str] = (),
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._make = partial(client.Producer, _kept(nsqd), lookupd=_kept(lookupd), **options)
        self._client = self._make()
        self._config = self._client._config
        self._thread: loop.LoopThread | None = None
        self._closed = False
        self._closing = threading.RLock()

    def __enter__(self) -> Self:
        self._begin().call(self._client._start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def publish(
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

        ``delay`` defers its delivery. When time runs out before it is sent, that is a
        ``RequestTimeout``; when it was sent and no answer came, ``PublishUncertain``.
        """
        thread = self._thread or self._begin()
        special = (delay, key, partition, trace, headers, tag, timeout)
        if special != _NOTHING_SPECIAL:
            publish = partial(
                self._client.publish, topic, body, delay=delay, key=key, partition=partition,
                trace=trace, headers=headers, tag=tag, timeout=timeout,
            )  # fmt: skip
            return thread.run(publish)
        body = as_body(body, self._config.max_msg_size)
        return thread.ask(_Letter(self._client, topic, body))

    def publish_many(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish several messages, in as few commands as fit; return once all are stored.

        If it fails, the exception's ``ranges`` tell what became of which. One command is
        stored as a whole or not at all.
        """
        thread = self._thread or self._begin()
        bodies = list(bodies)  # here: it may be a generator that waits for something
        thread.run(
            partial(
                self._client.publish_many, topic, bodies, key=key, partition=partition,
                timeout=timeout,
            )
        )  # fmt: skip

    def close(self) -> None:
        """Wait until what was published has its outcome, then disconnect.

        Each has one within its own timeout.
        """
        with self._closing:
            self._closed = True
            thread = self._thread
            if thread is not None:
                thread.run(self._client.close)
                self._thread = None
                loop.release(self, thread)

    # For the background thread

    async def _leave(self) -> None:
        """Close: the interpreter exits."""
        self._closed = True
        await self._client.close()

    def _forked(self) -> object:
        """Begin anew: the connections are the parent's."""
        inherited, self._client = self._client, self._make()
        self._thread = None
        self._closing = threading.RLock()
        return inherited

    # Private methods

    def _begin(self) -> loop.LoopThread:
        with loop.lock:
            if self._closed:
                raise LocalProtocolError("the producer is closed")
            if self._thread is None:
                self._thread = loop.lease(self)
            return self._thread


class _Letter(Call[Receipt | None]):
    """A message on its way to the outbox: what ``publish`` does, less a task for each."""

    __slots__ = ("_body", "_outcome", "_producer", "_topic")

    def __init__(self, producer: client.Producer, topic: str, body: bytes) -> None:
        super().__init__()
        self._producer = producer
        self._topic = topic
        self._body = body
        self._outcome: Outcome | None = None

    def begin(self) -> None:
        """Put it into the outbox."""
        try:
            self._outcome = self._add()
        except Exception as error:
            self.fail(error)
        else:
            self._outcome.add_done_callback(self.settle)

    def withdraw(self) -> None:
        """See that it is not sent, unless it was."""
        if self._outcome is not None:
            self._outcome.cancel()

    def _add(self) -> Outcome:
        producer, body = self._producer, self._body
        outbox = (producer._pool or producer._start()).outbox
        if outbox.room.has(len(body) + 4):
            return outbox.add(self._topic, body, producer._config.publish_timeout)
        return asyncio.get_running_loop().create_task(producer.publish(self._topic, body))


_NOTHING_SPECIAL = (None,) * 7


def _kept(addresses: str | Iterable[str]) -> str | tuple[str, ...]:
    """Return addresses that can be read again, after a fork."""
    return addresses if isinstance(addresses, str) else tuple(addresses)
