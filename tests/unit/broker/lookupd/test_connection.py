"""Connections of nsqd to nsqlookupd."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct

import pytest

from nsqflow.broker.lookupd.connection import LookupdSettings, NsqdConnection
from nsqflow.broker.lookupd.registration_db import RegistrationDb
from nsqflow.http.connection_limit import ConnectionLimiter
from nsqflow.protocol import Peer, PeerIdentify, Ping, Register
from tests.fixtures.loops import asynchronous, eventually
from tests.unit.broker.lookupd.fake_nsqd import FakeNsqd, ask, lookupd, peer
from tests.unit.broker.lookupd.raw_responses import responses_to

IDENTIFY = PeerIdentify(peer(1)).encode()


def plain(answer: bytes) -> bytes:
    """Return a response without the server's own addresses."""
    return b"{" if answer.startswith(b"{") else answer.strip()


@asynchronous
async def test_nsqd_gets_the_addresses_of_nsqlookupd() -> None:
    async with lookupd(broadcast_address="here") as ours, FakeNsqd(ours.tcp_address) as nsqd:
        reply = await nsqd.identify(1)
        assert reply.peer is not None
        assert reply.peer.broadcast_address == "here"
        assert reply.peer.version == "1.3.0+nsqflow"
        assert f"127.0.0.1:{reply.peer.tcp_port}" == ours.tcp_address
        assert f"127.0.0.1:{reply.peer.http_port}" == ours.http_address


@asynchronous
async def test_an_invalid_body_size_is_refused_and_affects_no_other() -> None:
    async with lookupd() as ours, FakeNsqd(ours.tcp_address) as nsqd:
        await nsqd.identify(1)
        for size in (-1, 2**31 - 1):
            data = b"  V1IDENTIFY\n" + struct.pack(">i", size)
            [answer] = await responses_to(ours.tcp_address, data)
            assert answer.startswith(b"E_BAD_BODY body of ")
        assert await responses_to(ours.tcp_address, b"  V1" + b"x" * 5000) == []
        assert (await nsqd.request(Ping())).error is None


@asynchronous
async def test_the_registrations_of_a_lost_connection_are_removed() -> None:
    async with lookupd() as ours, FakeNsqd(ours.tcp_address) as first:
        await first.identify(1)
        await first.request(Register("t"))
        async with FakeNsqd(ours.tcp_address) as second:
            await second.identify(2)
            await second.request(Register("t", "c"))
            assert len(ours.db.registrations()) == 3
            _, found = await ask(ours.http_address, "/lookup", {"topic": "t"})
            assert {each["remote_address"] for each in found["producers"]} == {
                first.address,
                second.address,
            }
        await eventually(lambda: len(ours.db.registrations()) == 2)
        _, found = await ask(ours.http_address, "/lookup", {"topic": "t"})
        assert [each["remote_address"] for each in found["producers"]] == [first.address]
        assert found["channels"] == ["c"]


class Server:
    """An nsqlookupd listener with its own timeouts and limit."""

    def __init__(self, identify_timeout: float, silence_timeout: float, most: int = 100) -> None:
        self.db = RegistrationDb(inactive_timeout=10**12, tombstone_lifetime=0)
        self.limiter = ConnectionLimiter("TCP", most, logging.getLogger("tests.lookupd"))
        self._settings = LookupdSettings(
            self.db, Peer, identify_timeout, silence_timeout, self.limiter
        )

    async def __aenter__(self) -> str:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: NsqdConnection(self._settings), "127.0.0.1", 0
        )
        host, port = self._listener.sockets[0].getsockname()
        return f"{host}:{port}"

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        await self.limiter.close()
        assert len(self.limiter) == 0


@asynchronous
async def test_text_of_a_client_cannot_forge_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "nsqflow.broker.lookupd")
    evil = "x\nFATAL: gone\r\x1b[2J\u2028\x9b"
    async with lookupd() as ours:
        await responses_to(ours.tcp_address, b"  V1\x1b[2J\rPONG\n")
        await responses_to(ours.tcp_address, b"  V1" + IDENTIFY + "REGISTER é\x1b[2J\n".encode())
        async with FakeNsqd(ours.tcp_address) as nsqd:
            await nsqd.identify(1, version=evil, broadcast_address=evil)
    assert all(message.isprintable() and message.isascii() for message in caplog.messages)
    lines = [message for message in caplog.messages if "[2J" in message]
    assert len(lines) == 3
    plain = r"x\nFATAL: gone\r\x1b[2J\u2028\x9b"
    assert f"IDENTIFY Address:{plain} TCP:4001 HTTP:5001 Version:{plain}" in lines[2]


@asynchronous
async def test_a_client_that_does_not_identify_is_closed() -> None:
    listener = Server(identify_timeout=0.2, silence_timeout=1000)
    async with listener as address, FakeNsqd(address) as silent, FakeNsqd(address) as pinging:
        closed = asyncio.ensure_future(silent.wait_closed())
        with pytest.raises((AssertionError, ConnectionError)):
            while True:  # a ping is no identification
                await pinging.request(Ping())
        await closed


@asynchronous
async def test_a_silent_nsqd_is_closed_and_removed() -> None:
    listener = Server(identify_timeout=1000, silence_timeout=0.2)
    async with listener as address, FakeNsqd(address) as nsqd:
        await nsqd.identify(1)
        await nsqd.wait_closed()
        await eventually(lambda: listener.db.registrations() == {})


@asynchronous
async def test_clients_that_do_not_identify_are_closed_for_new_ones() -> None:
    listener = Server(1000, 1000, most=3)
    async with listener as address, FakeNsqd(address) as nsqd:
        await nsqd.identify(1)
        async with FakeNsqd(address) as pinging, FakeNsqd(address) as silent:
            await pinging.request(Ping())
            await eventually(lambda: len(listener.limiter) == 3)
            async with FakeNsqd(address) as second:
                await second.identify(2)
                await pinging.wait_closed()  # the oldest that has not identified
                async with FakeNsqd(address) as third:
                    await third.identify(3)
                    await silent.wait_closed()
                    assert (await nsqd.request(Ping())).error is None


@asynchronous
async def test_connections_above_the_maximum_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tests.lookupd")
    listener = Server(1000, 1000, most=1)
    async with listener as address, FakeNsqd(address) as first:
        await first.identify(1)
        for _ in range(3):
            async with FakeNsqd(address) as other:
                await other.wait_closed()
        assert (await first.request(Ping())).error is None
    assert caplog.messages == ["TCP: 1 connections are open, the maximum; refusing new ones"]


@asynchronous
async def test_a_client_that_reads_no_responses_is_closed() -> None:
    listener = Server(identify_timeout=1000, silence_timeout=0.5)
    async with listener as address:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = address.rsplit(":", 1)
        sock.connect((host, int(port)))
        _, writer = await asyncio.open_connection(sock=sock)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"  V1" + IDENTIFY)

        def closed() -> bool:
            if not writer.transport.get_write_buffer_size():
                writer.write(b"PING\n" * 10_000)
            return writer.transport.is_closing()

        await eventually(closed)
        writer.transport.abort()
