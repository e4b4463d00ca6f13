"""Reads messages as a stream, from NSQ or from files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsqflow.pipelines.model import Sink, Source
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.spark_errors import spark_errors_as_config_errors

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


def read_messages(spark: SparkSession, pipeline: Pipeline, sink: Sink) -> DataFrame:
    """Return the stream of messages for one sink."""
    if pipeline.source.files:
        return _read_files(spark, pipeline.source)
    with spark_errors_as_config_errors(pipeline.source.ref, ""):
        options = pipeline.source_options(sink)
        return spark.readStream.format("nsq").options(**options).load()


def empty_stream(spark: SparkSession, folder: Path) -> DataFrame:
    """Return a stream with the same columns and no messages; ``folder`` must be empty."""
    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    return spark.readStream.schema(schema).parquet(str(folder))


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
    return rows.select(
        *(
            (col(name) if name in there else otherwise.get(name, lit(None))).cast(kind).alias(name)
            for name, kind in COLUMNS.items()
        )
    )
