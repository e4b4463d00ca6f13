"""Moving a channel whose partitions have no messages, or only some of them."""

from __future__ import annotations

import pytest

from nsqflow import Producer
from nsqflow.admin import RedesignedCluster
from nsqflow.broker import Broker
from tests.fixtures.loops import asynchronous


@pytest.mark.parametrize("position", ["earliest", "latest", "count:3", "offset:5", "timestamp:9"])
@asynchronous
async def test_a_partition_without_messages_is_at_its_end(position: str) -> None:
    async with Broker("redesigned", 1) as broker:
        cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
        await cluster.create_topic("orders", wait=5)
        await cluster.create_channel("orders", "billing")
        await cluster.seek("orders", "billing", position)


@asynchronous
async def test_other_partitions_are_moved_back_anyway() -> None:
    async with Broker("redesigned", 2) as broker:
        cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
        await cluster.create_topic("orders", partitions=2, wait=5)
        async with Producer(lookupd=broker.lookupd_addresses) as producer:
            await producer.publish_many("orders", [b"1", b"2", b"3"], partition=1)
        await cluster.create_channel("orders", "billing")
        await cluster.seek("orders", "billing", "earliest")
        channels = [each.channel("billing") for each in await cluster.stats("orders")]
        assert [channel and channel.depth for channel in channels] == [0, 3]
