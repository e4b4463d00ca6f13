"""Dead letters: messages that were delivered too often, and where they go.

A dead letter is stored before its message is finished, so none is lost. If it cannot be
stored, or a callback raises, the message is requeued.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import io
import json
import logging
import os
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from math import inf
from pathlib import Path
from typing import Any

from nsqflow.client.body_compression import CODEC_HEADER, SIZE_HEADER
from nsqflow.client.consumer.config import ConsumerConfig, is_path
from nsqflow.client.consumer.queue import MessageQueue
from nsqflow.client.consumer.stats import Counts
from nsqflow.client.events import EventEmitter
from nsqflow.client.message import Message
from nsqflow.client.producer.producer import Producer
from nsqflow.errors import ConfigError

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

_MAX_ERRORS = 1024  # last errors of messages that may be given up next time
_LOCK_TIMEOUT = 5.0  # seconds; another writer holds the lock for milliseconds
_LOCK_INTERVAL = 0.01
# Of the consumer, for the producers of dead letters.
_PRODUCER_OPTIONS = (
    *("tls", "snappy", "deflate", "deflate_level", "auth_secret", "client_id", "hostname"),
    *("user_agent", "address_map", "dial_timeout", "reconnect_delay", "max_reconnect_delay"),
)


_LOOKUP_OPTIONS = (
    *("lookupd", "lookupd_headers", "lookupd_tls", "lookupd_poll_interval"),
    *("lookupd_poll_timeout", "allowed_addresses"),
)
_BY_LOOKUP = ""  # the producer of the redesigned NSQ, whose leaders move
_RESERVED = "##"  # headers of nsqd


class DeadLetters:
    """Handles exhausted messages: stores the dead letter, calls ``on_giving_up``, sends FIN."""

    def __init__(
        self, config: ConsumerConfig, queue: MessageQueue, counts: Counts, events: EventEmitter
    ) -> None:
        self._config = config
        self._queue = queue
        self._counts = counts
        self._events = events
        self._errors: OrderedDict[tuple[str, bytes], BaseException] = OrderedDict()
        self._producers: dict[str, Producer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._file = asyncio.Lock()
        self._exhausted: deque[Message] = deque()
        self._giving_up: asyncio.Task[None] | None = None

    def add(self, message: Message) -> None:
        """Queue a message to be given up, after those added before."""
        self._exhausted.append(message)
        if self._giving_up is None or self._giving_up.done():
            self._giving_up = asyncio.create_task(self._give_up_all(), name="nsqflow dead letters")

    def remove(self, unwanted: Callable[[Message], bool]) -> list[Message]:
        """Take out messages that wait here and must not be given up; return them."""
        removed = list(filter(unwanted, self._exhausted))
        if removed:
            self._exhausted = deque(m for m in self._exhausted if not unwanted(m))
        return removed

    def next_deadline(self) -> float:
        """Return the earliest deadline of the messages that wait here."""
        return min((m.delivery.deadline for m in self._exhausted), default=inf)

    def remember(self, message: Message, error: BaseException) -> None:
        """Keep the error of a message that is given up if it is delivered again."""
        if not 0 < self._config.max_attempts <= message.attempts:
            return  # an error keeps the frames of its traceback alive
        self._errors[message.nsqd, message.id] = error
        if len(self._errors) > _MAX_ERRORS:
            self._errors.popitem(last=False)

    async def give_up(self, message: Message) -> None:
        """Store the dead letter, call ``on_giving_up``, finish; requeue if that fails."""
        error = self._errors.pop((message.nsqd, message.id), None)
        try:
            await self._store(message, error)
            await self._call_back(message, error)
        except BaseException as failure:
            if not message.answered:
                message.requeue(backoff=False)
            if not _concerns_message(failure):
                raise
            logger.exception("could not give up %r; it is requeued", message)
        else:
            if not message.answered:
                message.finish()

    async def close(self) -> None:
        """Stop giving up messages, and close the producers of dead letters."""
        if self._giving_up is not None:
            self._giving_up.cancel()
            await asyncio.wait([self._giving_up])
        for nsqd in list(self._producers):
            self.forget(nsqd)
        if self._closing:
            await asyncio.wait(self._closing)

    def forget(self, nsqd: str) -> None:
        """Close the producer for an nsqd whose connection was lost."""
        producer = self._producers.pop(nsqd, None)
        if producer is not None:
            task = asyncio.create_task(producer.close(), name="nsqflow closes dead letters")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    # Private methods

    async def _give_up_all(self) -> None:
        while self._exhausted:
            await self._queue.acquire()
            if not self._exhausted:  # requeued meanwhile, or lost with their connection
                self._queue.release(1)
                return
            message = self._exhausted.popleft()
            self._counts.gave_up += 1
            self._events.emit("gave_up", message.nsqd, repr(message))
            await self.give_up(message)

    async def _store(self, message: Message, error: BaseException | None) -> None:
        target = self._config.dead_letter
        if target is None:
            return
        if callable(target):
            await _maybe_await(target(message, error))
        elif isinstance(target, os.PathLike) or is_path(target):
            async with self._file:
                await asyncio.to_thread(_append, Path(target), _json_line(message, error))
        elif message.partition is None:
            await self._producer(message.nsqd).publish(target, message.body)
        else:
            await self._publish_with_headers(target, message)

    async def _publish_with_headers(self, topic: str, message: Message) -> None:
        """Publish a message of the redesigned NSQ, with its headers if the topic takes them."""
        producer = self._producer(_BY_LOOKUP)
        headers = {
            name: value
            for name, value in (message.headers or {}).items()
            if not name.startswith(_RESERVED) and name not in (CODEC_HEADER, SIZE_HEADER)
        }
        if headers:
            try:
                await producer.publish(topic, message.body, headers=headers)
            except ConfigError:  # a topic without headers
                pass
            else:
                return
        await producer.publish(topic, message.body)

    async def _call_back(self, message: Message, error: BaseException | None) -> None:
        callback = self._config.on_giving_up
        if callback is None:
            logger.warning("giving up %r; its last error: %r", message, error)
        else:
            await _maybe_await(callback(message, error))

    def _producer(self, nsqd: str) -> Producer:
        # The nsqd that has the message: a body that it stored once fits again.
        if nsqd not in self._producers:
            shared: dict[str, Any] = {n: getattr(self._config, n) for n in _PRODUCER_OPTIONS}
            if nsqd == _BY_LOOKUP:
                shared |= {n: getattr(self._config, n) for n in _LOOKUP_OPTIONS}
            self._producers[nsqd] = Producer(
                () if nsqd == _BY_LOOKUP else nsqd,
                max_msg_size=2**30,  # nsqd has accepted it before
                max_body_size=2**31 - 1,
                max_pending=2**31 - 1,
                **shared,
            )
        return self._producers[nsqd]


def _concerns_message(error: BaseException) -> bool:
    """Return whether an exception of user code concerns only its message.

    ``CancelledError`` does unless this task itself is cancelled: the user's coroutine has
    awaited a task that was.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not task.cancelling()
    return not isinstance(error, KeyboardInterrupt | SystemExit)


