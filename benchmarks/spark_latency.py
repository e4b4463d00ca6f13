"""How long a message is on its way through an idle stream, from publishing to ``foreachBatch``.

Messages come one by one, about one a second, each after the one before has arrived. Beside it
stands how long a batch takes which has one row, and that ready made: that is the minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import uniform
from tempfile import TemporaryDirectory
from threading import Event
from time import perf_counter, perf_counter_ns, sleep
from typing import TYPE_CHECKING

from benchmarks.rounds import ContenderFailed
from benchmarks.spark_cpu import Meter, SparkSample
from benchmarks.spark_reads import PATIENCE, await_batches, duration
from benchmarks.spark_topics import source_options, spread_topic
from nsqflow.blocking import Producer
from tests.fixtures.servers import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WARM_UP = 3  # messages at first which don't count
PAUSE = (0.6, 1.0)  # seconds from an arrival to the next message: at any point of a turn


class Arrivals:
    """Takes the rows of each batch, and notes how old they are."""

    def __init__(self) -> None:
        self.ages: list[float] = []
        self._news = Event()

    def take(self, batch: DataFrame, _: int) -> None:
        for row in batch.select("body").collect():
            self.ages.append((perf_counter_ns() - int.from_bytes(row.body[:8], "big")) / 1e9)
        self._news.set()

    def wait(self, count: int) -> None:
        while len(self.ages) < count:
            self._news.clear()
            if len(self.ages) < count and not self._news.wait(PATIENCE):
                raise ContenderFailed(f"message {count} has not arrived in {PATIENCE} s")


@dataclass(frozen=True)
class Latency:
    """Runs of an idle stream."""

    spark: SparkSession
    folder: Path
    messages: int

    def nsq(self, nsqd: Nsqd) -> SparkSample:
        """From publishing to the batch, of each message."""
        arrivals = Arrivals()
        with (
            TemporaryDirectory(dir=self.folder) as spool,
            spread_topic([nsqd]) as (topic,),
            Producer(nsqd.tcp_address) as producer,
            self._started("nsq", source_options(topic.name, [nsqd], spool), arrivals.take),
        ):
            for _ in range(WARM_UP):
                self._send_one(producer, topic.name, arrivals)
            arrivals.ages.clear()
            meter, before = Meter([nsqd.process.pid]), perf_counter()
            for _ in range(self.messages):
                self._send_one(producer, topic.name, arrivals)
            sample = meter.sample(self.messages / (perf_counter() - before), self.messages)
        return with_percentiles(sample, arrivals.ages)

    def ready(self) -> SparkSample:
        """From the trigger to the commit, of each batch with one row."""
        options = {"rows": "1000000000", "perTrigger": "1"}
        with self._started("ready", options, collect) as query:
            await_batches(query, WARM_UP)
            meter, before = Meter(), perf_counter()
            await_batches(query, WARM_UP + self.messages)
            sample = meter.sample(self.messages / (perf_counter() - before), self.messages)
        batches = [duration(batch) for batch in query.recentProgress if batch.numInputRows]
        return with_percentiles(sample, batches[WARM_UP : WARM_UP + self.messages])

    def _send_one(self, producer: Producer, topic: str, arrivals: Arrivals) -> None:
        before = len(arrivals.ages)
        producer.publish(topic, perf_counter_ns().to_bytes(8, "big"))
        arrivals.wait(before + 1)
        sleep(uniform(*PAUSE))

    @contextmanager
    def _started(
        self, source: str, options: Mapping[str, str], take: Callable[[DataFrame, int], None]
    ) -> Iterator[StreamingQuery]:
        rows = self.spark.readStream.format(source).options(**options).load()
        with TemporaryDirectory(dir=self.folder) as checkpoint:
            writer = rows.writeStream.option("checkpointLocation", checkpoint)
            query = writer.foreachBatch(take).start()
            try:
                yield query
            finally:
                query.stop()


def collect(batch: DataFrame, _: int) -> None:
    batch.select("body").collect()


def with_percentiles(sample: SparkSample, seconds: Sequence[float]) -> SparkSample:
    ordered = sorted(seconds)
    return replace(sample, p50=ordered[len(ordered) // 2], p99=ordered[len(ordered) * 99 // 100])
