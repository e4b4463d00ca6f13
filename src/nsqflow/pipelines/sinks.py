"""Starts the streaming query of a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqflow.client.body_compression import CODEC_HEADER, SIZE_HEADER
from nsqflow.errors import ConfigError
from nsqflow.pipelines.model import FILE_FORMATS, NOW, Sink
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.spark_errors import spark_errors_as_config_errors
from nsqflow.spark.internals import path_exists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_COLUMNS = {
    *("body", "value", "topic", "delay_ms"),
    *("key", "partition", "headers", "tag", "trace_id"),  # for topics of the redesigned NSQ
}
_LOG = "_spark_metadata"

ROWS = "nsqflow_rows"
"""The name of the observed metric with the number of rows written."""


def to_message_columns(frame: DataFrame, sink: Sink) -> DataFrame:
    """Return the rows as the sink takes them: for ``nsq``, one message each."""
    if sink.format != "nsq":
        return frame
    from nsqflow.spark.sink.columns import find_columns

    names = {name.lower() for name in frame.columns}
    if not names <= _COLUMNS or names.isdisjoint(("body", "value")):
        frame = frame.selectExpr("to_json(struct(*)) AS value")
    frame = _with_own_headers(frame)
    try:
        find_columns(frame.schema, sink.topic)
    except ConfigError as error:
        raise sink.ref.error("", f": {error}") from None
    return frame


def _with_own_headers(frame: DataFrame) -> DataFrame:
    """Leave out headers that a publisher can't set, so that those of a message can be passed on.

    They are nsqd's own, and those of a compressed body: the source has unpacked it.
    """
    from pyspark.sql.functions import map_filter
    from pyspark.sql.types import MapType

    for field in frame.schema.fields:
        if field.name.lower() == "headers" and isinstance(field.dataType, MapType):
            own = map_filter(
                frame[field.name],
                lambda name, _: ~(name.startswith("##") | name.isin(CODEC_HEADER, SIZE_HEADER)),
            )
            return frame.withColumn(field.name, own)
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


def check_new(spark: SparkSession, pipeline: Pipeline) -> None:
    """Raise if the pipeline is to begin somewhere and a sink has a checkpoint, which goes on."""
    if pipeline.begin_at is None:
        return
    for sink in pipeline.sinks:
        if has_checkpoint(spark, pipeline, sink):
            raise sink.ref.error(
                "",
                f" can't begin at {pipeline.begin_at}: it has the checkpoint "
                f"{pipeline.checkpoint(sink)}, and goes on where that ends; set another "
                "run.checkpoint and other paths for a new pipeline, or read a part of the topic "
                "with mode=range",
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
