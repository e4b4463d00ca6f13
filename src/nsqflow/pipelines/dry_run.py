"""A dry run: Spark checks the whole pipeline without reading a message or writing anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nsqflow.pipelines.model import FILE_FORMATS, Sink
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.sinks import check_checkpoint, check_new, to_message_columns
from nsqflow.pipelines.source import empty_stream
from nsqflow.pipelines.spark_errors import first_line, spark_errors_as_config_errors
from nsqflow.pipelines.views import Views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KNOWN = (*FILE_FORMATS, "nsq", "console", "jdbc")


def dry_run(
    spark: SparkSession,
    pipeline: Pipeline,
    folder: Path,
    interrupt: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Run a pipeline on no messages; return the columns of each view and sink.

    ``folder`` is an empty folder for what Spark has to write. ``interrupt`` is called
    now and then, and raises to end the run.
    """
    check_new(spark, pipeline)
    source = folder / "source"
    source.mkdir()
    frames = Views(spark, pipeline, empty_stream(spark, pipeline, source))
    columns = {name: _columns(frame) for name, frame in frames}
    for sink in pipeline.sinks:
        interrupt()
        frame = to_message_columns(frames.of(sink), sink)
        columns[f"sink {sink.name}"] = _columns(frame)
        check_checkpoint(spark, pipeline, sink)
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
        # Any other error means that Spark knows the format.
        if "DATA_SOURCE_NOT_FOUND" in (text := first_line(error)) or "NOT_ENABLED" in text:
            raise sink.ref.error("format", f" {sink.format!r}: {text}") from error


def _run(frame: DataFrame, sink: Sink, folder: Path) -> None:
    """Run a query without input: Spark checks only then whether it can be streamed."""
    writer = frame.writeStream.format("noop").outputMode(sink.mode)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    with spark_errors_as_config_errors(sink.ref, "mode"):
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()


def _write(spark: SparkSession, frame: DataFrame, sink: Sink, folder: Path) -> None:
    """Write no rows to a file: Spark checks the columns against the format only then."""
    if sink.format not in FILE_FORMATS:
        return
    writer = spark.createDataFrame([], frame.schema).write.format(sink.format)
    with spark_errors_as_config_errors(sink.ref, ""):
        writer.options(**sink.options).partitionBy(*sink.partition_by).save(str(folder / "out"))
