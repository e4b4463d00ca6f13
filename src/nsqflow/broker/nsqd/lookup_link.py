"""One connection from an nsqd to one nsqlookupd: moves bytes, and waits for answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from nsqflow.errors import NetworkError, NsqError, RemoteProtocolError
from nsqflow.protocol import PeerCommand, PeerReply, PeerSession


class LookupLink(asyncio.Protocol):
    """A connection; made new for each attempt."""

    def __init__(self, timeout: float, on_end: Callable[[], None]) -> None:
        self._timeout = timeout
        self._on_end = on_end
        self._session = PeerSession()
        self._transport: asyncio.Transport | None = None
        self._replies: list[PeerReply] = []
        self._news = asyncio.Event()  # an answer, or the end
        self._error: NsqError | None = None  # why it ended
        self._ended = asyncio.Event()

    # Public methods

    async def open(self, host: str, port: int) -> None:
        """Connect; raise ``NetworkError``."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                await loop.create_connection(lambda: self, host, port)
        except TimeoutError:
            raise NetworkError(f"no connection within {self._timeout:g} s") from None
        except (OSError, UnicodeError) as error:  # the latter from a name that DNS can't have
            raise NetworkError(str(error)) from error

    async def ask(self, commands: Sequence[PeerCommand]) -> list[PeerReply]:
        """Send commands at once and wait for all the answers; raise if any is an error."""
        self._check()
        for command in commands:
            self._session.send(command)
        if self._transport is not None:
            self._transport.write(self._session.data_to_send())
        while len(self._replies) < len(commands):
            await self._answered()
        replies, self._replies = self._replies, []
        for reply in replies:
            if reply.error is not None:
                raise reply.error
        return replies

    def end(self, error: NsqError) -> None:
        """Drop the connection, for this reason."""
        if self._error is None:
            self._error = error
            self._news.set()
            self._on_end()
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Drop the connection, and wait until its socket is closed."""
        self.end(NetworkError("closed"))
        if self._transport is not None:
            await self._ended.wait()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """Read answers."""
        self._session.receive_data(data)
        try:
            while replies := self._session.events():
                self._replies += replies
        except RemoteProtocolError as error:
            self.end(error)
        self._news.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Know that it has ended."""
        self._ended.set()
        self.end(NetworkError(f"connection lost: {error or 'closed by nsqlookupd'}"))

    # Private methods

    async def _answered(self) -> None:
        """Wait for an answer, however many are still to come."""
        self._news.clear()
        self._check()
        try:
            async with asyncio.timeout(self._timeout):
                await self._news.wait()
        except TimeoutError:
            raise NetworkError(f"no answer within {self._timeout:g} s") from None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
