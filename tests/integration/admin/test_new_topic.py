"""Waiting for a new topic of the redesigned NSQ: until its leaders take publishes."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.broker import Broker
from nsqflow.errors import AdminError
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.proxy import Proxy


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


@asynchronous
async def test_a_wait_reports_how_many_partitions_are_writable() -> None:
    async with Broker("redesigned", 2, new_topic_delay=2) as broker:
        cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
        await cluster.create_topic("orders", partitions=2)
        seen: list[tuple[int, int]] = []
        await cluster.await_writable("orders", 30, lambda *counts: seen.append(counts))
    assert (seen[0], seen[-1]) == ((0, 2), (2, 2))


@asynchronous
async def test_an_nsqd_that_takes_no_connection_in_time_is_asked_again() -> None:
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def map_first(address: str) -> str:
            # The handshake is never answered, so that the request is not sent.
            asked.append(address)
            return address if asked[1:] else f"https://127.0.0.1:{silent.getsockname()[1]}"

        async with Broker("redesigned", 1) as broker:
            await broker.create_topic("orders")
            cluster = RedesignedCluster(
                lookupd=broker.lookupd_addresses, address_map=map_first, timeout=0.3
            )
            await cluster.await_writable("orders", 30)
    assert len(asked) > 1


@asynchronous
async def test_an_nsqlookupd_that_fails_is_asked_again() -> None:
    async with Broker("redesigned", 1) as broker, Proxy("127.0.0.1:1") as proxy:
        await broker.create_topic("orders")
        cluster = RedesignedCluster(lookupd=[proxy.address])
        waiting = asyncio.create_task(cluster.await_writable("orders", 30))
        await eventually(lambda: proxy.connections >= 2 or waiting.done(), what="a second lookup")
        proxy.upstream = broker.lookupd_addresses[0]
        await waiting
