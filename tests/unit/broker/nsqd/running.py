"""An nsqd of ours in the test's own event loop, and how it is spoken to."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from nsqflow.broker.nsqd.daemon import Nsqd
from nsqflow.broker.options import NsqdOptions
from nsqflow.http.client import HttpClient
from tests.fixtures.servers import PATIENCE

NAMES = {"client_id": "me", "hostname": "here", "user_agent": "test/1"}


def make_nsqd(**options: Any) -> Nsqd:
    """An nsqd on ports of its own, to be used in an ``async with``."""
    ports = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
    return Nsqd(NsqdOptions(**(ports | options)))


def new_name(what: str = "topic") -> str:
    """A name that no other test has."""
    return f"{what}-{uuid4().hex[:12]}"


async def ask(
    address: str, method: str, path: str, body: bytes | None = None, **query: str
) -> tuple[int, bytes]:
    """What is answered over HTTP: status and body."""
    return await HttpClient(timeout=PATIENCE).request(address, method, path, query, body)


async def stats_of(address: str, **query: str) -> dict[str, Any]:
    """The stats in JSON."""
    status, body = await ask(address, "GET", "/stats", None, format="json", **query)
    assert status == 200
    stats: dict[str, Any] = json.loads(body)
    return stats


class Speaker:
    """A client of nsqd that says what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, data: bytes) -> None:
        """Send a command that is answered with OK."""
        assert await self.exchange(data) == b"OK"

    async def exchange(self, data: bytes) -> bytes:
        """Send, and return what comes next."""
        self.writer.write(data)
        return await self.hear()

    async def hear(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return (await self.reader.readexactly(size))[4:]

    async def identify(self, **values: Any) -> dict[str, Any]:
        body = json.dumps({"feature_negotiation": True} | NAMES | values).encode()
        agreed: dict[str, Any] = json.loads(await self.exchange(b"IDENTIFY\n" + sized(body)))
        return agreed


def sized(body: bytes) -> bytes:
    """A body as commands have it."""
    return struct.pack(">i", len(body)) + body


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Speaker]:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"  V2")
    try:
        yield Speaker(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()
