"""A full disk: publishes are refused, everything else works."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from nsqflow import Consumer, Producer, admin
from nsqflow.client.options import ClientOptions, ConsumerOptions
from nsqflow.errors import NsqError, PublishUncertain, ServerError
from tests.faults.broker.resources import unexpected_errors
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import Nsqd, start_nsqd

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="prlimit of another process needs Linux"
)

BODY = b"x" * 5_000
FAST_RECONNECT = ClientOptions(reconnect_delay=0.02, max_reconnect_delay=0.02)
READER = ConsumerOptions(max_in_flight=50, max_attempts=0, max_backoff_duration=0)


@contextmanager
def full(server: Nsqd, size: int = 0) -> Iterator[None]:
    """Limit the files of a server to ``size`` bytes: for it the disk is full."""
    pid = server.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def create(server: Nsqd) -> None:
    """Create the topic and the channel."""
    async with admin.Nsqd(server.http_address) as nsqd:
        await nsqd.create_topic("full")
        await nsqd.create_channel("full", "out")


async def fill(producer: Producer, taken: list[bytes]) -> NsqError:
    """Publish until an error; return it."""
    while True:
        body = b"%d:" % len(taken) + BODY
        try:
            await producer.publish("full", body)
        except NsqError as error:
            return error
        taken.append(body)


async def consume(server: Nsqd, count: int) -> list[bytes]:
    """Consume ``count`` messages and return their bodies."""
    bodies: list[bytes] = []
    async with Consumer("full", "out", nsqd=server.tcp_address, **READER) as consumer:
        async for message in consumer:
            bodies.append(message.body)
            message.finish()
            if len(bodies) == count:
                break
    return bodies


@asynchronous
async def test_a_full_disk_refuses_publishes_and_nothing_else(tmp_path: Path) -> None:
    taken: list[bytes] = []
    with start_nsqd(tmp_path, kind="ours") as server:
        await create(server)
        nsqd = admin.Nsqd(server.http_address)
        async with Producer(server.tcp_address, **FAST_RECONNECT) as producer, nsqd:
            assert server.ask("/ping") == (200, b"OK")
            with full(server, 2_000_000):
                error = await fill(producer, taken)
                assert isinstance(error, ServerError)
                assert error.code == "E_PUB_FAILED"
                assert taken
                for delay in (None, 0.01):
                    with pytest.raises(ServerError, match=r"E_D?PUB_FAILED"):
                        await producer.publish("full", BODY, delay=delay)
                with pytest.raises(PublishUncertain, match="E_MPUB_FAILED"):
                    await producer.publish_many("full", [BODY, BODY])
                with pytest.raises(NsqError, match="503"):
                    await nsqd.publish("full", BODY)
                status, health = server.ask("/ping")
                assert (status, health[:3]) == (500, b"NOK")
                half = len(taken) // 2
                bodies = await consume(server, half)
                assert set(bodies) <= set(taken)
            await producer.publish("full", b"after the full disk")
            await nsqd.publish("full", b"over HTTP too")
            assert server.ask("/ping") == (200, b"OK")
            taken += [b"after the full disk", b"over HTTP too"]
            bodies += await consume(server, len(taken) - half)
            assert sorted(b[:20] for b in bodies) == sorted(b[:20] for b in taken)
            assert not unexpected_errors(server)


@asynchronous
async def test_messages_that_a_full_disk_refused_are_never_delivered(tmp_path: Path) -> None:
    refused: set[bytes] = set()
    received: list[bytes] = []

    async def try_to_publish(publish: Callable[[bytes], Awaitable[object]], body: bytes) -> None:
        refused.add(body)
        with pytest.raises(NsqError, match=r"E_D?PUB_FAILED|E_MPUB_FAILED|503"):
            await publish(body)

    async def consume_until_last(channel: str) -> None:
        async with Consumer("full", channel, nsqd=server.tcp_address, **READER) as consumer:
            async for message in consumer:
                received.append(message.body)
                message.finish()
                if message.body == b"last":
                    return

    with start_nsqd(tmp_path, kind="ours") as server:
        await create(server)
        nsqd = admin.Nsqd(server.http_address)
        async with Producer(server.tcp_address, **FAST_RECONNECT) as producer, nsqd:
            await producer.publish("full", b"first")
            channels = ("out", "other", "c#ephemeral")
            consumers = [asyncio.create_task(consume_until_last(each)) for each in channels]
            await eventually(lambda: b"first" in received)
            with full(server):
                for number in range(20):
                    await try_to_publish(partial(producer.publish, "full"), b"PUB %d" % number)
                    await try_to_publish(
                        lambda body: producer.publish("full", body, delay=0.01), b"DPUB %d" % number
                    )
                    await try_to_publish(
                        lambda body: producer.publish_many("full", [body, body]),
                        b"MPUB %d" % number,
                    )
                    await try_to_publish(partial(nsqd.publish, "full"), b"HTTP %d" % number)
            await producer.publish("full", b"last")
            await asyncio.gather(*consumers)
            assert not refused & {*received}
            assert received.count(b"last") == len(channels)
            stats = await nsqd.stats()
            (topic,) = [each for each in stats.topics if each.name == "full"]
            assert topic.message_count == 2


@asynchronous
async def test_spilled_messages_can_be_read_from_a_full_disk(tmp_path: Path) -> None:
    taken = [b"%d" % number for number in range(2_000)]
    with start_nsqd(tmp_path, kind="ours", options=["-mem-queue-size=100"]) as server:
        await create(server)
        async with Producer(server.tcp_address, **FAST_RECONNECT) as producer:
            await producer.publish_many("full", taken)
            with full(server):
                with pytest.raises(ServerError, match="E_PUB_FAILED"):
                    await producer.publish("full", b"refused")
                with pytest.raises(ServerError, match="E_PUB_FAILED"):
                    await producer.publish("another", b"refused")
                assert await consume(server, len(taken)) == taken
            await producer.publish("full", b"last")
        assert await consume(server, 1) == [b"last"]
    with start_nsqd(tmp_path, kind="ours") as server:
        _, stats = server.ask("/stats?format=json&topic=full&include_clients=false")
        (channel,) = json.loads(stats)["topics"][0]["channels"]
        assert channel["depth"] == channel["deferred_count"] == 0


@asynchronous
async def test_messages_finished_on_a_full_disk_are_removed_later(
    tmp_path: Path,
) -> None:
    taken: list[bytes] = []
    with start_nsqd(tmp_path, kind="ours") as server:
        await create(server)
        async with Producer(server.tcp_address, **FAST_RECONNECT) as producer:
            with full(server, 2_000_000):
                await fill(producer, taken)
                await consume(server, len(taken))
            await producer.publish("full", b"last")
    with start_nsqd(tmp_path, kind="ours") as server:
        assert await consume(server, 1) == [b"last"]
