"""Wrong options fail at once, in one line, and without a secret in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.servers import Nsqd
from tests.fixtures.spark import published
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
    ({"maxMessagesPerPartition": "none"}, "maxMessagesPerPartition 'none'; allowed is a whole"),
    ({"partitionsPerNsqd": "0"}, "partitionsPerNsqd '0'; allowed is a whole number of 1 to 100"),
    ({"idleTimeout": "soon"}, "idleTimeout 'soon'; allowed is a time of 10ms to 1h"),
    ({"idleTimeout": "60"}, "idleTimeout 60s; allowed is less than msgTimeout (60s)"),
    ({"dedupe": "never"}, "dedupe 'never'; allowed is redelivered, always or off"),
    ({"includeMetadata": "no"}, "includeMetadata 'no'; allowed is true or false"),
    ({"channel": "c#ephemeral"}, "channel: 'c#ephemeral' would lose messages"),
    ({"channel": None}, "channel is missing"),
    ({"topic": "a b"}, "topic: "),
    ({"topicPattern": "x"}, "both of topic and topicPattern; give one of the two"),
    ({"topic": None, "topicPattern": "("}, "topicPattern: '(' is no regular expression"),
    ({"lookupd": "127.0.0.1:4161"}, "both of lookupd and nsqd; give one of the two"),
    ({"nsqdHttp": "a:1,b:2"}, "nsqdHttp has 2 and nsqd 1 addresses"),
    ({"spoolLocation": "hdfs://host/spool"}, "hdfs is not among the stores proven"),
    ({"spoolLocation": None}, "spoolLocation is missing"),
    ({"maxAttempts": "3"}, "deadLetterTopic is missing"),
    ({"snappy": "true", "deflate": "true"}, "snappy and deflate can't be had together"),
    ({"tlsVerify": "false"}, "tlsVerify without tls"),
    ({"maxMessagePerPartition": "1"}, "did you mean maxMessagesPerPartition?"),
    ({"maxBatchBytes": "1000"}, "maxBatchBytes is an option of write and writeStream, not of"),
    ({"authSecrt": SECRET}, "did you mean authSecret?"),
    ({"authSecret": SECRET, "authSecretEnv": "X"}, "authSecret and authSecretEnv; give one"),
    ({"nsqdHttp": f"http://me:{SECRET}@host:0"}, "nsqdHttp: "),
    ({"path": "/somewhere"}, "load, save and start take no path here"),
]


@pytest.mark.parametrize(("change", "told"), WRONG)
@pytest.mark.parametrize("kind", ["stream", "table"])
def test_a_wrong_option_is_told_in_one_line_by_load(
    spark: SparkSession,
    tmp_path: Path,
    nsqd: Nsqd,
    kind: str,
    change: dict[str, str | None],
    told: str,
) -> None:
    from pyspark.errors import AnalysisException

    options = options_of(tmp_path, "orders", nsqd, **change)
    with pytest.raises(AnalysisException) as caught:
        (stream if kind == "stream" else table)(spark, options)
    (line,) = (each for each in str(caught.value).splitlines() if "ConfigError: " in each)
    assert told in line
    assert SECRET not in str(caught.value)


def test_options_that_only_a_stream_or_only_a_table_takes_are_refused_elsewhere(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    options = options_of(tmp_path, topic, nsqd)
    with pytest.raises(Exception, match="ConfigError: startingPosition is an option of readStream"):
        table(spark, options | {"startingPosition": "latest"}).count()
    query = Query(stream(spark, options | {"mode": "peek"}), tmp_path)
    assert "ConfigError: mode is an option of read, not of readStream" in query.failure()


def test_a_spool_that_cannot_be_written_is_told_before_anything_is_read(
    spark: SparkSession, tmp_path: Path, nsqd: Nsqd, topic: str
) -> None:
    published(nsqd, topic, 5)
    (tmp_path / "spool").write_text("not a folder")
    with pytest.raises(Exception, match=f"spoolLocation '{tmp_path}/spool': can't create"):
        table(spark, options_of(tmp_path, topic, nsqd)).count()
    await_depth(nsqd, topic, 5)
