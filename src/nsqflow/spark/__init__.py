"""NSQ on Spark: topics as streams, tables and targets.

``session()`` returns a ``SparkSession`` with ``format("nsq")``; ``NsqListener`` reports the batches
of queries. If you start Spark in another way, it finds ``NsqDataSource`` by itself, and
``prepare_java`` sets JAVA_HOME for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsqflow.errors import JavaStartError, SparkError, SparkExitedError
    from nsqflow.spark.datasource import NsqDataSource
    from nsqflow.spark.java import prepare_java
    from nsqflow.spark.listener import BatchReport, NsqListener, batch_reports
    from nsqflow.spark.startup import session

__all__ = [
    "BatchReport",
    "JavaStartError",
    "NsqDataSource",
    "NsqListener",
    "SparkError",
    "SparkExitedError",
    "batch_reports",
    "prepare_java",
    "session",
]

_HOMES = {
    "NsqDataSource": "nsqflow.spark.datasource",
    "BatchReport": "nsqflow.spark.listener",
    "NsqListener": "nsqflow.spark.listener",
    "batch_reports": "nsqflow.spark.listener",
    "prepare_java": "nsqflow.spark.java",
    "JavaStartError": "nsqflow.errors",
    "SparkExitedError": "nsqflow.errors",
    "SparkError": "nsqflow.errors",
    "session": "nsqflow.spark.startup",
}


def __getattr__(name: str) -> Any:
    # Spark imports this package for every user of any Python source: import nothing else early.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
