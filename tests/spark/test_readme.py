"""The README's example for Spark, as a process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fixtures.servers import start_nsqd
from tests.fixtures.spark import SPARK_PATIENCE, Program, published
from tests.test_readme import blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_example_writes_what_waits_as_parquet(spark: SparkSession, tmp_path: Path) -> None:
    (_, example) = blocks("python")
    # The HTTP port of an nsqd is the next one, unless it is told otherwise.
    with start_nsqd(tmp_path) as nsqd:
        published(nsqd, "orders", 10, channel="spark")
        places = f'nsqd="{nsqd.tcp_address}", nsqdHttp="{nsqd.http_address}"'
        program = example.replace('nsqd="127.0.0.1:4150"', places)
        program = program.replace("/data", f"{tmp_path}/data")
        with Program([sys.executable, "-c", program], tmp_path, SPARK_LOCAL_IP="127.0.0.1") as run:
            run.await_end(4 * SPARK_PATIENCE)
    rows = spark.read.parquet(str(tmp_path / "data" / "orders")).collect()
    assert sorted(int(row.text[:10]) for row in rows) == [*range(10)]
