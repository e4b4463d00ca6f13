"""The Spark that a pipeline runs on: started with what its file says, and ended with its JVM."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqflow.errors import NsqError
from nsqflow.pipelines.keys import Place
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.refusals import reason, refusals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = Path(__file__).parent / "log4j2.properties"
_PATIENCE = 30.0  # seconds for a JVM to end
_MOMENT = 1.0  # seconds until the system knows that one has

# The names of what Spark itself takes for secrets.
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


class SparkEnded(NsqError):
    """Spark, or the JVM that it runs in, has ended by itself."""


class SparkFailed(NsqError):
    """Spark could not do something."""


@contextmanager
def session(pipeline: Pipeline, master: str = "", **conf: str) -> Iterator[SparkSession]:
    """Have Spark for a block; what is raised as its JVM is gone is raised as ``SparkEnded``.

    Other errors of Spark are raised as ``SparkFailed``: their text is in the JVM, which is to end.
    """
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

    spark = start_session(pipeline, master, **conf)
    gateway: Any = SparkContext._gateway
    try:
        yield spark
    except NsqError:
        raise
    except Exception as error:
        with suppress(subprocess.TimeoutExpired):
            code = gateway.proc.wait(_MOMENT)
            hint = "for want of memory? see spark.driver.memory in [run.conf]"
            raise SparkEnded(f"Spark's Java has ended by itself, with {code}; {hint}") from error
        if isinstance(error, PySparkException) or hasattr(error, "java_exception"):
            raise SparkFailed(pipeline.document.hide(reason(error))) from error
        raise
    finally:
        end_session(spark)


def start_session(pipeline: Pipeline, master: str = "", **conf: str) -> SparkSession:
    """Start Spark; ``master`` and ``conf`` come before what the file says."""
    from nsqflow.spark.java import prepare_java

    prepare_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # They tell errors with their stack, before anybody can say them in one line.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    logging.getLogger("py4j").setLevel(logging.DEBUG if _is_debugged() else logging.CRITICAL)
    logging.getLogger().addFilter(_is_no_news)
    settings = _settings(pipeline, master) | conf
    if settings["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # nobody else has to reach it
    settings["spark.driver.extraJavaOptions"] = _java_options(settings)
    return _start(settings, pipeline.run.place)


def end_session(spark: SparkSession) -> None:
    """End Spark, and wait until its JVM has ended."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    try:
        if gateway.proc.poll() is None:
            spark.stop()
    finally:
        _end(gateway)
        logging.getLogger().removeFilter(_is_no_news)
        logging.getLogger("py4j").setLevel(logging.NOTSET)


def _start(settings: Mapping[str, str], place: Place) -> SparkSession:
    """Start a JVM, and Spark in it; a signal ends both.

    A thread does it, which no signal can interrupt: a JVM that is left alone amid its start
    stays for ever, and pyspark would take the next answer for that to its last question.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    # What Java is started with, everybody on this machine can see.
    plain = [(name, text) for name, text in settings.items() if not _SECRET.search(name)]
    launch: Callable[[SparkConf], Any] = launch_gateway

    def start_context() -> SparkContext:
        conf = SparkConf(False).setAll([*settings.items()])
        return SparkContext(conf=conf, gateway=launched.result())

    with ThreadPoolExecutor(1, "nsqflow-start") as thread:
        launched = thread.submit(launch, SparkConf(False).setAll(plain))
        context = thread.submit(start_context)
        try:
            with refusals(place, "master"):
                return SparkSession(context.result())
        except BaseException as error:
            if launched.exception() is not None:
                problem = ": Java has ended amid its start; what it says stands above"
                raise place.wrong("", problem) from error
            _end(launched.result())
            if "stopped SparkContext" in str(error):
                master = settings["spark.master"]
                raise SparkEnded(f"{master} can't be reached, or refuses Spark") from error
            raise


def _end(gateway: Any) -> None:
    from pyspark import SparkContext

    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    with gateway.proc as jvm:
        jvm.stdin.close()  # its sign to end
        try:
            with suppress(subprocess.TimeoutExpired):
                jvm.wait(_PATIENCE)
        finally:
            jvm.kill()


def _settings(pipeline: Pipeline, master: str) -> dict[str, str]:
    master = master or pipeline.run.master
    settings = {
        "spark.ui.showConsoleProgress": "false",
        # Each query gets its share of the cores, however much another has to do.
        "spark.scheduler.mode": "FAIR",
    }
    if master.startswith("local"):
        # Spark's own 200 is for a cluster: one machine is slow with so many stores of state.
        settings["spark.sql.shuffle.partitions"] = "4"
    named = {"spark.master": master, "spark.app.name": f"nsqflow {pipeline.name}"}
    return settings | dict(pipeline.run.conf) | named


def _is_no_news(record: logging.LogRecord) -> bool:
    # py4j logs by the root logger that the JVM is gone, and raises an error as well.
    return record.module != "java_gateway"


def _is_debugged() -> bool:
    return logging.getLogger("nsqflow").isEnabledFor(logging.DEBUG)


def _java_options(settings: dict[str, str]) -> str:
    more = " -Dnsqflow.log=warn" if _is_debugged() else ""
    ours = f"-Dlog4j2.configurationFile={_LOG.as_uri()}{more}"
    return f"{ours} {settings.get('spark.driver.extraJavaOptions', '')}".strip()
