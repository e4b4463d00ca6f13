"""Spark's private names that nsqflow uses exist, and do what they are used for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsqflow.errors import SparkError
from nsqflow.spark import internals
from tests.fixtures.crashing import until
from tests.fixtures.spark import SPARK_PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark_core


def test_the_gateway_is_that_of_the_running_jvm(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import SparkContext

    gateway = internals.running_gateway()
    assert gateway.proc.poll() is None
    assert internals.submitted_conf(gateway).get("spark.app.name")
    for name in ("_gateway", "_jvm"):
        monkeypatch.setattr(SparkContext, name, getattr(SparkContext, name))
    internals.forget_gateway()
    assert internals.running_gateway() is None


def test_spark_can_neither_be_used_nor_started_while_it_is_absent(spark: SparkSession) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import col, udf
    from pyspark.sql.types import IntegerType

    uses: list[Callable[[], object]] = [
        SparkSession.builder.getOrCreate,
        lambda: SparkSession.active().conf,
        lambda: SparkContext("local"),
        lambda: SparkContext.getOrCreate().applicationId,
        lambda: col("n"),
        lambda: udf(abs, "int"),
        lambda: udf(abs, IntegerType()),
    ]
    for use in uses:
        with internals.absent_spark() as absence:
            assert not absence.was_used
            with pytest.raises(SparkError, match="Spark is not started yet"):
                use()
            assert absence.was_used
    assert SparkSession.builder.getOrCreate() is spark


def test_a_path_exists_in_the_file_system_that_spark_uses(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert internals.path_exists(spark, str(tmp_path))
    assert not internals.path_exists(spark, f"{tmp_path}/missing")


def test_errors_of_the_accumulator_server_are_ignored(spark: SparkSession) -> None:
    server: Any = spark.sparkContext._accumulatorServer
    before = server.handle_error
    try:
        internals.silence_accumulators(spark)
        assert server.handle_error(None, ("127.0.0.1", 1)) is None
    finally:
        server.handle_error = before


def test_a_query_ends_after_its_batch(spark: SparkSession, tmp_path: Path) -> None:
    batches: list[int] = []

    def stop(frame: object, batch: int) -> None:
        batches.append(batch)
        internals.end_after_batch(query)

    rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    writer = rows.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(stop)
    query = writer.trigger(processingTime="1 second").start()
    assert query.awaitTermination(int(SPARK_PATIENCE))
    assert batches == [0]
    assert query.exception() is None
    until(lambda: (tmp_path / "commits" / "0").exists())
