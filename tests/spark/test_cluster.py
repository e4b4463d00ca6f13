"""A real cluster: nothing assumes one machine, and a machine that dies costs nothing."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fixtures.servers import start_nsqd
from tests.fixtures.spark import SPARK_PATIENCE, Driver, SparkCluster, published

# The source, whose tasks wait with their second slot in the spool and not yet finished: they say
# where they run, and continue when something is written, or when the reader is gone.
STREAM = """
import os, socket, sys
from contextlib import suppress
from nsqflow.spark.datasource import NsqDataSource
from nsqflow.spark.options import parse_stream
from nsqflow.spark.source.reader import NsqStreamReader
from tests.fixtures.spark import start_spark

master, gate, nsqd, nsqd_http, shared = sys.argv[1:]
port = int(gate)

class HeldReader(NsqStreamReader):
    def read(self, partition):
        from nsqflow.spark.spool.slots import Slots
        create = Slots.create

        def create_and_wait(slots, number, *rest):
            written = create(slots, number, *rest)
            if number == 1:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as held:
                    held.sendall(os.getcwd().encode() + b"\\n")
                    held.recv(1)
            return written

        Slots.create = create_and_wait
        return super().read(partition)

class Held(NsqDataSource):
    @classmethod
    def name(cls):
        return "held"

    def streamReader(self, schema):
        return HeldReader(parse_stream(self.options))

def run():
    query = (
        spark.readStream.format("held")
        .options(topic="orders", channel="spark", nsqd=nsqd, nsqdHttp=nsqd_http)
        .options(spoolLocation=f"{shared}/spool", msgTimeout="5s")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{shared}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{shared}/table")
    )
    query.awaitTermination()

spark = start_spark(master)
spark.dataSource.register(Held)
for _ in range(2):
    run()
    bodies = spark.read.parquet(f"{shared}/table").select("body")
    print(bodies.count(), "rows", bodies.distinct().count(), "bodies")
spark.stop()
"""

EACH = 20_000  # messages on each nsqd: eight slots


@pytest.mark.timeout(1200)
def test_a_worker_that_dies_during_a_batch_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    with ExitStack() as end:
        nsqds = [end.enter_context(start_nsqd(make(tmp_path / name))) for name in ("a", "b")]
        for number, nsqd in enumerate(nsqds):
            published(nsqd, "orders", EACH, first=number * EACH, channel="spark")
        cluster = end.enter_context(SparkCluster(make(tmp_path / "cluster")))
        listener = end.enter_context(socket.create_server(("127.0.0.1", 0)))
        arguments = (
            cluster.master,
            str(listener.getsockname()[1]),
            ",".join(nsqd.tcp_address for nsqd in nsqds),
            ",".join(nsqd.http_address for nsqd in nsqds),
            str(make(tmp_path / "shared")),
        )
        driver = end.enter_context(Driver(tmp_path, STREAM, *arguments))
        held = dict(await_task(listener, driver) for _ in nsqds)
        assert held.keys() == {"worker-0", "worker-1"}
        cluster.kill_worker(0)
        assert held["worker-0"].recv(1) == b""  # the task itself is dead
        listener.close()
        for connection in held.values():
            connection.close()
        assert driver.await_end(2 * SPARK_PATIENCE) == [f"{2 * EACH} rows {2 * EACH} bodies"] * 2


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def await_task(listener: socket.socket, driver: Driver) -> tuple[str, socket.socket]:
    """The worker on which a task waits, and the connection by which it does."""
    listener.settimeout(SPARK_PATIENCE)
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        pytest.fail(driver.account())
    connection.settimeout(SPARK_PATIENCE)
    with connection.makefile() as file:
        (worker,) = (part for part in Path(file.readline()).parts if part.startswith("worker-"))
    return worker, connection
