"""Consumers of a redesigned cluster in this process, and what they have received."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nsqflow import Consumer, Producer
from nsqflow.broker import Broker
from nsqflow.client.message import Message
from tests.fixtures.events import EventLog
from tests.fixtures.loops import eventually
from tests.fixtures.servers import PATIENCE

TOPIC, CHANNEL = "orders", "billing"

QUICK_TURNS: dict[str, Any] = {
    "low_rdy_idle_timeout": 0.05,
    "low_rdy_timeout": 0.1,
    "rdy_redistribute_interval": 0.05,
}
"""For a ``max_in_flight`` below the number of partitions; by default a turn takes 10 seconds."""


def consumer_of(broker: Broker, **options: Any) -> Consumer:
    return Consumer(TOPIC, CHANNEL, lookupd=broker.lookupd_addresses, **options)


async def publish(broker: Broker, *bodies: bytes, **options: Any) -> None:
    async with Producer(lookupd=broker.lookupd_addresses) as producer:
        for body in bodies:
            await producer.publish(TOPIC, body, **options)


async def receive(consumer: Consumer) -> Message:
    async with asyncio.timeout(PATIENCE):
        return await anext(consumer)


async def finish(consumer: Consumer, count: int) -> list[bytes]:
    """Finish this many messages as they come; return their bodies."""
    bodies = []
    for _ in range(count):
        message = await receive(consumer)
        bodies.append(message.body)
        message.finish()
    return bodies


async def subscribed(consumer: Consumer, partitions: int = 1) -> None:
    """Wait until the consumer is connected to this many partitions."""
    consumer.start()
    await eventually(
        lambda: sum(each.connected for each in consumer.stats().connections) == partitions,
        what="subscribed",
    )


@asynccontextmanager
async def cluster(
    nodes: int = 1,
    partitions: int = 1,
    *,
    replicas: int = 1,
    ordered: bool = False,
    extended: bool = False,
    channel: bool = True,
    **options: Any,
) -> AsyncIterator[Broker]:
    """A cluster with the topic and, unless it is ordered, the channel."""
    async with Broker("redesigned", nodes, **options) as broker:
        await broker.create_topic(TOPIC, partitions, replicas, ordered, extended)
        if channel and not ordered:
            await broker.create_channel(TOPIC, CHANNEL)
        yield broker


@asynccontextmanager
async def consuming(
    broker: Broker, partitions: int = 1, **options: Any
) -> AsyncIterator[tuple[Consumer, EventLog]]:
    """A consumer that has subscribed to all partitions, and its events."""
    events = EventLog()
    async with consumer_of(broker, on_event=events, **options) as consumer:
        await subscribed(consumer, partitions)
        yield consumer, events
