"""Waiting for a new topic of the redesigned NSQ: until its leaders take publishes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.broker import Broker
from nsqflow.errors import AdminError
from tests.fixtures.loops import asynchronous


async def is_writable(cluster: RedesignedCluster) -> bool:
    with suppress(AdminError):
        return all(each.writable for each in await cluster.stats("orders"))
    return False


@asynchronous
async def test_a_leader_that_is_named_and_takes_no_publishes_is_waited_for() -> None:
    async with Broker("redesigned", 2) as broker:
        cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
        await cluster.create_topic("orders", replicas=2, wait=5)
        assert await is_writable(cluster)
        leader = (await cluster.topic("orders")).leaders[0]
        follower = 1 - broker.nsqd_addresses.index(leader.address)
        await broker.kill_node(follower)
        for _ in range(200):
            if not await is_writable(cluster):
                break
            await asyncio.sleep(0.05)
        assert (await cluster.topic("orders")).leaders[0].address == leader.address
        with pytest.raises(TimeoutError):
            await cluster.create_topic("orders", replicas=2, wait=0.5)  # the same one again
        await broker.start_node(follower)
        await cluster.create_topic("orders", replicas=2, wait=10)
        assert await is_writable(cluster)
