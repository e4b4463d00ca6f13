"""Counts the connections of a server, limits them and closes them together.

When the limit is reached, a new connection replaces the one that has been idle longest, so that a
client that opens many connections and sends nothing cannot lock out the others. If all of them are
busy, the new one is refused.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from nsqflow.address import join_address


class TrackedConnection(asyncio.Protocol):
    """A connection that a ``ConnectionLimiter`` counts from accept until cleanup is complete."""

    def __init__(self, limiter: ConnectionLimiter) -> None:
        self.busy = False
        """The limiter must not close it in favour of another."""
        self._limiter = limiter
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._client = ""  # the peer's address
        self._accepted = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = self._loop.create_future()

    def abort(self) -> None:
        """Close the connection without sending what is buffered."""
        self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed and its handler has ended."""
        await asyncio.shield(self._closed)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start, unless the limiter refuses the connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass
        self._client = address_of(transport)
        self._accepted = self._limiter.accept(self)
        if self._accepted:
            self._start()
        else:
            self._transport.abort()

    # For subclasses

    def _start(self) -> None:
        raise NotImplementedError

    def _set_timeout(self, seconds: float) -> None:
        """Close the connection unless the client does what is expected within ``seconds``."""
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self._on_timeout, seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self, seconds: float) -> None:
        self._transport.abort()

    def _mark_closed(self, _: object = None) -> None:
        """Report that nothing of the connection is left."""
        if not self._closed.done():
            self._closed.set_result(None)
            self._limiter.remove(self)


class ConnectionLimiter:
    """All connections of one server, at most ``max_connections``."""

    def __init__(self, name: str, max_connections: int, logger: logging.Logger) -> None:
        self._name = name
        self._max = max_connections
        self._logger = logger
        self._connections: dict[TrackedConnection, None] = {}  # the longest idle first
        self._warned = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._connections)

    def accept(self, connection: TrackedConnection) -> bool:
        """Add a connection, which is idle; return False if it must be refused."""
        if self._closed or (len(self._connections) >= self._max and not self._close_idle()):
            return False
        self._connections[connection] = None
        return True

    def mark_busy(self, connection: TrackedConnection) -> None:
        """Never close this connection in favour of another."""
        connection.busy = True

    def mark_idle(self, connection: TrackedConnection) -> None:
        """Make this the connection that became idle last."""
        connection.busy = False
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None

    def remove(self, connection: TrackedConnection) -> None:
        """Forget a connection that is closed."""
        self._connections.pop(connection, None)
        if len(self._connections) <= self._max // 2:
            self._warned = False

    async def close(self) -> None:
        """Accept no more connections, abort all and wait until they are closed."""
        self._closed = True
        connections = [*self._connections]
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.wait_closed()

    def _close_idle(self) -> bool:
        idle = next((each for each in self._connections if not each.busy), None)
        if not self._warned:
            self._warned = True
            self._logger.warning(
                "%s: %d connections are open, the maximum; %s",
                self._name,
                self._max,
                "refusing new ones" if idle is None else "closing idle ones for new ones",
            )
        if idle is None:
            return False
        idle.busy = True  # it is closed only once
        idle.abort()
        return True


def address_of(transport: asyncio.BaseTransport) -> str:
    """Return the client's address; "@" for a unix socket, as Go writes it."""
    peer = transport.get_extra_info("peername")
    return join_address(peer[0], peer[1]) if isinstance(peer, tuple) else "@"
