"""Clients that don't read, leave within a command, or reconnect often do not affect others."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsqflow import Consumer, Producer, admin
from nsqflow.client.options import ConsumerOptions
from nsqflow.protocol import MAGIC_V2, Fin, Mpub, Pub, Rdy, Sub
from tests.faults.broker.resources import (
    MEBIBYTE,
    max_resident,
    needs_proc,
    open_files,
    resident,
    unexpected_errors,
)
from tests.fixtures.loops import NO_LINGER, asynchronous, eventually
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd

READER = ConsumerOptions(max_in_flight=10, max_attempts=0, max_backoff_duration=0)
SHORT_TIMEOUTS = {"heartbeat_interval": 1000, "msg_timeout": 1000}  # milliseconds, the minimum


class RawConnection:
    """A connection that reads only when the test does."""

    def __init__(self, server: Nsqd) -> None:
        host, port = server.tcp_address.rsplit(":", 1)
        self._address = host, int(port)
        self.socket = socket.socket()
        self.socket.setblocking(False)
        # So that little unread data fits into the socket's buffers.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    async def connect(self, **identify: int) -> None:
        """Connect and send IDENTIFY."""
        await asyncio.get_running_loop().sock_connect(self.socket, self._address)
        body = json.dumps(identify).encode()
        await self.send(MAGIC_V2 + b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)

    async def send(self, data: bytes) -> None:
        """Send."""
        async with asyncio.timeout(PATIENCE):
            await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def receive(self) -> bytes:
        """Return the next data; empty at the end or after a reset."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await asyncio.get_running_loop().sock_recv(self.socket, 65536)
            except ConnectionError:
                return b""

    async def receive_all(self) -> None:
        """Read until the end."""
        while await self.receive():
            pass

    def reset(self) -> None:
        """Reset the connection."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.socket.close()


@contextmanager
def raw_connection(server: Nsqd) -> Iterator[RawConnection]:
    connection = RawConnection(server)
    try:
        yield connection
    finally:
        connection.socket.close()


async def consume(server: Nsqd, topic: str, bodies: Sequence[bytes]) -> None:
    """Consume these messages and no others; some may be delivered twice."""
    missing = set(bodies)
    async with Consumer(topic, "out", nsqd=server.tcp_address, **READER) as consumer:
        async with asyncio.timeout(PATIENCE):
            async for message in consumer:
                assert message.body in bodies
                missing.discard(message.body)
                message.finish()
                if not missing:
                    return


async def clients(server: Nsqd, topic: str) -> int:
    """Return the number of subscribers of the topic's channels."""
    async with admin.Nsqd(server.http_address) as nsqd:
        (stats,) = (await nsqd.stats(topic)).topics
        return sum(channel.client_count for channel in stats.channels)


@needs_proc
@asynchronous
async def test_a_subscriber_that_does_not_read_is_closed_and_others_get_its_messages(
    tmp_path: Path,
) -> None:
    bodies = [b"%03d" % number + bytes(MEBIBYTE - 3) for number in range(100)]
    with start_nsqd(tmp_path, kind="ours", options=["-max-memory=20000000"]) as server:
        before = resident(server)
        async with Producer(server.tcp_address) as producer:
            with raw_connection(server) as slow:
                await slow.connect(**SHORT_TIMEOUTS)
                await slow.send(Sub("slow", "out").encode() + Rdy(2500).encode())
                for body in bodies:
                    await producer.publish("slow", body)
                # It is closed one heartbeat interval after it stopped reading.
                server.await_log(r"exiting ioloop")
                assert await clients(server, "slow") == 0
                await consume(server, "slow", bodies)
        grown = max_resident(server) - before
        print(f"{before / MEBIBYTE:.0f} MiB before, at most {grown / MEBIBYTE:.0f} more")
        assert grown < 90 * MEBIBYTE
        assert unexpected_errors(server) == []


