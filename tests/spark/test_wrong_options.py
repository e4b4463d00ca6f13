"""Wrong options fail at once, in one line, and without a secret in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from tests.fixtures.servers import Nsqd
from tests.fixtures.spark import SPARK_PATIENCE, published
from tests.spark.queries import (
    Query,
    await_depth,
    new_topic,
    options_of,
    stream,
    table,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "hush-hush"


@pytest.fixture
def topic() -> str:
    return new_topic()


WRONG = [
    ({"maxMessagesPerPartition": "none"}, "maxMessagesPerPartition='none' is invalid"),
    ({"partitionsPerNsqd": "0"}, "partitionsPerNsqd='0' is invalid: must be an integer"),
    ({"idleTimeout": "soon"}, "idleTimeout='soon' is invalid: must be a duration"),
    ({"idleTimeout": "60"}, "idleTimeout=60s is invalid: must be less than msgTimeout"),
    ({"dedupe": "never"}, "dedupe='never' is invalid: must be redelivered, always"),
    ({"includeMetadata": "no"}, "includeMetadata='no' is invalid: must be true or false"),
    ({"channel": "c#ephemeral"}, "channel: 'c#ephemeral' would lose messages"),
    ({"channel": None}, "channel is missing"),
    ({"topic": "a b"}, "topic: "),
    ({"topicPattern": "x"}, "both topic and topicPattern are given"),
    ({"topic": None, "topicPattern": "("}, "topicPattern: '(' is not a regular expression"),
    ({"lookupd": "127.0.0.1:4161"}, "both lookupd and nsqd are given"),
    ({"nsqdHttp": "a:1,b:2"}, "nsqdHttp has 2 addresses and nsqd 1"),
    ({"spoolLocation": "hdfs://host/spool"}, "hdfs is not among the stores proven"),
    ({"spoolLocation": None}, "spoolLocation is missing"),
    ({"maxAttempts": "3"}, "deadLetterTopic is missing"),
    ({"snappy": "true", "deflate": "true"}, "both snappy and deflate are set"),
    ({"tlsVerify": "false"}, "tlsVerify without tls"),
    ({"maxMessagePerPartition": "1"}, "did you mean 'maxMessagesPerPartition'?"),
    ({"maxBatchBytes": "1000"}, "maxBatchBytes is an option of write and writeStream, not of"),
    ({"authSecrt": SECRET}, "did you mean 'authSecret'?"),
    ({"authSecret": SECRET, "authSecretEnv": "X"}, "both authSecret and authSecretEnv are given"),
    ({"nsqdHttp": f"http://me:{SECRET}@host:0"}, "nsqdHttp: "),
    ({"path": "/somewhere"}, "load, save and start take no path"),
]


@pytest.mark.parametrize(("change", "expected"), WRONG)
@pytest.mark.parametrize("kind", ["stream", "table"])
def test_an_invalid_option_is_reported_in_one_line_by_load(
    spark: SparkSession,
    tmp_path: Path,
    nsqd: Nsqd,
    kind: str,
    change: dict[str, str | None],
    expected: str,
) -> None:
    options = options_of(tmp_path, "orders", nsqd, **change)
    with pytest.raises(AnalysisException) as caught:
        (stream if kind == "stream" else table)(spark, options)
    first, *rest = str(caught.value).splitlines()
    prefix = "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: "
    assert first.startswith(f"{prefix}nsqflow.errors.ConfigError: ")
    assert expected in first
    assert [line.split(":")[0] for line in rest] == [" SQLSTATE"]
    assert SECRET not in str(caught.value)


def test_options_that_only_a_stream_or_only_a_table_takes_are_refused_elsewhere(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    options = options_of(tmp_path, topic, nsqd)
    for option, value, expected in (
        ("leaseTimeout", "60s", "leaseTimeout is an option of readStream, not of read"),
        (
            "startingPosition",
            "latest",
            "startingPosition='latest' is invalid with mode=consume: must be given with "
            "mode=range, or with readStream",
        ),
    ):
        with pytest.raises(Exception, match=option) as caught:
            table(spark, options | {option: value}).count()
        assert first_line(str(caught.value)) == expected
    query = Query(stream(spark, options | {"mode": "peek"}), tmp_path)
    assert first_line(query.failure()) == "mode is an option of read, not of readStream"


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}])
def test_an_option_that_becomes_invalid_is_reported_in_the_first_line_on_restart(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str, trigger: dict[str, Any]
) -> None:
    options = options_of(tmp_path, topic, nsqd)
    published(nsqd, topic, 5)

    def run(**more: str) -> None:
        frame = stream(spark, options | more)
        writer = frame.writeStream.format("noop").trigger(**trigger if more else {"once": True})
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination(int(SPARK_PATIENCE))

    run()
    with pytest.raises(StreamingQueryException) as failed:
        run(mode="peek")
    assert first_line(str(failed.value)) == "mode is an option of read, not of readStream"


def test_an_invalid_option_of_the_sink_is_reported_in_the_first_line(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    options = {"nsqd": nsqd.tcp_address, "topic": topic, "maxBatchBytes": "x"}
    rows = spark.range(1).selectExpr("cast(id as string) as value")
    said = (
        "maxBatchBytes='x' is invalid: must be a number of bytes from 1k to 1g (units: k, m, g for "
        "1024, 1024**2, 1024**3)"
    )
    with pytest.raises(AnalysisException) as caught:
        rows.write.format("nsq").options(**options).mode("append").save()
    assert first_line(str(caught.value)) == said
    ticks = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    writer = ticks.writeStream.format("nsq").options(**options)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(int(SPARK_PATIENCE))
    assert first_line(str(failed.value)) == said


def test_an_error_at_the_start_of_a_query_is_in_the_first_line(
    spark: SparkSession, tmp_path: Path, topic: str
) -> None:
    options = options_of(tmp_path, topic, nsqd="127.0.0.1:1", nsqdHttp="127.0.0.1:1")
    said = "no nsqd is reachable: 127.0.0.1:1: "
    assert first_line(Query(stream(spark, options), tmp_path).failure()).startswith(said)
    with pytest.raises(AnalysisException) as caught:
        table(spark, options).count()
    assert first_line(str(caught.value)).startswith(said)


def first_line(text: str) -> str:
    """What the first line of an error of Spark's says in our words."""
    first, _, _ = text.partition("\n")
    _, found, ours = first.partition(": nsqflow.errors.")
    assert found, text
    return ours.partition(": ")[2]


def test_a_spool_that_is_not_writable_is_reported_before_anything_is_read(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    published(nsqd, topic, 5, channel="spark")
    (tmp_path / "spool").write_text("not a folder")
    with pytest.raises(Exception, match=f"spoolLocation '{tmp_path}/spool': can't create"):
        table(spark, options_of(tmp_path, topic, nsqd)).count()
    await_depth(nsqd, topic, 5)
