"""A small HTTP/1.1 server: for the HTTP APIs of the broker's daemons.

    server = HttpServer(handler, body_limit=lambda method, path: 1024)
    listener = await loop.create_server(server, "127.0.0.1", 4151)
    ...
    listener.close()
    await server.close()

Each connection is read one request at a time, whole, and only when the answer to the one before
it is out. So what a client can occupy is bounded: a head, a body within its limit, an answer.
Whoever takes longer than ``idle_timeout`` to say or to hear something is cut off; sooner, when
there are ``max_connections`` and one more comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nsqflow.http.connection import Connection, Terms
from nsqflow.http.guests import Guests
from nsqflow.http.request import Handler, Request, Response

__all__ = ["Handler", "HttpServer", "Request", "Response"]

logger = logging.getLogger(__name__)


class HttpServer:
    """A protocol factory for ``loop.create_server`` and its like, and what it has made.

    ``handler`` answers each request. ``body_limit`` tells how many bytes of a body are read, by
    method and path; of a longer one the handler gets the beginning, and the connection ends with
    the answer.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        body_limit: Callable[[str, str], int],
        idle_timeout: float = 60.0,
        max_connections: int = 1000,
    ) -> None:
        self._guests = Guests("HTTP", max_connections, logger)
        self._terms = Terms(handler, body_limit, idle_timeout, self._guests)

    def __call__(self) -> asyncio.Protocol:
        """Make the protocol of a new connection."""
        return Connection(self._terms)

    @property
    def connection_count(self) -> int:
        """How many connections there are."""
        return len(self._guests)

    async def close(self) -> None:
        """End all connections, cancel their handlers, and wait until they are gone."""
        await self._guests.close()
