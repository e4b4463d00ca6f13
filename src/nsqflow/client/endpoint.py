"""An nsqd that is to be connected: dialled, and dialled again when the connection is lost.

One given by the user is dialled until it is cancelled, as its ``ReconnectSchedule`` says. One
that nsqlookupd named is dialled once. It is dialled again, by another ``Endpoint``, when
nsqlookupd names it again, and by a producer while a publish waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from nsqflow.client.config import ClientConfig
from nsqflow.client.connection import Connection, is_final
from nsqflow.client.dialling import DialQueue
from nsqflow.client.news import Newsroom
from nsqflow.client.reconnect_schedule import ReconnectSchedule
from nsqflow.errors import NetworkError, NsqError

logger = logging.getLogger(__name__)

Dial = Callable[[str], Awaitable[Connection]]


class Endpoint:
    """Keeps one connection to one nsqd."""

    def __init__(
        self,
        address: str,
        dial: Dial,
        config: ClientConfig,
        news: Newsroom,
        *,
        lasting: bool,
        queue: DialQueue | None = None,
        named_by: Sequence[str] = (),
        final: Callable[[NsqError], bool] = is_final,
        changed: Callable[[], None] = lambda: None,
        before: Endpoint | None = None,
        random: Random,
    ) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.error: NsqError | None = None  # the last one
        self.retry_at: float | None = None  # while it waits
        self.queued = False  # it waits for its turn to be dialled
        self.ended = False  # it will not be tried again
        self.was_connected = False
        self._schedule = ReconnectSchedule(config.reconnect_delay, config.max_reconnect_delay)
        self._wake = asyncio.Event()
        self._queue = queue or DialQueue()
        self._named_by = named_by
        self._dial = dial
        self._news = news
        self._lasting = lasting
        self._final = final
        self._changed = changed
        self._random = random
        if before is not None:  # its failures count on: nsqlookupd named the same nsqd again
            self._schedule, self.error = before._schedule, before.error

    @property
    def failures(self) -> int:
        """Failed dials, and connections that did not last, in a row."""
        return self._schedule.failures

    async def run(self) -> None:
        """Keep the connection until cancelled; raise an error that another dial can't fix."""
        try:
            while await self._once():
                await self._wait()
        finally:
            self.ended = True
            self.connection = None
            self._changed()

    def dial_now(self) -> None:
        """Dial at once if it waits for its next dial."""
        if self.retry_at is not None:
            self._schedule.trigger(asyncio.get_running_loop().time())
            self.retry_at = None
            self._wake.set()

    async def _once(self) -> bool:
        """Connect and stay connected as long as it lasts; return whether to dial again."""
        loop = asyncio.get_running_loop()
        try:
            connection = await self._dial_in_turn()
        except NsqError as error:
            self._schedule.failed(loop.time(), self._random.random())
            self.error = error
            if self._final(error):
                raise
            if not self._lasting:
                self._report_failure("waiting for nsqlookupd")
            return self._lasting
        began = loop.time()
        self._connected(connection)
        self.error = await connection.wait_ended()
        self.connection = None
        self._news.tell("disconnected", self.address, str(self.error), self.error)
        # A connection closed over a command that was refused says nothing against the server.
        worked = self._schedule.lasted(loop.time() - began) or connection.command_refused
        self._lost(worked=worked)
        return self._lasting

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
        logger.info("connected to %s", self.address)
        self._news.tell("connected", self.address)
        self._changed()

    def _lost(self, *, worked: bool) -> None:
        now = asyncio.get_running_loop().time()
        self._schedule.lost(now, self._random.random(), worked=worked)
        if not self._lasting:
            logger.warning("lost %s (%s); waiting for nsqlookupd", self.address, self.error)

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
        logger.warning("no connection to %s: %s; %s", self.address, self.error, then)
        error = self.error or NetworkError(f"{self.address}: closed")
        self._news.tell("connect_failed", self.address, then, error)
