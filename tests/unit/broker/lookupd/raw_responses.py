"""Sending raw bytes to nsqlookupd."""

from __future__ import annotations

import asyncio
import struct

from tests.fixtures.servers import PATIENCE


async def responses_to(address: str, data: bytes) -> list[bytes]:
    """Send data and return all responses until the server closes."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    writer.write_eof()
    responses = []
    async with asyncio.timeout(PATIENCE):
        received = await reader.read()
    writer.transport.abort()
    while received:
        [size] = struct.unpack_from(">i", received)
        responses.append(received[4 : 4 + size])
        received = received[4 + size :]
    return responses
