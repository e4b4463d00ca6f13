"""Dialling: from an address to an open socket, by TCP or by a path; a few at a time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from nsqflow.client.address import (
    AddressMap,
    TcpAddress,
    UnixAddress,
    is_address,
    map_address,
    parse_address,
)
from nsqflow.client.dial_order import DialOrder
from nsqflow.errors import ConfigError, NetworkError

_MAX_REMEMBERED = 10_000  # addresses


async def dial(protocol: asyncio.Protocol, address: str, mapping: AddressMap | None) -> str:
    """Connect ``protocol``; return the name that the server's certificate must have.

    The host's name is resolved anew each time: hosts move.
    """
    loop = asyncio.get_running_loop()
    target = _target(address, mapping)
    if isinstance(target, UnixAddress):
        await loop.create_unix_connection(lambda: protocol, target.path)
        return "localhost"
    transport, _ = await loop.create_connection(lambda: protocol, target.host, target.port)
    # Where heartbeats are switched off, this is what notices a host that has vanished.
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return target.host


def _target(address: str, mapping: AddressMap | None) -> TcpAddress | UnixAddress:
    try:
        return parse_address(map_address(address, mapping))
    except ConfigError as error:
        if is_address(address):
            raise  # address_map is wrong
        # Those given by the user were checked: nsqlookupd named it, and the others may be good.
        raise NetworkError(f"{address}: {error}") from None


class DialQueue:
    """Limits the dials of one client, and gives the next turn to an nsqd that is likely to answer.

    Preferred are nsqd that were connected before, those that several nsqlookupd name, and
    those given by the user.
    """

    def __init__(self) -> None:
        self._order: DialOrder[asyncio.Future[None]] = DialOrder()
        self._connected: dict[str, None] = {}  # before, the oldest first

    @asynccontextmanager
    async def turn(self, address: str, named_by: Sequence[str]) -> AsyncIterator[None]:
        """Wait until ``address`` may be dialled; the turn lasts as long as the block."""
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
        """Prefer an nsqd from now on."""
        self._connected.pop(address, None)
        self._connected[address] = None
        if len(self._connected) > _MAX_REMEMBERED:
            del self._connected[next(iter(self._connected))]

    def _start(self) -> None:
        while (ticket := self._order.next()) is not None:
            if not ticket.done():  # else cancelled: it is removed in a moment
                ticket.set_result(None)
