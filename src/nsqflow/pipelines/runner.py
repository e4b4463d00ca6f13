"""Runs a pipeline: one streaming query for each sink."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqflow.errors import PipelineFailed
from nsqflow.pipelines.channels import create_channels
from nsqflow.pipelines.model import Sink
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.sinks import ROWS, check_new, has_checkpoint, start, to_message_columns
from nsqflow.pipelines.source import read_messages
from nsqflow.pipelines.spark_errors import first_line, with_hint
from nsqflow.pipelines.views import Views
from nsqflow.spark.internals import end_after_batch
from nsqflow.spark.options import parse_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

_TICK = 0.05  # seconds between two polls of a query that starts
_ATTEMPTS = 10  # attempts to start a query on a busy machine, of ten seconds each


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """A batch of a sink that has ended."""

    sink: str
    batch: int
    at: str
    """When it began."""
    messages: int
    """Messages read."""
    rows: int | None = None
    """Rows written; None if unknown."""
    seconds: float
    backlog: int | None
    """Messages waiting on the nsqd when it began; None if unknown."""
    remaining: int | None = None
    """Those of them that it left."""
    lag_seconds: float | None = None
    """How old the oldest message of the batch before was when that one was planned.

    0 if nothing waits; None if unknown.
    """


class PipelineRun:
    """The queries of a pipeline.

    Nothing is started before the whole pipeline is validated, and if one query can't be started,
    all are stopped. ``should_stop`` is called between starts.
    """

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, should_stop: Callable[[], object] = bool
    ) -> None:
        self._pipeline = pipeline
        self._seen: dict[str, int] = {}
        self._queries: dict[str, StreamingQuery] = {}
        check_new(spark, pipeline)
        frames = []
        for sink in pipeline.sinks:
            if should_stop():
                return
            messages = read_messages(spark, pipeline, sink)
            frames.append(to_message_columns(Views(spark, pipeline, messages).of(sink), sink))
        if not pipeline.source.files:
            _create_channels(spark, pipeline)
        try:
            for sink, frame in zip(pipeline.sinks, frames, strict=True):
                if should_stop():
                    return
                self._start(spark, sink, frame, should_stop)
        except BaseException:
            self.stop()
            raise

    def new_batches(self) -> list[BatchProgress]:
        """Return the batches that have ended since the last call."""
        return [batch for name in self._queries for batch in self._new_batches_of(name)]

    def states(self) -> dict[str, str]:
        """Return the state of each sink: working, waiting, ended or failed."""
        return {name: _state(query) for name, query in self._queries.items()}

    def is_active(self) -> bool:
        """Return whether a query is running and none has failed."""
        return any(query.isActive for query in self._queries.values()) and not self.failures()

    def failures(self) -> dict[str, str]:
        """Return the errors of failed sinks."""
        return {
            name: self._pipeline.document.hide(with_hint(first_line(error)))
            for name, query in self._queries.items()
            if (error := query.exception()) is not None
        }

    def check(self) -> None:
        """Raise ``PipelineFailed`` if a sink has failed."""
        if failures := self.failures():
            raise PipelineFailed(failures)

    def end(self) -> None:
        """Start no more batches; call ``stop`` once ``is_busy`` is False."""
        for query in self._queries.values():
            end_after_batch(query)

    def is_busy(self) -> bool:
        """Return whether a batch is in progress."""
        return any(query.status["isTriggerActive"] for query in self._queries.values())

    def stop(self) -> None:
        """Stop now; a batch in progress is repeated after the next start."""
        for query in self._queries.values():
            query.stop()

    def _start(
        self, spark: SparkSession, sink: Sink, frame: DataFrame, should_stop: Callable[[], object]
    ) -> None:
        for _ in range(_ATTEMPTS):
            query = self._queries[sink.name] = start(spark, self._pipeline, sink, frame)
            _await_source(query, should_stop)
            if not _was_too_slow(query):
                return

    def _new_batches_of(self, name: str) -> list[BatchProgress]:
        query, seen = self._queries[name], self._seen.get(name, -1)
        last = query.lastProgress
        if last is None or last.batchId <= seen:
            return []
        # Spark also reports batches without input.
        batches = [
            _batch(name, progress)
            for progress in query.recentProgress
            if progress.batchId > seen and "addBatch" in progress.durationMs
        ]
        self._seen[name] = max([seen, *(batch.batch for batch in batches)])
        return batches


def _create_channels(spark: SparkSession, pipeline: Pipeline) -> None:
    # A sink with a checkpoint already had a channel; its query reports if that is missing.
    new = [sink for sink in pipeline.sinks if not has_checkpoint(spark, pipeline, sink)]
    if new:
        options = parse_stream(pipeline.source_options(new[0]))
        create_channels(options, [sink.channel for sink in new if sink.channel])


def _await_source(query: StreamingQuery, should_stop: Callable[[], object]) -> None:
    """Wait until a query has its source.

    Each query starts a Python process, and Spark waits ten seconds for it: if all started at once,
    a machine with few cores could be too slow.
    """
    while query.isActive and query.status["message"].startswith("Initializing"):
        if should_stop():
            return
        time.sleep(_TICK)


def _was_too_slow(query: StreamingQuery) -> bool:
    # Nothing has been read yet, so it can be retried.
    error = query.exception()
    return error is not None and "failed to connect back" in str(error)


def _batch(name: str, progress: StreamingQueryProgress) -> BatchProgress:
    return BatchProgress(
        sink=name,
        batch=progress.batchId,
        at=progress.timestamp,
        messages=progress.numInputRows,
        rows=_rows(progress),
        seconds=progress.batchDuration / 1000,
        **_lag(progress),
    )


def _rows(progress: StreamingQueryProgress) -> int | None:
    written = progress.sink.numOutputRows  # -1 if the sink does not report it
    if written >= 0:
        return written
    observed = progress.observedMetrics.get(ROWS)
    return None if observed is None else int(observed[ROWS])


def _lag(progress: StreamingQueryProgress) -> dict[str, Any]:
    names = ("backlog", "remaining", "lag_seconds")
    for source in progress.sources:
        latest: Any = json.loads(source.latestOffset or "null")
        if isinstance(latest, dict) and "backlog" in latest:
            return {name: latest.get(name) for name in names}
    return dict.fromkeys(names)


def _state(query: StreamingQuery) -> str:
    if query.exception() is not None:
        return "failed"
    status = query.status
    if not query.isActive and not status["isTriggerActive"]:
        return "ended"
    return "working" if status["isDataAvailable"] else "waiting"
