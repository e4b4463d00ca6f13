"""What nsqd and nsqlookupd say to each other: ours answers as the real one does."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct

import pytest

from nsqflow.broker.lookupd.connection import LookupConnection, Terms
from nsqflow.broker.lookupd.registry import Registry
from nsqflow.http.guests import Guests
from nsqflow.protocol import Peer, PeerIdentify, Ping, Register
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import PATIENCE, Nsqlookupd
from tests.unit.broker.lookupd.registrant import Registrant, ask, lookupd, peer

IDENTIFY = PeerIdentify(peer(1)).encode()


def identify(body: bytes) -> bytes:
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


def variant(**changes: object) -> bytes:
    values = {"broadcast_address": "h", "tcp_port": 1, "http_port": 2, "version": "1"} | changes
    return identify(json.dumps(values).encode())


async def listen_to(address: str, data: bytes) -> list[bytes]:
    """All answers until the server closes."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    writer.write_eof()
    answers = []
    async with asyncio.timeout(PATIENCE):
        said = await reader.read()
    writer.transport.abort()
    while said:
        [size] = struct.unpack_from(">i", said)
        answers.append(said[4 : 4 + size])
        said = said[4 + size :]
    return answers


@pytest.mark.parametrize(
    "data",
    [
        b"  V2",
        b"  V1",
        b"GET / HTTP/1.1\r\n\r\n"[:4],
        b"  V1PING\n",
        b"  V1PING\nPING\r\n PING \nPING and more\n",
        b"  V1PONG\n",
        b"  V1ping\n",
        b"  V1\n",
        b"  V1REGISTER t\n",
        b"  V1UNREGISTER t\n",
        b"  V1REGISTER\n",
        b"  V1" + IDENTIFY + IDENTIFY[:9],
        b"  V1" + identify(b"{"),
        b"  V1" + identify(b""),
        b"  V1" + identify(b"[]"),
        b"  V1" + identify(b"{}"),
        b"  V1" + variant(broadcast_address=""),
        b"  V1" + variant(tcp_port=0),
        b"  V1" + variant(http_port=0),
        b"  V1" + variant(version=""),
        b"  V1" + variant(tcp_port="1"),
        b"  V1" + variant(version=None),
        b"  V1" + IDENTIFY + b"REGISTER\n",
        b"  V1" + IDENTIFY + b"REGISTER a$b\n",
        b"  V1" + IDENTIFY + b"REGISTER test_connection c$d\n",
        b"  V1" + IDENTIFY + b"REGISTER  c\n",
        b"  V1" + IDENTIFY + b"UNREGISTER\n",
        b"  V1" + IDENTIFY + b"UNREGISTER a$b\n",
        b"  V1" + IDENTIFY + b"UNREGISTER test_connection c$d\n",
        b"  V1" + IDENTIFY + b"UNREGISTER never_seen\nUNREGISTER never_seen c\nPING\n",
        b"  V1" + IDENTIFY + b"REGISTER test_connection\nREGISTER test_connection c extra\n"
        b"REGISTER test_connection  \nREGISTER test_connection c\r\nUNREGISTER test_connection\n",
    ],
)  # fmt: skip
@asynchronous
async def test_whatever_is_said_is_answered_as_by_the_real_one(
    data: bytes, nsqlookupd: Nsqlookupd
) -> None:
    async with lookupd() as ours:
        answers = await listen_to(ours.tcp_address, data)
    expected = await listen_to(nsqlookupd.tcp_address, data)
    assert [plain(each) for each in answers] == [plain(each) for each in expected]


def plain(answer: bytes) -> bytes:
    """An answer without what is each server's own: its addresses; and a space at the end."""
    return b"{" if answer.startswith(b"{") else answer.strip()


@asynchronous
async def test_an_nsqd_is_told_where_this_nsqlookupd_is() -> None:
    async with lookupd(broadcast_address="here") as ours, Registrant(ours.tcp_address) as nsqd:
        reply = await nsqd.identify(1)
        assert reply.peer is not None
        assert reply.peer.broadcast_address == "here"
        assert reply.peer.version == "1.3.0+nsqflow"
        assert f"127.0.0.1:{reply.peer.tcp_port}" == ours.tcp_address
        assert f"127.0.0.1:{reply.peer.http_port}" == ours.http_address


@asynchronous
async def test_a_size_that_can_not_be_is_refused_and_harms_nobody() -> None:
    async with lookupd() as ours, Registrant(ours.tcp_address) as nsqd:
        await nsqd.identify(1)
        for size in (-1, 2**31 - 1):
            data = b"  V1IDENTIFY\n" + struct.pack(">i", size)
            [answer] = await listen_to(ours.tcp_address, data)
            assert answer.startswith(b"E_BAD_BODY body of ")
        assert await listen_to(ours.tcp_address, b"  V1" + b"x" * 5000) == []
        assert (await nsqd.say(Ping())).error is None


