"""``format("nsq")``: Spark's entry point, which creates readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from nsqflow.errors import ConfigError
from nsqflow.spark.internals import hide_traceback
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
        """Return the format's name."""
        return "nsq"

    @hide_traceback()
    def schema(self) -> str:
        """Return the columns; ``load()`` calls this first, and so reports invalid options."""
        # Spark does not say whether it is a stream; but a stream has all options of a table except
        # ``mode``.
        parse = parse_batch if "mode" in self.options else parse_stream
        included = parse(self.options).include_metadata
        return f"body binary, {_METADATA}" if included else "body binary"

    @hide_traceback()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table."""
        from nsqflow.spark.source.reader import NsqBatchReader

        return NsqBatchReader(parse_batch(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream."""
        from nsqflow.spark.source.reader import InvalidOptionsReader, NsqStreamReader

        try:
            return NsqStreamReader(parse_stream(self.options))
        except ConfigError as error:
            # If this raised, Spark would report another error: it would try to stop a reader that
            # does not exist.
            return InvalidOptionsReader(error)

    @hide_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a table."""
        from nsqflow.spark.sink.writer import NsqWriter

        return NsqWriter(schema, self.options, overwrite)

    @hide_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a stream."""
        from nsqflow.spark.sink.writer import NsqStreamWriter

        return NsqStreamWriter(schema, self.options)
