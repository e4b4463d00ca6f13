"""Writing to NSQ from Spark, as a batch and as a stream: every row is a message."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqflow.protocol import MessageBatch, Rdy
from nsqflow.spark.connection import connect
from nsqflow.spark.server_options import Access
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import PATIENCE, Nsqd, Nsqlookupd, start_nsqd, start_nsqlookupd
from tests.fixtures.spark import Driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECRET = "hunter2"

numbers = count(1)


@pytest.fixture
def topic() -> str:
    return f"sink_{next(numbers)}"


@pytest.fixture(scope="module")
def auth() -> Iterator[AuthServer]:
    with AuthServer({SECRET: [Authorization()]}) as server:
        yield server


@pytest.fixture(scope="module")
def strict(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates, auth: AuthServer
) -> Iterator[tuple[list[Nsqd], Nsqlookupd]]:
    """Two nsqd that want TLS and a secret, and an nsqlookupd that knows them."""
    options = [f"-auth-http-address={auth.address}", "-tls-required=tcp-https"]
    with ExitStack() as stack:
        lookupd = stack.enter_context(start_nsqlookupd())
        folders = [tmp_path_factory.mktemp("nsqd") for _ in range(2)]
        nsqds = [
            stack.enter_context(
                start_nsqd(each, tls=certificates, lookupd=[lookupd], options=options)
            )
            for each in folders
        ]
        yield nsqds, lookupd


def drain(nsqd: Nsqd, topic: str, access: Access | None = None) -> Counter[bytes]:
    """Return all bodies that an nsqd has of a topic without readers."""
    stats = json.loads(nsqd.ask(f"/stats?format=json&topic={topic}")[1])
    depth = sum(each["depth"] for each in stats["topics"] or [])
    received: Counter[bytes] = Counter()
    with closing(connect(nsqd.tcp_address, access or Access(), topic=topic, channel="c")) as link:
        link.send(Rdy(2500))
        while received.total() < depth:
            events = link.receive(PATIENCE)
            assert events, "nothing came"
            for event in events:
                assert isinstance(event, MessageBatch)
                received.update(event.columns().bodies())
                link.session.finish_packed(event.columns().ids)
            link.flush()
    return received


def words_of(frame: DataFrame, **options: str) -> str:
    """What a write that can't work ends in."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 (which, depends on where it fails)
        frame.write.format("nsq").options(**options).mode("append").save()
    return str(caught.value)


def test_every_row_of_a_batch_is_a_message(spark: SparkSession, nsqd: Nsqd, topic: str) -> None:
    frame = spark.range(0, 30_000, numPartitions=3).selectExpr("cast(id as string) as value")
    frame.write.format("nsq").options(nsqd=nsqd.tcp_address, topic=topic).mode("append").save()
    assert drain(nsqd, topic) == Counter(b"%d" % n for n in range(30_000))


def test_a_row_says_where_it_goes_and_when(spark: SparkSession, nsqd: Nsqd, topic: str) -> None:
    rows = [
        (bytearray(b"named"), f"{topic}_other", None),
        (bytearray(b"unnamed"), None, 0),
        (bytearray(b"in a moment"), f"{topic}_other", 1),
        (bytearray(b"in an hour"), f"{topic}_late", 3_600_000),
    ]
    frame = spark.createDataFrame(rows, "body binary, topic string, delay_ms int")
    frame.write.format("nsq").options(nsqd=nsqd.tcp_address, topic=topic).mode("append").save()
    assert drain(nsqd, topic) == Counter([b"unnamed"])
    assert drain(nsqd, f"{topic}_other") == Counter([b"named", b"in a moment"])
    with closing(connect(nsqd.tcp_address, Access(), topic=f"{topic}_late", channel="c")) as link:
        link.send(Rdy(1))
        assert link.receive(0.1) == []
    late = json.loads(nsqd.ask(f"/stats?format=json&topic={topic}_late")[1])
    assert late["topics"][0]["channels"][0]["deferred_count"] == 1


