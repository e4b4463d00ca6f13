"""``nsqflow.spark.session()``: one call, from anywhere, and Spark reads NSQ."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsqflow.spark
from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import SPARK_PATIENCE, Program, published
from tests.spark.test_java import path_without_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["path_without_java"]

PEEK = """
import os, sys
sys.modules["pandas"] = None  # as if it were not installed

import nsqflow.spark

spark = nsqflow.spark.session("first steps", conf={"spark.ui.enabled": False})
assert nsqflow.spark.session("another") is spark
rows = (
    spark.read.format("nsq")
    .options(nsqd=sys.argv[1], nsqdHttp=sys.argv[2], topic="orders", channel="c", mode="peek")
    .load()
)
print(rows.count(), spark.sparkContext.master, spark.sparkContext.appName)
spark.udf.register("twice", lambda n: n * 2, "int")
print(spark.sql("SELECT twice(21)").first()[0], spark.conf.get("spark.sql.shuffle.partitions"))
print(os.getpgid(spark.sparkContext._gateway.proc.pid) != os.getpgid(0), flush=True)
"""


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[Nsqd]:
    (tmp_path / "nsqd").mkdir()
    with start_nsqd(tmp_path / "nsqd") as server:
        published(server, "orders", 10, channel="c")
        yield server


def clean_machine(path: str, folder: Path) -> dict[str, str]:
    """An environment as of a user who has activated nothing, and has no Java."""
    return {
        "PATH": path,
        "JAVA_HOME": "",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TMPDIR": str(folder),
        "SPARK_LOCAL_IP": "",
        "PYTHONPATH": "",
        "PYTHONWARNINGS": "error::RuntimeWarning",
    }


def test_a_session_reads_nsq_without_an_activated_python_and_without_java(
    tmp_path: Path, path_without_java: str, nsqd: Nsqd
) -> None:
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    servers = [nsqd.tcp_address, nsqd.http_address]
    unset = ["env", "-u", "PYSPARK_PYTHON", "-u", "PYSPARK_DRIVER_PYTHON"]
    command = [*unset, sys.executable, "-c", PEEK, *servers]
    machine = clean_machine(path_without_java, elsewhere)
    os.symlink("/usr/bin/env", f"{path_without_java}/env")
    with Program(command, elsewhere, **machine) as program:
        lines = program.await_end(2 * SPARK_PATIENCE)
    assert lines == ["10 local[*,4] first steps", "42 4", "True"]
    assert "pandas" not in "\n".join(program.log).lower()
    assert not [line for line in program.log if "WARN " in line or "Stage" in line]


# Idle when it is interrupted: Spark logs the error of a batch whose job is cancelled.
WAIT = """
import time
from nsqflow.spark import session

writer = session().readStream.format("rate").load().writeStream.format("noop")
query = writer.trigger(processingTime="1 hour").start()
while query.status["message"] != "Waiting for next trigger":
    time.sleep(0.05)
print("started", flush=True)
query.awaitTermination()
"""


def test_ctrl_c_raises_keyboard_interrupt_and_nothing_else_is_printed(tmp_path: Path) -> None:
    with Program([sys.executable, "-c", WAIT], tmp_path, TMPDIR=str(tmp_path)) as program:
        program.await_line("started", 2 * SPARK_PATIENCE)
        program.process.send_signal(signal.SIGINT)
        program.process.wait(SPARK_PATIENCE)
    assert program.process.returncode == -signal.SIGINT
    log = [line for line in program.log if line.strip()]
    assert log[0] == "Traceback (most recent call last):"
    assert log[-1] == "KeyboardInterrupt"
    assert not [line for line in log if "ERROR" in line or "Py4J" in line]


def test_a_session_that_is_active_is_returned_as_it_is(spark: SparkSession) -> None:
    name = spark.sparkContext.appName
    assert nsqflow.spark.session("another", conf={"spark.sql.shuffle.partitions": 7}) is spark
    assert spark.sparkContext.appName == name
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
