"""Messages as a stream: of a topic, or of files with what was in one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsqflow.pipelines.model import Sink, Source
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.refusals import refusals

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
"""What ``format("nsq")`` gives."""


def read_messages(spark: SparkSession, pipeline: Pipeline, sink: Sink) -> DataFrame:
    """The messages for one sink."""
    if pipeline.source.files:
        return _read_files(spark, pipeline.source)
    with refusals(pipeline.source.place, ""):
        options = pipeline.source_options(sink)
        return spark.readStream.format("nsq").options(**options).load()


def no_messages(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream of the same columns in which nothing comes; ``folder`` is empty."""
    schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    return spark.readStream.schema(schema).parquet(str(folder))


def _read_files(spark: SparkSession, source: Source) -> DataFrame:
    from pyspark.sql.functions import col

    assert source.files
    with refusals(source.place, "files"):
        reader = spark.readStream.format(source.format).options(**source.options)
        if source.format == "text":
            lines = reader.load(source.files).withColumnRenamed("value", "body")
            # nsqd takes no empty message, so an empty line is none.
            return _as_messages(lines.where("length(body) > 0"), source)
        # Spark wants to be told the columns of a stream, and asks the files only for a table.
        table = spark.read.format(source.format).options(**source.options).load(source.files)
        rows = reader.schema(table.schema).load(source.files)
    if "body" not in map(str.lower, rows.columns):
        columns = ", ".join(rows.columns)
        raise source.place.wrong("files", f" have columns {columns}; a message needs body")
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
