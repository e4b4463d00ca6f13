"""Keeps a connection to one nsqd: dials it, and dials it again when the connection is lost.

An nsqd given directly is dialled until cancelled, as ``ReconnectSchedule`` decides. One that
nsqlookupd named is dialled once; another ``Reconnector`` dials it when nsqlookupd names it
again, and a producer does while a publish waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from nsqflow.client.config import ClientConfig
from nsqflow.client.events import EventEmitter
from nsqflow.client.reconnect_schedule import ReconnectSchedule
from nsqflow.errors import NetworkError, NsqError
from nsqflow.transport.connection import Connection
from nsqflow.transport.dial import DialQueue
from nsqflow.transport.handshake import is_final

logger = logging.getLogger(__name__)

Dial = Callable[[str], Awaitable[Connection]]


class Reconnector:
    """Keeps one connection to one nsqd."""

    def __init__(
        self,
        address: str,
        dial: Dial,
        config: ClientConfig,
        events: EventEmitter,
        *,
        retry_forever: bool,
        partition: int | None = None,
        queue: DialQueue | None = None,
        named_by: Sequence[str] = (),
        final: Callable[[NsqError], bool] = is_final,
        changed: Callable[[], None] = lambda: None,
        before: Reconnector | None = None,
        random: Random,
    ) -> None:
        self.address = address
        self.partition = partition
        self.name = endpoint_name(address, partition)
        self.connection: Connection | None = None
        self.error: NsqError | None = None  # the last one
        self.retry_at: float | None = None  # while it waits
        self.queued = False  # waiting for its turn in the dial queue
        self.ended = False  # it is not dialled again
        self.was_connected = False
        self._schedule = ReconnectSchedule(config.reconnect_delay, config.max_reconnect_delay)
        self._wake = asyncio.Event()
        self._queue = queue or DialQueue()
        self._named_by = named_by
        self._dial = dial
        self._events = events
        self._retry_forever = retry_forever
        self._final = final
        self._changed = changed
        self._dialled_early = False  # by dial_now(), before it was due
        self._warned = ""  # the last reason that was logged
        self._random = random
        if before is not None:  # the same nsqd was named again: its failures still count
            self._schedule, self.error = before._schedule, before.error
            self._warned = before._warned

    @property
    def failures(self) -> int:
        """Failed dials, and connections that did not last, in a row."""
        return self._schedule.failures

    async def run(self) -> None:
        """Keep the connection until cancelled; raise an error that no other dial can fix."""
        try:
            while await self._connect_once():
                await self._wait()
        finally:
            self.ended = True
            self.connection = None
            self._changed()

    def dial_now(self) -> None:
        """Dial at once if it waits for its next dial."""
        if self.retry_at is not None:
            self._dialled_early = True
            self._schedule.trigger(asyncio.get_running_loop().time())
            self.retry_at = None
            self._wake.set()

    async def _connect_once(self) -> bool:
        """Connect and wait for the end of the connection; return whether to dial again."""
        loop = asyncio.get_running_loop()
        try:
            connection = await self._dial_in_turn()
        except NsqError as error:
            self._schedule.failed(loop.time(), self._random.random())
            self.error = error
            if self._final(error):
                raise
            if not self._retry_forever:
                self._report_failure("waiting for nsqlookupd")
            return self._retry_forever
        began = loop.time()
        self._connected(connection)
        self.error = await connection.wait_ended()
        self.connection = None
        self._emit("disconnected", str(self.error), self.error)
        # A connection that ended over a refused command is no failure of the server.
        worked = self._schedule.lasted(loop.time() - began) or connection.command_refused
        self._schedule.lost(loop.time(), self._random.random(), worked=worked)
        if not self._retry_forever:
            logger.warning(
                "lost %s (%s); waiting for nsqlookupd",
                self.name,
                self.error,
                extra={"error": self.error},
            )
        return self._retry_forever

    async def _dial_in_turn(self) -> Connection:
        self.queued = True
        async with self._queue.turn(self.address, self._named_by):
            self.queued = False
            connection = await self._dial(self.address)
        self._queue.connected(self.address)
        return connection

    def _connected(self, connection: Connection) -> None:
        self.connection = connection
        self.was_connected = True
        self._warned = ""
        logger.info("connected to %s", self.name)
        self._emit("connected")
        self._changed()

    async def _wait(self) -> None:
        """Wait for the next dial, or until ``dial_now`` is called."""
        self.retry_at = self._schedule.dial_at
        delay = self.retry_at - asyncio.get_running_loop().time()
        self._report_failure(f"next try in {max(delay, 0.0):.1f} s")
        self._wake.clear()
        self._changed()
        try:
            async with asyncio.timeout_at(self.retry_at):
                await self._wake.wait()
        except TimeoutError:
            self.retry_at = None

    def _report_failure(self, then: str) -> None:
        # A waiting publish triggers a dial each second, and a partition is looked up twice a
        # second until it has a leader: the same reason is logged once.
        text = str(self.error)
        often = self._dialled_early or self.partition is not None
        known = often and text == self._warned
        self._dialled_early, self._warned = False, text
        level = logging.DEBUG if known else logging.WARNING
        error = self.error or NetworkError(f"{self.address}: closed")
        reason = str(error).removeprefix(f"{self.address}: ")
        logger.log(
            level, "no connection to %s: %s; %s", self.name, reason, then, extra={"error": error}
        )
        self._emit("connect_failed", then, error)

    def _emit(self, kind: str, text: str = "", error: NsqError | None = None) -> None:
        if self.partition is not None:
            text = f"partition {self.partition}" + (f": {text}" if text else "")
        self._events.emit(kind, self.address, text, error)


def endpoint_name(address: str, partition: int | None) -> str:
    """Return what a connection is called: its nsqd, and its partition if it has one."""
    return address if partition is None else f"{address}/{partition}"
