"""Reads messages as a stream, from NSQ or from files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsqflow.errors import DiscoveryError, NetworkError
from nsqflow.pipelines.model import Sink, Source
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.spark_errors import spark_errors_as_config_errors
from nsqflow.spark.options import parse_stream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS = {
    "body": "binary",
    "id": "binary",
    "attempts": "int",
    "timestamp": "timestamp",
    "timestamp_ns": "bigint",
    "topic": "string",
    "channel": "string",
    "nsqd": "string",
}
"""The columns of ``format("nsq")``."""

POSITIONS = {
    "partition": "int",
    "offset": "bigint",
    "size": "int",
    "internal_id": "bigint",
    "trace_id": "decimal(20,0)",
    "headers": "map<string,string>",
    "tag": "string",
}
"""Those that it also has for topics of the redesigned NSQ."""


def read_messages(spark: SparkSession, pipeline: Pipeline, sink: Sink) -> DataFrame:
    """Return the stream of messages for one sink."""
    if pipeline.source.files:
        return _read_files(spark, pipeline.source)
    with spark_errors_as_config_errors(pipeline.source.ref, ""):
        options = pipeline.source_options(sink)
        return spark.readStream.format("nsq").options(**options).load()


def empty_stream(spark: SparkSession, pipeline: Pipeline, folder: Path) -> DataFrame:
    """Return a stream with the same columns and no messages; ``folder`` must be empty.

    Without a server that answers, the columns are those of the classic NSQ.
    """
    if pipeline.source.files:
        schema = _read_files(spark, pipeline.source).schema
        return spark.readStream.schema(schema).parquet(str(folder))
    columns = ", ".join(f"{name} {kind}" for name, kind in _columns(pipeline).items())
    return spark.readStream.schema(columns).parquet(str(folder))


def _columns(pipeline: Pipeline) -> dict[str, str]:
    from nsqflow.spark.source.topic_lookup import has_partitions

    options = parse_stream(pipeline.source_options(pipeline.sinks[0]))
    if not options.include_metadata:
        return {"body": COLUMNS["body"]}
    try:
        return COLUMNS | (POSITIONS if has_partitions(options) else {})
    except (DiscoveryError, NetworkError):
        return COLUMNS


def _read_files(spark: SparkSession, source: Source) -> DataFrame:
    from pyspark.sql.functions import col

    assert source.files
    with spark_errors_as_config_errors(source.ref, "files"):
        reader = spark.readStream.format(source.format).options(**source.options)
        if source.format == "text":
            lines = reader.load(source.files).withColumnRenamed("value", "body")
            # nsqd rejects empty messages, so an empty line is skipped.
            return _as_messages(lines.where("length(body) > 0"), source)
        # For a stream, Spark does not infer the columns of files.
        table = spark.read.format(source.format).options(**source.options).load(source.files)
        rows = reader.schema(table.schema).load(source.files)
    if "body" not in map(str.lower, rows.columns):
        columns = ", ".join(rows.columns)
        raise source.ref.error("files", f" have columns {columns}: there must be a column body")
    return _as_messages(rows.where(col("body").isNotNull()), source)


def _as_messages(rows: DataFrame, source: Source) -> DataFrame:
    from pyspark.sql.functions import col, lit, unix_micros

    there = {name.lower() for name in rows.columns}
    written = col("_metadata.file_modification_time")
    time = col("timestamp") if "timestamp" in there else written
    otherwise: dict[str, Column] = {
        "timestamp": time,
        "timestamp_ns": unix_micros(time.cast("timestamp")) * 1000,
        "topic": lit(",".join(source.topic) or None),
    }
    # A file of messages of the redesigned NSQ has some of their columns; lines of text have none.
    columns = COLUMNS if there.isdisjoint(POSITIONS) else COLUMNS | POSITIONS
    return rows.select(
        *(
            (col(name) if name in there else otherwise.get(name, lit(None))).cast(kind).alias(name)
            for name, kind in columns.items()
        )
    )
