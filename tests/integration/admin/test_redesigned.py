"""A cluster of the redesigned NSQ over HTTP: topics, leaders, channels, positions, messages."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from nsqflow import Consumer, Producer
from nsqflow.admin import AdminError, BrowsedMessage, Cluster, RedesignedCluster
from nsqflow.broker import Broker
from nsqflow.errors import ConfigError, DiscoveryError, NetworkError
from tests.fixtures.loops import asynchronous


@asynccontextmanager
async def running(
    nodes: int = 3, **options: Any
) -> AsyncIterator[tuple[Broker, RedesignedCluster]]:
    async with Broker("redesigned", nodes, **options) as broker:
        yield broker, RedesignedCluster(lookupd=broker.lookupd_addresses)


async def publish(broker: Broker, topic: str, bodies: list[bytes], **options: Any) -> None:
    async with Producer(lookupd=broker.lookupd_addresses) as producer:
        for body in bodies:
            await producer.publish(topic, body, **options)


async def depths(cluster: RedesignedCluster, topic: str, channel: str) -> list[int | None]:
    found = [each.channel(channel) for each in await cluster.stats(topic)]
    return [None if each is None else each.depth for each in found]


async def browsed(cluster: RedesignedCluster, *place: Any) -> list[str]:
    return [message.body async for message in cluster.browse(*place)]


@asynchronous
async def test_a_topic_is_created_with_all_options_and_deleted() -> None:
    async with running() as (_, cluster):
        await cluster.create_topic(
            "orders",
            partitions=4,
            replicas=2,
            ordered=True,
            extended=True,
            retention_days=2,
            wait=5,
        )
        topic = await cluster.topic("orders")
        assert (topic.meta.partition_num, topic.meta.replica) == (4, 2)
        assert (topic.meta.ordered, topic.meta.extend_support) == (True, True)
        assert sorted(topic.leaders) == [0, 1, 2, 3]
        await cluster.delete_topic("orders")
        with pytest.raises(ConfigError, match="'orders' does not exist"):
            await cluster.topic("orders")


@asynchronous
async def test_what_the_cluster_refuses_is_raised_in_its_words() -> None:
    async with running() as (_, cluster):
        with pytest.raises(AdminError) as refused:
            await cluster.create_topic("orders", partitions=2, replicas=3)
        assert "No node is available" in refused.value.message
        with pytest.raises(AdminError) as unknown:
            await cluster.delete_topic("orders")
        assert (unknown.value.status, unknown.value.message) == (500, "Key not found")
        with pytest.raises(ConfigError, match="topic"):
            await cluster.create_topic("no such name!")


@asynchronous
async def test_waiting_for_a_new_topic_ends_with_its_time() -> None:
    async with running(new_topic_delay=60) as (_, cluster):
        with pytest.raises(TimeoutError, match=r"'orders' is not writable after 0\.5 seconds"):
            await cluster.create_topic("orders", wait=0.5)


@asynchronous
async def test_a_topic_of_the_classic_nsq_is_named_as_such() -> None:
    async with Broker() as broker:
        await broker.create_topic("orders")
        cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
        with pytest.raises(ConfigError, match="classic"):
            await cluster.topic("orders")
        with pytest.raises(ConfigError, match="classic"):
            await cluster.create_topic("others")


@asynchronous
async def test_no_nsqlookupd_is_an_error_that_says_so() -> None:
    cluster = RedesignedCluster(lookupd=["127.0.0.1:1"], timeout=0.5)
    with pytest.raises(NetworkError):
        await cluster.create_topic("orders")
    with pytest.raises(DiscoveryError):
        await cluster.topic("orders")


@asynchronous
async def test_changes_go_to_the_leading_nsqlookupd_whichever_is_configured() -> None:
    async with running(lookupd_election_delay=0.2) as (broker, _):
        follower = RedesignedCluster(lookupd=broker.lookupd_addresses[1:])
        await follower.create_topic("orders")
        await broker.stop_lookupd(0)
        await follower.create_topic("others")
        assert {"orders", "others"} <= {
            *await Cluster(lookupd=broker.lookupd_addresses[1:]).topics()
        }


@asynchronous
async def test_a_channel_is_created_changed_and_deleted_in_every_partition() -> None:
    async with running() as (broker, cluster):
        await broker.create_topic("orders", partitions=3)
        await cluster.create_channel("orders", "billing")
        for number in range(3):
            await publish(broker, "orders", [b"a", b"b"], partition=number)
        assert await depths(cluster, "orders", "billing") == [2, 2, 2]
        await cluster.change_channel("pause", "orders", "billing")
        paused = [each.channel("billing") for each in await cluster.stats("orders")]
        assert [each.paused for each in paused if each] == [True] * 3
        await cluster.change_channel("empty", "orders", "billing")
        assert await depths(cluster, "orders", "billing") == [0, 0, 0]
        await cluster.change_channel("delete", "orders", "billing")
        assert await depths(cluster, "orders", "billing") == [None] * 3


@asynchronous
async def test_registered_channels_are_created_through_nsqlookupd() -> None:
    async with running() as (_, cluster):
        await cluster.create_topic("orders", partitions=2, registered_channels=True, wait=5)
        await cluster.create_channel("orders", "billing")
        assert await depths(cluster, "orders", "billing") == [0, 0]
        await cluster.change_channel("delete", "orders", "billing")
        assert await depths(cluster, "orders", "billing") == [None, None]


@asynchronous
async def test_a_partition_without_a_leader_is_named() -> None:
    async with running(election_delay=60) as (broker, cluster):
        await broker.create_topic("orders", partitions=3)
        await broker.kill_node(1)
        with pytest.raises(DiscoveryError, match="partition 1 of 'orders' has no leader"):
            await cluster.create_channel("orders", "billing")


@asynchronous
async def test_a_leader_moves_to_an_nsqd_with_a_copy() -> None:
    async with running() as (broker, cluster):
        await broker.create_topic("orders", replicas=2)
        await cluster.move_leader("orders", 0, broker.nsqd_addresses[1])
        assert (await cluster.topic("orders")).leaders[0].address == broker.nsqd_addresses[1]
        with pytest.raises(ConfigError, match=r"it has no copy of partition 0 \(nsqd with one: "):
            await cluster.move_leader("orders", 0, broker.nsqd_addresses[2])


@asynchronous
async def test_a_cluster_is_stable_while_all_nodes_run() -> None:
    async with running() as (broker, cluster):
        await broker.create_topic("orders", replicas=3)
        assert await cluster.is_stable()
        await broker.kill_node(2)
        assert not await cluster.is_stable()


# Row 84: seeking.

BODIES = [f"m{number}".encode() for number in range(10)]


@pytest.mark.proves(rows=[84])
@pytest.mark.parametrize(
    ("position", "depth"),
    [
        ("earliest", 10),
        ("latest", 0),
        ("count:4", 7),
        ("offset:64", 8),
        ("timestamp:0", 10),
        ("1970-01-02T00:00:00+00:00", 10),
        (datetime(2000, 1, 1, tzinfo=UTC), 10),
        ({0: "count:10"}, 1),
    ],
    ids=str,
)
@asynchronous
async def test_a_channel_is_moved(position: Any, depth: int) -> None:
    async with running(nodes=1) as (broker, cluster):
        await broker.create_topic("orders")
        await broker.create_channel("orders", "billing")
        await publish(broker, "orders", BODIES)
        await cluster.seek("orders", "billing", position)
        assert await depths(cluster, "orders", "billing") == [depth]


@pytest.mark.proves(rows=[84])
@asynchronous
async def test_finished_messages_come_again_after_a_seek() -> None:
    async with running(nodes=1) as (broker, cluster):
        await broker.create_topic("orders")
        await broker.create_channel("orders", "billing")
        await publish(broker, "orders", BODIES)
        async with Consumer("orders", "billing", lookupd=broker.lookupd_addresses) as consumer:
            async for batch in consumer.batches(size=10):
                batch.finish()
                break
        await cluster.seek("orders", "billing", "count:6")
        again = []
        async with Consumer("orders", "billing", lookupd=broker.lookupd_addresses) as consumer:
            async for message in consumer:
                again.append(message.body)
                message.finish()
                if len(again) == 5:
                    break
        assert sorted(again) == BODIES[5:]


@pytest.mark.proves(rows=[84])
@pytest.mark.parametrize(
    "position",
    [
        "",
        "first",
        "count:-1",
        "timestamp:1.5",
        "2026-01-01T00:00:00",
        5,
        {-1: "latest"},
        {"0": "latest"},
    ],
    ids=repr,
)
@asynchronous
async def test_what_is_no_position_is_refused(position: Any) -> None:
    async with running(nodes=1) as (broker, cluster):
        await broker.create_topic("orders")
        with pytest.raises(ConfigError, match="position"):
            await cluster.seek("orders", "billing", position)


@pytest.mark.proves(rows=[84])
@asynchronous
async def test_times_that_nsqd_would_take_for_the_end_are_refused() -> None:
    now = int(time.time())
    async with running(nodes=1) as (_, cluster):
        with pytest.raises(ConfigError, match="between 1970 and now"):
            await cluster.seek("orders", "billing", f"timestamp:{now + 100}")
        with pytest.raises(ConfigError, match="not milliseconds"):
            await cluster.seek("orders", "billing", f"timestamp:{now * 1000}")


@asynchronous
async def test_seeking_a_partition_that_does_not_exist_is_refused() -> None:
    async with running(nodes=1) as (broker, cluster):
        await broker.create_topic("orders")
        with pytest.raises(ConfigError, match="has no partition 3"):
            await cluster.seek("orders", "billing", {3: "latest"})


# Row 85: browsing.


@pytest.mark.proves(rows=[85])
@asynchronous
async def test_a_partition_is_browsed_and_nothing_is_consumed() -> None:
    async with running(nodes=1) as (broker, cluster):
        await broker.create_topic("orders", partitions=2)
        await broker.create_channel("orders", "billing")
        await publish(broker, "orders", BODIES, partition=1)
        assert await browsed(cluster, "orders", 1) == [body.decode() for body in BODIES]
        assert await browsed(cluster, "orders", 0) == []
        assert await browsed(cluster, "orders", 1, "count:9") == ["m8", "m9"]
        assert await browsed(cluster, "orders", 1, "offset:280") == ["m9"]
        assert await browsed(cluster, "orders", 1, "timestamp:0") == await browsed(
            cluster, "orders", 1
        )
        assert await browsed(cluster, "orders", 1, "latest") == []
        assert await depths(cluster, "orders", "billing") == [0, 10]
        assert (await cluster.topic("orders")).channels == ("billing",)


@pytest.mark.proves(rows=[85])
@asynchronous
async def test_a_browsed_message_has_its_ids_headers_and_position() -> None:
    async with running(nodes=1) as (broker, cluster):
        await broker.create_topic("orders", extended=True)
        await publish(broker, "orders", [b"a", b"\xff"], headers={"region": "eu"}, trace=7)
        first, second = [message async for message in cluster.browse("orders", 0)]
        assert isinstance(first, BrowsedMessage)
        assert (first.number, second.number) == (1, 2)
        assert (first.offset, second.internal_id - first.internal_id) == (0, 1)
        assert first.trace_id == 7
        assert first.headers is not None
        assert first.headers["region"] == "eu"
        assert (first.damaged, second.damaged) == (False, True)
        assert abs(first.timestamp / 1e9 - time.time()) < 60


# Row 86: unblocking.


@pytest.mark.proves(rows=[86])
@asynchronous
async def test_an_ordered_partition_goes_on_when_the_message_that_blocks_it_is_finished() -> None:
    async with running(nodes=1) as (broker, cluster):
        await broker.create_topic("orders", ordered=True)
        seen = []
        options: dict[str, Any] = {"lookupd": broker.lookupd_addresses}
        async with Consumer("orders", "billing", **options) as consumer:
            messages = aiter(consumer)
            waiting = anext(messages)
            await publish(broker, "orders", [b"bad", b"good"], partition=0)
            bad = await waiting
            assert bad.internal_id is not None
            await cluster.unblock("orders", 0, "billing", bad.internal_id)
            bad.requeue(0)  # nsqd refuses it: the message is finished
            good = await anext(messages)
            seen = [bad.body, good.body]
            good.finish()
        assert seen == [b"bad", b"good"]
        with pytest.raises(AdminError, match="not in flight"):
            await cluster.unblock("orders", 0, "billing", bad.internal_id)
        with pytest.raises(ConfigError, match="partitions 0 to 0"):
            await cluster.unblock("orders", 1, "billing", bad.internal_id)
