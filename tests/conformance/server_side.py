"""The servers' side of a consumer: stats over HTTP, and messages to consume."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nsqflow import ClientEvent, Consumer, Message, admin
from tests.fixtures.loops import eventually
from tests.fixtures.servers import PATIENCE, Server

if TYPE_CHECKING:
    import pytest

NO_CHANNEL: dict[str, Any] = {
    "depth": 0,
    "in_flight_count": 0,
    "requeue_count": 0,
    "client_count": 0,
    "clients": [],
}


def topic_of(request: pytest.FixtureRequest) -> str:
    """Return a topic that no other test of the file uses."""
    return re.sub(r"\W", "_", request.node.name)[-60:]


def channel_stats(nsqd: Server, topic: str, channel: str = "ch") -> dict[str, Any]:
    """Return the stats of a channel; zeros if there is none."""
    status, body = nsqd.ask(f"/stats?format=json&topic={topic}&channel={channel}")
    assert status == 200, body
    topics = json.loads(body)["topics"] or []
    channels = [channel for each in topics for channel in each["channels"]]
    return channels[0] if channels else NO_CHANNEL


def rdy_counts(nsqds: Iterable[Server], topic: str) -> list[int]:
    """Return the RDY count that each nsqd has."""
    stats = (channel_stats(nsqd, topic) for nsqd in nsqds)
    return [sum(client["ready_count"] for client in each["clients"]) for each in stats]


async def publish(nsqd: Server, topic: str, *bodies: bytes) -> None:
    """Publish to one nsqd, over HTTP."""
    async with admin.Nsqd(nsqd.http_address, timeout=PATIENCE) as api:
        await api.publish_many(topic, bodies)


async def take(consumer: Consumer, count: int) -> list[Message]:
    """Take ``count`` messages, unanswered."""
    async with asyncio.timeout(PATIENCE):
        return [await anext(consumer) for _ in range(count)]


@contextlib.asynccontextmanager
async def reading(consumer: Consumer) -> AsyncIterator[list[Message]]:
    """Read and finish messages while the block runs: without a reader, RDY is 0.

    The list has all messages.
    """
    taken: list[Message] = []

    async def read() -> None:
        async for message in consumer:
            taken.append(message)
            message.finish()

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    try:
        yield taken
    finally:
        task.cancel()
        await asyncio.wait([task])


WARM_UP = 100


async def warm_up(consumer: Consumer, nsqd: Server, topic: str) -> None:
    """Handle some messages quickly, so that prefetch is at its limit."""
    async with reading(consumer) as taken:
        await publish(nsqd, topic, *[b"warm-up"] * WARM_UP)
        await eventually(lambda: len(taken) == WARM_UP == consumer.stats().counts.finished)


async def bodies_from(consumer: Consumer, count: int) -> list[bytes]:
    """Consume ``count`` messages; return their bodies, in order."""
    bodies = []
    for _ in range(count):
        [message] = await take(consumer, 1)
        bodies.append(message.body)
        message.finish()
    return sorted(bodies)


def kinds(events: Sequence[ClientEvent]) -> list[str]:
    return [each.kind for each in events]
