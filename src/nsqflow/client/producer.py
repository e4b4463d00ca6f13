"""The producer: publishes, and tells each caller what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from nsqflow.client.config import ProducerConfig
from nsqflow.client.news import Newsroom
from nsqflow.client.options import ProducerOptions
from nsqflow.client.parcel import Outcome, Parcel, as_bodies, as_body, chunks, mpub_size
from nsqflow.client.pool import Pool
from nsqflow.errors import (
    BadBodyError,
    BadMessageError,
    ConfigError,
    LocalProtocolError,
    NsqError,
    PublishUncertain,
    Ranges,
)
from nsqflow.protocol import Receipt, check_topic
from nsqflow.protocol.publish import Bodies


class Producer:
    """Publishes to one nsqd, several, or those that nsqlookupd knows.

        async with Producer("127.0.0.1:4150") as producer:
            await producer.publish("orders", b"...")

    Each call returns once nsqd has said that it stored the message, or raises.
    """

    def __init__(
        self,
        nsqd: str | Iterable[str] = (),
        *,
        lookupd: str | Iterable[str] = (),
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._config = ProducerConfig.of("Producer", nsqd, lookupd, options)
        self._news = Newsroom(self._config.on_event)
        self._publish_timeout = self._config.publish_timeout  # read at each publish
        self._max_msg_size = self._config.max_msg_size
        self._pool: Pool | None = None
        self._leaving: Pool | None = None  # from close() on
        self._closed = False

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

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

        ``delay`` defers its delivery. When time runs out before it is sent, that is a
        ``RequestTimeout``; when it was sent and no answer came, ``PublishUncertain``.
        """
        pool = self._pool or self._start()
        if not (key is partition is trace is headers is tag is None):  # type: ignore[comparison-overlap]
            _refuse_redesigned(key, partition, trace, headers, tag)
        if type(body) is not bytes or not 0 < len(body) <= self._max_msg_size:
            body = as_body(body, self._max_msg_size)
        seconds = self._publish_timeout if timeout is None else _checked_timeout(timeout)
        if delay is not None:
            return await self._publish_later(pool, topic, body, delay, seconds)
        if not pool.outbox.room.has(len(body) + 4):
            seconds = await self._await_room(pool, len(body) + 4, seconds)
        return await pool.outbox.add(topic, body, seconds)

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

        If it fails, the exception's ``ranges`` tell what became of which. One command is
        stored as a whole or not at all.
        """
        pool = self._pool or self._start()
        if key is not None or partition is not None:
            _refuse_redesigned(key, partition, None, None, None)
        seconds = self._publish_timeout if timeout is None else _checked_timeout(timeout)
        checked = as_bodies(bodies, self._max_msg_size)
        check_topic(topic)
        if not checked:
            return
        deadline = asyncio.get_running_loop().time() + seconds
        size = mpub_size(checked)
        if size <= self._config.max_body_size and pool.outbox.room.has(size):
            parts = [range(len(checked))]
            errors = [await _error_of(_put(pool, topic, checked, size, deadline))]
        else:
            parts = chunks(checked, self._config.max_body_size)
            errors = await self._put_all(pool, topic, checked, parts, deadline)
        if any(errors):
            await self._account(pool, topic, checked, deadline, parts, errors)

    async def close(self) -> None:
        """Wait until what was published has its outcome, then disconnect.

        Each has one within its own timeout. If this is cancelled, what was not sent fails,
        and what was not answered is uncertain.
        """
        self._closed = True
        pool = self._leaving = self._leaving or self._pool
        self._pool = None
        if pool is None:
            return
        try:
            await pool.outbox.empty()
        finally:
            pool.outbox.abandon(LocalProtocolError("the producer is closed"))
            await pool.close()

    # Private methods

    def _start(self) -> Pool:
        if self._closed:
            raise LocalProtocolError("the producer is closed")
        if self._pool is None:
            self._pool = Pool(self._config, self._news)
        return self._pool

    async def _await_room(self, pool: Pool, size: int, seconds: float) -> float:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        await pool.outbox.room.wait(size, deadline)
        # To two digits: those who waited together have a timeout in common, and go together.
        return float(f"{max(0.0, deadline - loop.time()):.2g}")

    async def _publish_later(
        self, pool: Pool, topic: str, body: bytes, delay: float, seconds: float
    ) -> Receipt | None:
        if not 0 <= delay < 10**9:
            raise ConfigError(f"delay {delay!r}; 0 to below {10**9} seconds are allowed")
        check_topic(topic)
        deadline = asyncio.get_running_loop().time() + seconds
        await pool.outbox.room.wait(len(body) + 8, deadline)
        return await _put(pool, topic, [body], len(body) + 8, deadline, round(delay * 1000))

    async def _put_all(
        self, pool: Pool, topic: str, bodies: list[bytes], parts: list[range], deadline: float
    ) -> list[NsqError | None]:
        """Publish each part in a command of its own; tell what went wrong with which."""
        outcomes: list[Outcome] = []
        errors: list[NsqError | None] = []
        try:
            try:
                for part in parts:
                    some = Bodies(bodies[part.start : part.stop])
                    size = mpub_size(some)
                    await pool.outbox.room.wait(size, deadline)
                    outcomes.append(_put(pool, topic, some, size, deadline))
            except NsqError as error:  # no room in time: not for those that follow, either
                errors = [error] * (len(parts) - len(outcomes))
            return [await _error_of(outcome) for outcome in outcomes] + errors
        finally:
            for outcome in outcomes:
                _forsake(outcome)

    async def _account(
        self,
        pool: Pool,
        topic: str,
        bodies: list[bytes],
        deadline: float,
        parts: list[range],
        errors: list[NsqError | None],
    ) -> None:
        """Raise the worst of ``errors``, with the ranges that it befell."""
        fates: dict[int, NsqError | None] = {}
        for part, error in zip(parts, errors, strict=True):
            fates |= dict.fromkeys(part, error)
            if isinstance(error, BadMessageError | BadBodyError) and len(part) > 1:
                # Nothing of it was stored; one message is bad, the others can go.
                singles = [range(i, i + 1) for i in part]
                again = await self._put_all(pool, topic, bodies, singles, deadline)
                fates |= dict(zip(part, again, strict=True))
        failed = [error for error in fates.values() if error is not None]
        if failed:
            worst = next((e for e in failed if isinstance(e, PublishUncertain)), failed[0])
            worst.ranges = _ranges(fates)
            worst.add_note(f"publish_many to {topic!r}: {worst.ranges}")
            raise worst


def _put(
    pool: Pool,
    topic: str,
    bodies: list[bytes],
    size: int,
    deadline: float,
    delay_ms: int | None = None,
) -> Outcome:
    """Queue a parcel of its own, for which there is room, with one outcome for all of it."""
    outcome: Outcome = asyncio.get_running_loop().create_future()
    parcel = Parcel(topic, deadline, delay_ms)
    parcel.bodies, parcel.outcomes, parcel.size = bodies, [outcome], size
    pool.outbox.put(parcel, at_once=delay_ms is None)
    return outcome


async def _error_of(outcome: Outcome) -> NsqError | None:
    try:
        await outcome
    except NsqError as error:
        return error
    return None


def _forsake(outcome: Outcome) -> None:
    """Give up waiting, if cancelled: what was not sent never will be."""
    if not outcome.cancel() and not outcome.cancelled():
        outcome.exception()  # else asyncio logs that nobody has asked


def _ranges(fates: Mapping[int, NsqError | None]) -> Ranges:
    sorts: dict[str, list[range]] = {"accepted": [], "refused": [], "uncertain": []}
    for index in sorted(fates):
        error = fates[index]
        uncertain = isinstance(error, PublishUncertain)
        ranges = sorts["accepted" if error is None else "uncertain" if uncertain else "refused"]
        if ranges and ranges[-1].stop == index:
            ranges[-1] = range(ranges[-1].start, index + 1)
        else:
            ranges.append(range(index, index + 1))
    return Ranges(*(tuple(ranges) for ranges in sorts.values()))


def _checked_timeout(timeout: float) -> float:
    if not 0 < timeout < float("inf"):
        raise ConfigError(f"timeout {timeout!r}; above 0 seconds, or None for publish_timeout")
    return timeout


def _refuse_redesigned(*values: object) -> None:
    names = ("key", "partition", "trace", "headers", "tag")
    for name, value in zip(names, values, strict=True):
        if value is not None:
            raise ConfigError(f"{name} is for topics of the redesigned NSQ; these are classic")
