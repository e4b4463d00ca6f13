"""A consumer has a subscription to each partition, and follows its leader."""

from __future__ import annotations

import asyncio
import logging

import pytest

from nsqflow import Consumer
from nsqflow.admin import RedesignedCluster
from nsqflow.errors import ServerError
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import PATIENCE
from tests.integration.client.redesigned_consumer.reading import (
    CHANNEL,
    QUICK_TURNS,
    TOPIC,
    cluster,
    consumer_of,
    consuming,
    finish,
    publish,
    receive,
)


@pytest.mark.proves(rows=[64, 66, 67])
@asynchronous
async def test_each_partition_has_a_connection_to_its_leader() -> None:
    async with cluster(3, 4) as broker, consuming(broker, 4) as (consumer, _):
        admin = RedesignedCluster(lookupd=broker.lookupd_addresses)
        leaders = (await admin.topic(TOPIC)).leaders
        connections = consumer.stats().connections
        assert {each.partition: each.nsqd for each in connections} == {
            number: node.address for number, node in leaders.items()
        }
        for number in range(4):
            await publish(broker, b"%d" % number, partition=number)
            message = await receive(consumer)
            assert (message.partition, message.body) == (number, b"%d" % number)
            message.finish()


@pytest.mark.proves(rows=[69])
@asynchronous
async def test_a_moved_leader_is_followed_at_once() -> None:
    async with cluster(2, replicas=2) as broker, consuming(broker) as (consumer, events):
        await broker.move_leader(TOPIC, 0, 1)
        changed = await events.next("leader_changed")
        assert changed.nsqd == broker.nsqd_addresses[1]
        await events.wait_for("connected", 2)
        await publish(broker, b"after")
        message = await receive(consumer)
        assert (message.body, message.nsqd) == (b"after", broker.nsqd_addresses[1])
        message.finish()


@pytest.mark.proves(rows=[69])
@asynchronous
async def test_a_killed_leader_is_followed_when_another_one_leads() -> None:
    async with cluster(3, replicas=3) as broker, consuming(broker) as (consumer, events):
        await broker.kill_node(0)
        await events.wait_for("connected", 2)
        await publish(broker, b"after")
        assert await finish(consumer, 1) == [b"after"]


@pytest.mark.proves(rows=[69])
@pytest.mark.parametrize(
    "code", ["E_FAILED_ON_NOT_LEADER", "E_FAILED_ON_NOT_WRITABLE", "E_TOPIC_NOT_EXIST"]
)
@asynchronous
async def test_a_passing_refusal_of_sub_is_reported_and_tried_again(code: str) -> None:
    async with cluster() as broker:
        broker.fail_next("SUB", code)
        async with consuming(broker) as (consumer, events):
            failed = await events.next("connect_failed")
            assert isinstance(failed.error, ServerError)
            assert failed.error.code == code
            await publish(broker, b"after")
            assert await finish(consumer, 1) == [b"after"]


@pytest.mark.proves(rows=[69])
@pytest.mark.parametrize(
    "code",
    [
        "E_BAD_TOPIC",
        "E_BAD_CHANNEL",
        "E_BAD_PARTITION",
        "E_INVALID",
        "E_AUTH_FAILED",
        "E_AUTH_FIRST",
        "E_AUTH_ERROR",
        "E_UNAUTHORIZED",
        "E_SUB_CHANNEL_NOT_REGISTERED",
    ],
)
@asynchronous
async def test_a_lasting_refusal_of_sub_is_raised(code: str) -> None:
    async with cluster() as broker:
        broker.fail_next("SUB", code)
        async with consumer_of(broker) as consumer:
            with pytest.raises(ServerError) as refused:
                await receive(consumer)
        assert refused.value.code == code


@asynchronous
async def test_a_channel_that_is_not_registered_is_raised() -> None:
    async with cluster() as broker:
        admin = RedesignedCluster(lookupd=broker.lookupd_addresses)
        await admin.create_topic("others", registered_channels=True, wait=5)
        async with Consumer("others", CHANNEL, lookupd=broker.lookupd_addresses) as consumer:
            with pytest.raises(ServerError, match="E_SUB_CHANNEL_NOT_REGISTERED"):
                await receive(consumer)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "code", ["E_SUB_ORDER_IS_MUST", "E_SUB_EXTEND_NEED", "E_SUB_EXTEND_FORBIDDON"]
)
@asynchronous
async def test_a_topic_that_nsqd_contradicts_is_looked_up_once_more(code: str, times: int) -> None:
    async with cluster() as broker:
        for _ in range(times):
            broker.fail_next("SUB", code)
        await publish(broker, b"there")
        async with consumer_of(broker) as consumer:
            if times == 1:
                assert await finish(consumer, 1) == [b"there"]
            else:
                with pytest.raises(ServerError) as refused:
                    await receive(consumer)
                assert refused.value.code == code


