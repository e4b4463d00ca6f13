"""What a query that reads NSQ reports."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqflow.blocking import Producer
from nsqflow.spark import BatchReport, NsqListener, batch_reports
from tests.fixtures.servers import Nsqd
from tests.fixtures.spark import published
from tests.spark.queries import (
    Query,
    Rival,
    new_topic,
    options_of,
    read_now,
    running,
    stream,
    waiting,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def topic() -> str:
    return new_topic()


@pytest.fixture
def listener(spark: SparkSession) -> Iterator[NsqListener]:
    listener = NsqListener()
    spark.streams.addListener(listener)
    yield listener
    spark.streams.removeListener(listener)


def reports_of(query: Query) -> list[BatchReport]:
    return [report for each in query.spark_query.recentProgress for report in batch_reports(each)]


def to_nanoseconds(text: str) -> int:
    seconds = datetime.fromisoformat(text).timestamp()
    return round(seconds * 10**6) * 1000


def test_a_listener_reports_each_batch_once(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str, listener: NsqListener
) -> None:
    waiting(nsqd, topic, 25)
    options = options_of(tmp_path, topic, nsqd, maxMessagesPerTrigger="10")
    with running(stream(spark, options), tmp_path) as query:
        query.until(lambda: len(listener.reports) == 3)
    assert [report.batch for report in listener.reports] == [0, 1, 2]
    assert [report.rows for report in listener.reports] == [10, 10, 5]
    assert [report.backlog for report in listener.reports] == [25, 15, 5]
    assert [report.remaining for report in listener.reports] == [15, 5, 0]
    for report in listener.reports:
        assert report.query == str(query.spark_query.id)
        assert report.pulled == report.rows
        assert (report.duplicates, report.requeued, report.dead_lettered) == (0, 0, 0)
        assert report.rows
        assert report.spool_bytes
        assert report.spool_bytes > 200 * report.rows
        assert report.duration_ms > 0
        assert [*report.places] == [f"{topic}|{nsqd.tcp_address}"]


def test_a_listener_calls_its_function(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    heard: list[BatchReport] = []
    listener = NsqListener(heard.append)
    spark.streams.addListener(listener)
    try:
        published(nsqd, topic, 5)
        with running(stream(spark, options_of(tmp_path, topic, nsqd)), tmp_path) as query:
            query.until(lambda: heard)
    finally:
        spark.streams.removeListener(listener)
    assert [report.rows for report in heard] == [5]
    assert f"{query.spark_query.id} batch 0: " in str(heard[0])


def test_reports_count_dead_letters(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 2)
    with closing(Rival(nsqd, topic)) as rival:
        rival.requeue(rival.take(2))
    waiting(nsqd, topic, 3)
    options = options_of(tmp_path, topic, nsqd, maxAttempts="1", deadLetterTopic=f"{topic}-dead")
    (report,) = reports_of(read_now(stream(spark, options), tmp_path))
    assert (report.rows, report.dead_lettered, report.pulled) == (3, 2, 5)


def test_reports_count_requeued_messages(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    bodies = [b"%010d " % number + b"." * size for number, size in enumerate([500, 1, 1, 1, 1, 1])]
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many(topic, bodies)
    # By their mean this many fit in, but not with the first one.
    options = options_of(tmp_path, topic, nsqd, maxBytesPerTrigger="500")
    reports = reports_of(read_now(stream(spark, options), tmp_path))
    assert [report.rows for report in reports] == [1, 5]
    assert [report.requeued for report in reports] == [1, 0]


def test_progress_shows_what_waits_where(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    waiting(nsqd, topic, 20)
    with closing(Rival(nsqd, topic, msg_timeout=60.0)) as rival:
        rival.requeue(rival.take(3))
        rival.take(2)
        options = options_of(tmp_path, topic, nsqd, maxMessagesPerTrigger="10")
        with running(stream(spark, options), tmp_path) as query:
            query.await_rows(18)
            query.until(lambda: len(query.progress()) >= 2)
            first, second = (each["sources"][0]["latestOffset"] for each in query.progress()[:2])
    assert (first["backlog"], second["backlog"]) == (18, 8)
    assert (first["remaining"], second["remaining"]) == (8, 0)
    assert (first["in_flight"], first["lag_seconds"]) == (2, None)
    assert first["places"] == {
        f"{topic}|{nsqd.tcp_address}": {
            "depth": 18,
            "topic_depth": 0,
            "remaining": 8,
            "in_flight": 2,
            "deferred": 0,
            "delayed": 0,
            "requeues": 3,
            "timeouts": 0,
            "paused": False,
            "lag_seconds": None,
        }
    }
    assert first["spool"] == str(tmp_path / "spool")
    assert first["unreachable"] == first["last_batch"] == {}
    last = second["last_batch"]
    assert (last["seq"], last["rows"], last["pulled"]) == (1, 10, 10)
    times = [row.timestamp_ns for row in query.batches[0]]
    assert [to_nanoseconds(last[name]) for name in ("oldest", "newest")] == [
        pytest.approx(time, abs=1000) for time in (min(times), max(times))
    ]
    assert second["lag_seconds"] == last["lag_seconds"] > 0
    assert second["places"][f"{topic}|{nsqd.tcp_address}"]["lag_seconds"] == second["lag_seconds"]


def test_progress_shows_unreachable_nsqd(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    published(nsqd, topic, 5)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        silent = f"127.0.0.1:{listener.getsockname()[1]}"
    options = options_of(tmp_path, topic, nsqd) | {
        "nsqd": f"{nsqd.tcp_address},{silent}",
        "nsqdHttp": f"{nsqd.http_address},{silent}",
    }
    with running(stream(spark, options), tmp_path) as query:
        query.await_rows(5)
        query.until(query.progress)
        latest = query.progress()[0]["sources"][0]["latestOffset"]
    assert query.numbers() == [*range(5)]
    assert [*latest["unreachable"]] == [silent]
    assert [*latest["places"]] == [f"{topic}|{nsqd.tcp_address}"]


def test_a_batch_that_spark_makes_for_itself_is_not_reported_with_the_rows_of_the_last(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    from pyspark.sql.functions import window

    published(nsqd, topic, 5)
    frame = stream(spark, options_of(tmp_path, topic, nsqd))
    windows = window("timestamp", "1 minute")
    counted = frame.withWatermark("timestamp", "0 seconds").groupBy(windows).count()
    query = read_now(counted, tmp_path)
    assert [report.rows for report in reports_of(query)] == [5, 0]


def test_a_query_of_something_else_has_no_reports(spark: SparkSession, tmp_path: Path) -> None:
    query = read_now(spark.readStream.format("rate").load(), tmp_path)
    assert reports_of(query) == []
