"""Where a query begins with a partition of the redesigned NSQ that it has not read yet.

A new query begins where ``startingPosition`` says, which is turned into the offset of a message.
The channel is moved there; but a moved channel may be elsewhere after a change of leaders, so that
each task checks it again (``leader``), and drops what is before the beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

from nsqflow.client.position import EARLIEST, LATEST, Position
from nsqflow.errors import DiscoveryError
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.allocation import ChannelBacklog
from nsqflow.spark.source.backlog_monitor import BacklogMonitor
from nsqflow.spark.source.offset_search import PartitionExtent, search_of, until_led
from nsqflow.spark.source.offsets import make_key
from nsqflow.spark.source.progress import ReadProgress
from nsqflow.spark.spool.coverage import Coverage
from nsqflow.spark.starting_position import check_named, position_of, time_of

logger = logging.getLogger(__name__)


class Beginning:
    """Begins with new partitions of one query."""

    def __init__(self, monitor: BacklogMonitor, options: SourceOptions) -> None:
        self._monitor = monitor
        self._options = options

    def begin(self, progress: ReadProgress, backlogs: Collection[ChannelBacklog]) -> bool:
        """Begin with partitions that are not in ``progress``; return whether there were any."""
        self._keep_order(progress, backlogs)
        new = [
            backlog
            for backlog in backlogs
            if backlog.partition is not None and backlog.key not in progress
        ]
        topics = {backlog.topic for backlog in new if progress.knows_topic(backlog.topic)}
        resumed = bool(progress.states)
        if new and not resumed:
            self._check_position()
            self._expect(progress, self._monitor.partitions.topics)
        expected = {*progress.expected}
        for backlog in new:
            # What there is in a new partition, or in a topic that a pattern matches only now, is
            # for the query as well.
            is_later = resumed and not backlog.exists
            if not (is_later or progress.knows_topic(backlog.topic)):
                self._expect(progress, [backlog.topic])
            was_there = not resumed or backlog.key in expected
            added = (backlog.topic in topics or is_later) and not was_there
            position = EARLIEST if added else self._position(backlog, was_there=was_there)
            coverage = self._coverage(backlog, position)
            ordered = self._monitor.partitions.is_ordered(backlog.topic)
            progress.begin(backlog.key, coverage, ordered=ordered)
        self._monitor.partitions.created.difference_update(each.key for each in backlogs)
        return bool(new)

    def go_on(self, progress: ReadProgress) -> None:
        """Continue where the channel is, in all partitions: nothing is known of any."""
        for backlog in until_led(self._monitor, self._poll):
            ordered = self._monitor.partitions.is_ordered(backlog.topic)
            progress.begin(backlog.key, Coverage(base=backlog.cursor), ordered=ordered)

    # Private methods

    def _keep_order(self, progress: ReadProgress, backlogs: Iterable[ChannelBacklog]) -> None:
        """Read in order from now on if ``ordered`` is new; a channel that is ordered stays so."""
        for key, topic in ((each.key, each.topic) for each in backlogs):
            coverage = progress.coverage(key)
            if coverage is None or progress.is_ordered(key):
                continue
            if self._monitor.partitions.is_ordered(topic):
                progress.begin(key, coverage, ordered=True)

    def _check_position(self) -> None:
        """Raise ``ConfigError`` if ``startingPosition`` names what the query does not read."""
        found = self._monitor.partitions.topics
        counts = {topic: each.meta.partition_num for topic, each in found.items()}
        unknown = dict.fromkeys(self._options.topics, 0)
        check_named(self._options.starting_position, unknown | counts)

    def _expect(self, progress: ReadProgress, topics: Iterable[str]) -> None:
        """Expect all partitions of topics: one that has no leader now is not added later."""
        for topic in topics:
            count = self._monitor.partitions.topics[topic].meta.partition_num
            progress.expect(make_key(topic, number) for number in range(count))

    def _poll(self) -> list[ChannelBacklog]:
        """Return the backlogs of all partitions; raise ``DiscoveryError`` if one has no leader."""
        found = [each for each in self._monitor.poll() if each.partition is not None]
        keys = {each.key for each in found}
        for topic, each in self._monitor.partitions.topics.items():
            for number in range(each.meta.partition_num):
                if make_key(topic, number) not in keys:
                    raise DiscoveryError(f"partition {number} of {topic!r} has no leader now")
        return found

    def _position(self, backlog: ChannelBacklog, *, was_there: bool) -> Position | None:
        """Return where a partition begins that was not added; None where its channel is.

        The end is that of when the query began: it reads what was published since in a topic that
        it found later, and maybe forgot, as it stopped before its next batch.
        """
        assert backlog.partition is not None
        position = position_of(self._options.starting_position, backlog.topic, backlog.partition)
        return None if position == LATEST and not was_there else position

    def _coverage(self, backlog: ChannelBacklog, position: Position | None) -> Coverage:
        if position is None:
            return Coverage(base=backlog.cursor)
        coverage = self._resolve(backlog, position)
        coverage = replace(coverage, first=coverage.base)
        target = LATEST if position == LATEST else Position("virtual_queue", coverage.base)
        until_led(self._monitor, lambda: self._monitor.seek(backlog.key, target))
        logger.info("%s: begins at offset %d", backlog.key, coverage.base)
        return coverage

    def _resolve(self, backlog: ChannelBacklog, position: Position) -> Coverage:
        """Return the beginning as the offset of a message, or of the end."""
        if position == LATEST:
            return Coverage(base=backlog.end)
        if position == EARLIEST:
            return Coverage(base=backlog.start)
        since = time_of(self._options.starting_position) if position.kind == "timestamp" else 0
        extent = PartitionExtent(backlog.key, backlog.start, backlog.end, backlog.message_count)
        search = search_of(self._monitor, extent, fail=self._options.fail_on_data_loss)
        found = search.find_start(position, since)
        return Coverage(base=backlog.end if found is None else found.offset, since=since)
