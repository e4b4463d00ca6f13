"""An nsqd with little memory: it refuses what it can't keep, and loses nothing it accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqflow import Consumer, Producer, admin
from nsqflow.client.options import ClientOptions, ConsumerOptions
from nsqflow.errors import NsqError, PublishUncertain, ServerError
from tests.faults.broker.resources import (
    MEBIBYTE,
    max_resident,
    needs_proc,
    resident,
)
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import start_nsqd

BODY = b"x" * 10_000
FAST_RECONNECT = ClientOptions(reconnect_delay=0.02, max_reconnect_delay=0.02)
IN_MEMORY = ["-data-path=", "-max-memory=2000000"]
READER = ConsumerOptions(max_in_flight=500, max_attempts=0, max_backoff_duration=0)


async def consume(nsqd: str, topic: str, count: int) -> list[bytes]:
    """Consume ``count`` messages and return their bodies."""
    bodies: list[bytes] = []
    async with Consumer(topic, "out", nsqd=nsqd, **READER) as consumer:
        async for batch in consumer.batches(size=500, max_wait=0.1):
            bodies += [message.body for message in batch]
            batch.finish()
            if len(bodies) >= count:
                break
    return bodies


async def fill(
    producer: Producer, topic: str, delay: float | None = None
) -> tuple[list[bytes], ServerError]:
    """Publish until an error; return the accepted bodies and the error."""
    taken: list[bytes] = []
    while True:
        body = b"%d:" % len(taken) + BODY
        try:
            await producer.publish(topic, body, delay=delay)
        except ServerError as error:
            return taken, error
        taken.append(body)


@pytest.mark.parametrize("delay", [None, 0.2])
@asynchronous
async def test_a_full_memory_refuses_publishes_until_messages_are_finished(
    tmp_path: Path, delay: float | None
) -> None:
    with start_nsqd(tmp_path, kind="ours", options=IN_MEMORY) as server:
        nsqd = admin.Nsqd(server.http_address)
        async with Producer(server.tcp_address, **FAST_RECONNECT) as producer, nsqd:
            await nsqd.create_topic("full")
            await nsqd.create_channel("full", "out")
            taken, error = await fill(producer, "full", delay)
            assert error.code == ("E_PUB_FAILED" if delay is None else "E_DPUB_FAILED")
            assert "max-memory" in error.text
            assert 150 < len(taken) < 200

            # A real nsqd may have stored a part of it, so for the producer that is uncertain.
            with pytest.raises(PublishUncertain, match="E_MPUB_FAILED"):
                await producer.publish_many("full", [BODY, BODY])
            with pytest.raises(NsqError, match=r"503.*FULL"):
                await nsqd.publish("full", BODY)
            with pytest.raises(NsqError, match=r"503.*FULL"):
                await nsqd.publish_many("full", [BODY, BODY])

            assert sorted(await consume(server.tcp_address, "full", len(taken))) == sorted(taken)
            await producer.publish_many("full", [BODY] * 100)
            assert await consume(server.tcp_address, "full", 100) == [BODY] * 100


@asynchronous
async def test_the_copies_of_every_channel_count_as_memory(tmp_path: Path) -> None:
    with start_nsqd(tmp_path, kind="ours", options=IN_MEMORY) as server:
        async with (
            Producer(server.tcp_address, **FAST_RECONNECT) as producer,
            admin.Nsqd(server.http_address) as nsqd,
        ):
            for topic, channels in (("one", ["out"]), ("three", ["out", "a", "b"])):
                await nsqd.create_topic(topic)
                for channel in channels:
                    await nsqd.create_channel(topic, channel)
            alone, _ = await fill(producer, "one")
            await nsqd.delete_topic("one")
            shared, _ = await fill(producer, "three")
            assert len(shared) == pytest.approx(len(alone) / 3, abs=2)


@needs_proc
@asynchronous
async def test_spilled_messages_take_no_memory_and_are_delivered_in_order(tmp_path: Path) -> None:
    batches, size = 400, 500  # 200,000 messages of 500 bytes: 100 MB
    with start_nsqd(tmp_path, kind="ours", options=["-mem-queue-size=100"]) as server:
        async with Producer(server.tcp_address, **FAST_RECONNECT) as producer:
            padding = b"." * 491
            before = 0
            for number in range(batches):
                numbers = range(number * size, (number + 1) * size)
                await producer.publish_many("deep", [b"%08d:" % n + padding for n in numbers])
                if number == batches // 10:
                    before = resident(server)
        published = resident(server)
        bodies = await consume(server.tcp_address, "deep", batches * size)
        most = max_resident(server)
        print(
            f"{before / MEBIBYTE:.1f} MiB with a tenth of it, {published / MEBIBYTE:.1f} with all, "
            f"{resident(server) / MEBIBYTE:.1f} when consumed, {most / MEBIBYTE:.1f} at most"
        )
    assert [int(body[:8]) for body in bodies] == list(range(batches * size))
    assert published - before < 10 * MEBIBYTE
    assert most < 100 * MEBIBYTE
