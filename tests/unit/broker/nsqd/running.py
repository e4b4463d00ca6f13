"""An nsqd of ours in the test's event loop, and a client that sends raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from nsqflow.broker.nsqd.daemon import NsqdDaemon
from nsqflow.broker.options import NsqdOptions
from nsqflow.http.client import HttpClient
from tests.fixtures.servers import PATIENCE

NAMES = {"client_id": "me", "hostname": "here", "user_agent": "test/1"}


def make_nsqd(**options: Any) -> NsqdDaemon:
    """Return an nsqd on free ports, to be used in an ``async with``."""
    ports = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
    return NsqdDaemon(NsqdOptions(**(ports | options)))


def new_name(what: str = "topic") -> str:
    """Return a name that no other test uses."""
    return f"{what}-{uuid4().hex[:12]}"


async def ask(
    address: str, method: str, path: str, body: bytes | None = None, **query: str
) -> tuple[int, bytes]:
    """Send an HTTP request; return status and body."""
    response = await HttpClient(timeout=PATIENCE).request(address, method, path, query, body or b"")
    return response.status, response.body


async def stats_of(address: str, **query: str) -> dict[str, Any]:
    """Return the stats."""
    status, body = await ask(address, "GET", "/stats", None, format="json", **query)
    assert status == 200
    stats: dict[str, Any] = json.loads(body)
    return stats


class RawClient:
    """A client of nsqd that sends raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def command(self, data: bytes) -> None:
        """Send a command and expect OK."""
        assert await self.request(data) == b"OK"

    async def request(self, data: bytes) -> bytes:
        """Send data and return the data of the next frame."""
        self.writer.write(data)
        return await self.receive()

    async def receive(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return (await self.reader.readexactly(size))[4:]

    async def identify(self, **values: Any) -> dict[str, Any]:
        body = json.dumps({"feature_negotiation": True} | NAMES | values).encode()
        agreed: dict[str, Any] = json.loads(await self.request(b"IDENTIFY\n" + sized(body)))
        return agreed


def sized(body: bytes) -> bytes:
    """Return a body with its size, as commands have it."""
    return struct.pack(">i", len(body)) + body


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[RawClient]:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"  V2")
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):  # nsqd may have reset the connection
            await writer.wait_closed()
