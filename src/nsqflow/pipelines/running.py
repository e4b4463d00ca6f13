"""A pipeline while it runs: a streaming query for each sink."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqflow.errors import NsqError
from nsqflow.pipelines.channels import create_channels
from nsqflow.pipelines.frames import Frames
from nsqflow.pipelines.messages import read_messages
from nsqflow.pipelines.model import Sink
from nsqflow.pipelines.pipeline import Pipeline
from nsqflow.pipelines.refusals import reason, with_hint
from nsqflow.pipelines.sinks import has_begun, shaped, start
from nsqflow.spark.options import parse_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

_TICK = 0.05  # seconds between two looks at a query that starts
_ATTEMPTS = 10  # to start one on a machine that is busy, ten seconds each


class PipelineFailed(NsqError):
    """Queries of a pipeline have ended because of errors."""

    def __init__(self, failures: Mapping[str, str]) -> None:
        """Tell of sinks and reasons, as ``Running.failures`` gives them."""
        super().__init__("; ".join(f"sink {name}: {why}" for name, why in failures.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch of a sink that is done with."""

    sink: str
    batch: int
    at: str
    """When it began."""
    messages: int
    """What was read for it."""
    seconds: float
    backlog: int | None
    """What waited on the nsqd when it began; None where it is not known."""


class Running:
    """The queries of a pipeline.

    Nothing is started before all of it is known to be right, and all that was is stopped if one
    of them can't be. No more is started when ``halted`` says so.
    """

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, halted: Callable[[], object] = bool
    ) -> None:
        self._pipeline = pipeline
        self._seen: dict[str, int] = {}
        self._queries: dict[str, StreamingQuery] = {}
        frames = []
        for sink in pipeline.sinks:
            if halted():
                return
            messages = read_messages(spark, pipeline, sink)
            frames.append(shaped(Frames(spark, pipeline, messages).of(sink), sink))
        if not pipeline.source.files:
            _create_channels(spark, pipeline)
        try:
            for sink, frame in zip(pipeline.sinks, frames, strict=True):
                if halted():
                    return
                self._start(spark, sink, frame, halted)
        except BaseException:
            self.stop()
            raise

    def news(self) -> list[Batch]:
        """The batches that have ended since this was asked last."""
        return [batch for name in self._queries for batch in self._news_of(name)]

    def states(self) -> dict[str, str]:
        """What each sink does just now: working, waiting, ended or failed."""
        return {name: _state(query) for name, query in self._queries.items()}

    def is_active(self) -> bool:
        """Whether all of them run, or those that have ended did so in good order."""
        return any(query.isActive for query in self._queries.values()) and not self.failures()

    def failures(self) -> dict[str, str]:
        """Why sinks have failed."""
        return {
            name: self._pipeline.document.hide(with_hint(reason(error)))
            for name, query in self._queries.items()
            if (error := query.exception()) is not None
        }

    def check(self) -> None:
        """Raise ``PipelineFailed`` if a sink has failed."""
        if failures := self.failures():
            raise PipelineFailed(failures)

    def end(self) -> None:
        """Begin no further batch; see ``is_busy``, and call ``stop`` when it is not."""
        for query in self._queries.values():
            _end_after_batch(query)

    def is_busy(self) -> bool:
        """Whether a batch is under way."""
        return any(query.status["isTriggerActive"] for query in self._queries.values())

    def stop(self) -> None:
        """Stop at once; a batch that is under way is done again after the next start."""
        for query in self._queries.values():
            query.stop()

    def _start(
        self, spark: SparkSession, sink: Sink, frame: DataFrame, halted: Callable[[], object]
    ) -> None:
        for _ in range(_ATTEMPTS):
            query = self._queries[sink.name] = start(spark, self._pipeline, sink, frame)
            _await_source(query, halted)
            if not _was_too_slow(query):
                return

    def _news_of(self, name: str) -> list[Batch]:
        query, seen = self._queries[name], self._seen.get(name, -1)
        last = query.lastProgress
        if last is None or last.batchId <= seen:
            return []
        # Spark tells now and then of batches for which there was nothing to do.
        batches = [
            _batch(name, progress)
            for progress in query.recentProgress
            if progress.batchId > seen and "addBatch" in progress.durationMs
        ]
        self._seen[name] = max([seen, *(batch.batch for batch in batches)])
        return batches


def _create_channels(spark: SparkSession, pipeline: Pipeline) -> None:
    # Who has begun had a channel; that it is gone is for its query to find out.
    new = [sink for sink in pipeline.sinks if not has_begun(spark, pipeline, sink)]
    if new:
        options = parse_stream(pipeline.source_options(new[0]))
        create_channels(options, [sink.channel for sink in new if sink.channel])


def _await_source(query: StreamingQuery, halted: Callable[[], object]) -> None:
    """Wait until a query has its source.

    Each has a Python of its own, to which Spark gives ten seconds to start: if all of them did so
    at once, a machine with few cores could be too slow.
    """
    while query.isActive and query.status["message"].startswith("Initializing"):
        if halted():
            return
        time.sleep(_TICK)


def _was_too_slow(query: StreamingQuery) -> bool:
    # Nothing has happened yet, so it can be tried again.
    error = query.exception()
    return error is not None and "failed to connect back" in str(error)


def _batch(name: str, progress: StreamingQueryProgress) -> Batch:
    return Batch(
        sink=name,
        batch=progress.batchId,
        at=progress.timestamp,
        messages=progress.numInputRows,
        seconds=progress.batchDuration / 1000,
        backlog=_backlog(progress),
    )


def _backlog(progress: StreamingQueryProgress) -> int | None:
    for source in progress.sources:
        latest: Any = json.loads(source.latestOffset or "null")
        if isinstance(latest, dict) and "backlog" in latest:
            return int(latest["backlog"])
    return None


def _state(query: StreamingQuery) -> str:
    if query.exception() is not None:
        return "failed"
    status = query.status
    if not query.isActive and not status["isTriggerActive"]:
        return "ended"
    return "working" if status["isDataAvailable"] else "waiting"


def _end_after_batch(query: StreamingQuery) -> None:
    """Have a query end when its batch has, if one is under way.

    Spark has no call for this: its ``stop`` breaks the batch off. But before each batch it looks
    whether it has been stopped, and this is what it looks at.
    """
    from pyspark import SparkContext

    java: Any = query._jsq
    state = java.streamingQuery().state()
    package = state.get().getClass().getPackageName()
    terminated = getattr(SparkContext._jvm, f"{package}.TERMINATED$")
    state.set(getattr(terminated, "MODULE$"))