def _json_line(message: Message, error: BaseException | None) -> bytes:
    """Return a message as a line of JSON; the body as text, or as hex if it is not UTF-8."""
    line: dict[str, Any] = {
        "topic": message.topic,
        "channel": message.channel,
        "nsqd": message.nsqd,
        "id": message.id.decode("latin-1"),
        "attempts": message.attempts,
        "timestamp": message.timestamp,
        **_partition_fields(message),
        "error": None if error is None else f"{type(error).__name__}: {error}",
    }
    try:
        line["body"] = message.body.decode()
    except UnicodeDecodeError:
        line["body_hex"] = message.body.hex()
    return json.dumps(line).encode() + b"\n"


def _partition_fields(message: Message) -> dict[str, Any]:
    """Return what only messages of the redesigned NSQ have; ids as text: JSON may lose digits."""
    if message.partition is None:
        return {}
    return {
        "partition": message.partition,
        "internal_id": str(message.internal_id),
        "trace_id": str(message.trace_id),
        "headers": message.headers,
    }


def _append(path: Path, line: bytes) -> None:
    """Append a line and read it back; on failure remove what was written of it."""
    # Unbuffered: closing the file must not write again what failed.
    with path.open("ab+", buffering=0) as file:
        _lock(file)
        before = file.seek(0, os.SEEK_END)
        data = line if _ends_a_line(file, before) else b"\n" + line
        try:
            _write(file, data)
            os.fsync(file.fileno())
            if _read(file, before, len(data)) != data:
                raise OSError(errno.EIO, "the line written cannot be read back", str(path))
        except BaseException:
            with contextlib.suppress(OSError):
                _truncate(file, before, data)
            raise


def _lock(file: io.FileIO) -> None:
    """Lock the file against writers of this and other processes until it is closed."""
    if sys.platform == "win32":
        return
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOCK_INTERVAL)
        except OSError:
            return  # a file system without locks
        else:
            return


def _ends_a_line(file: io.FileIO, size: int) -> bool:
    """Return False after a partial line, left by a process that was killed in mid-write."""
    return size == 0 or _read(file, size - 1, 1) == b"\n"


def _write(file: io.FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]  # partial when the disk is nearly full


def _read(file: io.FileIO, start: int, size: int) -> bytes:
    file.seek(start)
    data = bytearray()
    while len(data) < size and (chunk := file.read(size - len(data))):
        data += chunk
    return bytes(data)


def _truncate(file: io.FileIO, before: int, data: bytes) -> None:
    """Remove what was written of the data, unless something else follows it."""
    written = _read(file, before, len(data) + 1)
    if written and data.startswith(written):
        file.truncate(before)
        os.fsync(file.fileno())


async def _maybe_await(result: Awaitable[Any] | Callable[..., Any] | Any) -> None:
    if inspect.isawaitable(result):
        await result
