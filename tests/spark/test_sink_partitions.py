"""Writing to topics of the redesigned NSQ from Spark: partitions, order and headers."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqflow import blocking
from nsqflow.broker import BackgroundBroker
from tests.fixtures.spark import SPARK_PATIENCE
from tests.integration.spark.sink.partition_messages import bodies_by_partition, new_topic, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

numbers = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker("redesigned", 3) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"spark_partitions_{next(numbers)}"


def options_of(broker: BackgroundBroker, topic: str, **more: str) -> dict[str, str]:
    return {"lookupd": ",".join(broker.lookupd_addresses), "topic": topic} | more


def write(frame: DataFrame, options: dict[str, str]) -> None:
    frame.write.format("nsq").options(**options).mode("append").save()


def refusal(frame: DataFrame, options: dict[str, str]) -> str:
    """Why a write fails before any row of ``frame`` is computed."""
    from pyspark.sql.functions import col, raise_error

    computed = frame.withColumn("body", raise_error(col("body").cast("string")).cast("string"))
    with pytest.raises(Exception) as caught:  # noqa: PT011 (Spark's own; the text is checked)
        write(computed, options)
    return str(caught.value)


def keyed(spark: SparkSession, rows: int, keys: int, partitions: int = 2) -> DataFrame:
    """Rows whose body is their number, and whose key is its remainder."""
    return spark.range(0, rows, numPartitions=partitions).selectExpr(
        "lpad(cast(id as string), 6, '0') as body", f"concat('user-', id % {keys}) as key"
    )


@pytest.mark.parametrize("partitioner", ["murmur3", "java"])
def test_a_key_has_the_partition_that_producers_give_it(
    spark: SparkSession, broker: BackgroundBroker, topic: str, partitioner: str
) -> None:
    new_topic(broker, topic)
    new_topic(broker, f"{topic}_other")
    write(keyed(spark, 1000, 50), options_of(broker, topic, partitioner=partitioner))
    with blocking.Producer(lookupd=broker.lookupd_addresses, partitioner=partitioner) as producer:
        for n in range(50):
            producer.publish(f"{topic}_other", b"%d" % n, key=b"user-%d" % n)
    expected = bodies_by_partition(stored(broker, f"{topic}_other", 50))
    found = bodies_by_partition(stored(broker, topic, 1000))
    assert {number: {int(body) % 50 for body in bodies} for number, bodies in found.items()} == {
        number: {int(body) for body in bodies} for number, bodies in expected.items()
    }
    assert len(expected) == 4
    assert sorted(body for bodies in found.values() for body in bodies) == [
        b"%06d" % n for n in range(1000)
    ]


def test_the_order_of_a_key_holds_while_leaders_move(
    spark: SparkSession, broker: BackgroundBroker, topic: str, tmp_path: Path
) -> None:
    new_topic(broker, topic, 2, 3, ordered=True)
    rows = keyed(spark, 20_000, 20).repartition(2, "key").sortWithinPartitions("body")
    folder = str(tmp_path / "rows")
    rows.write.parquet(folder)
    query = (
        spark.readStream.schema("body string, key string")
        .option("maxFilesPerTrigger", 1)
        .parquet(folder)
        .writeStream.format("nsq")
        .options(**options_of(broker, topic, maxBatchBytes="1k"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    moves = 0
    while query.isActive:  # as often as the cluster can
        broker.move_leader(topic, moves % 2, moves // 2 % 3)
        moves += 1
    assert query.awaitTermination(int(SPARK_PATIENCE))
    assert moves > 2
    firsts = dict.fromkeys(message.body for message in stored(broker, topic, 20_000))
    assert len(firsts) == 20_000
    for key in range(20):
        mine = [int(body) for body in firsts if int(body) % 20 == key]
        assert mine == [*range(key, 20_000, 20)]


def test_headers_tag_and_trace_id_are_read_by_a_consumer(
    spark: SparkSession, broker: BackgroundBroker, topic: str
) -> None:
    new_topic(broker, topic, 1, extended=True)
    rows = [
        (bytearray(b"a"), {"region": "eu"}, "fast", Decimal(2**64 - 1), 0),
        (bytearray(b"b"), None, None, None, None),
    ]
    types = "body binary, headers map<string,string>, tag string, trace_id decimal(20,0)"
    frame = spark.createDataFrame(rows, f"{types}, partition int").coalesce(1)
    write(frame, options_of(broker, topic))
    found = {message.body: message for message in stored(broker, topic, 2)}
    first, second = found[b"a"], found[b"b"]
    assert first.headers is not None
    assert first.headers["region"] == "eu"
    assert (first.tag, first.trace_id) == ("fast", 2**64 - 1)
    assert (second.tag, second.trace_id) == (None, 0)


def test_what_a_topic_does_not_take_is_refused_before_any_row_is_computed(
    spark: SparkSession, broker: BackgroundBroker, topic: str
) -> None:
    new_topic(broker, topic)
    options = options_of(broker, topic)
    rows = spark.range(3).selectExpr("cast(id as string) as body")
    assert f"column 'delay_ms' is invalid: topic '{topic}' is one of the redesigned NSQ" in refusal(
        rows.selectExpr("*", "5 as delay_ms"), options
    )
    assert f"column 'headers' is invalid: topic '{topic}' was created without extend" in refusal(
        rows.selectExpr("*", "map('a', 'b') as headers"), options
    )
    assert f"topic '{topic}s' does not exist at nsqlookupd" in refusal(
        rows, options | {"topic": f"{topic}s"}
    )
    assert "partitioner='java' is invalid without a column key" in refusal(
        rows, options | {"partitioner": "java"}
    )


def test_a_row_that_its_topic_does_not_take_is_named(
    spark: SparkSession, broker: BackgroundBroker, topic: str
) -> None:
    new_topic(broker, topic, ordered=True)
    rows = spark.createDataFrame([("a", 0), ("b", 7)], "body string, partition int").coalesce(1)
    with pytest.raises(Exception, match=f"row 1 .*: partition=7 is invalid for topic '{topic}'"):
        write(rows, options_of(broker, topic))


def test_a_stream_to_a_missing_topic_ends_at_its_start_and_names_it(
    spark: SparkSession, broker: BackgroundBroker, topic: str, tmp_path: Path
) -> None:
    query = (
        spark.readStream.format("rate")
        .load()
        .selectExpr("cast(value as string) as body")
        .writeStream.format("nsq")
        .options(**options_of(broker, topic))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    with pytest.raises(Exception, match=f"topic '{topic}' does not exist") as caught:
        query.awaitTermination(int(SPARK_PATIENCE))
    assert "stage failure" not in str(caught.value)  # as a task's error would be
    assert query.recentProgress == []


def test_rows_go_to_topics_of_both_kinds(
    spark: SparkSession, broker: BackgroundBroker, topic: str
) -> None:
    new_topic(broker, topic)
    old = f"{topic}_classic"
    with BackgroundBroker() as classic:
        classic.create_topic(old)
        classic.create_channel(old, "c")
        rows = spark.range(2000).selectExpr(
            "cast(id as string) as body",
            f"if(id % 2 = 0, '{topic}', '{old}') as topic",
            "if(id % 2 = 0, cast(id as string), null) as key",
        )
        lookupd = ",".join([*classic.lookupd_addresses, *broker.lookupd_addresses])
        rows.write.format("nsq").option("lookupd", lookupd).mode("append").save()
        received = set()
        with blocking.Consumer(old, "c", lookupd=classic.lookupd_addresses) as consumer:
            for message in consumer:
                received.add(message.body)
                message.finish()
                if len(received) == 1000:
                    break
    assert received == {b"%d" % n for n in range(1, 2000, 2)}
    assert {each.body for each in stored(broker, topic, 1000)} == {
        b"%d" % n for n in range(0, 2000, 2)
    }
