"""A channel starts where the consumer likes, also after a change of leaders."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from nsqflow.client.message import Message
from nsqflow.errors import ConfigError
from tests.fixtures.loops import asynchronous, eventually
from tests.integration.client.redesigned_consumer.reading import (
    TOPIC,
    cluster,
    consumer_of,
    consuming,
    finish,
    publish,
    receive,
)

BODIES = [b"m%d" % number for number in range(10)]


def bodies_of(messages: list[Message], partition: int) -> list[bytes]:
    return [message.body for message in messages if message.partition == partition]


@pytest.mark.proves(rows=[84])
@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
@pytest.mark.parametrize(
    ("position", "first"),
    [
        ("earliest", 0),
        ("count:4", 3),
        ("offset:64", 2),
        ("timestamp:0", 0),
        ("1970-01-02T00:00:00+00:00", 0),
        (datetime(2000, 1, 1, tzinfo=UTC), 0),
        ({0: "count:10"}, 9),
    ],
    ids=str,
)
@asynchronous
async def test_a_consumer_starts_at_a_position(position: Any, first: int, ordered: bool) -> None:
    async with cluster(ordered=ordered, channel=False) as broker:
        await publish(broker, *BODIES, partition=0)
        async with consuming(broker, start_from=position) as (consumer, _):
            assert sorted(await finish(consumer, 10 - first)) == BODIES[first:]


@pytest.mark.proves(rows=[84])
@asynchronous
async def test_a_consumer_starts_at_the_end_but_for_the_message_that_nsqd_has_read_ahead() -> None:
    async with cluster() as broker:
        await publish(broker, *BODIES)
        async with consuming(broker, start_from="latest") as (consumer, _):
            await publish(broker, b"new")
            assert await finish(consumer, 2) == [BODIES[0], b"new"]


@pytest.mark.proves(rows=[84])
@asynchronous
async def test_partitions_that_are_not_named_go_on_where_they_are() -> None:
    async with cluster(1, 2) as broker:
        for number in range(2):
            await publish(broker, *BODIES[:3], partition=number)
        async with consuming(broker, 2, start_from={0: "count:3"}) as (consumer, _):
            messages = [await receive(consumer) for _ in range(5)]
            # nsqd had read the first one ahead.
            assert bodies_of(messages, 0) == [BODIES[0], BODIES[2]]
            assert bodies_of(messages, 1) == BODIES[:3]
            for message in messages:
                message.finish()


@pytest.mark.proves(rows=[84, 77])
@asynchronous
async def test_messages_have_their_position_after_a_seek() -> None:
    async with cluster() as broker:
        await publish(broker, b"a", b"b")
        async with consuming(broker, start_from="earliest") as (consumer, _):
            messages = [await receive(consumer) for _ in range(2)]
            assert messages[0].offset == 0
            assert messages[1].offset == messages[0].size
            for message in messages:
                message.finish()


@pytest.mark.proves(rows=[84])
@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
@asynchronous
async def test_a_position_that_a_change_of_leaders_loses_is_sought_again(ordered: bool) -> None:
    async with cluster(2, replicas=2, ordered=ordered, lose_moved_cursor=True) as broker:
        async with consuming(broker) as (reader, _):
            await publish(broker, *BODIES, partition=0)
            await finish(reader, 10)
        async with consuming(broker, start_from="earliest", max_in_flight=1) as (consumer, events):
            seen = await finish(consumer, 3)
            await eventually(lambda: consumer.stats().counts.finished == 3)
            await broker.move_leader(TOPIC, 0, 1)
            await events.wait_for("connected", 2)
            while len(set(seen)) < 10:
                seen += await finish(consumer, 1)
            assert sorted(set(seen)) == BODIES


@pytest.mark.proves(rows=[84])
@pytest.mark.parametrize(
    ("seconds", "reason"),
    [(100, "between 1970 and now"), (10**12, "not milliseconds")],
    ids=["future", "milliseconds"],
)
@asynchronous
async def test_times_that_nsqd_would_take_for_the_end_are_refused(
    seconds: int, reason: str
) -> None:
    async with cluster() as broker:
        consumer = consumer_of(broker, start_from=f"timestamp:{int(time.time()) + seconds}")
        with pytest.raises(ConfigError, match=reason):
            consumer.start()


@asynchronous
async def test_an_empty_partition_starts_at_its_only_place() -> None:
    async with cluster() as broker, consuming(broker, start_from="count:5") as (consumer, _):
        await publish(broker, b"first")
        assert await finish(consumer, 1) == [b"first"]