@needs_proc
@asynchronous
async def test_a_producer_that_reads_no_responses_is_closed(
    tmp_path: Path,
) -> None:
    many = Pub("load#ephemeral", b"x").encode() * 5_000
    bodies = [b"%d" % number for number in range(1_000)]
    with start_nsqd(tmp_path, kind="ours") as server:
        before = resident(server)
        with raw_connection(server) as unread:
            await unread.connect(**SHORT_TIMEOUTS)

            async def publish_load() -> int:
                sent = 0
                with pytest.raises(ConnectionError):
                    while sent < 20_000_000:
                        await unread.send(many)
                        sent += 5_000
                return sent

            publishing = asyncio.create_task(publish_load())
            async with Producer(server.tcp_address) as producer:
                for body in bodies:
                    await producer.publish("work", body)
            await consume(server, "work", bodies)
            sent = await publishing
        grown = max_resident(server) - before
        print(f"closed after about {sent:,} publishes; {grown / MEBIBYTE:.0f} MiB more")
        assert grown < 50 * MEBIBYTE
        assert unexpected_errors(server) == []


@asynchronous
async def test_a_subscriber_that_half_closes_is_closed_and_others_get_its_messages(
    tmp_path: Path,
) -> None:
    bodies = [b"%d" % number for number in range(100)]
    with start_nsqd(tmp_path, kind="ours") as server:
        async with Producer(server.tcp_address) as producer:
            await producer.publish_many("half", bodies)
        with raw_connection(server) as half:
            await half.connect(**SHORT_TIMEOUTS)
            await half.send(Sub("half", "out").encode() + Rdy(50).encode())
            received = b""
            while b"49" not in received:
                received += await half.receive()
            half.socket.shutdown(socket.SHUT_WR)
            await half.receive_all()
            await consume(server, "half", bodies)


@needs_proc
@asynchronous
async def test_connections_reset_within_an_mpub_leave_nothing(tmp_path: Path) -> None:
    whole = Mpub("cut", [bytes(50_000)] * 100).encode()
    with start_nsqd(tmp_path, kind="ours") as server:
        files, before = open_files(server), resident(server)

        async def reset_within(part: int) -> None:
            with raw_connection(server) as cut:
                await cut.connect()
                await cut.send(whole[:part])
                cut.reset()

        for _ in range(10):
            await asyncio.gather(*(reset_within(len(whole) * part // 21) for part in range(1, 21)))
        await eventually(lambda: open_files(server) <= files + 1)
        async with Producer(server.tcp_address) as producer:
            await producer.publish("cut", b"whole")
        await consume(server, "cut", [b"whole"])
        grown = max_resident(server) - before
        print(
            f"200 incomplete MPUBs of {len(whole) / MEBIBYTE:.0f} MiB:"
            f" {grown / MEBIBYTE:.0f} MiB more"
        )
        assert grown < 200 * MEBIBYTE  # twenty of them at a time
        assert unexpected_errors(server) == []


@needs_proc
@asynchronous
async def test_clients_that_connect_and_disconnect_leave_nothing(tmp_path: Path) -> None:
    async def session(*, reset: bool) -> None:
        with raw_connection(server) as client:
            await client.connect()
            await client.send(Sub("sessions", "out").encode() + Rdy(not reset).encode())
            if reset:
                await client.receive()
                client.reset()
                return
            received = b""
            while b"message" not in received:
                received += await client.receive()
            await client.send(Rdy(0).encode() + Fin(received[-23:-7]).encode())

    async def sessions(rounds: int) -> None:
        for _ in range(rounds):
            await session(reset=False)
            await session(reset=True)

    with start_nsqd(tmp_path, kind="ours") as server:
        files = open_files(server)
        async with Producer(server.tcp_address) as producer:
            await producer.publish_many("sessions", [b"message"] * 2_400)
        await asyncio.gather(*(sessions(2) for _ in range(200)))
        before = resident(server)
        await asyncio.gather(*(sessions(10) for _ in range(200)))
        grown = resident(server) - before
        await eventually(lambda: open_files(server) <= files + 1)
        print(f"{grown / MEBIBYTE:.1f} MiB more after 4,000 sessions")
        async with admin.Nsqd(server.http_address) as nsqd:
            (topic,) = (await nsqd.stats("sessions")).topics
            (channel,) = topic.channels
        assert (channel.depth, channel.in_flight_count, channel.client_count) == (0, 0, 0)
        assert grown < 10 * MEBIBYTE
        assert unexpected_errors(server) == []
