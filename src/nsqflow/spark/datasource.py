"""``format("nsq")``: what Spark asks for first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from nsqflow.spark.options import parse_batch, parse_stream

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

_METADATA = (
    "id binary, attempts int, timestamp timestamp, timestamp_ns bigint, "
    "topic string, channel string, nsqd string"
)


class NsqDataSource(DataSource):
    """NSQ topics as streams, tables and targets.

        spark.readStream.format("nsq")
            .option("lookupd", "127.0.0.1:4161")
            .option("topic", "orders")
            .option("channel", "spark")
            .option("spoolLocation", "/data/spool/orders")
            .load()

    Columns: ``body`` binary, ``id`` binary, ``attempts`` int, ``timestamp`` timestamp,
    ``timestamp_ns`` long, ``topic``, ``channel`` and ``nsqd`` strings; with
    ``includeMetadata=false`` only ``body``. The options are in ``docs/spark-options.md``.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "nsq"

    def schema(self) -> str:
        """The columns of a read; wrong options show here first, when ``load()`` is called."""
        # Whether it is a stream Spark does not tell; but what a table takes beside ``mode``, a
        # stream takes too.
        parse = parse_batch if "mode" in self.options else parse_stream
        included = parse(self.options).include_metadata
        return f"body binary, {_METADATA}" if included else "body binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        from nsqflow.spark.batch import NsqBatchReader

        return NsqBatchReader(parse_batch(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A streaming read."""
        from nsqflow.spark.stream import NsqStreamReader

        return NsqStreamReader(parse_stream(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from nsqflow.spark.sink import NsqWriter

        return NsqWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A streaming write."""
        from nsqflow.spark.sink import NsqStreamWriter

        return NsqStreamWriter(schema, self.options)
