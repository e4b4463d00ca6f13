"""Starts the streaming query of a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqflow.errors import ConfigError
from nsqflow.pipelines.model import FILE_FORMATS, NOW, Sink
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.spark_errors import spark_errors_as_config_errors
from nsqflow.spark.internals import path_exists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_COLUMNS = {"body", "value", "topic", "delay_ms"}
_LOG = "_spark_metadata"

ROWS = "nsqflow_rows"
"""The name of the observed metric with the number of rows written."""


def to_message_columns(frame: DataFrame, sink: Sink) -> DataFrame:
    """Return the rows as the sink takes them: for ``nsq``, one message each."""
    if sink.format != "nsq":
        return frame
    from nsqflow.spark.sink.writer import find_columns

    names = {name.lower() for name in frame.columns}
    if not names <= _COLUMNS or names.isdisjoint(("body", "value")):
        frame = frame.selectExpr("to_json(struct(*)) AS value")
    try:
        find_columns(frame.schema, sink.topic)
    except ConfigError as error:
        raise sink.ref.error("", f": {error}") from None
    return frame


def with_row_count(frame: DataFrame, sink: Sink) -> DataFrame:
    """Count the rows that a sink writes, if Spark does not report them."""
    from pyspark.sql.functions import count, lit

    if sink.format in ("nsq", "console") and not sink.batch:
        return frame
    return frame.observe(ROWS, count(lit(1)).alias(ROWS))


def start(spark: SparkSession, pipeline: Pipeline, sink: Sink, frame: DataFrame) -> StreamingQuery:
    """Start the query; ``frame`` comes from ``to_message_columns``."""
    check_checkpoint(spark, pipeline, sink)
    writer = (
        with_row_count(frame, sink)
        .writeStream.queryName(f"{pipeline.name}.{sink.name}")
        .outputMode(sink.mode)
    )
    writer = writer.option("checkpointLocation", pipeline.checkpoint(sink))
    writer = _triggered(writer, pipeline.trigger(sink))
    if sink.batch:
        writer = writer.foreachBatch(_BatchWriter(pipeline, sink))
    else:
        writer = writer.format(sink.format).options(**pipeline.sink_options(sink))
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", sink.name)
    with spark_errors_as_config_errors(sink.ref, ""):
        return writer.start(None if sink.batch else sink.path)


def check_checkpoint(spark: SparkSession, pipeline: Pipeline, sink: Sink) -> None:
    """Raise if the sink's folder was written with another checkpoint.

    Spark records the written batches in the folder. With a new checkpoint, batches start at 0
    again, and Spark would silently drop them as already written.
    """
    if sink.batch or sink.format not in FILE_FORMATS:
        return
    with spark_errors_as_config_errors(sink.ref, "path"):
        written = path_exists(spark, f"{sink.path}/{_LOG}")
    if written and not has_checkpoint(spark, pipeline, sink):
        raise sink.ref.error(
            "path",
            f" {sink.path!r} was written with another checkpoint than "
            f"{pipeline.checkpoint(sink)}, and Spark would drop what is written with this one; "
            "give another path, or that checkpoint (a pipeline is named after its file: after "
            'renaming or copying it, name = "..." with the old name keeps the checkpoint)',
        )


def has_checkpoint(spark: SparkSession, pipeline: Pipeline, sink: Sink) -> bool:
    """Return whether a sink has a checkpoint to continue from."""
    with spark_errors_as_config_errors(pipeline.run.ref, "checkpoint"):
        return path_exists(spark, f"{pipeline.checkpoint(sink)}/offsets")


class _BatchWriter:
    """Writes each batch as a table of its own."""

    def __init__(self, pipeline: Pipeline, sink: Sink) -> None:
        self._sink = sink
        self._options = pipeline.sink_options(sink)

    def __call__(self, frame: DataFrame, number: int) -> None:
        sink = self._sink
        # With `complete`, each batch has all rows; but a topic can only be appended to.
        mode = "overwrite" if sink.mode == "complete" and sink.format != "nsq" else "append"
        writer = frame.write.format(sink.format).mode(mode).options(**self._options)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        writer.save(sink.path)


def _triggered(writer: DataStreamWriter, trigger: str | None) -> DataStreamWriter:
    if trigger is None:
        return writer
    return (
        writer.trigger(availableNow=True)
        if trigger == NOW
        else writer.trigger(processingTime=trigger)
    )
