"""What nsqd and nsqlookupd have in common: they listen, serve HTTP, start and stop."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Generic, Self

from nsqflow.broker.host_check import HostCheck, checked
from nsqflow.broker.listener import Listener, listen
from nsqflow.broker.options import D
from nsqflow.http.server import Handler, HttpServer


class Daemon(Generic[D]):
    """A daemon that starts once; an async context manager that starts and stops it."""

    def __init__(self, options: D, logger: logging.Logger) -> None:
        self.options = options
        self.stopping = False
        """No more connections are accepted."""
        self._logger = logger
        self._listeners: dict[str, Listener] = {}
        self._http_servers: list[HttpServer] = []

    @property
    def tcp_address(self) -> str:
        """The address for clients, or for nsqd."""
        return self._listeners["TCP"].address

    @property
    def http_address(self) -> str:
        """The address of the HTTP API; empty if there is none."""
        return self._listeners["HTTP"].address if "HTTP" in self._listeners else ""

    @property
    def tcp_port(self) -> int:
        """-1 for a unix socket."""
        return self._port("TCP")

    @property
    def http_port(self) -> int:
        """-1 for a unix socket, or if there is none."""
        return self._port("HTTP")

    @property
    def https_port(self) -> int:
        """-1 if there is none."""
        return self._port("HTTPS")

    async def start(self) -> None:
        """Start listening; raise on failure."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Close listeners and connections; wait until all are closed."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # For subclasses

    async def _listen(
        self,
        name: str,
        address: str,
        factory: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        listener = await listen(f"{name.lower()}_address", address, factory, tls)
        self._listeners[name] = listener
        self._logger.info("%s: listening on %s", name, listener.address)

    async def _serve_http(
        self,
        name: str,
        address: str,
        handler: Handler,
        *,
        body_limit: Callable[[str, str], int],
        max_connections: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check = HostCheck.of(self.options, address)
        server = HttpServer(
            checked(handler, check, self._logger),
            body_limit=body_limit,
            max_connections=max_connections,
        )
        self._http_servers.append(server)
        await self._listen(name, address, server, tls)

    def _close_listeners(self) -> None:
        self.stopping = True
        for name, listener in self._listeners.items():
            self._logger.info("%s: closing %s", name, listener.address)
            listener.close()

    async def _close_http(self) -> None:
        for server in self._http_servers:
            await server.close()

    def _port(self, name: str) -> int:
        return self._listeners[name].port if name in self._listeners else -1
