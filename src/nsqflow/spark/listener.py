"""Reports each batch of a query, for monitoring.

Spark reports a source's offsets and numbers of rows; this adds the backlog, and the messages that
were dropped, requeued and dead-lettered.

    spark.streams.addListener(NsqListener(print))
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from nsqflow.spark.source.offsets import Offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
        StreamingQueryProgress,
    )

    from nsqflow.spark.spool.slot_format import PartitionTotals
    from nsqflow.spark.spool.store import ObjectStore

logger = logging.getLogger(__name__)

_MAX_REPORTS = 1000  # reports that a listener keeps


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One NSQ source in one batch."""

    query: str
    """The query's name, or its id."""
    batch: int
    duration_ms: int
    rows: int
    """Messages in the batch."""
    pulled: int
    """Messages that nsqd delivered for it, including dropped ones."""
    duplicates: int
    """Messages that were delivered again, and dropped."""
    requeued: int
    """Messages requeued because another task was faster, or because there were too many."""
    dead_lettered: int
    spool_bytes: int
    backlog: int
    """Messages that waited when the batch was planned."""
    places: dict[str, dict[str, Any]]
    """For each ``topic|nsqd``, the counters of its nsqd at that time."""
    lost: int = 0
    """Messages in lost slots that ``failOnDataLoss=false`` skipped."""

    def __str__(self) -> str:
        numbers = {k: v for k, v in asdict(self).items() if k not in ("query", "batch", "places")}
        return f"{self.query} batch {self.batch}: " + ", ".join(
            f"{k} {v}" for k, v in numbers.items()
        )


class NsqListener(StreamingQueryListener):
    """Reports every batch of every query that reads NSQ: to a function, and to the log."""

    def __init__(self, on_batch: Callable[[BatchReport], object] | None = None) -> None:
        super().__init__()
        self.reports: deque[BatchReport] = deque(maxlen=_MAX_REPORTS)
        self._on_batch = on_batch

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing to report yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report a batch."""
        for report in batch_reports(event.progress):
            logger.info("%s", report)
            self.reports.append(report)
            if self._on_batch is not None:
                self._on_batch(report)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing to report."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing to report."""


def batch_reports(progress: StreamingQueryProgress) -> list[BatchReport]:
    """Return a report for each NSQ source of a query's progress, as of ``query.lastProgress``.

    The totals are read from the spool, which must be reachable here. Once the batch has left the
    spool, they are 0.
    """
    return [
        _report(progress, offset, status)
        for source in progress.sources
        if (offset := _offset(source)) and (status := _status(source.latestOffset))
    ]


def batch_totals(store: ObjectStore, offset: Offset) -> PartitionTotals:
    """Return the totals of a batch, from its slots."""
    from nsqflow.spark.spool.slot_format import PartitionTotals
    from nsqflow.spark.spool.slots import Slots

    totals = PartitionTotals()
    for id in offset.partition_ids():
        totals += Slots(store, id.folder).totals()[0]
    return totals


def _report(
    progress: StreamingQueryProgress, offset: Offset, status: dict[str, Any]
) -> BatchReport:
    from nsqflow.spark.spool.store import open_store

    return BatchReport(
        query=progress.name or str(progress.id),
        batch=progress.batchId,
        duration_ms=progress.batchDuration,
        backlog=status["backlog"],
        places=status["places"],
        **batch_totals(open_store(status["spool"]), offset).counters(),
    )


def _offset(source: SourceProgress) -> Offset | None:
    data = _read(source.endOffset)
    if "plan" not in data or "gen" not in data:
        return None  # an offset of another source
    offset = Offset.decode(data)
    # A batch that Spark runs without new data ends where the last one did.
    return replace(offset, plan={}) if source.startOffset == source.endOffset else offset


def _status(text: str | None) -> dict[str, Any] | None:
    data = _read(text)
    return data if "spool" in data and "places" in data else None


def _read(text: str | None) -> dict[str, Any]:
    try:
        data = json.loads(text or "null")
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
