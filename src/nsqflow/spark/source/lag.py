"""What a query reports of its backlog, and of the batch before.

nsqd knows how many messages wait, not how old they are. So the lag in time is that of the batch
before: the age that its oldest message had when it was planned. (Not the newest one: nsqd delivers
from memory and from disk in turn, so there is a new message in every batch.) Where nothing waits,
there is no lag. What is not known is None, never 0.

Pure: no I/O, and time is an argument, in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from nsqflow.spark.source.allocation import ChannelBacklog
from nsqflow.spark.spool.slot_format import PartitionTotals

_NANOSECONDS = 10**9
_DIGITS = 3  # of reported seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSummary:
    """A batch that was read."""

    seq: int
    totals: Mapping[str, PartitionTotals] = field(default_factory=dict)
    """For each key."""
    planned_at: float | None = None
    """When it was planned; None if unknown."""

    def lag(self, key: str) -> float | None:
        """Return the age of a key's oldest message when the batch was planned."""
        totals = self.totals.get(key)
        return None if totals is None else self._age(totals.oldest)

    def describe(self) -> dict[str, Any]:
        """Return the counters of the whole batch."""
        totals = sum(self.totals.values(), PartitionTotals())
        return {
            "seq": self.seq,
            **totals.counters(),
            "oldest": _timestamp(totals.oldest),
            "newest": _timestamp(totals.newest),
            "lag_seconds": self._age(totals.oldest),
        }

    def _age(self, timestamp: int) -> float | None:
        if not timestamp or self.planned_at is None:
            return None
        # The clocks of nsqd and driver may differ.
        return max(0.0, round(self.planned_at - timestamp / _NANOSECONDS, _DIGITS))


def describe_backlogs(
    backlogs: Iterable[ChannelBacklog] | None,
    plan: Mapping[str, list[int]],
    last: BatchSummary | None,
) -> dict[str, Any]:
    """Return what waits, less what ``plan`` takes of it; ``backlogs`` is None if unknown."""
    if backlogs is None:
        names = (
            "backlog",
            "remaining",
            "paused",
            "deferred",
            "delayed",
            "in_flight",
            "lag_seconds",
        )
        return {**dict.fromkeys(names), "places": {}}
    places = {backlog.key: backlog for backlog in backlogs}
    lags = {key: _lag(each, last) for key, each in places.items()}
    planned = {key: sum(plan.get(key, ())) for key in places}
    remaining = {key: max(0, each.available - planned[key]) for key, each in places.items()}
    return {
        "backlog": sum(each.available for each in places.values()),
        "remaining": sum(remaining.values()),
        "paused": sum(each.held_back for each in places.values()),
        "deferred": sum(each.deferred for each in places.values()),
        "delayed": sum(each.delayed for each in places.values()),
        "in_flight": sum(each.in_flight for each in places.values()),
        "lag_seconds": None if None in lags.values() else max(_known(lags.values()), default=0.0),
        "places": {
            key: {
                "depth": each.depth,
                "topic_depth": each.topic_depth,
                "remaining": remaining[key],
                "in_flight": each.in_flight,
                "deferred": each.deferred,
                "delayed": each.delayed,
                "requeues": each.requeues,
                "timeouts": each.timeouts,
                "paused": each.paused or each.topic_paused,
                "lag_seconds": lags[key],
            }
            for key, each in places.items()
        },
    }


def _lag(backlog: ChannelBacklog, last: BatchSummary | None) -> float | None:
    """Return the lag of a key: 0 where nothing waits, None where it is unknown."""
    if not backlog.available:
        return None if backlog.held_back else 0.0
    return None if last is None else last.lag(backlog.key)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _timestamp(nanoseconds: int) -> str | None:
    if not nanoseconds:
        return None
    # Not by a float, which would round to half a microsecond.
    seconds, rest = divmod(nanoseconds, _NANOSECONDS)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
