"""The common part of classic and redesigned nsqd: listeners, connections, limits, TLS."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from nsqflow.broker.auth import Authorizer
from nsqflow.broker.daemon import Daemon
from nsqflow.broker.nsqd.fault_injection import FaultInjector
from nsqflow.broker.nsqd.message_pump import Clock
from nsqflow.broker.options import NsqdOptions
from nsqflow.broker.tls import client_context, server_context
from nsqflow.http.server import Handler
from nsqflow.protocol import Limits

if TYPE_CHECKING:
    from nsqflow.broker.nsqd.command_handler import CommandHandler
    from nsqflow.broker.nsqd.connection import ClientConnection

_log = logging.getLogger("nsqflow.broker.nsqd")

_MAX_HTTP_CONNECTIONS = 250  # per listener: most files are for TCP clients
_FILES = 600  # reserved for other uses than clients, mostly HTTP


class NsqdHttpApi(Protocol):
    """The HTTP API of an nsqd."""

    def handler(self, *, tls: bool) -> Handler:
        """Return the handler of requests that come with TLS or without."""

    def body_limit(self, method: str, path: str, /) -> int:
        """Return the number of bytes that are read of a body."""


class NsqdServer(Daemon[NsqdOptions]):
    """An nsqd as its clients see it."""

    def __init__(self, options: NsqdOptions, clock: Clock) -> None:
        super().__init__(options, _log)
        self.clock = clock
        self.started = self.now() // 10**9
        self.health = "OK"
        self.clients: set[ClientConnection] = set()
        self.faults = FaultInjector()
        self.tls = server_context(options)
        self.limits = Limits(
            max_msg_size=options.max_msg_size,
            max_body_size=options.max_body_size,
            max_rdy_count=options.max_rdy_count,
            max_req_timeout_ms=round(options.max_req_timeout * 1000),
        )
        self.authorizer = self._authorizer()

    def now(self) -> int:
        """Return the time in nanoseconds since 1970."""
        return self.clock.now()

    def pump(self) -> None:
        """Schedule a run of the message pump, because the engine has changed."""
        raise NotImplementedError

    def command_handler(self, client: ClientConnection) -> CommandHandler:
        """Return what executes the commands of a client."""
        raise NotImplementedError

    def accepts_client(self) -> bool:
        """Return whether another client may connect; some files are reserved for other uses."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        limit = max(files - _FILES, files // 2) if files != resource.RLIM_INFINITY else sys.maxsize
        full = len(self.clients) >= limit
        if full:
            _log.error("TCP: refusing a client: %d are connected, the maximum", len(self.clients))
        return not full and not self.stopping

    # For subclasses

    async def _open_listeners(
        self, connection: Callable[[], asyncio.Protocol], api: Callable[[], NsqdHttpApi]
    ) -> None:
        options = self.options
        await self._listen("TCP", options.tcp_address, connection)
        if options.http_address:
            await self._open_http("HTTP", options.http_address, api())
        if options.https_address and self.tls is not None:
            await self._open_http("HTTPS", options.https_address, api(), self.tls)

    async def _open_http(
        self, name: str, address: str, api: NsqdHttpApi, tls: ssl.SSLContext | None = None
    ) -> None:
        await self._serve_http(
            *(name, address, api.handler(tls=tls is not None)),
            body_limit=api.body_limit,
            max_connections=_MAX_HTTP_CONNECTIONS,
            tls=tls,
        )

    async def _close_clients(self, end: Callable[[ClientConnection], None]) -> None:
        """Close all connections; wait until they have ended."""
        clients = [*self.clients]
        for client in clients:
            end(client)
        await self._close_http()
        for client in clients:
            await client.wait_closed()

    def _authorizer(self) -> Authorizer | None:
        options = self.options
        if not options.auth_http_address:
            return None
        return Authorizer(
            options.auth_http_address,
            options.http_client_connect_timeout,
            options.http_client_request_timeout,
            client_context(options),
        )
