"""Every option of the source does what it says, on real nsqd and through Spark."""

from __future__ import annotations

import socket
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqflow.blocking import Producer
from tests.fixtures.servers import Nsqd, Nsqlookupd, start_nsqd
from tests.fixtures.spark import published
from tests.spark.queries import (
    Query,
    Rival,
    await_looks,
    channel_stats,
    connected,
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


@pytest.fixture
def topic() -> str:
    return new_topic()


# --- what is read -------------------------------------------------------------------------------


def test_topic_may_name_several(spark: SparkSession, tmp_path: Path, nsqd: Nsqd) -> None:
    topics = [new_topic(), new_topic()]
    for number, topic in enumerate(topics):
        published(nsqd, topic, 5, first=5 * number)
    rows = read_now(stream(spark, options_of(tmp_path, ", ".join(topics), nsqd)), tmp_path).rows
    assert numbers(rows) == [*range(10)]
    assert {(row.topic, int(row.body[:10]) // 5) for row in rows} == {
        (topics[0], 0),
        (topics[1], 1),
    }


def test_topic_pattern_takes_those_that_match_and_those_that_come_later(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    for number, name in enumerate([f"{topic}.a", f"{topic}.b", f"{topic}.bb", topic]):
        published(nsqd, name, 1, first=number)
    options = options_of(tmp_path, topic, nsqd, topic=None, topicPattern=rf"{topic}\.[abc]")
    with running(stream(spark, options), tmp_path) as query:
        query.await_rows(2)
        published(nsqd, f"{topic}.c", 1, first=10)
        query.await_rows(3)
    assert {row.topic for row in query.rows} == {f"{topic}.a", f"{topic}.b", f"{topic}.c"}
    assert query.numbers() == [0, 1, 10]


def test_lookupd_finds_the_nsqd_those_that_come_later_too(
    spark: SparkSession, tmp_path: Path, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    lookupd = [nsqlookupd]
    options = options_of(tmp_path, topic, nsqd=None, nsqdHttp=None, lookupd=nsqlookupd.http_address)
    with start_nsqd(tmp_path / "first", lookupd=lookupd) as first:
        published(first, topic, 5)
        with running(stream(spark, options), tmp_path) as query:
            query.await_rows(5)
            with start_nsqd(tmp_path / "second", lookupd=lookupd) as second:
                published(second, topic, 5, first=5)
                query.await_rows(10)
                query.stop()
                places = {row.nsqd for row in query.rows}
                assert places == {first.tcp_address, second.tcp_address}
    assert query.numbers() == [*range(10)]


def test_a_pattern_finds_topics_through_lookupd(
    spark: SparkSession, tmp_path: Path, nsqlookupd: Nsqlookupd, topic: str
) -> None:
    options = options_of(tmp_path, topic, topic=None, nsqd=None, nsqdHttp=None) | {
        "lookupd": nsqlookupd.http_address,
        "topicPattern": f"{topic}-.+",
    }
    with start_nsqd(tmp_path, lookupd=[nsqlookupd]) as nsqd:
        published(nsqd, f"{topic}-a", 5)
        with running(stream(spark, options), tmp_path) as query:
            query.await_rows(5)
            published(nsqd, f"{topic}-b", 5, first=5)
            query.await_rows(10)
    assert query.numbers() == [*range(10)]


def test_without_nsqd_http_the_next_port_is_asked(
    spark: SparkSession, tmp_path: Path, topic: str
) -> None:
    with start_on_two_ports(tmp_path) as nsqd:
        published(nsqd, topic, 5)
        assert table(spark, options_of(tmp_path, topic, nsqd, nsqdHttp=None)).count() == 5


def start_on_two_ports(folder: Path) -> Nsqd:
    """An nsqd whose HTTP port is the next one, as its defaults are."""
    while True:
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:
            port = listener.getsockname()[1]
        addresses = [f"-tcp-address=127.0.0.1:{port}", f"-http-address=127.0.0.1:{port + 1}"]
        with suppress(AssertionError):  # another consumer has one of them
            return start_nsqd(folder, options=addresses)


def test_without_metadata_there_is_the_body_alone(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    bodies = published(nsqd, topic, 5)
    options = options_of(tmp_path, topic, nsqd, includeMetadata="false")
    frame = table(spark, options)
    assert frame.dtypes == [("body", "binary")]
    assert sorted(bytes(row.body) for row in frame.collect()) == bodies
    published(nsqd, topic, 5)
    assert stream(spark, options).dtypes == [("body", "binary")]
    assert read_now(stream(spark, options), tmp_path).numbers() == [*range(5)]


def test_starting_at_the_latest_throws_away_what_was_there_once_and_never_again(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    read_now(stream(spark, options_of(tmp_path / "another", topic, nsqd)), tmp_path / "another")
    published(nsqd, topic, 5)
    frame = stream(spark, options_of(tmp_path, topic, nsqd, startingPosition="latest"))
    assert read_now(frame, tmp_path).rows == []
    published(nsqd, topic, 5, first=5)
    assert read_now(frame, tmp_path).numbers() == [*range(5, 10)]
    published(nsqd, topic, 5, first=10)
    assert read_now(frame, tmp_path).numbers() == [*range(10, 15)]


# --- the spool ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_the_spool_is_at_its_location(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str, form: str
) -> None:
    published(nsqd, topic, 5)
    place = tmp_path / "some" / "where"
    options = options_of(tmp_path, topic, nsqd, spoolLocation=form.format(place))
    assert table(spark, options).count() == 5
    assert [slot.stat().st_size > 1000 for slot in place.glob("batch-*/batches/*/*/000000")] == [
        True
    ]


@pytest.mark.parametrize("retained", [1, 3])
def test_the_spool_keeps_the_configured_number_of_batches(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str, retained: int
) -> None:
    options = options_of(tmp_path, topic, nsqd, spoolRetentionBatches=str(retained))

    def kept() -> list[int]:
        marks = tmp_path.glob("spool/*/batches/*/_planned")
        return sorted(int(mark.parent.name) for mark in marks)

    with running(stream(spark, options), tmp_path) as query:
        query.await_batches(1)  # Spark's first one, which has nothing
        for number in range(5):
            published(nsqd, topic, 1, first=number)
            query.await_rows(number + 1)
            assert len(kept()) > min(number, retained)
        # The fifth is not committed before another follows it.
        query.until(lambda: kept() == [*range(5 - retained, 6)])


def test_a_channel_that_was_deleted_fails_the_query(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    published(nsqd, topic, 5)
    with running(stream(spark, options_of(tmp_path, topic, nsqd)), tmp_path) as query:
        query.await_rows(5)
        await_looks(query, nsqd, topic)
        post(nsqd, "/channel/delete", topic)
        text = query.failure()
    assert f"channel 'spark' of topic '{topic}' is gone from {nsqd.tcp_address}" in text
    assert "failOnDataLoss=false" in text


def test_without_fail_on_data_loss_a_query_goes_on_with_a_new_channel(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    published(nsqd, topic, 5)
    options = options_of(tmp_path, topic, nsqd, failOnDataLoss="false")
    with running(stream(spark, options), tmp_path) as query:
        query.await_rows(5)
        await_looks(query, nsqd, topic)
        post(nsqd, "/channel/delete", topic)
        await_looks(query, nsqd, topic)
        published(nsqd, topic, 5, first=5)
        query.await_rows(10)
    assert query.numbers() == [*range(10)]


# --- how much at a time -------------------------------------------------------------------------


def test_a_batch_has_no_more_messages_than_were_allowed(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 25)
    options = options_of(tmp_path, topic, nsqd, maxMessagesPerTrigger="10")
    assert read_now(stream(spark, options), tmp_path).sizes == [10, 10, 5]


def test_a_batch_has_no_more_bytes_than_were_allowed(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    bodies = [b"%010d " % number + b"." * size for number, size in enumerate([10, 1500, 700] * 5)]
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, bodies)
    options = options_of(tmp_path, topic, nsqd, maxBytesPerTrigger="2k")
    query = read_now(stream(spark, options), tmp_path)
    assert query.numbers() == [*range(15)]
    assert max(sum(len(row.body) for row in batch) for batch in query.batches) <= 2048
    assert len(query.batches) < 15


def test_a_message_larger_than_the_bytes_allowed_comes_alone(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 3)
    options = options_of(tmp_path, topic, nsqd, maxBytesPerTrigger="100")
    assert read_now(stream(spark, options), tmp_path).sizes == [1, 1, 1]


def test_few_messages_wait_for_more(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 1)
    options = options_of(tmp_path, topic, nsqd, minMessagesPerTrigger="10", maxTriggerDelay="1h")
    with running(stream(spark, options), tmp_path) as query:
        query.await_rows(1)  # the first batch is made at once
        published(nsqd, topic, 9, first=1)
        await_looks(query, nsqd, topic)
        assert query.sizes == [1]
        published(nsqd, topic, 1, first=10)
        query.await_rows(11)
    assert query.sizes == [1, 10]


def test_few_messages_wait_no_longer_than_the_delay(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 1)
    options = options_of(tmp_path, topic, nsqd, minMessagesPerTrigger="10", maxTriggerDelay="2s")
    planned: list[float] = []
    with running(
        stream(spark, options), tmp_path, lambda: planned.append(time.monotonic())
    ) as query:
        query.await_rows(1)
        published(nsqd, topic, 9, first=1)
        query.await_rows(10)
    assert query.sizes == [1, 9]
    assert planned[1] - planned[0] > 1.5  # the delay counts from the plan, a little earlier


def test_several_tasks_share_an_nsqd(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 100)
    frame = table(spark, options_of(tmp_path, topic, nsqd, partitionsPerNsqd="3"))
    assert frame.rdd.getNumPartitions() == 3
    assert numbers(frame.collect()) == [*range(100)]
    waiting(nsqd, topic, 100)
    frame = stream(spark, options_of(tmp_path, topic, nsqd, partitionsPerNsqd="3"))
    query = read_now(frame, tmp_path)
    assert query.numbers() == [*range(100)]
    assert [*query.plan().values()] == [[34, 33, 33]]


def test_a_large_share_is_cut_into_partitions(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 100)
    frame = table(spark, options_of(tmp_path, topic, nsqd, maxMessagesPerPartition="30"))
    assert frame.rdd.getNumPartitions() == 4
    assert numbers(frame.collect()) == [*range(100)]


def test_a_peek_sees_no_more_of_each_nsqd_than_a_partition_may_have(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 100)
    options = options_of(tmp_path, topic, nsqd, mode="peek", maxMessagesPerPartition="30")
    assert table(spark, options).count() == 30
    assert channel_stats(nsqd, topic).depth == 100


# --- waiting ------------------------------------------------------------------------------------


def test_a_task_does_without_what_another_consumer_took(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 10)
    with closing(Rival(nsqd, topic)) as rival:
        planned: list[float] = []

        def take_some() -> None:
            rival.finish(rival.take(4))
            planned.append(time.monotonic())

        options = options_of(tmp_path, topic, nsqd, idleTimeout="1500ms")
        query = Query(stream(spark, options), tmp_path, take_some, availableNow=True)
        query.await_end()
        took = time.monotonic() - planned[0]
    assert query.sizes == [6]
    assert [*query.plan().values()] == [[10]]
    assert took > 1.5


def test_msg_timeout_is_sent_to_nsqd(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    with connected(spark, tmp_path, nsqd, topic, msgTimeout="54321ms") as client:
        nsqd.await_log(rf"{client['remote_address']}\] IDENTIFY: .* MsgTimeout:54321}}")


def test_a_time_beyond_what_nsqd_allows_names_the_option(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    published(nsqd, topic, 1)
    with pytest.raises(Exception, match=r"ConfigError: .*msgTimeout=3600 .* -max-msg-timeout"):
        table(spark, options_of(tmp_path, topic, nsqd, msgTimeout="1h")).count()
