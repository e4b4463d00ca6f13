"""What the tests of redesigned topics share: publishing, and changes of leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nsqflow.admin import RedesignedCluster
from nsqflow.admin.partition import PartitionApi
from nsqflow.blocking import Producer
from nsqflow.broker import BackgroundBroker
from tests.integration.spark.source.batches import BatchRun

PARTITIONS = 3

Start = Callable[..., BatchRun]


def publish(
    producer: Producer, topic: str, count: int, first: int = 0, partitions: int = PARTITIONS
) -> None:
    """Publish numbers, in turn to the partitions of the topic."""
    for begin in range(first, first + count, 100):
        end = min(begin + 100, first + count)
        bodies = [b"%d" % number for number in range(begin, end)]
        producer.publish_many(topic, bodies, partition=begin // 100 % partitions)


def leader_of(cluster: RedesignedCluster, topic: str, partition: int) -> str:
    """Return the nsqd that leads a partition."""
    return asyncio.run(cluster.topic(topic)).leaders[partition].address


async def follower_of(cluster: RedesignedCluster, topic: str) -> str:
    """Return a node that has a copy of the first partition, and does not lead it."""
    leader = (await cluster.topic(topic)).leaders[0]
    async with PartitionApi(leader.http_address) as api:
        copies = await api.replicas(topic, 0)
    return next(address for address in copies if address != leader.address)


def move(broker: BackgroundBroker, cluster: RedesignedCluster, topic: str, partition: int) -> None:
    """Let the next node that has a copy lead a partition."""
    now = broker.nsqd_addresses.index(leader_of(cluster, topic, partition))
    broker.move_leader(topic, partition, (now + 1) % 3)
