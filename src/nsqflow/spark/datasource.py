"""``format("nsq")``: Spark's entry point, which creates readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    BinaryType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from nsqflow.errors import ConfigError
from nsqflow.spark.internals import hide_traceback
from nsqflow.spark.options import SourceOptions, is_table, parse_batch, parse_stream

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

_BODY = StructField("body", BinaryType())
_METADATA = [
    StructField("id", BinaryType()),
    StructField("attempts", IntegerType()),
    StructField("timestamp", TimestampType()),
    StructField("timestamp_ns", LongType()),
    StructField("topic", StringType()),
    StructField("channel", StringType()),
    StructField("nsqd", StringType()),
]
_POSITIONS = [
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("size", IntegerType()),
    StructField("internal_id", LongType()),
    StructField("trace_id", DecimalType(20, 0)),
    StructField("headers", MapType(StringType(), StringType())),
    StructField("tag", StringType()),
]


def columns(options: SourceOptions, *, positions: bool) -> StructType:
    """Return the columns of a source; ``positions`` are those of the redesigned NSQ."""
    if not options.include_metadata:
        return StructType([_BODY])
    return StructType([_BODY, *_METADATA, *(_POSITIONS if positions else ())])


class NsqDataSource(DataSource):
    """NSQ topics as streams, tables and targets.

        spark.readStream.format("nsq")
            .option("lookupd", "127.0.0.1:4161")
            .option("topic", "orders")
            .option("channel", "spark")
            .option("spoolLocation", "/data/spool/orders")
            .load()

    Columns: ``body`` binary, ``id`` binary, ``attempts`` int, ``timestamp`` timestamp,
    ``timestamp_ns`` long, ``topic``, ``channel`` and ``nsqd`` strings; on the redesigned NSQ also
    ``partition`` int, ``offset`` long, ``size`` int, ``internal_id`` long, ``trace_id`` decimal,
    ``headers`` map of strings and ``tag`` string; with ``includeMetadata=false`` only ``body``. The
    options are in ``docs/spark-options.md``.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "nsq"

    @hide_traceback()
    def schema(self) -> StructType:
        """Return the columns; ``load()`` calls this first, and so reports invalid options."""
        # Spark does not say whether it is a stream; but some options are those of a table alone.
        parse = parse_batch if is_table(self.options) else parse_stream
        options = parse(self.options)
        from nsqflow.spark.source.topic_lookup import has_partitions

        return columns(options, positions=options.include_metadata and has_partitions(options))

    @hide_traceback()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table."""
        from nsqflow.spark.source.batch_reader import NsqBatchReader

        options = parse_batch(self.options)
        return NsqBatchReader(options, positions=_check_schema(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream."""
        from nsqflow.spark.source.reader import InvalidOptionsReader, NsqStreamReader

        try:
            options = parse_stream(self.options)
            return NsqStreamReader(options, positions=_check_schema(schema, options))
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


def _check_schema(given: StructType, options: SourceOptions) -> bool:
    """Return whether the rows have positions.

    Raises ``ConfigError`` if ``.schema(...)`` has other columns than the source.
    """
    positions = any(field.name == "partition" for field in given)
    ours = columns(options, positions=positions)
    if [*map(_signature, given)] == [*map(_signature, ours)]:
        return positions
    wanted = {field.name: field for field in ours}
    found = {field.name: field for field in given}
    if unknown := [name for name in found if name not in wanted]:
        problem = f"there is no column {unknown[0]!r}"
    elif missing := [name for name in wanted if name not in found]:
        problem = f"column {missing[0]!r} is missing"
    else:
        problem = next(
            (
                f"column {name!r} is {_describe(field)}, and must be {_describe(wanted[name])}"
                for name, field in found.items()
                if _signature(field) != _signature(wanted[name])
            ),
            "the columns are in another order",
        )
    listed = ", ".join(f"{field.name} {_describe(field)}" for field in ours)
    raise ConfigError(
        f".schema(...) is invalid: {problem}; leave it out, the columns are always {listed}"
    )


def _signature(field: StructField) -> tuple[object, ...]:
    return field.name, field.dataType, field.nullable  # without comments


def _describe(field: StructField) -> str:
    return field.dataType.simpleString() + ("" if field.nullable else " not null")
