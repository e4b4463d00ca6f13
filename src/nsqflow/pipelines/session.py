"""The Spark that a pipeline runs on: started with what its file says, and ended with its JVM."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.refusals import refusals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = Path(__file__).parent / "log4j2.properties"
_PATIENCE = 30.0  # seconds for a JVM to end


def start_session(pipeline: Pipeline, master: str = "", **conf: str) -> SparkSession:
    """Start Spark; ``master`` and ``conf`` come before what the file says."""
    from pyspark.sql import SparkSession

    from nsqflow.spark.java import prepare_java

    prepare_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # It repeats every error with its stack on stderr, before anybody can say it in one line.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    master = master or pipeline.run.master
    settings = _defaults(master) | dict(pipeline.run.conf) | conf
    settings["spark.driver.extraJavaOptions"] = _java_options(settings)
    builder = SparkSession.builder.appName(f"nsqflow {pipeline.name}").master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with refusals(pipeline.run.place, "master"):
        return builder.getOrCreate()


def end_session(spark: SparkSession) -> None:
    """End Spark, and wait until its JVM has ended."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    spark.stop()
    if gateway is None:
        return
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    with gateway.proc as jvm:
        jvm.stdin.close()  # its sign to end
        try:
            jvm.wait(_PATIENCE)
        finally:
            jvm.kill()


def _defaults(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.showConsoleProgress": "false",
        # Each query gets its share of the cores, however much another has to do.
        "spark.scheduler.mode": "FAIR",
    }
    if master.startswith("local"):
        # Spark's own 200 is for a cluster: one machine is slow with so many stores of state.
        settings["spark.sql.shuffle.partitions"] = "4"
    return settings


def _java_options(settings: dict[str, str]) -> str:
    debug = logging.getLogger("nsqflow").isEnabledFor(logging.DEBUG)
    ours = f"-Dlog4j2.configurationFile={_LOG.as_uri()}{' -Dnsqflow.log=warn' if debug else ''}"
    return f"{ours} {settings.get('spark.driver.extraJavaOptions', '')}".strip()
