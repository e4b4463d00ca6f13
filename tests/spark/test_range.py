"""Batch reads of redesigned topics through Spark: ranges, peeks, and named reads; on our broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsqflow import blocking
from nsqflow.broker import BackgroundBroker
from tests.integration.spark.source.table_reads import (
    TOPIC,
    await_no_channel,
    moving_leaders,
    now,
    publish,
    stats,
)
from tests.spark.queries import CHANNEL, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


@pytest.fixture
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker("redesigned", 3) as broker:
        broker.create_topic(TOPIC, partitions=4, replicas=2)
        yield broker


def read(spark: SparkSession, broker: BackgroundBroker, **options: str) -> DataFrame:
    given = {"lookupd": ",".join(broker.lookupd_addresses), "topic": TOPIC, "mode": "range"}
    return table(spark, given | options)


def numbers(rows: list[Row]) -> list[int]:
    return sorted(int(row.body) for row in rows)


@pytest.mark.spark_core
def test_a_range_by_time_has_exactly_its_messages_also_when_leaders_move(
    spark: SparkSession, broker: BackgroundBroker
) -> None:
    publish(broker, range(5_000))
    start = now()
    publish(broker, range(5_000, 15_000))
    end = now()
    publish(broker, range(15_000, 20_000))
    options = {"startingPosition": start, "endingTimestamp": end}
    frame = read(spark, broker, **options)
    assert frame.rdd.getNumPartitions() == 4
    rows = frame.select("body", "partition", "offset", "channel").collect()
    assert numbers(rows) == [*range(5_000, 15_000)]
    assert {row.channel for row in rows} == {None}
    with moving_leaders(broker, TOPIC, 4):
        again = read(spark, broker, **options, partitionsPerNsqd="2")
        assert again.select("body", "partition", "offset", "channel").collect() == rows
    after = read(spark, broker, startingPosition=start)
    assert numbers(after.collect()) == [*range(5_000, 20_000)]
    await_no_channel(broker)


def test_a_frame_has_the_same_rows_whatever_is_published_meanwhile(
    spark: SparkSession, broker: BackgroundBroker
) -> None:
    publish(broker, range(1_000))
    frame = read(spark, broker, maxMessages="600")
    rows = frame.collect()
    assert len(rows) == 600
    publish(broker, range(1_000, 2_000))
    assert frame.collect() == rows
    assert frame.where("partition = 1").count() == len([r for r in rows if r.partition == 1])
    assert read(spark, broker, startingPosition="latest").collect() == []


def test_an_ordered_topic_with_headers_is_a_range_too(
    spark: SparkSession, broker: BackgroundBroker
) -> None:
    broker.create_topic("changes", partitions=2, replicas=2, ordered=True, extended=True)
    with blocking.Producer(lookupd=broker.lookupd_addresses) as producer:
        for number in range(200):
            headers = {"number": str(number)}
            producer.publish("changes", b"%d" % number, partition=number % 2, headers=headers)
    rows = read(spark, broker, topic="changes").collect()
    for partition in range(2):
        here = [int(row.body) for row in rows if row.partition == partition]
        assert here == [*range(partition, 200, 2)]
    assert all(row.headers["number"] == row.body.decode() for row in rows)


def test_a_peek_and_a_named_read_of_a_channel(
    spark: SparkSession, broker: BackgroundBroker, tmp_path: Path
) -> None:
    broker.create_channel(TOPIC, CHANNEL)
    publish(broker, range(500))
    options: dict[str, Any] = {"channel": CHANNEL}
    assert numbers(read(spark, broker, **options, mode="peek").collect()) == [*range(500)]
    options |= {"mode": "consume", "spoolLocation": str(tmp_path / "spool"), "readId": "monday"}
    rows = read(spark, broker, **options).collect()
    assert numbers(rows) == [*range(500)]
    publish(broker, range(500, 600))
    assert sorted(read(spark, broker, **options).collect()) == sorted(rows)
    found = [channel.depth for each in stats(broker) for channel in each.channels]
    assert sum(found) == 100


def test_a_classic_topic_is_refused_in_the_first_line(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    with BackgroundBroker() as broker:
        broker.create_topic(TOPIC)
        with pytest.raises(PySparkException) as caught:
            read(spark, broker).collect()
    first = str(caught.value).splitlines()[0]
    assert f"mode=range is invalid: {TOPIC!r} is a classic topic" in first
