"""nsqlookupd: its two doors, one for nsqd and one for HTTP, and the registry behind them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Self

from nsqflow.broker.api import Api
from nsqflow.broker.listening import Listening, listen
from nsqflow.broker.lookupd.connection import LookupConnection, Terms
from nsqflow.broker.lookupd.registry import Registry
from nsqflow.broker.lookupd.routes import Routes
from nsqflow.broker.options import LookupdOptions
from nsqflow.broker.version import VERSION, describe
from nsqflow.errors import LocalProtocolError
from nsqflow.http.guests import Guests
from nsqflow.http.server import HttpServer
from nsqflow.protocol import Peer

logger = logging.getLogger("nsqflow.broker.lookupd")

_MAX_CONNECTIONS = 500  # through each door; both fit into the usual 1024 files of a process
_MAX_BODY = 64 * 1024  # of a request over HTTP; nothing is expected in it
_IDENTIFY_TIMEOUT = 60.0
_SILENCE_TIMEOUT = 60.0  # at least: four of nsqd's pings


class Nsqlookupd:
    """An nsqlookupd, to be started once; an async context manager that starts and stops it."""

    def __init__(self, options: LookupdOptions) -> None:
        self.options = options
        self.registry = Registry(
            inactive_timeout=round(options.inactive_producer_timeout * 1e9),
            tombstone_lifetime=round(options.tombstone_lifetime * 1e9),
        )
        self._guests = Guests("TCP", _MAX_CONNECTIONS, logger)
        self._terms = Terms(
            registry=self.registry,
            answer=self._own_addresses,
            identify_timeout=_IDENTIFY_TIMEOUT,
            # An nsqd is not cut off while it would still be named.
            silence_timeout=max(_SILENCE_TIMEOUT, options.inactive_producer_timeout),
            guests=self._guests,
        )
        self._http = HttpServer(
            Api(Routes(self.registry).table(), logger),
            body_limit=lambda method, path: _MAX_BODY,
            max_connections=_MAX_CONNECTIONS,
        )
        self._doors: dict[str, Listening] = {}
        self._started = False

    @property
    def tcp_address(self) -> str:
        """Where nsqd connect to."""
        return self._doors["TCP"].address

    @property
    def http_address(self) -> str:
        """Where its HTTP API is."""
        return self._doors["HTTP"].address

    async def start(self) -> None:
        """Listen; raise ``OSError`` if that can't be."""
        if self._started:
            raise LocalProtocolError("an Nsqlookupd starts only once; make a new one")
        self._started = True
        logger.info("%s", describe("nsqlookupd"))
        try:
            # HTTP first: each nsqd is told both ports.
            await self._open("HTTP", self.options.http_address, self._http)
            await self._open("TCP", self.options.tcp_address, self._connected)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close all doors and connections; return when all of them are gone."""
        for name, door in self._doors.items():
            logger.info("%s: closing %s", name, door.address)
            door.close()
        await self._guests.close()
        await self._http.close()

    async def kill(self) -> None:
        """End as ``kill -9`` does; as nothing is ever saved, that is the same."""
        await self.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Private methods

    async def _open(self, name: str, address: str, factory: Callable[[], asyncio.Protocol]) -> None:
        door = await listen(f"{name.lower()}_address", address, factory)
        self._doors[name] = door
        logger.info("%s: listening on %s", name, door.address)

    def _connected(self) -> asyncio.Protocol:
        return LookupConnection(self._terms)

    def _own_addresses(self) -> Peer:
        return Peer(
            broadcast_address=self.options.broadcast_address,
            tcp_port=self._doors["TCP"].port,
            http_port=self._doors["HTTP"].port,
            version=VERSION,
            hostname=socket.gethostname(),
        )
