"""Dialling: from an address to an open socket, by TCP or by a path."""

from __future__ import annotations

import asyncio
import socket

from nsqflow.client.address import AddressMap, UnixAddress, map_address, parse_address


async def dial(protocol: asyncio.Protocol, address: str, mapping: AddressMap | None) -> str:
    """Connect ``protocol``; return the name that the server's certificate must have.

    The host's name is resolved anew each time: hosts move.
    """
    loop = asyncio.get_running_loop()
    target = parse_address(map_address(address, mapping))
    if isinstance(target, UnixAddress):
        await loop.create_unix_connection(lambda: protocol, target.path)
        return "localhost"
    transport, _ = await loop.create_connection(lambda: protocol, target.host, target.port)
    # Where heartbeats are switched off, this is what notices a host that has vanished.
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return target.host
