"""Dialling: connects asyncio protocols to addresses, a limited number at a time."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from nsqflow.address import (
    AddressMap,
    TcpAddress,
    UnixAddress,
    is_address,
    map_address,
    parse_address,
)
from nsqflow.errors import ConfigError, NetworkError
from nsqflow.transport.dial_order import DialOrder

_MAX_REMEMBERED = 10_000  # addresses

# What asyncio says for each address of a host; the errors are mostly the same.
_CONNECT_FAILED = re.compile(r"\[Errno (\d+)\] Connect call failed \([^)]*\)")
_SEVERAL = re.compile(r"Multiple exceptions: ([^,]+)(?:, \1)*$")


async def dial(protocol: asyncio.Protocol, address: str, mapping: AddressMap | None) -> str:
    """Connect ``protocol``; return the name that the server's certificate must have.

    The host's name is resolved each time, as its address may change. Raises ``NetworkError``.
    """
    target = _target(address, mapping)
    try:
        return await _connect(protocol, target)
    except OSError as error:
        raise NetworkError(f"{address}: {without_address(error)}") from error


async def _connect(protocol: asyncio.Protocol, target: TcpAddress | UnixAddress) -> str:
    loop = asyncio.get_running_loop()
    if isinstance(target, UnixAddress):
        await loop.create_unix_connection(lambda: protocol, target.path)
        return "localhost"
    transport, _ = await loop.create_connection(lambda: protocol, target.host, target.port)
    # With heartbeats disabled, only keepalive detects a host that has vanished.
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return target.host


def _target(address: str, mapping: AddressMap | None) -> TcpAddress | UnixAddress:
    try:
        return parse_address(map_address(address, mapping))
    except ConfigError as error:
        if is_address(address):
            raise  # address_map is wrong
        # The user's addresses were checked before: this one is from nsqlookupd.
        raise NetworkError(f"{address}: {error}") from None


def without_address(error: Exception) -> str:
    """Return the text of an error in connecting; asyncio repeats the address in it."""
    text = _CONNECT_FAILED.sub(lambda match: os.strerror(int(match[1])), str(error))
    return _SEVERAL.sub(r"\1", text)


class DialQueue:
    """Limits the concurrent dials of one client; nsqd that are likely to answer go first.

    Those are nsqd that were connected before, that several nsqlookupd list, or that the user has
    configured.
    """

    def __init__(self) -> None:
        self._order: DialOrder[asyncio.Future[None]] = DialOrder()
        self._connected: dict[str, None] = {}  # before, the oldest first

    @asynccontextmanager
    async def turn(self, address: str, named_by: Sequence[str]) -> AsyncIterator[None]:
        """Wait until ``address`` may be dialled; it counts as dialled until the block ends."""
        preferred = address in self._connected or len(named_by) != 1
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order.add(ticket, None if preferred else named_by[0])
        self._start()
        try:
            await ticket
            yield
        finally:
            self._order.remove(ticket)
            self._start()

    def connected(self, address: str) -> None:
        """Prefer this nsqd from now on."""
        self._connected.pop(address, None)
        self._connected[address] = None
        if len(self._connected) > _MAX_REMEMBERED:
            del self._connected[next(iter(self._connected))]

    def _start(self) -> None:
        while (ticket := self._order.next()) is not None:
            if not ticket.done():  # else it was cancelled, and is about to be removed
                ticket.set_result(None)
