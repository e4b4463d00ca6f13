"""Reports each batch of a query, for monitoring.

Spark reports a source's offsets and numbers of rows; this adds the backlog and the lag, and the
messages that were dropped, requeued and dead-lettered.

    spark.streams.addListener(NsqListener(print))

Backlog, lag and the counters of the batch before are in the query's progress. The counters of the
batch itself are in the spool; where that can't be read, as in a client of Spark Connect, they are
None.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from time import monotonic
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
_RETRY_INTERVAL = 300.0  # seconds until a spool that could not be read is tried again
_retry_at: dict[str, float] = {}  # by location: an attempt may take minutes
_COUNTERS = ("rows", "pulled", "duplicates", "requeued", "dead_lettered", "spool_bytes", "lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One NSQ source in one batch; what is unknown here is None."""

    query: str
    """The query's name, or its id."""
    batch: int
    duration_ms: int
    rows: int | None
    """Messages in the batch."""
    pulled: int | None
    """Messages that nsqd delivered for it, including dropped ones."""
    duplicates: int | None
    """Messages that were delivered again, and dropped."""
    requeued: int | None
    """Messages requeued because another task was faster, or because there were too many."""
    dead_lettered: int | None
    spool_bytes: int | None
    lost: int | None
    """Messages in lost slots that ``failOnDataLoss=false`` skipped."""
    backlog: int | None
    """Messages that waited when the batch was planned."""
    remaining: int | None
    """Those of them that it left."""
    paused: int | None
    """Messages in paused channels and topics; ``backlog`` does not count them."""
    deferred: int | None
    """Messages that nsqd holds back for a delay; ``backlog`` does not count them."""
    delayed: int | None
    """Messages that the redesigned NSQ holds on disk for long delays; nothing waits for them."""
    in_flight: int | None
    lag_seconds: float | None
    """How old the oldest message of the batch before was when that one was planned.

    0 if nothing waits; None if unknown.
    """
    last_batch: Mapping[str, Any]
    """The counters of the batch before, with its ``oldest`` and ``newest`` timestamp."""
    places: Mapping[str, Mapping[str, Any]]
    """For each ``topic|nsqd``, or ``topic|partition``, its counters when the batch was planned."""
    unreachable: Mapping[str, str]
    """The nsqd that did not answer then, and why; ``backlog`` lacks their messages."""

    def __str__(self) -> str:
        hidden = ("query", "batch", "last_batch", "places", "unreachable")
        names = [field.name for field in fields(self) if field.name not in hidden]
        texts = {name: getattr(self, name) for name in names}
        shown = (f"{name} {'unknown' if text is None else text}" for name, text in texts.items())
        return f"{self.query} batch {self.batch}: " + ", ".join(shown)


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
    """Return a report for each NSQ source of a query's progress, as of ``query.lastProgress``."""
    return [
        _report(progress, offset, status)
        for source in progress.sources
        if (offset := _offset(source)) and (status := _status(source.latestOffset))
    ]


def batch_totals(store: ObjectStore, offset: Offset) -> PartitionTotals | None:
    """Return the totals of a batch, from its slots; None if the spool does not have them all."""
    from nsqflow.spark.spool.slot_format import PartitionTotals
    from nsqflow.spark.spool.slots import Slots

    totals = PartitionTotals()
    for id in offset.partition_ids():
        slots = Slots(store, id.folder)
        if not slots.exist():
            return None
        totals += slots.totals()[0]
    return totals


def _report(
    progress: StreamingQueryProgress, offset: Offset, status: dict[str, Any]
) -> BatchReport:
    known = ("backlog", "remaining", "paused", "deferred", "delayed", "in_flight", "lag_seconds")
    return BatchReport(
        query=progress.name or str(progress.id),
        batch=progress.batchId,
        duration_ms=progress.batchDuration,
        last_batch=status.get("last_batch", {}),
        places=status["places"],
        unreachable=status.get("unreachable", {}),
        **{name: status.get(name) for name in known},
        **_counters(status["spool"], offset),
    )


def _counters(location: str, offset: Offset) -> dict[str, Any]:
    from nsqflow.spark.spool.store import open_store

    unknown = dict.fromkeys(_COUNTERS)
    if monotonic() < _retry_at.get(location, 0.0):
        return unknown
    try:
        totals = batch_totals(open_store(location), offset)
    except Exception as error:  # each store has errors of its own, such as missing credentials
        logger.debug("spool %s can't be read here: %s", location, error)
        _retry_at[location] = monotonic() + _RETRY_INTERVAL
        return unknown
    return unknown if totals is None else totals.counters()


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
