"""A message of an ordered partition that comes again though it was finished blocks nothing."""

from __future__ import annotations

from nsqflow.admin import RedesignedCluster
from nsqflow.client.consumer.ordered import PartitionOrder
from tests.fixtures.loops import asynchronous
from tests.integration.client.redesigned_consumer.reading import (
    CHANNEL,
    TOPIC,
    cluster,
    consuming,
    finish,
    publish,
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
