"""Messages of an ordered partition that come again though user code has finished them."""

from __future__ import annotations

import asyncio

import pytest

from nsqflow.admin import RedesignedCluster
from nsqflow.client.consumer.ordered import PartitionOrder
from nsqflow.client.message import Message
from tests.fixtures.loops import asynchronous, eventually
from tests.integration.client.redesigned_consumer.reading import (
    CHANNEL,
    TOPIC,
    cluster,
    consumer_of,
    consuming,
    finish,
    publish,
    receive,
    subscribed,
)


@asynchronous
async def test_a_finished_message_that_comes_again_is_not_taken_for_one_that_blocks() -> None:
    async with (
        cluster(ordered=True) as broker,
        consuming(broker, blocked_after=1, on_blocked="stop") as (consumer, _),
    ):
        await publish(broker, b"a", partition=0)
        admin = RedesignedCluster(lookupd=broker.lookupd_addresses)
        for _ in range(4):
            assert await finish(consumer, 1) == [b"a"]
            await admin.seek(TOPIC, CHANNEL, "earliest")
        assert consumer.stats().counts.blocked == 0


def test_deliveries_are_counted_from_the_last_finish_on() -> None:
    order, message = PartitionOrder(), (5, 100, 9)
    for _ in range(3):
        order.received("nsqd", *message)
    assert (order.seen, order.unfinished) == (3, 3)
    order.finished(4, 50, 8)  # another one
    assert order.unfinished == 3
    order.finished(*message)
    order.received("nsqd", *message)
    assert (order.seen, order.unfinished) == (4, 1)
    order.received("nsqd", 6, 150, 10)
    assert (order.seen, order.unfinished) == (1, 1)


@pytest.mark.parametrize("repeat_messages", [False, True])
@asynchronous
async def test_what_is_finished_after_a_change_of_leaders_is_not_handed_out_again(
    repeat_messages: bool,
) -> None:
    seen: list[bytes] = []
    go_on = asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append(message.body)
        await go_on.wait()

    async with cluster(2, replicas=2, ordered=True, repeat_messages=repeat_messages) as broker:
        consumer = consumer_of(broker)
        running = asyncio.create_task(consumer.run(handle, concurrency=4, signals=False))
        await subscribed(consumer)
        await publish(broker, b"a", b"b", b"c", partition=0)
        await eventually(lambda: seen == [b"a"], what="the first message")
        await broker.move_leader(TOPIC, 0, 1)
        await eventually(lambda: consumer.stats().queued > 0, what="the copy of the new leader")
        go_on.set()
        await eventually(lambda: seen[-1] == b"c", what="the last message")
        await consumer.close()
        await running
        admin = RedesignedCluster(lookupd=broker.lookupd_addresses)
        channels = [each.channel(CHANNEL) for each in await admin.stats(TOPIC)]
    assert seen[0] == b"a"
    assert seen.count(b"a") == 1
    assert sorted(set(seen)) == [b"a", b"b", b"c"]
    assert [channel and channel.depth for channel in channels] == [0]


@asynchronous
async def test_what_was_finished_too_late_comes_again_after_a_seek() -> None:
    async with (
        cluster(2, replicas=2, ordered=True) as broker,
        consuming(broker) as (consumer, events),
    ):
        await publish(broker, b"a", b"b", b"c", partition=0)
        assert await finish(consumer, 1) == [b"a"]
        message = await receive(consumer)
        await broker.move_leader(TOPIC, 0, 1)
        await events.wait_for("connected", 2)
        message.finish()
        assert await finish(consumer, 1) == [b"c"]
        admin = RedesignedCluster(lookupd=broker.lookupd_addresses)
        await admin.seek(TOPIC, CHANNEL, "earliest")
        seen: list[bytes] = []
        while len(set(seen)) < 3:
            seen += await finish(consumer, 1)


def test_a_message_that_was_finished_too_late_is_finished_until_nsqd_goes_on_or_back() -> None:
    order = PartitionOrder()
    order.received("one", 5, 100, 9)
    order.finished_too_late(5, 100, 9)
    order.received("other", 4, 70, 8)  # a new leader may begin with an older one
    assert not order.is_finished
    for _ in range(2):
        order.received("other", 5, 100, 9)
        assert order.is_finished
    order.received("other", 4, 70, 8)  # someone has moved the channel back
    order.received("other", 5, 100, 9)
    assert not order.is_finished
    order.finished_too_late(5, 100, 9)
    order.received("other", 6, 130, 10)
    order.received("third", 5, 100, 9)
    assert not order.is_finished


def test_deliveries_that_user_code_never_had_do_not_count() -> None:
    order, message = PartitionOrder(), (5, 100, 9)
    order.received("nsqd", *message)
    order.received("nsqd", *message)
    order.dropped(*message)
    order.dropped(4, 50, 8)  # another one
    assert (order.seen, order.unfinished) == (2, 1)
    order.finished(*message)
    order.dropped(*message)  # a copy of it
    assert order.unfinished == 0