@asynchronous
async def test_a_client_that_goes_takes_its_registrations_with_it() -> None:
    async with lookupd() as ours, Registrant(ours.tcp_address) as stays:
        await stays.identify(1)
        await stays.say(Register("t"))
        async with Registrant(ours.tcp_address) as goes:
            await goes.identify(2)
            await goes.say(Register("t", "c"))
            assert len(ours.registry.registrations()) == 3
            _, found = await ask(ours.http_address, "/lookup", {"topic": "t"})
            assert {each["remote_address"] for each in found["producers"]} == {
                stays.address,
                goes.address,
            }
        await eventually(lambda: len(ours.registry.registrations()) == 2)
        _, found = await ask(ours.http_address, "/lookup", {"topic": "t"})
        assert [each["remote_address"] for each in found["producers"]] == [stays.address]
        assert found["channels"] == ["c"]


class Door:
    """Connections that are made on terms of the test's own."""

    def __init__(self, identify_timeout: float, silence_timeout: float, most: int = 100) -> None:
        self.registry = Registry(inactive_timeout=10**12, tombstone_lifetime=0)
        self.guests = Guests("TCP", most, logging.getLogger("tests.lookupd"))
        self._terms = Terms(self.registry, Peer, identify_timeout, silence_timeout, self.guests)

    async def __aenter__(self) -> str:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: LookupConnection(self._terms), "127.0.0.1", 0
        )
        host, port = self._listener.sockets[0].getsockname()
        return f"{host}:{port}"

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        await self.guests.close()
        assert len(self.guests) == 0


@asynchronous
async def test_nothing_that_is_said_can_forge_a_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "nsqflow.broker.lookupd")
    evil = "x\nFATAL: gone\r\x1b[2J\u2028\x9b"
    async with lookupd() as ours:
        await listen_to(ours.tcp_address, b"  V1\x1b[2J\rPONG\n")
        await listen_to(ours.tcp_address, b"  V1" + IDENTIFY + "REGISTER é\x1b[2J\n".encode())
        async with Registrant(ours.tcp_address) as nsqd:
            await nsqd.identify(1, version=evil, broadcast_address=evil)
    assert all(message.isprintable() and message.isascii() for message in caplog.messages)
    said = [message for message in caplog.messages if "[2J" in message]
    assert len(said) == 3
    plain = r"x\nFATAL: gone\r\x1b[2J\u2028\x9b"
    assert f"IDENTIFY Address:{plain} TCP:4001 HTTP:5001 Version:{plain}" in said[2]


@asynchronous
async def test_a_client_that_does_not_identify_itself_is_closed() -> None:
    door = Door(identify_timeout=0.2, silence_timeout=1000)
    async with door as address, Registrant(address) as mute, Registrant(address) as pinging:
        await eventually(lambda: len(door.guests) == 2)
        closed = asyncio.ensure_future(mute.ended())
        with pytest.raises((AssertionError, ConnectionError)):
            while True:  # that it pings does not say who it is
                await pinging.say(Ping())
        await closed


@asynchronous
async def test_an_nsqd_that_falls_silent_is_closed_and_forgotten() -> None:
    door = Door(identify_timeout=1000, silence_timeout=0.2)
    async with door as address, Registrant(address) as nsqd:
        await nsqd.identify(1)
        await nsqd.ended()
        await eventually(lambda: door.registry.registrations() == {})


@asynchronous
async def test_those_who_do_not_say_who_they_are_make_room_for_others() -> None:
    door = Door(1000, 1000, most=3)
    async with door as address, Registrant(address) as nsqd:
        await nsqd.identify(1)
        async with Registrant(address) as pinging, Registrant(address) as mute:
            await pinging.say(Ping())
            await eventually(lambda: len(door.guests) == 3)
            async with Registrant(address) as second:
                await second.identify(2)
                await pinging.ended()  # it came first, and has not said it either
                async with Registrant(address) as third:
                    await third.identify(3)
                    await mute.ended()
                    assert (await nsqd.say(Ping())).error is None


@asynchronous
async def test_there_are_no_more_nsqd_than_allowed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "tests.lookupd")
    door = Door(1000, 1000, most=1)
    async with door as address, Registrant(address) as first:
        await first.identify(1)
        for _ in range(3):
            async with Registrant(address) as other:
                await other.ended()
        assert (await first.say(Ping())).error is None
    assert caplog.messages == ["TCP: there are 1 connections; refusing more"]


@asynchronous
async def test_a_client_that_reads_no_answers_is_heard_no_more_and_closed() -> None:
    door = Door(identify_timeout=1000, silence_timeout=0.5)
    async with door as address:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = address.rsplit(":", 1)
        sock.connect((host, int(port)))
        _, writer = await asyncio.open_connection(sock=sock)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"  V1" + IDENTIFY)
        await eventually(lambda: len(door.guests) == 1)

        def closed() -> bool:
            if not writer.transport.get_write_buffer_size():
                writer.write(b"PING\n" * 10_000)
            return len(door.guests) == 0

        await eventually(closed)
        writer.transport.abort()
