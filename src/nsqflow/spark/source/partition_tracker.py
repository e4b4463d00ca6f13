"""Keeps what a query has read of the partitions of the redesigned NSQ, in its driver.

It is stored with each batch, as it was before that batch, and read again at a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Set

from nsqflow.errors import AdminError, DiscoveryError, NetworkError
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.allocation import ChannelBacklog
from nsqflow.spark.source.backlog_monitor import BacklogMonitor
from nsqflow.spark.source.batch_log import BatchLog
from nsqflow.spark.source.beginning import Beginning
from nsqflow.spark.source.data_loss import report_loss
from nsqflow.spark.source.offset_search import PartitionExtent, search_of
from nsqflow.spark.source.offsets import Offset, describe_place, partition_of, split_key
from nsqflow.spark.source.progress import LostRange, ReadProgress
from nsqflow.spark.spool.coverage import Coverage

logger = logging.getLogger(__name__)

# What a node says that has led a partition before: another answers soon.
_NOT_LED = ("E_FAILED_ON_NOT_LEADER", "E_TOPIC_NOT_EXIST", "topic does not exist")


class PartitionTracker:
    """The progress of one query, and its beginning with partitions that are new to it."""

    def __init__(self, monitor: BacklogMonitor, log: BatchLog, options: SourceOptions) -> None:
        self.progress = ReadProgress()
        """What was read before the batch that is planned next."""
        self._monitor = monitor
        self._log = log
        self._options = options
        self._beginning = Beginning(monitor, options)
        self._recorded: tuple[str, int, ReadProgress] = ("", -1, ReadProgress())
        self._to_check: set[str] | None = None  # keys whose topic may have been created again
        self.unchecked: dict[str, str] = {}
        """Keys that nothing is read of until it is known if that is so, and why it is not known."""

    def begin(self, backlogs: Iterable[ChannelBacklog]) -> bool:
        """Begin with new partitions; return whether the backlogs have changed by that."""
        partitions = [each for each in backlogs if each.partition is not None]
        if not partitions:
            return False
        self._check_topics(partitions)
        return self._beginning.begin(self.progress, partitions)

    @property
    def suspected(self) -> Set[str]:
        """Keys that nothing is read of until it is certain whether messages were lost."""
        return self.progress.suspected | self.unchecked.keys()

    def unread(self, backlog: ChannelBacklog) -> int:
        """Return how many messages of a key could be pulled now, at most."""
        if self._options.allow_shared_channel:  # others may have read what this query has not
            return backlog.available
        return self.progress.unread(backlog)

    def count(self, backlog: ChannelBacklog) -> int:
        """Return how many messages of a key there are to pull now, if need be by asking its leader.

        The sizes of those that the channel is beyond say how many they are only roughly.
        """
        coverage = self.progress.coverage(backlog.key)
        unread = self.unread(backlog)
        if coverage is None or unread == backlog.available:
            return unread
        extent = PartitionExtent(backlog.key, backlog.start, backlog.end, backlog.message_count)
        search = search_of(self._monitor, extent, fail=self._options.fail_on_data_loss)
        first = search.first_from(coverage.resume)
        if first is None:
            return unread
        return max(0, backlog.message_count + 1 - first.number - backlog.in_flight)

    def find_losses(self, backlogs: Iterable[ChannelBacklog], now: float) -> list[LostRange]:
        """Return what is certainly lost of the partitions."""
        shared = self._options.allow_shared_channel
        by_key = {each.key: each for each in backlogs}
        losses = self.progress.find_losses(by_key, now, shared=shared)
        # One that led a partition before may be behind: only its leader says what is lost.
        suspected = {split_key(key)[0] for key in self.suspected}
        self._monitor.look_up_each_time(suspected)
        return losses

    def accept(self, loss: LostRange) -> None:
        """Go on after messages that are lost."""
        ordered = self.progress.is_ordered(loss.key)
        self.progress.begin(loss.key, loss.coverage, ordered=ordered)

    def record(self, end: Offset) -> Offset:
        """Write the markers of a batch that is planned."""
        self._recorded = end.generation, end.seq, ReadProgress(self.progress.states)
        return self._log.record(end, self.progress)

    def before(self, end: Offset) -> ReadProgress:
        """Return what was read before a batch."""
        generation, seq, progress = self._recorded
        if (generation, seq) == (end.generation, end.seq):
            return progress
        return self._read(end) if _partitions(end) else ReadProgress()

    def restore(self, end: Offset) -> None:
        """Continue with what was read before a batch of an earlier run."""
        self.progress = self._read(end)
        self._recorded = end.generation, end.seq, ReadProgress(self.progress.states)

    # Private methods

    def _read(self, end: Offset) -> ReadProgress:
        """Return the progress that is stored with a batch."""
        progress = self._log.progress(end)
        unknown = [key for key in _partitions(end) if key not in progress]
        if unknown:
            report_loss(
                f"spoolLocation {self._log.location!r} does not say what was read of "
                f"{describe_place(unknown[0])} before batch {end.seq}: messages may be lost or "
                "repeated",
                fail=self._options.fail_on_data_loss,
            )
            self._beginning.go_on(progress)
        return progress

    def _check_topics(self, backlogs: Iterable[ChannelBacklog]) -> None:
        """Report topics that were created again while the query was stopped."""
        if self._to_check is None:
            self._to_check = {*self.progress.states}
        before, self.unchecked = self.unchecked, {}
        for backlog in backlogs:
            if backlog.key not in self._to_check:
                continue
            try:
                self._check_topic(backlog)
            except (NetworkError, DiscoveryError, AdminError) as error:
                if backlog.key not in before:
                    logger.warning("%s: %s; trying again", backlog.key, error)
                self.unchecked[backlog.key] = str(error)
            else:
                self._to_check.discard(backlog.key)

    def _check_topic(self, backlog: ChannelBacklog) -> None:
        """Report that a topic was created again; raise what another attempt can help with."""
        coverage = self.progress.coverage(backlog.key)
        if coverage is None or not coverage.ids or coverage.resume >= backlog.end:
            return
        try:
            message = self._monitor.message_at(backlog.key, coverage.resume)
        except AdminError as error:
            if any(code in error.message for code in _NOT_LED):
                raise
            logger.debug("%s: %s", backlog.key, error)
            return
        # Ids and offsets rise together, so what follows has a higher id.
        if message.offset >= coverage.offsets.last and message.internal_id <= coverage.ids.last:
            why = f"topic {backlog.topic!r} was created again: its internal ids start over"
            report_loss(why, fail=self._options.fail_on_data_loss)
            begin = Coverage(base=backlog.start, since=coverage.since)
            self.accept(LostRange(backlog.key, why, begin))


def _partitions(end: Offset) -> Collection[str]:
    """Return the keys of a batch that are partitions of the redesigned NSQ."""
    return [key for key in end.plan if partition_of(key) is not None]
