"""Where rows go: a sink as a streaming query of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsqflow.errors import ConfigError
from nsqflow.pipelines.model import FILE_FORMATS, NOW, Sink
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.refusals import refusals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_COLUMNS = {"body", "value", "topic", "delay_ms"}
_LOG = "_spark_metadata"


def shaped(frame: DataFrame, sink: Sink) -> DataFrame:
    """The rows as a sink can take them: for ``nsq``, a message each."""
    if sink.format != "nsq":
        return frame
    from nsqflow.spark.sink import find_places

    names = {name.lower() for name in frame.columns}
    if not names <= _COLUMNS or names.isdisjoint(("body", "value")):
        frame = frame.selectExpr("to_json(struct(*)) AS value")
    try:
        find_places(frame.schema, sink.topic)
    except ConfigError as error:
        raise sink.place.wrong("", f": {error}") from None
    return frame


def start(spark: SparkSession, pipeline: Pipeline, sink: Sink, frame: DataFrame) -> StreamingQuery:
    """Start to write; ``frame`` is as ``shaped`` gives it."""
    check_history(spark, pipeline, sink)
    writer = frame.writeStream.queryName(f"{pipeline.name}.{sink.name}").outputMode(sink.mode)
    writer = writer.option("checkpointLocation", pipeline.checkpoint(sink))
    writer = _triggered(writer, sink.trigger or pipeline.run.trigger)
    if sink.batch:
        writer = writer.foreachBatch(_BatchWriter(pipeline, sink))
    else:
        writer = writer.format(sink.format).options(**pipeline.sink_options(sink))
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", sink.name)
    with refusals(sink.place, ""):
        return writer.start(None if sink.batch else sink.path)


def check_history(spark: SparkSession, pipeline: Pipeline, sink: Sink) -> None:
    """Refuse a folder that another checkpoint has written to.

    Spark counts in the folder which batches it has, and would take those of a new checkpoint,
    which begin at 0 again, for batches it has already, and drop them without a word.
    """
    if sink.batch or sink.format not in FILE_FORMATS:
        return
    with refusals(sink.place, "path"):
        written = _exists(spark, f"{sink.path}/{_LOG}")
    if written and not has_begun(spark, pipeline, sink):
        raise sink.place.wrong(
            "path",
            f" {sink.path!r} was written with another checkpoint than "
            f"{pipeline.checkpoint(sink)}, and Spark would drop what is written with this one; "
            "give another path, or that checkpoint",
        )


def has_begun(spark: SparkSession, pipeline: Pipeline, sink: Sink) -> bool:
    """Whether a sink has a checkpoint to go on from."""
    with refusals(pipeline.run.place, "checkpoint"):
        return _exists(spark, f"{pipeline.checkpoint(sink)}/offsets")


class _BatchWriter:
    """Writes each batch as a table of its own."""

    def __init__(self, pipeline: Pipeline, sink: Sink) -> None:
        self._sink = sink
        self._options = pipeline.sink_options(sink)

    def __call__(self, frame: DataFrame, number: int) -> None:
        sink = self._sink
        # With `complete`, each batch has all rows there are; but a topic can only be added to.
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


def _exists(spark: SparkSession, path: str) -> bool:
    jvm: Any = spark._jvm
    where = jvm.org.apache.hadoop.fs.Path(path)
    return bool(where.getFileSystem(spark._jsc.hadoopConfiguration()).exists(where))
