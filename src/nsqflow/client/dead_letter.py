"""Dead letters: messages that were delivered too often, and where they go.

A letter is stored before its message is finished, so that none is ever lost; if it can't
be stored, or user code raises whatever it raises, the message is requeued.
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

from nsqflow.client.config import ConsumerConfig, is_path
from nsqflow.client.inbox import Inbox
from nsqflow.client.message import Message
from nsqflow.client.producer import Producer

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

_REMEMBERED = 1024  # errors
_LOCK_TIMEOUT = 5.0  # seconds; another writer needs milliseconds
_LOCK_INTERVAL = 0.01


class DeadLetters:
    """Gives messages up: stores the letter, calls the user, finishes the message."""

    def __init__(
        self, config: ConsumerConfig, inbox: Inbox, on_turn: Callable[[Message], None]
    ) -> None:
        self._config = config
        self._inbox = inbox
        self._on_turn = on_turn
        self._errors: OrderedDict[tuple[str, bytes], BaseException] = OrderedDict()
        self._producers: dict[str, Producer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._file = asyncio.Lock()
        self._exhausted: deque[Message] = deque()
        self._giving_up: asyncio.Task[None] | None = None

    def add(self, message: Message) -> None:
        """Give up a message, after those that were added before."""
        self._exhausted.append(message)
        if self._giving_up is None or self._giving_up.done():
            self._giving_up = asyncio.create_task(self._give_up_all(), name="nsqflow dead letters")

    def remove(self, unwanted: Callable[[Message], bool]) -> list[Message]:
        """Take out messages whose turn has not come and that must not be given up."""
        removed = list(filter(unwanted, self._exhausted))
        if removed:
            self._exhausted = deque(m for m in self._exhausted if not unwanted(m))
        return removed

    def next_deadline(self) -> float:
        """Return when the first of those that wait times out."""
        return min((m._delivery.deadline for m in self._exhausted), default=inf)

    def remember(self, message: Message, error: BaseException) -> None:
        """Keep why a message failed, if it is given up the next time it comes."""
        if not 0 < self._config.max_attempts <= message.attempts:
            return  # an error holds all that its frames hold
        self._errors[message.nsqd, message.id] = error
        if len(self._errors) > _REMEMBERED:
            self._errors.popitem(last=False)

    async def give_up(self, message: Message) -> None:
        """Store the letter, call ``on_giving_up``, finish; or requeue if that fails."""
        error = self._errors.pop((message.nsqd, message.id), None)
        try:
            await self._store(message, error)
            await self._tell(message, error)
        except BaseException as failure:
            if not message.answered:
                message.requeue(backoff=False)
            if not _ends_here(failure):
                raise
            logger.exception("could not give up %r; it is requeued", message)
        else:
            if not message.answered:
                message.finish()

    async def close(self) -> None:
        """Give up no more, and disconnect what letters were published through."""
        if self._giving_up is not None:
            self._giving_up.cancel()
            await asyncio.wait([self._giving_up])
        for nsqd in list(self._producers):
            self.forget(nsqd)
        if self._closing:
            await asyncio.wait(self._closing)

    def forget(self, nsqd: str) -> None:
        """Disconnect from an nsqd that is lost, and may never be back."""
        producer = self._producers.pop(nsqd, None)
        if producer is not None:
            task = asyncio.create_task(producer.close(), name="nsqflow closes dead letters")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    # Private methods

    async def _give_up_all(self) -> None:
        while self._exhausted:
            await self._inbox.hold()
            if not self._exhausted:  # given back meanwhile, or lost with their connection
                self._inbox.released(1)
                return
            message = self._exhausted.popleft()
            self._on_turn(message)
            await self.give_up(message)

    async def _store(self, message: Message, error: BaseException | None) -> None:
        target = self._config.dead_letter
        if target is None:
            return
        if callable(target):
            await _maybe_await(target(message, error))
        elif isinstance(target, os.PathLike) or is_path(target):
            async with self._file:
                await asyncio.to_thread(_append, Path(target), _letter(message, error))
        else:
            await self._producer(message.nsqd).publish(target, message.body)

    async def _tell(self, message: Message, error: BaseException | None) -> None:
        callback = self._config.on_giving_up
        if callback is None:
            logger.warning("giving up %r; its last error: %r", message, error)
        else:
            await _maybe_await(callback(message, error))

    def _producer(self, nsqd: str) -> Producer:
        # To the nsqd that has the message: where it lay, its letter finds room too.
        if nsqd not in self._producers:
            c = self._config
            self._producers[nsqd] = Producer(
                nsqd,
                tls=c.tls,
                snappy=c.snappy,
                deflate=c.deflate,
                deflate_level=c.deflate_level,
                auth_secret=c.auth_secret,
                client_id=c.client_id,
                hostname=c.hostname,
                user_agent=c.user_agent,
                address_map=c.address_map,
                dial_timeout=c.dial_timeout,
                reconnect_delay=c.reconnect_delay,
                max_reconnect_delay=c.max_reconnect_delay,
                max_msg_size=2**30,  # nsqd took it once
                max_body_size=2**31 - 1,
                max_pending=2**31 - 1,
            )
        return self._producers[nsqd]


def _ends_here(error: BaseException) -> bool:
    """Return whether an exception of user code concerns its message alone.

    ``CancelledError`` does, unless this task itself is cancelled: the user's coroutine has
    awaited a task that was.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not task.cancelling()
    return not isinstance(error, KeyboardInterrupt | SystemExit)


