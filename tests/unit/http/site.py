"""An HTTP server of ours in the test's own loop, and clients that say whatever they like."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from nsqflow.http.server import Handler, HttpServer, Request, Response
from tests.fixtures.servers import PATIENCE

LIMIT = 1000
PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Visitor:
    """A client's side of a connection; waits no longer than a test should."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def ask(self, data: bytes, *, head: bool = False) -> Answer:
        self.writer.write(data)
        return await self.answer(head=head)

    async def answer(self, *, head: bool = False) -> Answer:
        async with asyncio.timeout(PATIENCE):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            pairs = (line.split(": ", 1) for line in lines[1:-1])
            headers = {name.lower(): value for name, value in pairs}
            size = 0 if head else int(headers.get("content-length", 0))
            body = await self._reader.readexactly(size)
        return Answer(int(lines[0].split()[1]), headers, body)

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()


class Site:
    """Where the server is."""

    def __init__(self, server: HttpServer, port: int, tls: ssl.SSLContext | None) -> None:
        self.server = server
        self.port = port
        self._tls = tls

    async def visit(self, first: bytes = b"") -> Visitor:
        streams = await asyncio.open_connection("127.0.0.1", self.port, ssl=self._tls)
        visitor = Visitor(*streams)
        visitor.writer.write(first)
        return visitor


async def echo(request: Request) -> Response:
    """Answer with what was asked."""
    length = f"{len(request.body)}".encode() if request.complete else b"too much"
    text = b" ".join([request.method.encode(), request.path.encode(), length, request.body])
    return Response(200 if request.complete else 413, text)


@asynccontextmanager
async def serving(
    handler: Handler = echo,
    *,
    tls: ssl.SSLContext | None = None,
    client_tls: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncIterator[Site]:
    loop = asyncio.get_running_loop()
    options.setdefault("body_limit", lambda method, path: LIMIT)
    server = HttpServer(handler, **options)
    listener = await loop.create_server(server, "127.0.0.1", 0, ssl=tls)
    try:
        yield Site(server, listener.sockets[0].getsockname()[1], client_tls)
    finally:
        listener.close()
        await server.close()
        assert server.connection_count == 0
