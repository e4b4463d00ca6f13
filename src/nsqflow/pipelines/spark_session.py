"""The Spark session of a pipeline: started with the file's settings, ended with its JVM."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nsqflow.errors import JavaStartError, NsqError, SparkError, SparkExitedError
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.spark_errors import first_line, spark_errors_as_config_errors
from nsqflow.spark.internals import running_gateway, silence_accumulators
from nsqflow.spark.jvm import Lines, exit_text
from nsqflow.spark.startup import end_spark, start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def session(
    pipeline: Pipeline, master: str = "", on_stderr: Lines | None = None, /, **conf: str
) -> Iterator[SparkSession]:
    """Start Spark for the block; ``master`` and ``conf`` override the file.

    An error caused by the end of its JVM is raised as ``SparkExitedError``, other errors of Spark
    as ``SparkError``: their text must be read while the JVM runs.
    """
    from pyspark.errors import PySparkException

    with _quiet_loggers():
        spark = _start(pipeline, master, on_stderr, conf)
        if not _is_debugged():
            silence_accumulators(spark)
        gateway = running_gateway()
        try:
            yield spark
        except NsqError:
            raise
        except Exception as error:
            if how := exit_text(gateway):
                raise SparkExitedError(f"Spark's JVM has exited by itself: {how}") from error
            if isinstance(error, PySparkException) or hasattr(error, "java_exception"):
                raise SparkError(pipeline.document.hide(first_line(error))) from error
            raise
        finally:
            end_spark(spark)


def _start(
    pipeline: Pipeline, master: str, on_stderr: Lines | None, conf: dict[str, str]
) -> SparkSession:
    settings = {
        # Have queries share the cores equally.
        "spark.scheduler.mode": "FAIR",
        **pipeline.run.conf,
        "spark.master": master or pipeline.run.master,
        "spark.app.name": f"nsqflow {pipeline.name}",
    }
    level = "warn" if _is_debugged() else "fatal"
    try:
        return start_spark(
            settings | conf,
            log_level=level,
            on_stderr=on_stderr,
            translate_errors=spark_errors_as_config_errors(pipeline.run.ref, "master"),
        )
    except JavaStartError as error:
        raise pipeline.run.ref.error("", f": {error}") from error


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Silence loggers that print errors with a stack: they are reported in one line."""
    root, py4j = logging.getLogger(), logging.getLogger("py4j")
    logging.getLogger("SQLQueryContextLogger").disabled = True
    py4j.setLevel(logging.DEBUG if _is_debugged() else logging.CRITICAL)
    root.addFilter(_is_not_py4j)
    try:
        yield
    finally:
        root.removeFilter(_is_not_py4j)
        py4j.setLevel(logging.NOTSET)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    # py4j logs the end of the JVM, and raises an error as well.
    return record.module != "java_gateway"


def _is_debugged() -> bool:
    return logging.getLogger("nsqflow").isEnabledFor(logging.DEBUG)
