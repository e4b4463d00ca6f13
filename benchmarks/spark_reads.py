"""Streams that are read to their end and thrown away, by a Spark that is warm.

The rate is that of all batches but the first, which starts what the others use: their rows, over
the time from the start of the second batch to the end of the last, by the query's own progress.
The CPU is that of the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from benchmarks.rounds import ContenderFailed
from benchmarks.spark_cpu import Meter, SparkSample
from benchmarks.spark_stand_ins import BODY_SIZE, PARTITIONS, SCHEMA, ready_rows
from benchmarks.spark_topics import source_options, spread_topic
from tests.fixtures.servers import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

PATIENCE = 120  # seconds for a query, on a machine that is busy


@dataclass(frozen=True)
class Reads:
    """Runs of the sources, all with the same number of rows in batches of the same size."""

    spark: SparkSession
    folder: Path
    rows: int
    per_trigger: int

    def nsq(self, nsqd: Sequence[Nsqd]) -> SparkSample:
        """Ours, from a topic that is spread over some nsqd."""
        with (
            TemporaryDirectory(dir=self.folder) as spool,
            spread_topic(nsqd, self.rows) as topics,
        ):
            options = source_options(topics[0].name, nsqd, spool)
            sample = self.read_all(options, [server.process.pid for server in nsqd])
            if left := sum(topic.unfinished() for topic in topics):
                raise ContenderFailed(f"left {left} of {self.rows} messages unfinished")
        return sample

    def read_all(self, options: dict[str, str], nsqd: Sequence[int]) -> SparkSample:
        """Ours, with these options, from nsqd of these processes."""
        limit = {"maxMessagesPerTrigger": str(self.per_trigger)}
        return self._read_all(self._load("nsq", options | limit), nsqd)

    def ready(self) -> SparkSample:
        """Batches that are made already, from Python."""
        options = {"rows": str(self.rows), "perTrigger": str(self.per_trigger)}
        return self._read_all(self._load("ready", options))

    def parquet(self) -> SparkSample:
        """Files with the same columns, as many at a time as there are partitions."""
        options = {"maxFilesPerTrigger": str(PARTITIONS), "path": str(self._files())}
        return self._read_all(self._load("parquet", options))

    def rate(self) -> SparkSample:
        """What the JVM makes up: a number and a time, and here a body."""
        options = {"rowsPerBatch": str(self.per_trigger), "numPartitions": str(PARTITIONS)}
        rows = self._load("rate-micro-batch", options).selectExpr(
            f"cast(lpad(cast(value as string), {BODY_SIZE}, '.') as binary) as body",
            "timestamp",
            "value",
        )
        with self._started(rows) as query:
            await_batches(query, 1)
            meter = Meter()
            await_batches(query, self.rows // self.per_trigger)  # it never ends
        return self._sample(query, meter)

    def _files(self) -> Path:
        """Where the files for parquet are, which are written the first time."""
        import pyarrow.parquet as pq

        folder = self.folder / f"parquet-{self.rows}-{self.per_trigger}"
        if not folder.exists():
            folder.mkdir()
            rows = ready_rows(self.per_trigger // PARTITIONS)
            for number in range(self.rows // rows.num_rows):
                with pq.ParquetWriter(folder / f"{number:04d}.parquet", rows.schema) as writer:
                    writer.write_batch(rows)
        return folder

    def _load(self, source: str, options: Mapping[str, str]) -> DataFrame:
        reader = self.spark.readStream.format(source).options(**options)
        return (reader.schema(SCHEMA) if source == "parquet" else reader).load()

    @contextmanager
    def _started(self, rows: DataFrame, **trigger: Any) -> Iterator[StreamingQuery]:
        with TemporaryDirectory(dir=self.folder) as checkpoint:
            writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = (writer.trigger(**trigger) if trigger else writer).start()
            try:
                yield query
            finally:
                query.stop()

    def _read_all(self, rows: DataFrame, nsqd: Sequence[int] = ()) -> SparkSample:
        with self._started(rows, availableNow=True) as query:
            await_batches(query, 1)
            meter = Meter(nsqd)
            if not query.awaitTermination(PATIENCE):
                raise ContenderFailed(f"not done in {PATIENCE} s")
        return self._sample(query, meter)

    def _sample(self, query: StreamingQuery, meter: Meter) -> SparkSample:
        progress = query.recentProgress
        rows = sum(batch.numInputRows for batch in progress)
        if rows < self.rows:
            raise ContenderFailed(f"read {rows} rows; {self.rows} were there")
        return meter.sample(rate_of(progress), rows - self.per_trigger)


def rate_of(progress: Sequence[StreamingQueryProgress]) -> float:
    """Rows a second of all batches but the first."""
    batches = [batch for batch in progress if batch.numInputRows][1:]
    if not batches:
        raise ContenderFailed("had one batch; two or more are needed")
    start, last_start = (
        datetime.fromisoformat(batch.timestamp) for batch in (batches[0], batches[-1])
    )
    seconds = (last_start - start).total_seconds() + duration(batches[-1])
    return sum(batch.numInputRows for batch in batches) / seconds


def duration(batch: StreamingQueryProgress) -> float:
    """Seconds from a batch's trigger until it was committed."""
    return batch.durationMs["triggerExecution"] / 1000


def await_batches(query: StreamingQuery, number: int) -> None:
    """Wait until this many batches with rows are done."""
    deadline = monotonic() + PATIENCE
    while not (last := query.lastProgress) or last.batchId + (last.numInputRows > 0) < number:
        if error := query.exception():
            raise ContenderFailed(str(error).partition("\n")[0])
        if monotonic() > deadline:
            raise ContenderFailed(f"not done with {number} batches in {PATIENCE} s")
        sleep(0.05)
