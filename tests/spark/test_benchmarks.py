"""Who stands in a table of the benchmark for Spark still runs, and does what it is judged by."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.bench_spark import TABLES, Setting, Table, partitions_table, reads_table
from benchmarks.spark_stand_ins import ready_rows, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TINY: dict[str, Callable[[Setting], AbstractContextManager[Table]]] = {
    **TABLES,
    "source": partial(reads_table, batches=2, peers=True),
    "partitions": partial(partitions_table, batches=2),
}


@pytest.mark.parametrize(
    "name", ["source", "partitions", "sink", "latency"]
)  # the others are like source
def test_every_contender_of_a_table_runs(name: str, spark: "SparkSession", tmp_path: Path) -> None:
    register(spark)
    with TINY[name](Setting(spark, tmp_path, messages=2000, latencies=1)) as table:
        named = {each for goal in table.goals for each in (goal.contender, *goal.peers)}
        assert named <= set(table.samplers)
        for sampler in table.samplers.values():
            sample = sampler()
            assert sample.rate > 0
            assert sample.cpu > 0
            assert (sample.p50 is not None) == (table.max_delay is not None)
    assert not [*tmp_path.glob("tmp*")]


def test_the_ceiling_has_the_columns_that_nsq_has(spark: "SparkSession") -> None:
    options = {"topic": "t", "channel": "c", "nsqd": "127.0.0.1:1", "spoolLocation": "/nowhere"}
    ours = spark.readStream.format("nsq").options(**options).load().schema
    register(spark)
    stand_in = spark.readStream.format("ready").options(rows="1", perTrigger="1").load().schema
    assert stand_in == ours
    assert ready_rows(3).schema.names == ours.names
