"""The producer for plain code."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Self, Unpack

from nsqflow.blocking import loop_thread
from nsqflow.blocking.loop_thread import LoopUser, PendingCall
from nsqflow.client.options import ProducerOptions
from nsqflow.client.producer import producer as client
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.config.reference import with_options
from nsqflow.errors import LocalProtocolError
from nsqflow.protocol import Receipt


@with_options(ProducerConfig, omit=("nsqd", "lookupd"))
class Producer:
    """Publishes to one nsqd, several, or those that nsqlookupd names; from any thread.

        with Producer("127.0.0.1:4150") as producer:
            producer.publish("orders", b"...")

    It connects when it is first used. Messages that several threads publish at the same time
    go out as one batch.
    """

    def __init__(
        self,
        nsqd: str | Iterable[str] = (),
        *,
        lookupd: str | Iterable[str] = (),
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._make = partial(
            client.Producer, _as_tuple(nsqd), lookupd=_as_tuple(lookupd), **options
        )
        self._client = self._make()
        self._thread: loop_thread.LoopThread | None = None
        self._user = LoopUser(self._close_at_exit, self._detach_after_fork)
        self._closed = False
        self._closing = threading.RLock()

    def __enter__(self) -> Self:
        self._start().run(self._client.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
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

        ``delay`` defers its delivery. ``RequestTimeout`` is raised if the message was not sent
        in time, ``PublishUncertain`` if it was sent and not answered.
        """
        thread = self._thread or self._start()
        send = partial(
            self._client.send, topic, body, delay=delay, key=key, partition=partition,
            trace=trace, headers=headers, tag=tag, timeout=timeout, wait=True,
        )  # fmt: skip
        return thread.wait_for(PendingCall(send))

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

        If it fails, the exception's ``ranges`` say which messages were accepted, refused or
        are uncertain. One command is stored as a whole or not at all.
        """
        thread = self._thread or self._start()
        bodies = list(bodies)  # not in the loop: a generator may block
        thread.run(
            partial(
                self._client.publish_many, topic, bodies, key=key, partition=partition,
                timeout=timeout,
            )
        )  # fmt: skip

    def close(self) -> None:
        """Wait for the results of all messages, then disconnect.

        Each has a result within its own timeout.
        """
        with self._closing:
            self._closed = True
            thread = self._thread
            if thread is not None:
                thread.run(self._client.close)
                self._thread = None
                loop_thread.release(self._user, thread)

    # For the background thread

    async def _close_at_exit(self) -> None:
        self._closed = True
        await self._client.close()

    def _detach_after_fork(self) -> object:
        """Start again in a forked child: the connections belong to the parent."""
        inherited, self._client = self._client, self._make()
        self._thread = None
        self._closing = threading.RLock()
        return inherited

    # Private methods

    def _start(self) -> loop_thread.LoopThread:
        with loop_thread.lock:
            if self._closed:
                raise LocalProtocolError("the producer is closed")
            if self._thread is None:
                self._thread = loop_thread.lease(self._user)
            return self._thread


def _as_tuple(addresses: str | Iterable[str]) -> str | tuple[str, ...]:
    """Return addresses as a tuple, which can be iterated again after a fork."""
    return addresses if isinstance(addresses, str) else tuple(addresses)