def test_every_row_of_a_stream_is_a_message_and_a_restart_adds_none(
    spark: SparkSession, nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "rows")

    def run() -> None:
        source = spark.readStream.schema("value string").option("maxFilesPerTrigger", 2)
        query = (
            source.parquet(folder)
            .writeStream.format("nsq")
            .options(nsqd=nsqd.tcp_address, topic=topic, maxBatchBytes="16k")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for first in (0, 5000):
        frame = spark.range(first, first + 5000, numPartitions=4)
        frame.selectExpr("cast(id as string) as value").write.mode("append").parquet(folder)
        run()
    run()
    assert drain(nsqd, topic) == Counter(b"%d" % n for n in range(10_000))


def test_it_finds_the_nsqd_and_shows_them_its_secret_over_tls(
    spark: SparkSession,
    strict: tuple[list[Nsqd], Nsqlookupd],
    certificates: Certificates,
    topic: str,
    tmp_path: Path,
) -> None:
    nsqds, lookupd = strict
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    frame = spark.range(0, 4000, numPartitions=2).selectExpr("cast(id as string) as value")
    frame.write.format("nsq").mode("append").options(
        lookupd=lookupd.http_address,
        topic=topic,
        maxBatchBytes="1k",
        tls="true",
        tlsCaFile=str(certificates.ca),
        authSecretFile=str(secret),
        snappy="true",
    ).save()
    access = Access(tls=True, tls_verify=False, auth_secret=SECRET)
    parts = [drain(nsqd, topic, access) for nsqd in nsqds]
    assert parts[0] + parts[1] == Counter(b"%d" % n for n in range(4000))
    assert all(parts)


def test_what_cannot_be_written_fails_before_any_row_is_read(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    address = nsqd.tcp_address
    rows = spark.range(3)
    assert "column 'id' of type bigint" in words_of(rows, nsqd=address, topic=topic)
    body = rows.selectExpr("cast(id as string) as body")
    assert "neither an option topic nor a column topic" in words_of(body, nsqd=address)
    secret = words_of(body, nsqd=address, topic=topic, authsecrt="swordfish")
    assert "authsecrt" in secret
    assert "swordfish" not in secret
    assert drain(nsqd, topic) == Counter()


def test_a_row_that_is_not_a_message_fails_the_write_and_is_named(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    rows = [("a",), (None,), ("c",)]
    frame = spark.createDataFrame(rows, "value string").coalesce(1)
    words = words_of(frame, nsqd=nsqd.tcp_address, topic=topic)
    assert "row 1 of its partition (the first is 0): body is null" in words
    assert drain(nsqd, topic) == Counter()


def test_what_did_not_parse_goes_to_a_topic_of_its_own(
    spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    from pyspark.sql.functions import col, from_json, lit, to_json, when

    rows = [('{"n": 1}',), ("not json",), ('{"n": 2}',), ('{"n": "one"}',)]
    parsed = spark.createDataFrame(rows, "value string").select(
        col("value"),
        from_json(
            col("value"),
            "n int, _corrupt_record string",
            {"columnNameOfCorruptRecord": "_corrupt_record"},
        ).alias("order"),
    )
    good = col("order").isNotNull() & col("order._corrupt_record").isNull()
    out = parsed.select(
        when(good, to_json("order")).otherwise(col("value")).alias("value"),
        when(good, lit(topic)).otherwise(lit(f"{topic}_dead")).alias("topic"),
    )
    out.write.format("nsq").option("nsqd", nsqd.tcp_address).mode("append").save()
    assert drain(nsqd, topic) == Counter([b'{"n":1}', b'{"n":2}'])
    assert drain(nsqd, f"{topic}_dead") == Counter([b"not json", b'{"n": "one"}'])


WRITE = """
import sys
from tests.fixtures.spark import start_spark

spark = start_spark()
rows = spark.range(3).selectExpr("cast(id as string) as value").coalesce(1)
print("ready", flush=True)
rows.write.format("nsq").options(topic="t", nsqd=sys.argv[1]).mode("append").save()
print("written", flush=True)
spark.stop()
"""


def test_a_dead_nsqd_shows_on_standard_error_while_the_task_goes_on_trying(tmp_path: Path) -> None:
    with start_nsqd(tmp_path) as nsqd:
        address = nsqd.tcp_address
    with Driver(tmp_path, WRITE, address) as driver:
        driver.await_log(
            rf"the sink can't publish to nsqd {address}: \[Errno \d+\] Connection refu"
        )
        assert driver.lines == ["ready"]
        with start_nsqd(tmp_path, options=[f"-tcp-address={address}"]) as nsqd:
            assert driver.await_end() == ["ready", "written"]
            assert drain(nsqd, "t") == Counter([b"0", b"1", b"2"])
