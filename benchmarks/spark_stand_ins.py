"""A format that does nothing but what Spark asks for: the ceiling of its interface for Python.

``ready`` reads rows like those of ``nsq``, from Arrow batches that are made already, and writes by
throwing away what it is given.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

BODY_SIZE = 200
BATCH_ROWS = 2500  # as many as nsqd pushes at once, which make a batch of ours
PARTITIONS = 2
SCHEMA = (
    "body binary, id binary, attempts int, timestamp timestamp, timestamp_ns bigint, "
    "topic string, channel string, nsqd string"
)


def register(spark: SparkSession) -> None:
    """Make the format known to a session, whose workers need not find this module."""
    import benchmarks.spark_stand_ins as module

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    spark.dataSource.register(Ready)


def ready_rows(count: int) -> pa.RecordBatch:
    """Rows as ``nsq`` gives them; no two bodies are alike, and none can be compressed."""
    import pyarrow as pa

    from nsqflow.spark.source.rows import RowConverter
    from nsqflow.spark.spool.slot_format import STORED

    def fixed(size: int, data: bytes) -> pa.Array:
        offsets = pa.py_buffer(array("i", range(0, size * (count + 1), size)))
        return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)])

    def numbers(type: pa.DataType, typecode: str, first: int) -> pa.Array:
        data = pa.py_buffer(array(typecode, range(first, first + count)))
        return pa.Array.from_buffers(type, count, [None, data])

    random = Random(count)
    stored = pa.RecordBatch.from_arrays(
        [
            fixed(BODY_SIZE, random.randbytes(BODY_SIZE * count)),
            fixed(16, random.randbytes(8 * count).hex().encode()),
            numbers(pa.int32(), "i", 1),
            numbers(pa.int64(), "q", 1_700_000_000_000_000_000),
        ],
        schema=STORED,
    )
    outward = RowConverter("topic|127.0.0.1:4150", "channel", metadata=True, positions=False)
    [rows] = outward.convert(stored)
    return rows


class Ready(DataSource):
    """``format("ready")``; a stream takes the options ``rows`` and ``perTrigger``."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> ReadyReader:  # noqa: N802
        return ReadyReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DiscardingWriter:
        return DiscardingWriter()


@dataclass
class Part(InputPartition):
    """A number of rows."""

    rows: int


class ReadyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream whose offset is the number of rows so far."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = int(options["rows"])
        self._per_trigger = int(options["perTrigger"])

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """All there will be is there from the start."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        assert isinstance(limit, ReadMaxRows)
        return {"rows": min(self._rows, start["rows"] + limit.max_rows)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        rows = end["rows"] - start["rows"]
        parts = [rows // PARTITIONS + (place < rows % PARTITIONS) for place in range(PARTITIONS)]
        return [Part(part) for part in parts if part]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        batch = ready_rows(min(BATCH_ROWS, partition.rows))
        whole, rest = divmod(partition.rows, batch.num_rows)
        for _ in range(whole):
            yield batch
        if rest:
            yield batch.slice(0, rest)


class DiscardingWriter(DataSourceArrowWriter):
    """Takes all rows and keeps none."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
