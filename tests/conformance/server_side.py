"""What the servers see of a consumer, through the HTTP APIs that every broker has."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nsqflow import Consumer, Message, News, admin
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
    """Return a topic that no other test of the file has."""
    return re.sub(r"\W", "_", request.node.name)[-60:]


def channel_stats(nsqd: Server, topic: str, channel: str = "ch") -> dict[str, Any]:
    """Return what nsqd says of a channel; nothing but zeros if it has none."""
    status, body = nsqd.ask(f"/stats?format=json&topic={topic}&channel={channel}")
    assert status == 200, body
    topics = json.loads(body)["topics"] or []
    channels = [channel for each in topics for channel in each["channels"]]
    return channels[0] if channels else NO_CHANNEL


def rdy_counts(nsqds: Iterable[Server], topic: str) -> list[int]:
    """Return the RDY that each nsqd goes by."""
    stats = (channel_stats(nsqd, topic) for nsqd in nsqds)
    return [sum(client["ready_count"] for client in each["clients"]) for each in stats]


async def publish(nsqd: Server, topic: str, *bodies: bytes) -> None:
    """Publish to one nsqd, over HTTP."""
    async with admin.Nsqd(nsqd.http_address, timeout=PATIENCE) as api:
        await api.publish_many(topic, bodies)


async def take(consumer: Consumer, count: int) -> list[Message]:
    """Take so many messages into our hands."""
    async with asyncio.timeout(PATIENCE):
        return [await anext(consumer) for _ in range(count)]


async def bodies_from(consumer: Consumer, count: int) -> list[bytes]:
    """Consume so many messages; return what they say, in order."""
    bodies = []
    for _ in range(count):
        [message] = await take(consumer, 1)
        bodies.append(message.body)
        message.finish()
    return sorted(bodies)


def kinds(news: Sequence[News]) -> list[str]:
    return [each.kind for each in news]
