"""Clients that don't read, leave in the middle of a word, or come and go: others don't notice."""

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
from tests.faults.broker.footprint import (
    MEBIBYTE,
    complaints,
    most_resident,
    needs_proc,
    open_files,
    resident,
)
from tests.fixtures.loops import NO_LINGER, asynchronous, eventually
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd

READER = ConsumerOptions(max_in_flight=10, max_attempts=0, max_backoff_duration=0)
HASTY = {"heartbeat_interval": 1000, "msg_timeout": 1000}  # milliseconds, the least there are


class Plug:
    """A plain connection that is read only when somebody says so."""

    def __init__(self, server: Nsqd) -> None:
        host, port = server.tcp_address.rsplit(":", 1)
        self._address = host, int(port)
        self.socket = socket.socket()
        self.socket.setblocking(False)
        # So that little of what it does not read is on its way.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    async def begin(self, **identify: int) -> None:
        """Connect, and say who this is."""
        await asyncio.get_running_loop().sock_connect(self.socket, self._address)
        body = json.dumps(identify).encode()
        await self.say(MAGIC_V2 + b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)

    async def say(self, data: bytes) -> None:
        """Send."""
        async with asyncio.timeout(PATIENCE):
            await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def hear(self) -> bytes:
        """What comes next; nothing at the end, be it a good one or not."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await asyncio.get_running_loop().sock_recv(self.socket, 65536)
            except ConnectionError:
                return b""

    async def hear_out(self) -> None:
        """Read until the end."""
        while await self.hear():
            pass

    def reset(self) -> None:
        """Leave without a word."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.socket.close()


@contextmanager
def plug(server: Nsqd) -> Iterator[Plug]:
    connection = Plug(server)
    try:
        yield connection
    finally:
        connection.socket.close()


async def consume(server: Nsqd, topic: str, bodies: Sequence[bytes]) -> None:
    """Consume these messages, which must be all that come, though some may come twice."""
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
    """How many subscribers its channel has."""
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
            with plug(server) as slow:
                await slow.begin(**HASTY)
                await slow.say(Sub("slow", "out").encode() + Rdy(2500).encode())
                for body in bodies:
                    await producer.publish("slow", body)
                # It is closed though it reads nothing: after the interval of its heartbeats.
                server.await_log(r"exiting ioloop")
                assert await clients(server, "slow") == 0
                await consume(server, "slow", bodies)
        grown = most_resident(server) - before
        print(f"{before / MEBIBYTE:.0f} MiB before, at most {grown / MEBIBYTE:.0f} more")
        assert grown < 90 * MEBIBYTE
        assert complaints(server) == []


@needs_proc
@asynchronous
async def test_a_producer_that_does_not_read_its_answers_is_heard_no_more_and_closed(
    tmp_path: Path,
) -> None:
    many = Pub("flood#ephemeral", b"x").encode() * 5_000
    bodies = [b"%d" % number for number in range(1_000)]
    with start_nsqd(tmp_path, kind="ours") as server:
        before = resident(server)
        with plug(server) as deaf:
            await deaf.begin(**HASTY)

            async def flood() -> int:
                sent = 0
                with pytest.raises(ConnectionError):
                    while sent < 20_000_000:
                        await deaf.say(many)
                        sent += 5_000
                return sent

            flooding = asyncio.create_task(flood())
            async with Producer(server.tcp_address) as producer:
                for body in bodies:
                    await producer.publish("work", body)
            await consume(server, "work", bodies)
            sent = await flooding
        grown = most_resident(server) - before
        print(f"closed after about {sent:,} publishes; {grown / MEBIBYTE:.0f} MiB more")
        assert grown < 50 * MEBIBYTE
        assert complaints(server) == []


@asynchronous
async def test_a_subscriber_that_half_closes_is_closed_and_others_get_its_messages(
    tmp_path: Path,
) -> None:
    bodies = [b"%d" % number for number in range(100)]
    with start_nsqd(tmp_path, kind="ours") as server:
        async with Producer(server.tcp_address) as producer:
            await producer.publish_many("half", bodies)
        with plug(server) as half:
            await half.begin(**HASTY)
            await half.say(Sub("half", "out").encode() + Rdy(50).encode())
            heard = b""
            while b"49" not in heard:
                heard += await half.hear()
            half.socket.shutdown(socket.SHUT_WR)
            await half.hear_out()
            await consume(server, "half", bodies)


@needs_proc
@asynchronous
async def test_connections_reset_in_the_middle_of_an_mpub_leave_nothing(tmp_path: Path) -> None:
    whole = Mpub("torn", [bytes(50_000)] * 100).encode()
    with start_nsqd(tmp_path, kind="ours") as server:
        files, before = open_files(server), resident(server)

        async def tear(part: int) -> None:
            with plug(server) as torn:
                await torn.begin()
                await torn.say(whole[:part])
                torn.reset()

        for _ in range(10):
            await asyncio.gather(*(tear(len(whole) * part // 21) for part in range(1, 21)))
        await eventually(lambda: open_files(server) <= files + 1)
        async with Producer(server.tcp_address) as producer:
            await producer.publish("torn", b"whole")
        await consume(server, "torn", [b"whole"])
        grown = most_resident(server) - before
        print(f"200 torn MPUBs of {len(whole) / MEBIBYTE:.0f} MiB: {grown / MEBIBYTE:.0f} MiB more")
        assert grown < 200 * MEBIBYTE  # twenty of them at a time
        assert complaints(server) == []


@needs_proc
@asynchronous
async def test_clients_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    async def visit(*, rude: bool) -> None:
        with plug(server) as visitor:
            await visitor.begin()
            await visitor.say(Sub("inn", "out").encode() + Rdy(not rude).encode())
            if rude:
                await visitor.hear()
                visitor.reset()
                return
            heard = b""
            while b"message" not in heard:
                heard += await visitor.hear()
            await visitor.say(Rdy(0).encode() + Fin(heard[-23:-7]).encode())

    async def stay(rounds: int) -> None:
        for _ in range(rounds):
            await visit(rude=False)
            await visit(rude=True)

    with start_nsqd(tmp_path, kind="ours") as server:
        files = open_files(server)
        async with Producer(server.tcp_address) as producer:
            await producer.publish_many("inn", [b"message"] * 2_400)
        await asyncio.gather(*(stay(2) for _ in range(200)))
        before = resident(server)
        await asyncio.gather(*(stay(10) for _ in range(200)))
        grown = resident(server) - before
        await eventually(lambda: open_files(server) <= files + 1)
        print(f"{grown / MEBIBYTE:.1f} MiB more after 4,000 visits")
        async with admin.Nsqd(server.http_address) as nsqd:
            (topic,) = (await nsqd.stats("inn")).topics
            (channel,) = topic.channels
        assert (channel.depth, channel.in_flight_count, channel.client_count) == (0, 0, 0)
        assert grown < 10 * MEBIBYTE
        assert complaints(server) == []
