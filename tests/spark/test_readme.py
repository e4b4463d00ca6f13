"""The README's examples for Spark, as processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fixtures.crashing import until
from tests.fixtures.servers import start_nsqd
from tests.fixtures.spark import SPARK_PATIENCE, Program, published
from tests.test_readme import blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_example_writes_what_comes_as_parquet(spark: SparkSession, tmp_path: Path) -> None:
    (_, example) = blocks("python")
    parquet = tmp_path / "orders" / "parquet"
    # As for somebody who has activated an environment, and said no more about Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["env", "-u", "PYSPARK_PYTHON", "-u", "PYSPARK_DRIVER_PYTHON", "python", "-c"]
    with start_nsqd(tmp_path) as nsqd:
        # The HTTP port of an nsqd is the next one, unless it is told otherwise.
        places = f'nsqd="{nsqd.tcp_address}", nsqdHttp="{nsqd.http_address}"'
        program = example.replace('nsqd="127.0.0.1:4150"', places)
        program = program.replace("/tmp/orders", f"{tmp_path}/orders")
        with Program([*command, program], tmp_path, PATH=path, SPARK_LOCAL_IP="127.0.0.1"):
            until(lambda: b'"spark"' in nsqd.ask("/stats?format=json")[1], 2 * SPARK_PATIENCE)
            published(nsqd, "orders", 10)
            until(lambda: len(rows(spark, parquet)) == 10, 2 * SPARK_PATIENCE)
    assert rows(spark, parquet) == [*range(10)]


def rows(spark: SparkSession, parquet: Path) -> list[int]:
    if not (parquet / "_spark_metadata").exists():
        return []
    frame = spark.read.schema("text STRING").parquet(str(parquet))
    return sorted(int(row.text[:10]) for row in frame.collect())


def test_the_pipeline_stands_a_rehearsal(tmp_path: Path) -> None:
    (example,) = blocks("toml")
    (tmp_path / "slow.toml").write_text(example)
    command = [sys.executable, "-m", "nsqflow", "run", "slow.toml", "--dry-run"]
    with Program(command, tmp_path) as run:
        lines = run.await_end(2 * SPARK_PATIENCE)
    assert "  slow         page string, user string, ms int" in lines
