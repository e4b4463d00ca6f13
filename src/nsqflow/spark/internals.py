"""Uses Spark's private names, where pyspark has no public call; no other module does.

``tests/spark/test_internals.py`` tests each function on every supported version of Spark.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from nsqflow.errors import NsqError, SparkError

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Have Spark show an ``NsqError`` as one line, without a traceback.

    For an error in a Python data source, Spark shows its own prefix and the traceback of the worker
    process, unless ``SPARK_HIDE_TRACEBACK`` is set in the worker. A worker ends with the first
    error that it reports, so the variable only affects that error.
    """
    try:
        yield
    except NsqError:
        if _is_worker():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _is_worker() -> bool:
    """Return whether Spark started this process."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def running_gateway() -> Any:
    """Return the py4j gateway to the JVM of this process; None if no JVM was started."""
    from pyspark import SparkContext

    return SparkContext._gateway


def forget_gateway() -> None:
    """Have the next ``SparkContext`` start a JVM of its own."""
    from pyspark import SparkContext

    SparkContext._gateway = SparkContext._jvm = None


class SparkAbsence:
    """Stands for Spark while it must not be started; any use raises ``SparkError``."""

    was_used = False

    def __getattr__(self, name: str) -> NoReturn:
        self.was_used = True
        raise SparkError("Spark is not started yet")


@contextmanager
def absent_spark() -> Iterator[SparkAbsence]:
    """Have every use of Spark fail, and none start it; what is yielded says whether it was used.

    Otherwise ``getOrCreate()`` would start Spark with settings of its own, ``udf`` would ignore
    those of the session that is started later, and ``col`` would fail for an unstated reason.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    absence: Any = SparkAbsence()
    names: tuple[tuple[type, str], ...] = (
        (SparkContext, "_gateway"),
        (SparkContext, "_active_spark_context"),
        (SparkSession, "_instantiatedSession"),
    )
    before = [getattr(owner, name) for owner, name in names]
    for owner, name in names:
        setattr(owner, name, absence)
    try:
        yield absence
    finally:
        for (owner, name), value in zip(names, before, strict=True):
            setattr(owner, name, value)


def submitted_conf(gateway: Any) -> SparkConf:
    """Return the configuration that spark-submit has collected in a JVM."""
    from pyspark import SparkConf

    return SparkConf(_jvm=gateway.jvm)


def path_exists(spark: SparkSession, path: str) -> bool:
    """Return whether a path exists in the file system that Spark uses for it."""
    jvm: Any = spark._jvm
    where = jvm.org.apache.hadoop.fs.Path(path)
    return bool(where.getFileSystem(spark._jsc.hadoopConfiguration()).exists(where))


def silence_accumulators(spark: SparkSession) -> None:
    """Print no traceback when the JVM ends: the call to the JVM raises an error as well."""
    server: Any = spark.sparkContext._accumulatorServer
    server.handle_error = lambda request, address: None


def end_after_batch(query: StreamingQuery) -> None:
    """End a query when its current batch ends.

    ``query.stop()`` interrupts the batch. Before each batch Spark checks the state that is set
    here.
    """
    from pyspark import SparkContext

    java: Any = query._jsq
    state = java.streamingQuery().state()
    package = state.get().getClass().getPackageName()
    terminated = getattr(SparkContext._jvm, f"{package}.TERMINATED$")
    state.set(getattr(terminated, "MODULE$"))
