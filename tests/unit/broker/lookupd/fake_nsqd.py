"""Clients of an nsqlookupd: an nsqd that registers, and HTTP requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from nsqflow.broker.lookupd import Nsqlookupd
from nsqflow.broker.options import LookupdOptions
from nsqflow.http.client import EMPTY, HttpClient
from nsqflow.protocol import Peer, PeerCommand, PeerIdentify, PeerReply, PeerSession
from tests.fixtures.loops import POLL_INTERVAL
from tests.fixtures.servers import PATIENCE


def lookupd(**options: Any) -> Nsqlookupd:
    """Return an nsqlookupd of ours on free ports."""
    addresses = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
    return Nsqlookupd(LookupdOptions(**(addresses | options)))


def peer(number: int) -> Peer:
    return Peer(
        broadcast_address=f"host{number}.example",
        tcp_port=4000 + number,
        http_port=5000 + number,
        version="1.3.0",
        hostname=f"host{number}",
    )


class FakeNsqd:
    """A connection to nsqlookupd that registers like an nsqd."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._session = PeerSession()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def connect(self) -> None:
        host, port = self._address.rsplit(":", 1)
        self._reader, self._writer = await asyncio.open_connection(host, int(port))

    @property
    def address(self) -> str:
        host, port = self._writer.get_extra_info("sockname")
        return f"{host}:{port}"

    async def identify(self, number: int, **changes: Any) -> PeerReply:
        return await self.request(PeerIdentify(replace(peer(number), **changes)))

    async def request(self, command: PeerCommand) -> PeerReply:
        self._session.send(command)
        self._writer.write(self._session.data_to_send())
        async with asyncio.timeout(PATIENCE):
            while not (replies := self._session.events()):
                data = await self._reader.read(65536)
                assert data, "closed"
                self._session.receive_data(data)
        [reply] = replies
        return reply

    async def wait_closed(self) -> None:
        """Wait until the server closes the connection."""
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionResetError):
                assert await self._reader.read() == b""

    def close(self) -> None:
        self._writer.transport.abort()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


async def until(address: str, path: str, topic: str, expected: dict[str, Any]) -> None:
    """Wait for an answer: a registration triggers no event that a test could await."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if await ask(address, path, {"topic": topic}) == (200, expected):
                return
            await asyncio.sleep(POLL_INTERVAL)


async def ask(
    address: str, path: str, query: Mapping[str, str] = EMPTY, method: str = "GET"
) -> tuple[int, Any]:
    """Return status and body; JSON is decoded."""
    response = await HttpClient(timeout=PATIENCE).request(address, method, path, query)
    body = response.body
    return response.status, json.loads(body) if body[:1] in (b"{", b"[") else body
