"""An nsqd that is to be connected: dialled, and dialled again when the connection is lost.

One given by the user is tried for ever, ever more slowly, from the first time on. One that
nsqlookupd named is tried once: it comes back when nsqlookupd names it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from random import Random

from nsqflow.client.config import ClientConfig
from nsqflow.client.connection import Connection, is_final
from nsqflow.client.news import Newsroom
from nsqflow.errors import NetworkError, NsqError, ServerError

logger = logging.getLogger(__name__)

_JITTER = 0.25  # a delay is shortened by up to this part of it

Dial = Callable[[str], Awaitable[Connection]]


def reconnect_delay(failures: int, first: float, most: float, chance: float) -> float:
    """Tell how long to wait after so many failures in a row: doubling, with jitter."""
    delay = min(most, first * 2.0 ** min(failures - 1, 62))
    return delay * (1 - _JITTER * chance)


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
        final: Callable[[NsqError], bool] = is_final,
        changed: Callable[[], None] = lambda: None,
        random: Random,
    ) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.failures = 0  # in a row
        self.error: NsqError | None = None  # the last one
        self.retry_at: float | None = None  # while it waits
        self.ended = False  # it will not be tried again
        self.was_connected = False
        self._dial = dial
        self._config = config
        self._news = news
        self._lasting = lasting
        self._final = final
        self._changed = changed
        self._random = random

    async def run(self) -> None:
        """Keep the connection until cancelled; raise what no second try can mend."""
        try:
            while await self._once():
                delay = self._delay()
                self.retry_at = asyncio.get_running_loop().time() + delay
                self._tell_failure(delay)
                self._changed()
                await asyncio.sleep(delay)
                self.retry_at = None
        finally:
            self.ended = True
            self.connection = None
            self._changed()

    async def _once(self) -> bool:
        """Connect and stay connected as long as it lasts; tell whether to go on."""
        loop = asyncio.get_running_loop()
        try:
            connection = await self._dial(self.address)
        except NsqError as error:
            self.failures += 1
            self.error = error
            if self._final(error):
                raise
            if not self._lasting:
                self._tell_failure(None)
            return self._lasting
        began = loop.time()
        self._connected(connection)
        self.error = await connection.wait_ended()
        self.connection = None
        self._news.tell("disconnected", self.address, str(self.error), self.error)
        # A peer that takes us in and throws us out is no better than one that is not there.
        lasted = loop.time() - began >= self._config.reconnect_delay
        # Nor is it the server's fault if it was closed over something that we had sent.
        lasted = lasted or isinstance(self.error, ServerError)
        self.failures = 0 if lasted else self.failures + 1
        if not self._lasting:
            logger.warning("lost %s (%s); waiting for nsqlookupd", self.address, self.error)
        return self._lasting

    def _connected(self, connection: Connection) -> None:
        self.connection = connection
        self.was_connected = True
        logger.info("connected to %s", self.address)
        self._news.tell("connected", self.address)
        self._changed()

    def _delay(self) -> float:
        config = self._config
        if not self.failures:  # it had worked for a while: most likely it was restarted
            return min(config.reconnect_delay, 1.0) * self._random.random()
        return reconnect_delay(
            self.failures, config.reconnect_delay, config.max_reconnect_delay, self._random.random()
        )

    def _tell_failure(self, delay: float | None) -> None:
        then = "waiting for nsqlookupd" if delay is None else f"next try in {delay:.1f} s"
        logger.warning("no connection to %s: %s; %s", self.address, self.error, then)
        error = self.error or NetworkError(f"{self.address}: closed")
        self._news.tell("connect_failed", self.address, then, error)
