"""A client that creates many topics: nsqd has no limit for that, so they must be cheap."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from nsqflow import Producer, admin
from tests.faults.broker.resources import MEBIBYTE, needs_proc, resident
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import start_nsqd

TOPICS = 20_000
AT_ONCE = 200
MESSAGE_OVERHEAD = 4_096  # bytes of memory that a topic with one message may take


@needs_proc
@asynchronous
async def test_twenty_thousand_topics_do_not_delay_other_publishes(tmp_path: Path) -> None:
    waits: list[float] = []

    async def create_topics() -> None:
        async with Producer(server.tcp_address) as producer:
            for first in range(0, TOPICS, AT_ONCE):
                names = [f"topic{number}" for number in range(first, first + AT_ONCE)]
                await asyncio.gather(*(producer.publish(name, b"x") for name in names))

    async def work(over: asyncio.Task[None]) -> None:
        async with Producer(server.tcp_address) as producer:
            while not over.done():
                began = time.monotonic()
                await producer.publish("work", b"x")
                waits.append(time.monotonic() - began)

    with start_nsqd(tmp_path, kind="ours") as server:
        before = resident(server)
        creating = asyncio.create_task(create_topics())
        await asyncio.gather(creating, work(creating))
        grown = resident(server) - before
        async with admin.Nsqd(server.http_address) as nsqd:
            assert len((await nsqd.stats()).topics) == TOPICS + 1
    with start_nsqd(tmp_path, kind="ours") as server:
        async with admin.Nsqd(server.http_address) as nsqd:
            stats = await nsqd.stats()
        kept = {topic.name: topic.depth for topic in stats.topics}
    print(
        f"{TOPICS} topics take {grown / MEBIBYTE:.0f} MiB; beside them {len(waits)} publishes took"
        f" {max(waits) * 1000:.0f} ms at most"
    )
    assert kept == {f"topic{number}": 1 for number in range(TOPICS)} | {"work": len(waits)}
    assert grown < TOPICS * MESSAGE_OVERHEAD
    # Other publishes are served between batches of two hundred topics.
    assert len(waits) > TOPICS / AT_ONCE / 4
