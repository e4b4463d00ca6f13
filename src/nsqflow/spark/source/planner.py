"""Plans the batches of a query, in the driver, from backlogs and the totals of the last batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from nsqflow.errors import DiscoveryError, NetworkError
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.allocation import (
    AvailableNowTarget,
    ChannelBacklog,
    MinMessagesGate,
    RetryBackoff,
    divide,
    limit_by_bytes,
)
from nsqflow.spark.source.backlog_monitor import BacklogMonitor
from nsqflow.spark.source.batch_log import BatchLog
from nsqflow.spark.source.data_loss import DataLossDetector
from nsqflow.spark.source.generation import check_generation
from nsqflow.spark.source.lag import BatchSummary, describe_backlogs
from nsqflow.spark.source.offsets import Offset, describe_place
from nsqflow.spark.source.ownership import SourceOwnership
from nsqflow.spark.source.partition_tracker import PartitionTracker
from nsqflow.spark.source.progress import ReadProgress
from nsqflow.spark.source.reader import split_budget
from nsqflow.spark.spool.store import ObjectStore, open_store

logger = logging.getLogger(__name__)

_MIN_POLL_INTERVAL = 0.02  # seconds between two polls of the servers, after a batch with rows
_MAX_POLL_INTERVAL = 0.25  # ... and after some idle seconds: nsqd logs every request
_LATE = 6.0  # seconds that a timeout may be late: nsqd scans for new channels every five
_FLOW_TIMEOUT = 1.0  # seconds for a topic's messages to reach a new channel, if not too many


class BatchPlanner:
    """Turns backlogs on the servers into offsets."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.spool is not None
        self._options = options
        self.store: ObjectStore = open_store(options.spool, options.spool_permissions)
        self._monitor = BacklogMonitor(options)
        self._ownership = SourceOwnership(self.store, self._monitor, options)
        self._backoff = RetryBackoff()
        self._gate = MinMessagesGate(options.min_messages_per_trigger, options.max_trigger_delay)
        self._target: AvailableNowTarget | None = None
        self._empty_keys: set[str] = set()  # keys that had no messages in the last batch
        self._unread_since: dict[str, float] = {}  # keys without a leader, and since when
        self._backlogs: list[ChannelBacklog] = []
        self._planned: Offset | None = None  # the batch of the last call
        self._losses = DataLossDetector(
            self.store.location, options.channel, fail=options.fail_on_data_loss
        )
        self._log = BatchLog(self.store, options)
        self._partitions = PartitionTracker(self._monitor, self._log, options)
        self._last: BatchSummary | None = None  # the last batch that was read
        self._new_generation = ""  # the generation that this planner started
        self._last_read = -1  # the batch whose totals were read last
        self._polled_at = self._busy_at = 0.0
        self._unreachable = False  # no server responded to the last poll
        self._started = False
        self._checked = False  # the generation belongs to this query
        self._available_now = False

    def available_now(self) -> None:
        """Read what is available now, and no more."""
        self._available_now = True

    @property
    def lease(self) -> int:
        """The number of the query's lease, which its tasks check."""
        return self._ownership.number

    def claim(self, generation: str) -> None:
        """Make sure that the spool belongs to this query; raise ``SourceInUseError``."""
        if not self._ownership.number:
            self.store.probe()
        self._ownership.claim(generation, new=generation == self._new_generation)

    def next(self, start: Offset, limit: int | None) -> Offset:
        """Return the end of the next batch, or ``start`` itself if there is nothing to read."""
        self._planned = None
        end = self._next(start, limit)
        if end is not start:
            self._planned = end
        return end

    def _next(self, start: Offset, limit: int | None) -> Offset:
        self._start(start)
        self.claim(self._generation(start))
        if (spooled := self._log.next(start)) is not None:
            self._partitions.restore(spooled)
            return spooled
        if not self._poll():
            return start
        self._read_last_batch(start)
        self._update_partitions()
        if self._available_now:
            counts = self._limit_to_target()
        else:
            counts = self._available()
            if self._gate.should_wait(sum(counts.values()), monotonic()):
                return start
        plan = self._divide(counts, limit)
        if not plan:
            return self._first_offset(start)
        self._gate.triggered(monotonic())
        return self._partitions.record(start.next(self._generation(start), plan))

    def check_replay(self, end: Offset) -> None:
        """Check that the spool still has a batch that was planned before, and the channel."""
        if not self._log.exists(end):
            self._losses.report_missing_batch(end)
            self._partitions.restore(end)
            self._partitions.record(end)
        self._check_generation(end)
        with suppress(NetworkError, DiscoveryError):  # then its tasks fail, or need no nsqd
            self._ownership.check_channel([each.key for each in self._monitor.poll()])

    def report(self) -> dict[str, Any]:
        """Return the backlogs, and the counters of the last batch that was read."""
        unreachable = self._monitor.unreachable
        known = self._polled_at and not self._unreachable and (self._backlogs or not unreachable)
        return {
            **describe_backlogs(
                self._backlogs if known else None,
                self._planned.plan if self._planned else {},
                self._last,
            ),
            "last_batch": self._last.describe() if self._last else {},
            "unreachable": unreachable,
            "spool": self.store.location,
        }

    def progress_of(self, end: Offset) -> ReadProgress:
        """Return what was read of the partitions of the redesigned NSQ before a batch."""
        return self._partitions.before(end)

    def mean_sizes(self) -> dict[str, int]:
        """Return the mean size of a message of each key, by nsqd's counters; 0 if unknown."""
        return {backlog.key: backlog.mean_size for backlog in self._backlogs}

    def close(self) -> None:
        """Close the connections to the servers, and give up the spool."""
        try:
            self._ownership.close()
        finally:
            self._monitor.close()

    # Private methods

    def _start(self, start: Offset) -> None:
        if self._started:
            return
        self.claim(self._generation(start))
        self._check_generation(start)
        self._monitor.create()
        self._ownership.check_channel([each.key for each in self._monitor.poll()])
        if self._options.starting_position == "latest" and not start.generation:
            self._monitor.empty()
        self._losses.check_checkpoint(start, self._log.find(start))
        # A batch that is in the spool beyond its checkpoint has what was read before, too.
        if start.generation and self._log.next(start) is None:
            self._partitions.restore(start)
        self._started = True

    def _check_generation(self, offset: Offset) -> None:
        if not self._checked:
            check_generation(self.store, offset, self._options)
            self._checked = True

    def _poll(self) -> bool:
        """Poll the servers, but not too often; return whether one of them responded."""
        now = monotonic()
        idle = now - self._busy_at
        interval = min(_MAX_POLL_INTERVAL, max(_MIN_POLL_INTERVAL, idle / 50))
        if (wait := self._polled_at + interval - now) > 0:
            sleep(wait)
        try:
            self._backlogs = self._monitor.poll()
        except (NetworkError, DiscoveryError) as error:
            if not self._polled_at:
                raise
            # They may come back; but a run with availableNow must not end as if all were read.
            if self._available_now:
                raise
            if not self._unreachable:
                logger.warning("%s; trying again", error)
            self._unreachable = True
            self._polled_at = monotonic()
            return False
        self._unreachable = False
        self._polled_at = monotonic()
        self._losses.check_backlogs(self._backlogs, self._monitor.take_deleted())
        self._ownership.check_channel([each.key for each in self._backlogs])
        return True

    def _read_last_batch(self, start: Offset) -> None:
        """Read the totals of the last batch, once; Spark has committed it."""
        if start.seq == self._last_read:
            return
        known = self._last_read >= 0
        self._last_read = start.seq
        if not start.seq:
            return
        self._log.committed(start)
        now = self._busy_at = monotonic()
        by_key = self._log.totals(start)
        for key, planned in start.plan.items():
            totals = by_key[key]
            # Dropped or requeued messages also show that there is a backlog.
            received = totals.rows + totals.lost + totals.duplicates + totals.dead_lettered
            received += totals.requeued
            self._backoff.record(key, sum(planned), received, now)
            self._partitions.progress.add(key, totals)
            if self._target is not None and known:
                self._record_target(self._target, start, key, totals.rows, received)
        self._last = BatchSummary(
            seq=start.seq, totals=by_key, planned_at=self._log.planned_at(start)
        )

    def _record_target(
        self, target: AvailableNowTarget, batch: Offset, key: str, rows: int, received: int
    ) -> None:
        target.record(key, rows)
        if received:
            self._empty_keys.discard(key)
            self._unread_since.pop(key, None)
        elif not self._log.had_leader(batch, key):
            since = self._unread_since.setdefault(key, monotonic())
            if monotonic() - since > self._options.msg_timeout + _LATE:
                self._report_unreachable(f"{describe_place(key)} has no leader that takes readers")
                target.give_up(key)
        elif key in self._empty_keys:
            target.give_up(key)  # other consumers take what is planned
        else:
            self._empty_keys.add(key)

    def _update_partitions(self) -> None:
        """Begin with new partitions, and go on without what is lost of others."""
        while True:
            moved = self._partitions.begin(self._backlogs)
            losses = self._partitions.find_losses(self._backlogs, monotonic())
            for loss in losses:
                self._losses.report_lost_range(loss)
                self._partitions.accept(loss)
            if not (moved or losses):
                return
            self._poll()  # which may find more partitions

    def _poll_again(self) -> bool:
        """Poll the servers, and begin with partitions that have a leader only now."""
        responded = self._poll()
        self._update_partitions()
        return responded

    def _counts(self, count: Callable[[ChannelBacklog], int] | None = None) -> dict[str, int]:
        """Return how many messages of each key could be pulled now, as ``count`` finds it."""
        suspected = self._partitions.suspected
        count = count or self._partitions.unread
        return {each.key: count(each) for each in self._backlogs if each.key not in suspected}

    def _available(self) -> dict[str, int]:
        now = monotonic()
        return {key: n for key, n in self._counts().items() if self._backoff.allowed(key, now)}

    def _limit_to_target(self) -> dict[str, int]:
        """Return the available part of the target; wait for messages in flight."""
        deadline = monotonic() + self._options.msg_timeout + _LATE
        if self._target is None:
            self._await_all(deadline)
            self._await_flow()
            counts = self._counts(self._partitions.count)
            self._target = AvailableNowTarget(self._backlogs, counts)
        while True:
            counts = self._target.limit(self._counts())
            remaining = self._target.remaining()
            missing = self._monitor.unreachable_keys(remaining)
            missing |= self._partitions.suspected & remaining.keys()
            coming = any(
                backlog.in_flight and backlog.key in remaining for backlog in self._backlogs
            )
            if counts or not (coming or missing):
                return counts
            if monotonic() > deadline:
                self._check_reachable()
                return counts
            self._poll_again()

    def _await_all(self, deadline: float) -> None:
        """Wait for nsqd that do not respond: their messages belong to the target too.

        Also until it is certain whether messages were lost.
        """
        while self._monitor.unreachable or self._partitions.suspected:
            if monotonic() > deadline:
                break
            self._poll_again()
        self._check_reachable()

    def _check_reachable(self) -> None:
        if reasons := self._monitor.unreachable | self._partitions.unchecked:
            self._report_unreachable("; ".join(reasons.values()))

    def _report_unreachable(self, reasons: str) -> None:
        text = f"not everything can be read, as some nsqd don't answer: {reasons}"
        if self._options.fail_on_data_loss:
            raise NetworkError(f"{text}; start with failOnDataLoss=false to continue without them")
        logger.warning("%s; continuing without them", text)

    def _await_flow(self) -> None:
        """Wait until the topics' messages have reached the channel and are counted there.

        nsqd does not count messages on their way, so two polls must agree.
        """
        deadline = monotonic() + _FLOW_TIMEOUT
        before: list[ChannelBacklog] = []
        while before != self._backlogs or any(backlog.topic_depth for backlog in before):
            before = self._backlogs
            if monotonic() > deadline or not self._poll_again():
                return

    def _divide(self, counts: Mapping[str, int], limit: int | None) -> dict[str, list[int]]:
        options = self._options
        if options.max_bytes_per_trigger is not None:
            by_bytes = limit_by_bytes(counts, self.mean_sizes(), options.max_bytes_per_trigger)
            limit = min((each for each in (limit, by_bytes) if each is not None), default=None)
        return {
            key: split_budget(key, budget, options) for key, budget in divide(counts, limit).items()
        }

    def _first_offset(self, start: Offset) -> Offset:
        """Return ``start``, or for the initial offset one with a generation and without a plan.

        Spark logs it with an empty batch in any case. So a query that restarts knows that it
        started before, and ``startingPosition=latest`` does not empty the channel again.
        """
        return (
            start if start.generation else self._partitions.record(Offset(self._generation(start)))
        )

    def _generation(self, start: Offset) -> str:
        if not start.generation and not self._new_generation:
            self._new_generation = uuid4().hex
        return start.generation or self._new_generation
