"""A cluster of the redesigned NSQ that the verbs are tried on, and what its topics have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from nsqflow import blocking
from nsqflow.admin import BrowsedMessage, RedesignedCluster
from nsqflow.broker import BackgroundBroker
from tests.fixtures.loops import POLL_INTERVAL
from tests.fixtures.servers import PATIENCE


def lookupd_of(broker: BackgroundBroker) -> list[str]:
    """The options that name its nsqlookupd."""
    return ["--lookupd", ",".join(broker.lookupd_addresses)]


def publish(broker: BackgroundBroker, topic: str, *bodies: bytes, **options: Any) -> None:
    """Publish one message after the other, each with the same options."""
    with blocking.Producer(lookupd=broker.lookupd_addresses) as producer:
        for body in bodies:
            producer.publish(topic, body, **options)


def browsed(broker: BackgroundBroker, topic: str, partition: int = 0) -> list[BrowsedMessage]:
    """All messages of a partition."""

    async def browse() -> list[BrowsedMessage]:
        cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
        return [message async for message in cluster.browse(topic, partition)]

    return asyncio.run(browse())


def bodies(broker: BackgroundBroker, topic: str, partition: int = 0) -> list[str]:
    """The bodies of a partition's messages."""
    return [message.body for message in browsed(broker, topic, partition)]


def depths(broker: BackgroundBroker, topic: str, channel: str) -> list[int | None]:
    """The depth of a channel in each partition; None where there is none."""
    stats = asyncio.run(RedesignedCluster(lookupd=broker.lookupd_addresses).stats(topic))
    found = [each.channel(channel) for each in stats]
    return [None if each is None else each.depth for each in found]


def channels(broker: BackgroundBroker, topic: str) -> list[list[str]]:
    """The names of each partition's channels."""
    stats = asyncio.run(RedesignedCluster(lookupd=broker.lookupd_addresses).stats(topic))
    return [[channel.name for channel in each.channels] for each in stats]


def await_readers(broker: BackgroundBroker, topic: str, partitions: Iterable[int]) -> None:
    """Wait until these partitions have a client each."""
    cluster, wanted = RedesignedCluster(lookupd=broker.lookupd_addresses), {*partitions}
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        stats = asyncio.run(cluster.stats(topic))
        if wanted <= {
            each.partition for each in stats if any(c.client_count for c in each.channels)
        }:
            return
        time.sleep(POLL_INTERVAL)
    raise AssertionError(f"no clients read {topic}")
