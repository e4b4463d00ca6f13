"""A spool and a channel belong to one query: a second one is refused, and never served half."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.servers import Nsqd
from tests.spark.queries import (
    Query,
    channel_stats,
    new_topic,
    numbers,
    options_of,
    read_now,
    running,
    stream,
    table,
    waiting,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPOOL_IN_USE = r"SourceInUseError: spoolLocation '[^']+' belongs to a running query on channel"
CHANNEL_IN_USE = (
    r"SourceInUseError: channel 'spark' of topic '\w+' on \S+ is read by another query, from "
)
ADVICE = "a channel and a spoolLocation of its own; or write to several sinks in one query"


@pytest.fixture
def topic() -> str:
    return new_topic()


def refused(text: str, reason: str) -> None:
    """Check that a query ended with one line that says what to do."""
    (line,) = {line for line in text.splitlines() if "SourceInUseError" in line}
    assert re.search(reason, line), line
    assert ADVICE in line, line
    assert "Traceback" not in text


# --- streams ------------------------------------------------------------------------------------


def test_one_frame_in_two_queries_is_refused_to_the_second(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    frame = stream(spark, options_of(tmp_path, topic, nsqd))
    with running(frame, tmp_path) as query:
        query.await_batches(1)
        second = Query(frame, tmp_path / "second")
        refused(second.failure(), SPOOL_IN_USE)
        waiting(nsqd, topic, 100)
        query.await_rows(100)
    assert query.numbers() == [*range(100)]
    assert second.rows == []


def test_a_query_with_another_spool_on_the_same_channel_is_refused(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    other = tmp_path / "second"
    with running(stream(spark, options_of(tmp_path, topic, nsqd)), tmp_path) as query:
        query.await_batches(1)
        waiting(nsqd, topic, 100)
        second = Query(stream(spark, options_of(other, topic, nsqd)), other, availableNow=True)
        refused(second.failure(), CHANNEL_IN_USE)
        query.await_rows(100)
    assert query.numbers() == [*range(100)]
    assert second.rows == []


@pytest.mark.parametrize("spools", [("a", "a"), ("a", "b")])
def test_two_loads_of_one_channel_in_one_query_are_refused(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str, spools: tuple[str, str]
) -> None:
    waiting(nsqd, topic, 100)
    one, two = (stream(spark, options_of(tmp_path / name, topic, nsqd)) for name in spools)
    query = Query(one.union(two), tmp_path, availableNow=True)
    refused(query.failure(), f"{SPOOL_IN_USE}|{CHANNEL_IN_USE}")
    assert query.rows == []
    assert channel_stats(nsqd, topic).depth == 100


@pytest.mark.spark_core
def test_a_union_of_a_frame_with_itself_reads_each_message_for_both_sides(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 100)
    frame = stream(spark, options_of(tmp_path, topic, nsqd))
    query = read_now(frame.union(frame), tmp_path)
    assert query.numbers() == sorted([*range(100)] * 2)


def test_those_who_mean_it_share_a_channel(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    def start(name: str) -> Query:
        options = options_of(tmp_path / name, topic, nsqd, allowSharedChannel="true")
        return Query(stream(spark, options), tmp_path / name)

    first = start("first")
    first.await_batches(1)
    second = start("second")
    try:
        second.await_batches(1)
        waiting(nsqd, topic, 100)
        first.until(lambda: len(first.rows) + len(second.rows) == 100)
    finally:
        first.stop()
        second.stop()
    assert sorted(first.numbers() + second.numbers()) == [*range(100)]


def test_a_query_can_be_started_again_as_soon_as_it_has_ended(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    frame = stream(spark, options_of(tmp_path, topic, nsqd, leaseTimeout="10m"))
    read: set[int] = set()
    for start in range(3):
        waiting(nsqd, topic, 10, first=10 * start)
        with running(frame, tmp_path) as query:
            # A batch that was interrupted is read again.
            query.until(lambda: {*read, *query.numbers()} == {*range(10 * start + 10)})  # noqa: B023
        read |= {*query.numbers()}


def test_a_new_checkpoint_in_the_same_application_needs_a_new_spool(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    frame = stream(spark, options_of(tmp_path, topic, nsqd))
    waiting(nsqd, topic, 10)
    assert read_now(frame, tmp_path / "first").numbers() == [*range(10)]
    waiting(nsqd, topic, 10, first=10)
    second = Query(frame, tmp_path / "second", availableNow=True)
    refused(second.failure(), "has the messages of another query of this Spark application")
    other = options_of(tmp_path / "other", topic, nsqd)
    assert read_now(stream(spark, other), tmp_path / "other").numbers() == [*range(10, 20)]


# --- tables -------------------------------------------------------------------------------------


def test_a_table_of_a_channel_that_a_stream_reads_is_refused(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    with running(stream(spark, options_of(tmp_path, topic, nsqd)), tmp_path) as query:
        query.await_batches(1)
        options = options_of(tmp_path, topic, nsqd)
        for spool in (tmp_path / "spool", tmp_path / "other"):
            with pytest.raises(Exception, match=CHANNEL_IN_USE):
                table(spark, options | {"spoolLocation": str(spool)}).collect()
        assert table(spark, options | {"allowSharedChannel": "true"}).collect() == []
        peek = options_of(tmp_path, topic, nsqd, mode="peek")
        assert table(spark, peek).collect() == []


# --- named reads --------------------------------------------------------------------------------


def named(tmp_path: Path, topic: str, nsqd: Nsqd, **more: str) -> dict[str, str]:
    return options_of(tmp_path, topic, nsqd, readId="january") | more


def test_a_named_read_has_the_same_rows_after_its_job_has_failed(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 3000)
    digests = set()
    for attempt in range(4):
        rows = table(spark, named(tmp_path, topic, nsqd)).select("id", "body", "attempts")
        digests.add(tuple(sorted(map(repr, rows.collect()))))
        if attempt < 3:
            failing = rows.selectExpr("raise_error('the sink is full')")
            with pytest.raises(Exception, match="the sink is full"):
                failing.collect()
        waiting(nsqd, topic, 10, first=3000 + 10 * attempt)  # not for this read
    (rows_read,) = digests
    assert len(rows_read) == 3000
    other = table(spark, options_of(tmp_path, topic, nsqd, readId="february"))
    assert numbers(other.collect()) == [*range(3000, 3040)]


def test_a_named_read_that_failed_on_the_way_reads_the_rest(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 6000)  # in slots of 2500
    options = named(tmp_path, topic, nsqd)
    few = table(spark, options).limit(5).collect()
    assert len(few) == 5
    everything = table(spark, options).collect()
    assert numbers(everything) == [*range(6000)]
    assert {bytes(row.id) for row in few} < {bytes(row.id) for row in everything}
    assert channel_stats(nsqd, topic).depth == 0


def test_a_named_read_of_nothing_stays_one_of_nothing(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    options = named(tmp_path, topic, nsqd)
    assert table(spark, options).collect() == []
    waiting(nsqd, topic, 5)
    assert table(spark, options).collect() == []
    other = options | {"readId": "february"}
    assert numbers(table(spark, other).collect()) == [*range(5)]


def test_a_name_belongs_to_one_channel(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 5)
    options = named(tmp_path, topic, nsqd)
    table(spark, options).collect()
    said = (
        "readId='january' is invalid: it names a read of channel 'spark' of "
        f"{topic}; must be a new name, or release that read with nsqflow spool release"
    )
    with pytest.raises(Exception, match=said):
        table(spark, options | {"channel": "other"}).collect()


@pytest.mark.parametrize("mode", ["consume", "peek"])
def test_a_look_takes_no_more_than_it_asks_for(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str, mode: str
) -> None:
    waiting(nsqd, topic, 50)
    options = options_of(tmp_path, topic, nsqd, mode=mode, maxMessages="2")
    frame = table(spark, options)
    frame.show(2)
    assert frame.count() == 2
    assert channel_stats(nsqd, topic).depth == {"consume": 48, "peek": 50}[mode]


# --- schemas ------------------------------------------------------------------------------------

BODY = "body binary"
ALL = (
    "body binary, id binary, attempts int, timestamp timestamp, timestamp_ns bigint, "
    "topic string, channel string, nsqd string"
)
WRONG = {
    "body string": r"column 'id' is missing",
    ALL.replace("attempts int", "attempts bigint"): "column 'attempts' is bigint, and must be int;",
    f"{ALL}, colour string": "there is no column 'colour'",
    ALL.replace("body binary, id binary", "id binary, body binary"): "in another order",
}


@pytest.mark.parametrize("schema", WRONG)
def test_a_wrong_schema_fails_in_one_line_before_anything_is_read(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str, schema: str
) -> None:
    waiting(nsqd, topic, 5)
    options = options_of(tmp_path, topic, nsqd)
    said = rf"ConfigError: \.schema\(\.\.\.\) is invalid: .*{WRONG[schema]}.*{ALL}"
    reader = spark.read.format("nsq").options(**options).schema(schema)
    with pytest.raises(Exception, match=said) as failure:
        reader.load().collect()
    assert "Traceback" not in str(failure.value)
    frame = spark.readStream.format("nsq").options(**options).schema(schema).load()
    failed = Query(frame, tmp_path, availableNow=True).failure()
    assert re.search(said, failed)
    assert "Traceback" not in failed
    assert channel_stats(nsqd, topic).depth == 5


def test_a_schema_that_is_right_changes_nothing(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 5)
    options = options_of(tmp_path, topic, nsqd)
    read = spark.read.format("nsq").options(**options, mode="peek").schema(ALL).load()
    assert read.count() == 5
    bodies = options | {"includeMetadata": "false"}
    frame = spark.readStream.format("nsq").options(**bodies).schema(BODY).load()
    assert read_now(frame, tmp_path).numbers() == [*range(5)]
