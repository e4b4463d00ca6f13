"""The plain life of a stream and of a batch read, on real nsqd."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import SPARK_PATIENCE, published
from tests.spark.queries import (
    CHANNEL,
    Query,
    Rival,
    await_answers,
    await_depth,
    await_looks,
    channel_stats,
    new_topic,
    numbers,
    options_of,
    post,
    read_now,
    running,
    stream,
    table,
    waiting,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = [
    ("body", "binary"),
    ("id", "binary"),
    ("attempts", "int"),
    ("timestamp", "timestamp"),
    ("timestamp_ns", "bigint"),
    ("topic", "string"),
    ("channel", "string"),
    ("nsqd", "string"),
]


@pytest.fixture
def topic() -> str:
    return new_topic()


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with start_nsqd(tmp_path_factory.mktemp("second")) as server:
        yield server


# --- streams ------------------------------------------------------------------------------------


@pytest.mark.spark_core
def test_a_stream_reads_what_waits_on_two_nsqd_and_goes_on_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, second: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 3000)
    waiting(second, topic, 3000, first=3000)
    frame = stream(spark, options_of(tmp_path, topic, nsqd, second, maxMessagesPerTrigger="4000"))
    first_run = read_now(frame, tmp_path)
    assert first_run.numbers() == [*range(6000)]
    assert first_run.sizes == [4000, 2000]
    assert {row.nsqd for row in first_run.rows} == {nsqd.tcp_address, second.tcp_address}
    waiting(second, topic, 10, first=6000)
    assert read_now(frame, tmp_path).numbers() == [*range(6000, 6010)]
    assert [channel_stats(server, topic).depth for server in (nsqd, second)] == [0, 0]


@pytest.mark.spark_core
def test_the_format_is_found_without_registration(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    assert table(spark, options_of(tmp_path, topic, nsqd)).dtypes == COLUMNS


@pytest.mark.spark_core
def test_rows_go_from_topic_to_topic_as_a_table_and_as_a_stream(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 100)
    target = {"nsqd": nsqd.tcp_address}
    rows = table(spark, options_of(tmp_path, topic, nsqd)).select("body")
    rows.write.format("nsq").options(**target, topic=f"{topic}-2").mode("append").save()
    rows = stream(spark, options_of(tmp_path, f"{topic}-2", nsqd)).select("body")
    writer = rows.writeStream.format("nsq").options(**target, topic=f"{topic}-3")
    writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
    assert writer.trigger(availableNow=True).start().awaitTermination(int(SPARK_PATIENCE))
    assert numbers(table(spark, options_of(tmp_path, f"{topic}-3", nsqd)).collect()) == [
        *range(100)
    ]


def test_rows_have_all_that_nsqd_says_of_a_message(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    before = time.time_ns()
    bodies = published(nsqd, topic, 3)
    after = time.time_ns()
    frame = stream(spark, options_of(tmp_path, topic, nsqd))
    rows = read_now(frame, tmp_path).rows
    assert frame.dtypes == COLUMNS
    assert all(field.nullable for field in frame.schema)
    assert sorted(bytes(row.body) for row in rows) == bodies
    assert len({bytes(row.id) for row in rows}) == 3
    for row in rows:
        assert len(row.id) == 16
        assert before <= row.timestamp_ns <= after
        microseconds = timedelta(microseconds=row.timestamp_ns // 1000)
        assert row.timestamp.astimezone(UTC) == datetime.fromtimestamp(0, UTC) + microseconds
        assert (row.attempts, row.topic, row.channel) == (1, topic, CHANNEL)
        assert row.nsqd == nsqd.tcp_address


def test_what_is_published_while_a_query_runs_is_read_at_once(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    with running(stream(spark, options_of(tmp_path, topic, nsqd)), tmp_path) as query:
        for number in range(3):
            published(nsqd, topic, 1, first=number)
            query.await_rows(number + 1)
    assert query.numbers() == [0, 1, 2]


def test_the_channel_is_there_as_soon_as_the_query_runs(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    read_now(stream(spark, options_of(tmp_path, topic, nsqd)), tmp_path)
    published(nsqd, topic, 5)
    await_depth(nsqd, topic, 5)


def test_available_now_ends_on_an_empty_topic_and_on_a_paused_channel(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    frame = stream(spark, options_of(tmp_path, topic, nsqd))
    assert read_now(frame, tmp_path).rows == []
    post(nsqd, "/channel/pause", topic)
    waiting(nsqd, topic, 5)
    assert read_now(frame, tmp_path).rows == []
    post(nsqd, "/channel/unpause", topic)
    assert read_now(frame, tmp_path).numbers() == [*range(5)]


def test_available_now_reads_no_more_than_was_there_when_it_began(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 10)
    options = options_of(tmp_path, topic, nsqd, maxMessagesPerTrigger="5")
    query = Query(
        stream(spark, options),
        tmp_path,
        before=lambda: published(nsqd, topic, 10, first=100),
        availableNow=True,
    )
    query.await_end()
    assert query.sizes == [5, 5]


def test_available_now_waits_for_what_a_dead_consumer_held(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 10)
    with closing(Rival(nsqd, topic, msg_timeout=2.0)) as rival:
        rival.take(4)
    assert channel_stats(nsqd, topic).in_flight_count == 4
    query = read_now(stream(spark, options_of(tmp_path, topic, nsqd)), tmp_path)
    assert query.numbers() == [*range(10)]
    assert sorted(row.attempts for row in query.rows) == [1] * 6 + [2] * 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_trigger_once_reads_all_in_one_batch(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 50)
    options = options_of(tmp_path, topic, nsqd, maxMessagesPerTrigger="10")
    query = Query(stream(spark, options), tmp_path, once=True)
    query.await_end()
    assert query.sizes == [50]


# --- no spinning: Spark itself makes one batch at the very start, with or without rows ------------


def test_a_query_on_an_empty_channel_makes_no_batches(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    with running(stream(spark, options_of(tmp_path, topic, nsqd)), tmp_path) as query:
        query.await_batches(1)
        await_looks(query, nsqd, topic)
        assert query.sizes == [0]
        published(nsqd, topic, 5)
        query.await_rows(5)
        await_looks(query, nsqd, topic)
    assert [size for size in query.sizes[1:] if not size] == []


@pytest.mark.parametrize("paused", ["topic", "channel"])
def test_a_query_makes_no_batches_while_nsqd_holds_the_messages_back(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str, paused: str
) -> None:
    post(nsqd, "/topic/create", topic)
    post(nsqd, "/channel/create", topic)
    post(nsqd, f"/{paused}/pause", topic)
    published(nsqd, topic, 5)
    with running(stream(spark, options_of(tmp_path, topic, nsqd)), tmp_path) as query:
        query.await_batches(1)
        await_looks(query, nsqd, topic)
        assert query.sizes == [0]
        post(nsqd, f"/{paused}/unpause", topic)
        query.await_rows(5)
    assert query.numbers() == [*range(5)]


def test_a_query_whose_messages_go_to_another_consumer_tries_less_and_less_often(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 5)
    starts: list[float] = []
    with closing(Rival(nsqd, topic)) as rival:

        def take_all() -> None:
            starts.append(time.monotonic())
            if len(starts) < 4:
                rival.finish(rival.take(5))

        options = options_of(tmp_path, topic, nsqd, idleTimeout="50ms")
        with running(stream(spark, options), tmp_path, take_all) as query:
            for tries in range(1, 4):
                query.await_batches(tries)
                published(nsqd, topic, 5)
            query.await_rows(5)
    assert query.sizes == [0, 0, 0, 5]
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert [gap > wait for gap, wait in zip(gaps, (0.5, 1.0, 2.0), strict=True)] == [True] * 3


# --- tables -------------------------------------------------------------------------------------


@pytest.mark.spark_core
def test_a_table_has_the_same_rows_each_time_and_takes_them_out_of_the_channel(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, second: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 3000)
    waiting(second, topic, 10, first=3000)
    frame = table(spark, options_of(tmp_path, topic, nsqd, second))
    first, again = frame.collect(), frame.collect()
    assert numbers(first) == [*range(3010)]
    assert sorted(first) == sorted(again)
    assert [channel_stats(server, topic).depth for server in (nsqd, second)] == [0, 0]
    waiting(nsqd, topic, 5)
    assert frame.where(f"nsqd = '{second.tcp_address}'").count() == 10
    assert frame.union(frame).count() == 6020
    assert table(spark, options_of(tmp_path, topic, nsqd)).count() == 5


def test_both_sides_of_a_self_union_have_the_same_rows_and_leave_the_others_in_the_channel(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 100)
    # nsqd may push a message behind its answer to CLS; that one is away for this long.
    options = options_of(tmp_path, topic, nsqd, msgTimeout="5s")
    frame = table(spark, options)
    both = numbers(frame.union(frame).collect())
    assert both[::2] == both[1::2] == numbers(frame.collect()) != []
    # Two tasks pull at once: each may hold what the other waits for, and does without then.
    await_answers(nsqd, topic)
    rest = numbers(table(spark, options).collect())
    assert sorted(both[::2] + rest) == [*range(100)]


def test_a_table_of_nothing_has_no_rows(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    assert table(spark, options_of(tmp_path, topic, nsqd)).collect() == []
    assert table(spark, options_of(tmp_path, topic, nsqd, mode="peek")).collect() == []


def test_old_rows_of_tables_are_removed_from_the_spool(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    spool = tmp_path / "spool"

    def generations() -> set[str]:
        return {mark.parent.name for mark in spool.glob("*/_gen")}

    waiting(nsqd, topic, 5)
    read_now(stream(spark, options_of(tmp_path, topic, nsqd)), tmp_path)
    streams = generations()
    for _ in range(2):
        waiting(nsqd, topic, 5)
        assert table(spark, options_of(tmp_path, topic, nsqd)).count() == 5
    old, young = generations() - streams
    two_days_ago = time.time() - 2 * 24 * 3600
    for name in (old, *streams):
        os.utime(spool / name / "_gen", (two_days_ago, two_days_ago))
    table(spark, options_of(tmp_path, topic, nsqd)).count()
    assert young in generations()
    assert streams < generations()
    assert not (spool / old).exists()


@pytest.mark.spark_core
def test_peeking_leaves_the_messages_in_the_channel_with_one_more_attempt(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 3000)  # more than one connection may hold
    peeked = table(spark, options_of(tmp_path, topic, nsqd, mode="peek", spoolLocation=None))
    rows = peeked.collect()
    assert numbers(rows) == [*range(3000)]
    assert {row.attempts for row in rows} == {1}
    assert peeked.dtypes == COLUMNS
    assert channel_stats(nsqd, topic).depth == 3000
    taken = table(spark, options_of(tmp_path, topic, nsqd)).collect()
    assert numbers(taken) == [*range(3000)]
    assert {row.attempts for row in taken} == {2}


def test_a_peek_at_an_unknown_topic_is_an_error_and_creates_nothing(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    peeked = table(spark, options_of(tmp_path, topic, nsqd, mode="peek"))
    said = f"topic '{topic}' is unknown to nsqd {nsqd.tcp_address}; .*mode=peek creates nothing"
    with pytest.raises(Exception, match=said):
        peeked.count()
    assert topic.encode() not in nsqd.ask("/stats?format=json")[1]
    waiting(nsqd, topic, 5)
    with pytest.raises(Exception, match=r"channel 'sparks' of .*; did you mean 'spark'\?"):
        table(spark, options_of(tmp_path, topic, nsqd, mode="peek", channel="sparks")).count()
    assert b"sparks" not in nsqd.ask("/stats?format=json")[1]


def test_a_peek_that_is_used_again_does_not_create_a_topic_that_was_deleted(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 5)
    peeked = table(spark, options_of(tmp_path, topic, nsqd, mode="peek"))
    assert peeked.count() == 5
    post(nsqd, "/topic/delete", topic)
    said = f"topic '{topic}' is unknown to nsqd {nsqd.tcp_address}; .*mode=peek creates nothing"
    with pytest.raises(Exception, match=said):
        peeked.count()
    assert topic.encode() not in nsqd.ask("/stats?format=json")[1]


def test_a_peek_that_is_interrupted_requeues_everything(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 3000)
    peeked = table(spark, options_of(tmp_path, topic, nsqd, mode="peek"))
    assert len(peeked.take(3)) == 3
    await_answers(nsqd, topic)
    stats = channel_stats(nsqd, topic)
    assert (stats.depth, stats.timeout_count) == (3000, 0)
