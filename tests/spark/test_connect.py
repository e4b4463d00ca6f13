"""Spark Connect: a server, and a client without a JVM that only knows the server's address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.servers import start_nsqd
from tests.fixtures.spark import Driver, published, start_connect_server

BATCH = """
import sys
from pyspark.sql import SparkSession
from nsqflow.spark import NsqDataSource

class Registered(NsqDataSource):
    @classmethod
    def name(cls):
        return "registered"  # nsq itself would be found without

address, nsqd, nsqd_http, spool = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()
spark.dataSource.register(Registered)
rows = (
    spark.read.format("registered")
    .options(topic="batch", channel="spark", nsqd=nsqd, nsqdHttp=nsqd_http, spoolLocation=spool)
    .load()
)
for row in sorted(rows.select("body", "topic").collect()):
    print(row.topic, bytes(row.body).split()[0].decode())
spark.stop()
"""

STREAM = """
import sys
from pyspark.sql import SparkSession

address, nsqd, nsqd_http, spool, table = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()
query = (
    spark.readStream.format("nsq")
    .options(topic="stream", channel="spark", nsqd=nsqd, nsqdHttp=nsqd_http, spoolLocation=spool)
    .load()
    .writeStream.format("parquet")
    .option("checkpointLocation", f"{table}-checkpoint")
    .trigger(availableNow=True)
    .start(table)
)
query.awaitTermination()
rows = spark.read.parquet(table)
print(rows.count(), rows.select("id").distinct().count())
spark.stop()
"""


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of Spark Connect."""
    with start_connect_server(tmp_path_factory.mktemp("connect")) as server:
        port = server.await_log(r"Spark Connect server started at: \S+:(\d+)")[1]
        yield f"sc://127.0.0.1:{port}"


@pytest.mark.timeout(1200)
def test_a_client_registers_a_source_and_reads_a_batch(connect: str, tmp_path: Path) -> None:
    with start_nsqd(tmp_path) as nsqd:
        published(nsqd, "batch", 3, channel="spark")
        places = (nsqd.tcp_address, nsqd.http_address, f"{tmp_path}/spool")
        with Driver(tmp_path, BATCH, connect, *places) as client:
            assert client.await_end() == [f"batch {number:010d}" for number in range(3)]


@pytest.mark.timeout(1200)
def test_a_client_that_registers_nothing_runs_a_stream_on_the_server(
    connect: str, tmp_path: Path
) -> None:
    with start_nsqd(tmp_path) as nsqd:
        published(nsqd, "stream", 5000, channel="spark")
        places = (nsqd.tcp_address, nsqd.http_address, f"{tmp_path}/spool", f"{tmp_path}/table")
        with Driver(tmp_path, STREAM, connect, *places) as client:
            assert client.await_end() == ["5000 5000"]