def _letter(message: Message, error: BaseException | None) -> bytes:
    """Write a message as a line of JSON; its body as text, or as hex if it is none."""
    line: dict[str, Any] = {
        "topic": message.topic,
        "channel": message.channel,
        "nsqd": message.nsqd,
        "id": message.id.decode("latin-1"),
        "attempts": message.attempts,
        "timestamp": message.timestamp,
        "error": None if error is None else f"{type(error).__name__}: {error}",
    }
    try:
        line["body"] = message.body.decode()
    except UnicodeDecodeError:
        line["body_hex"] = message.body.hex()
    return json.dumps(line).encode() + b"\n"


def _append(path: Path, line: bytes) -> None:
    """Append a line that can be read back; take back what was written of it if that fails."""
    # Unbuffered: what could not be written must not be tried again when the file is closed.
    with path.open("ab+", buffering=0) as file:
        _lock(file)
        before = file.seek(0, os.SEEK_END)
        data = line if _ends_a_line(file, before) else b"\n" + line
        try:
            _write(file, data)
            os.fsync(file.fileno())
            if _read(file, before, len(data)) != data:
                raise OSError(errno.EIO, "what was written can't be read back", str(path))
        except BaseException:
            with contextlib.suppress(OSError):
                _take_back(file, before, data)
            raise


def _lock(file: io.FileIO) -> None:
    """Keep other writers out, of this process and others, until the file is closed."""
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
    """Return False after a fragment, which a process leaves that is killed in mid-write."""
    return size == 0 or _read(file, size - 1, 1) == b"\n"


def _write(file: io.FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]  # a part of it where the disk is nearly full


def _read(file: io.FileIO, start: int, size: int) -> bytes:
    file.seek(start)
    data = bytearray()
    while len(data) < size and (chunk := file.read(size - len(data))):
        data += chunk
    return bytes(data)


def _take_back(file: io.FileIO, before: int, data: bytes) -> None:
    """Cut off what was written of the data, unless the file goes on with something else."""
    written = _read(file, before, len(data) + 1)
    if written and data.startswith(written):
        file.truncate(before)
        os.fsync(file.fileno())


async def _maybe_await(result: Awaitable[Any] | Callable[..., Any] | Any) -> None:
    if inspect.isawaitable(result):
        await result
