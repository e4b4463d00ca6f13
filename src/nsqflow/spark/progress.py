"""Progress: what came of each batch, for those who watch a query.

Spark shows a source's offsets and how many rows there were; this adds what NSQ and the spool
have to say: what waits, what was dropped, given back and buried.

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

from nsqflow.spark.offsets import Offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
        StreamingQueryProgress,
    )

    from nsqflow.spark.slots import Totals
    from nsqflow.spark.store import Store

logger = logging.getLogger(__name__)

_KEPT = 1000  # reports that a listener remembers


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One NSQ source in one batch."""

    query: str
    """The query's name, or its id."""
    batch: int
    duration_ms: int
    rows: int
    """Messages that the batch has."""
    pulled: int
    """Messages that nsqd delivered for it, dropped ones among them."""
    duplicates: int
    """Messages that were delivered again, and dropped."""
    requeued: int
    """Messages that were given back because another task was faster, or they were too many."""
    dead_lettered: int
    spool_bytes: int
    backlog: int
    """Messages that waited when the batch was planned."""
    places: dict[str, dict[str, Any]]
    """For each ``topic|nsqd`` what its nsqd said then."""

    def __str__(self) -> str:
        numbers = {k: v for k, v in asdict(self).items() if k not in ("query", "batch", "places")}
        return f"{self.query} batch {self.batch}: " + ", ".join(
            f"{k} {v}" for k, v in numbers.items()
        )


class NsqListener(StreamingQueryListener):
    """Reports every batch of every query that reads NSQ: to a function, and to the log."""

    def __init__(self, on_batch: Callable[[BatchReport], object] | None = None) -> None:
        super().__init__()
        self.reports: deque[BatchReport] = deque(maxlen=_KEPT)
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

    What came of the batch is read from the spool, so this must be able to reach it, and in
    time: once the batch has left the spool its numbers are 0.
    """
    return [
        _report(progress, offset, status)
        for source in progress.sources
        if (offset := _offset(source)) and (status := _status(source.latestOffset))
    ]


def batch_totals(store: Store, offset: Offset) -> Totals:
    """Return what came of a batch, by its slots."""
    from nsqflow.spark.slots import Slots, Totals

    totals = Totals()
    for share in offset.shares():
        totals += Slots(store, share.folder).totals()[0]
    return totals


def counters(totals: Totals) -> dict[str, int]:
    """Return the totals by the names that users see."""
    return {
        "rows": totals.rows,
        "pulled": totals.rows + totals.duplicates + totals.dead_lettered,
        "duplicates": totals.duplicates,
        "requeued": totals.requeued,
        "dead_lettered": totals.dead_lettered,
        "spool_bytes": totals.bytes,
    }


def _report(
    progress: StreamingQueryProgress, offset: Offset, status: dict[str, Any]
) -> BatchReport:
    from nsqflow.spark.store import open_store

    return BatchReport(
        query=progress.name or str(progress.id),
        batch=progress.batchId,
        duration_ms=progress.batchDuration,
        backlog=status["backlog"],
        places=status["places"],
        **counters(batch_totals(open_store(status["spool"]), offset)),
    )


def _offset(source: SourceProgress) -> Offset | None:
    data = _read(source.endOffset)
    if "plan" not in data or "gen" not in data:
        return None  # another source's
    offset = Offset.decode(data)
    # Batches that Spark makes for reasons of its own end where the last one did.
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
