"""A dry run: all of a pipeline as Spark sees it, with not a message read and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nsqflow.pipelines.frames import Frames
from nsqflow.pipelines.messages import no_messages, read_messages
from nsqflow.pipelines.model import FILE_FORMATS, Sink
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.refusals import reason, refusals
from nsqflow.pipelines.sinks import check_history, shaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KNOWN = (*FILE_FORMATS, "nsq", "console", "jdbc")


def rehearse(
    spark: SparkSession,
    pipeline: Pipeline,
    folder: Path,
    interrupt: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Run a pipeline on no messages at all; gives the columns of each view and of each sink.

    ``folder`` is empty, and is for what Spark can't do without writing. ``interrupt`` is called
    now and then, and raises if it is to end.
    """
    source = folder / "source"
    source.mkdir()
    frames = Frames(spark, pipeline, no_messages(spark, source))
    columns = {name: _columns(frame) for name, frame in frames}
    for sink in pipeline.sinks:
        interrupt()
        if pipeline.source.files:
            read_messages(spark, pipeline, sink)
        frame = shaped(frames.of(sink), sink)
        columns[f"sink {sink.name}"] = _columns(frame)
        check_history(spark, pipeline, sink)
        _check_format(spark, sink)
        _run(frame, sink, folder / sink.name)
        _write(spark, frame, sink, folder / sink.name)
    return columns


def _columns(frame: DataFrame) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)


def _check_format(spark: SparkSession, sink: Sink) -> None:
    if sink.format in _KNOWN:
        return
    try:
        spark.read.format(sink.format).load()
    except Exception as error:
        # Whatever else it misses, Spark has found the format.
        if "DATA_SOURCE_NOT_FOUND" in (text := reason(error)) or "NOT_ENABLED" in text:
            raise sink.place.wrong("format", f" {sink.format!r}: {text}") from error


def _run(frame: DataFrame, sink: Sink, folder: Path) -> None:
    """Start a query that has nothing to do: only then Spark looks whether it can be streamed."""
    writer = frame.writeStream.format("noop").outputMode(sink.mode)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    with refusals(sink.place, "mode"):
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()


def _write(spark: SparkSession, frame: DataFrame, sink: Sink, folder: Path) -> None:
    """Write no rows to a file: only then Spark looks whether the format has such columns."""
    if sink.format not in FILE_FORMATS:
        return
    writer = spark.createDataFrame([], frame.schema).write.format(sink.format)
    with refusals(sink.place, ""):
        writer.options(**sink.options).partitionBy(*sink.partition_by).save(str(folder / "out"))
