"""Rows that lie in Spark's memory, written by two tasks; the rate is that of the whole call."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.rounds import MIN_SECONDS, ContenderFailed, Sample
from benchmarks.runs import ClientRuns
from benchmarks.spark_cpu import Meter, SparkSample
from benchmarks.spark_stand_ins import BODY_SIZE, PARTITIONS
from benchmarks.spark_topics import sink_options, spread_topic
from benchmarks.topics import Topic
from tests.fixtures.servers import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUBLISHER = [sys.executable, "-m", "benchmarks.clients.nsqflow_worker"]


class Writes:
    """Runs of the sinks, and of a client without Spark that publishes as much."""

    def __init__(self, spark: SparkSession, rows: int) -> None:
        self._rows = rows
        self._frame = spark.range(0, rows, 1, PARTITIONS).selectExpr(
            f"cast(lpad(cast(id as string), {BODY_SIZE}, '.') as binary) as body"
        )
        self._frame.cache().count()

    def nsq(self, nsqd: Sequence[Nsqd]) -> SparkSample:
        """Ours, to a topic that is spread over some nsqd."""
        with spread_topic(nsqd) as topics:
            sample = self._write("nsq", sink_options(topics[0].name, nsqd), nsqd)
            if (published := sum(topic.published() for topic in topics)) != self._rows:
                raise ContenderFailed(f"published {published} messages and not {self._rows}")
        return sample

    def nowhere(self) -> SparkSample:
        """A sink that discards everything."""
        return self._write("ready", {})

    def publish_many(self, nsqd: Nsqd) -> Sample:
        """Batches of 200, one awaited after the other."""
        new_topic = partial(Topic, nsqd.tcp_address, nsqd.http_address)
        runs = ClientRuns(PUBLISHER, "publish_many", MIN_SECONDS, new_topic)
        return runs.run_once(self._rows).sample()

    def close(self) -> None:
        """Let go of the memory."""
        self._frame.unpersist(blocking=True)

    def _write(
        self, target: str, options: Mapping[str, str], nsqd: Sequence[Nsqd] = ()
    ) -> SparkSample:
        meter = Meter([server.process.pid for server in nsqd])
        before = perf_counter()
        self._frame.write.format(target).options(**options).mode("append").save()
        return meter.sample(self._rows / (perf_counter() - before), self._rows)
