"""NSQ on Spark: topics as streams, tables and targets.

``spark.readStream.format("nsq")`` finds ``NsqDataSource`` by itself; what else is here is for
those who start Spark (``prepare_java``) and those who watch a query (``NsqListener``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsqflow.spark.datasource import NsqDataSource
    from nsqflow.spark.java import prepare_java
    from nsqflow.spark.progress import BatchReport, NsqListener, batch_reports

__all__ = ["BatchReport", "NsqDataSource", "NsqListener", "batch_reports", "prepare_java"]

_HOMES = {
    "NsqDataSource": "datasource",
    "BatchReport": "progress",
    "NsqListener": "progress",
    "batch_reports": "progress",
    "prepare_java": "java",
}


def __getattr__(name: str) -> Any:
    # Spark imports this package for every user of any Python source: nothing before it is asked.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"nsqflow.spark.{_HOMES[name]}"), name)
