"""What a query has read of each partition of the redesigned NSQ, as its driver knows it.

The driver stores it with each batch, as it was before that batch: so a batch that runs again goes
on where it went on the first time, whatever was read since. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from nsqflow.spark.source.allocation import ChannelBacklog
from nsqflow.spark.source.offsets import split_key
from nsqflow.spark.spool.coverage import Coverage
from nsqflow.spark.spool.slot_format import PartitionTotals

CONFIRM_TIME = 5.0
"""Seconds for which a loss must show: after a change of leaders, numbers are wrong for a moment."""

MAX_TRIES = 5
"""Batches that may read from the same place in vain until the messages there count as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """What a query has read of one partition."""

    coverage: Coverage = field(default_factory=Coverage)
    ordered: bool = False
    """The partition is read in order."""


class LostRange(NamedTuple):
    """Messages of a partition that are gone, and where the query goes on without them."""

    key: str
    why: str
    coverage: Coverage


class ReadProgress:
    """The state of each partition of a query."""

    def __init__(self, states: Mapping[str, PartitionState] | None = None) -> None:
        self.states = dict(states or {})
        self.expected: set[str] = set()
        """Keys that were there when the query began with their topic, and had no leader."""
        self._suspected: dict[str, float] = {}  # keys that seem to have lost data, and since when
        self._tries: dict[str, tuple[int, int]] = {}  # where a key was read in vain, how often

    def __contains__(self, key: str) -> bool:
        return key in self.states

    def knows_topic(self, topic: str) -> bool:
        """Return whether the query has read a partition of the topic, or begun to."""
        return any(split_key(key)[0] == topic for key in self.states)

    def expect(self, keys: Iterable[str]) -> None:
        """Record which partitions a topic has, as the query begins with it."""
        self.expected.update(keys)

    def coverage(self, key: str) -> Coverage | None:
        """Return what was read of a partition; None for a key of the classic NSQ."""
        state = self.states.get(key)
        return None if state is None else state.coverage

    def is_ordered(self, key: str) -> bool:
        """Return whether a partition is read in order."""
        return key in self.states and self.states[key].ordered

    def begin(self, key: str, coverage: Coverage, *, ordered: bool) -> None:
        """Begin, or go on, with a partition."""
        self.expected.discard(key)
        self.states[key] = PartitionState(coverage=coverage, ordered=ordered)

    def add(self, key: str, totals: PartitionTotals) -> None:
        """Record what a batch has read."""
        state = self.states.get(key)
        if state is None:
            return
        read = Coverage(ids=totals.ids, offsets=totals.offsets, newest=totals.newest)
        before, coverage = state.coverage, state.coverage | read
        self.states[key] = replace(state, coverage=coverage)
        place, count = self._tries.pop(key, (-1, 0))
        if coverage.resume == before.resume and totals.rows + totals.duplicates:
            self._tries[key] = before.resume, count + 1 if place == before.resume else 1

    def unread(self, backlog: ChannelBacklog) -> int:
        """Return how many messages of a key could be pulled now, at most.

        The channel of a partition may be beyond messages that were never read, for example after a
        change of leaders: those count, by the mean size of a message.
        """
        coverage = self.coverage(backlog.key)
        if coverage is None or backlog.paused:
            return backlog.available
        skipped = max(0, backlog.cursor - coverage.resume)
        return backlog.available + -(-skipped // max(1, backlog.mean_size))

    @property
    def suspected(self) -> Set[str]:
        """The keys that seem to have lost messages: nothing is read of them until it is certain."""
        return self._suspected.keys()

    def find_losses(
        self, backlogs: Mapping[str, ChannelBacklog], now: float, *, shared: bool = False
    ) -> list[LostRange]:
        """Return what is certainly lost; the same loss again until ``begin`` accepts it.

        In a ``shared`` channel messages may be missing because others have read them.
        """
        found = [*self._lost(backlogs, shared)]
        keys = {loss.key for loss in found}
        self._suspected = {key: self._suspected.get(key, now) for key in keys}
        return [loss for loss in found if now - self._suspected[loss.key] >= CONFIRM_TIME]

    def encode(self) -> dict[str, Any]:
        """Return the progress for JSON."""
        return {
            **dict.fromkeys(sorted(self.expected)),
            **{
                key: state.coverage.encode() | {"ordered": state.ordered}
                for key, state in self.states.items()
            },
        }

    @staticmethod
    def decode(values: Mapping[str, Mapping[str, Any] | None]) -> ReadProgress:
        """Read what ``encode`` returned; raise ``ValueError``, ``TypeError`` or ``KeyError``."""
        progress = ReadProgress(
            {
                key: PartitionState(coverage=Coverage.decode(each), ordered=bool(each["ordered"]))
                for key, each in values.items()
                if each is not None
            }
        )
        progress.expect(values.keys() - progress.states.keys())
        return progress

    # Private methods

    def _lost(self, backlogs: Mapping[str, ChannelBacklog], shared: bool) -> Iterator[LostRange]:
        for key, backlog in backlogs.items():
            coverage = self.coverage(key)
            if coverage is None:
                continue
            resume = coverage.resume
            if backlog.end < resume:
                why = (
                    f"it ends at offset {backlog.end}, and was read up to {resume}: its topic was "
                    "created again"
                )
                yield LostRange(key, why, Coverage(base=backlog.start, since=coverage.since))
            elif shared:
                continue
            elif backlog.start > resume:
                why = f"nsqd has removed what it had from offset {resume} to {backlog.start}"
                yield LostRange(key, why, replace(coverage, base=backlog.start))
            elif self._tries.get(key) is not None and self._is_stuck(key, backlog, resume):
                end = coverage.offsets.start_from(resume, backlog.cursor)
                why = f"nsqd delivers nothing of what it had from offset {resume} to {end}"
                yield LostRange(key, why, replace(coverage, base=end))

    def _is_stuck(self, key: str, backlog: ChannelBacklog, resume: int) -> bool:
        place, count = self._tries[key]
        return place == resume < backlog.cursor and count >= MAX_TRIES