@pytest.mark.parametrize("kind", ["ordered", "extended"])
@asynchronous
async def test_a_topic_that_is_created_again_is_read_as_it_is_now(kind: str) -> None:
    async with cluster() as broker, consuming(broker) as (consumer, events):
        await publish(broker, b"before")
        before = await receive(consumer)
        assert (before.offset, before.headers) == (None, None)
        before.finish()
        await eventually(lambda: consumer.stats().counts.finished == 1)
        admin = RedesignedCluster(lookupd=broker.lookupd_addresses)
        await admin.delete_topic(TOPIC)
        await events.next("disconnected")
        await broker.create_topic(TOPIC, ordered=kind == "ordered", extended=kind == "extended")
        await events.wait_for("connected", 2)
        headers = {"region": "eu"} if kind == "extended" else None
        await publish(broker, b"after", partition=0, headers=headers)
        after = await receive(consumer)
        assert after.body == b"after"
        assert (after.offset is not None, after.headers) == (kind == "ordered", headers)
        after.finish()


@asynchronous
async def test_a_topic_that_is_not_ordered_any_more_is_read_as_others_are() -> None:
    async with (
        cluster(ordered=True) as broker,
        consuming(broker, max_attempts=1, max_backoff_duration=0) as (consumer, events),
    ):
        await publish(broker, b"before", partition=0)
        assert await finish(consumer, 1) == [b"before"]
        await RedesignedCluster(lookupd=broker.lookupd_addresses).delete_topic(TOPIC)
        await events.next("disconnected")
        await broker.create_topic(TOPIC)
        await broker.create_channel(TOPIC, CHANNEL)
        await events.wait_for("connected", 2)
        await publish(broker, b"a", b"b", b"c")
        held = [await receive(consumer) for _ in range(3)]
        for message in held:
            message.requeue(0, backoff=False)
        waiting = asyncio.create_task(anext(consumer, None))
        await events.wait_for("gave_up", 3)
        waiting.cancel()


@asynchronous
async def test_a_passing_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as broker:
        for _ in range(3):
            broker.fail_next("SUB", "E_FAILED_ON_NOT_LEADER")
        async with consuming(broker) as (_, events):
            assert events.count("connect_failed") == 3
        ours = [each for each in caplog.records if each.name.startswith("nsqflow.client")]
        warnings = [each.message for each in ours if each.levelno >= logging.WARNING]
        assert sum("E_FAILED_ON_NOT_LEADER" in text for text in warnings) == 1


@asynchronous
async def test_max_in_flight_holds_over_all_partitions() -> None:
    async with (
        cluster(2, 4) as broker,
        consuming(broker, 4, max_in_flight=2, **QUICK_TURNS) as (consumer, _),
    ):
        for number in range(4):
            await publish(broker, b"a", b"b", partition=number)
        held = [await receive(consumer) for _ in range(2)]
        assert sum(each.in_flight for each in consumer.stats().connections) <= 2
        assert consumer.stats().outstanding == 2
        for message in held:
            message.finish()
        assert len(await finish(consumer, 6)) == 6


@asynchronous
async def test_a_failure_in_one_partition_backs_off_in_all() -> None:
    async with cluster(2, 2) as broker, consuming(broker, 2) as (consumer, events):
        await publish(broker, b"a", partition=0)
        (await receive(consumer)).requeue(0)
        await events.next("backoff")
        assert [each.rdy for each in consumer.stats().connections] == [0, 0]


@asynchronous
async def test_closing_waits_for_messages_of_all_partitions() -> None:
    async with cluster(2, 2) as broker, consuming(broker, 2) as (consumer, _):
        await publish(broker, b"a", partition=0)
        await publish(broker, b"b", partition=1)
        held = [await receive(consumer) for _ in range(2)]
        closing = asyncio.create_task(consumer.close(PATIENCE))
        await eventually(lambda: all(not each.rdy for each in consumer.stats().connections))
        assert not closing.done()
        for message in held:
            message.finish()
        await closing
        assert consumer.stats().counts.finished == 2
