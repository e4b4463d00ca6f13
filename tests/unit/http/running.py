"""An HTTP server of ours in the test's own loop, and clients that say whatever they like."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from nsqflow.broker.listener import Acceptor
from nsqflow.http.server import Handler, HttpServer, Request, Response
from tests.fixtures.servers import PATIENCE

LIMIT = 1000
SHORT_TIMEOUT = 0.2  # seconds that pass soon
PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /pub HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSING = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def post(size: int, *headers: str, path: str = "/pub") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {size}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class RawClient:
    """A client's side of a connection; waits no longer than a test should."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, data: bytes, *, head: bool = False) -> Answer:
        self.writer.write(data)
        return await self.answer(head=head)

    async def answer(self, *, head: bool = False) -> Answer:
        async with asyncio.timeout(PATIENCE):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            pairs = (line.split(": ", 1) for line in lines[1:-1])
            headers = {name.lower(): value for name, value in pairs}
            size = 0 if head else int(headers.get("content-length", 0))
            body = await self.reader.readexactly(size)
        return Answer(int(lines[0].split()[1]), headers, body)

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()


class RunningServer:
    """Where the server is."""

    def __init__(
        self,
        server: HttpServer,
        port: int,
        tls: ssl.SSLContext | None,
        listener: Acceptor,
    ) -> None:
        self.http = server
        self.port = port
        self.tls = tls
        self.listener = listener

    @property
    def handshake_count(self) -> int:
        return self.listener.handshake_count

    async def connect(self, first: bytes = b"") -> RawClient:
        return await self._connect(first, self.tls)

    async def connect_in_plain_text(self, first: bytes = b"") -> RawClient:
        """A client that knows nothing of TLS."""
        return await self._connect(first, None)

    async def _connect(self, first: bytes, tls: ssl.SSLContext | None) -> RawClient:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.port, ssl=tls))
        client.writer.write(first)
        return client


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
) -> AsyncIterator[RunningServer]:
    options.setdefault("body_limit", lambda method, path: LIMIT)
    server = HttpServer(handler, **options)
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    listener = Acceptor(sock, server, tls)
    try:
        yield RunningServer(server, port, client_tls, listener)
    finally:
        listener.close()
        await server.close()
        assert server.connection_count == 0


async def converse(client: RawClient) -> None:
    """Ask in every way there is; the last one closes."""
    assert (await client.ask(PING)).body == b"GET /ping 0 "
    assert (await client.ask(post(3) + b"abc")).body == b"POST /pub 3 abc"
    assert (await client.ask(CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")).body[-5:] == b"abcde"
    assert (await client.ask(b"GET http://host:1/x?y HTTP/1.1\r\nHost: x\r\n\r\n")).body[:6] == (
        b"GET /x"
    )
    answer = await client.ask(b"HEAD /ping HTTP/1.1\r\nHost: x\r\n\r\n", head=True)
    assert answer.headers["content-length"] == str(len("HEAD /ping 0 "))
    assert (await client.ask(b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\n\r\n")).status == 200
    answer = await client.ask(CLOSING)
    assert answer.headers["connection"] == "close"
    assert await client.rest() == b""
