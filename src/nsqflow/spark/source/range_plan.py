"""Plans what ``mode=range`` and ``mode=peek`` read of partitions of the redesigned NSQ.

Where a range begins and ends is fixed in the driver, as offsets: each evaluation of the DataFrame
reads the same messages, whatever is published meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from time import monotonic, sleep

from pyspark.sql.datasource import InputPartition

from nsqflow.admin.partition import BrowsedMessage, PartitionStats
from nsqflow.client.position import EARLIEST
from nsqflow.errors import ConfigError, DiscoveryError, NetworkError
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.allocation import ChannelBacklog, divide, split
from nsqflow.spark.source.backlog_monitor import BacklogMonitor
from nsqflow.spark.source.offset_search import (
    LEADER_TIMEOUT,
    RETRY_INTERVAL,
    OffsetSearch,
    PartitionExtent,
    search_of,
)
from nsqflow.spark.source.offsets import make_key
from nsqflow.spark.starting_position import check_named, position_of, time_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRange:
    """Messages of a partition that follow each other."""

    key: str
    start: int
    """The offset of the first message."""
    end: int
    """The offset at which the last one ends."""
    number: int
    """The number of the first message in its partition."""
    count: int
    """How many they are."""
    first_timestamp: int
    """When the first one was published, in nanoseconds: it shows whether it is still the same."""
    since: int = 0
    """Older messages are left out, in nanoseconds."""
    until: int | None = None
    """Messages of this time or newer are left out."""


class RangeInputPartition(InputPartition):
    """What one task reads of a partition, without a channel."""

    def __init__(self, range: MessageRange) -> None:
        super().__init__((range.key, range.start, range.end))
        self.range = range


def plan_ranges(options: SourceOptions) -> list[InputPartition]:
    """Return what ``mode=range`` reads; the partitions of a topic are in the order of offsets."""
    with closing(BacklogMonitor(options)) as monitor:
        stats = _read_stats(monitor, options)
        planner = _RangePlanner(monitor, options)
        found = [planner.find(each) for each in stats]
        ranges = {each.key: each for each in found if each is not None}
        limits = divide({key: each.count for key, each in ranges.items()}, options.max_messages)
        return planner.cut(ranges, limits)


def plan_peek(
    monitor: BacklogMonitor,
    options: SourceOptions,
    backlogs: Iterable[ChannelBacklog],
    limits: Mapping[str, int],
) -> list[InputPartition]:
    """Return what ``mode=peek`` reads of partitions, which begins where their channels are."""
    _check_channels(monitor, options)
    planner = _RangePlanner(monitor, options)
    found = [planner.find_waiting(each) for each in backlogs if each.key in limits]
    return planner.cut({each.key: each for each in found if each is not None}, limits, parts=1)


class _RangePlanner:
    """Turns positions into ranges, and ranges into partitions."""

    def __init__(self, monitor: BacklogMonitor, options: SourceOptions) -> None:
        self._monitor = monitor
        self._options = options
        self._searches: dict[str, OffsetSearch] = {}

    def find(self, stats: PartitionStats) -> MessageRange | None:
        """Return what the options select of a partition; None if that is nothing."""
        options = self._options
        key = make_key(stats.topic, stats.partition)
        extent = PartitionExtent(key, stats.start, stats.end, stats.message_count)
        search = self._search(extent)
        text = options.starting_position
        position = position_of(text, stats.topic, stats.partition) or EARLIEST
        since = time_of(text) if position.kind == "timestamp" else 0
        first = search.find_start(position, since)
        if first is None:
            return None
        until, beyond = None, None
        if options.ending_timestamp is not None:
            until = time_of(options.ending_timestamp)
            beyond = search.first_since(until)
        return _range(extent, first, beyond, since=since, until=until)

    def find_waiting(self, backlog: ChannelBacklog) -> MessageRange | None:
        """Return what waits in a channel."""
        extent = PartitionExtent(backlog.key, backlog.start, backlog.end, backlog.message_count)
        first = self._search(extent).first_from(max(backlog.start, backlog.cursor))
        return None if first is None else _range(extent, first, None)

    def cut(
        self,
        ranges: Mapping[str, MessageRange],
        limits: Mapping[str, int],
        parts: int | None = None,
    ) -> list[InputPartition]:
        """Return at most ``limits`` messages of each range, in one or several partitions."""
        options = self._options
        most = None if parts else options.max_messages_per_partition
        cut: list[InputPartition] = []
        for key, limit in sorted(limits.items()):
            if key in ranges:
                limited = self._limit(ranges[key], limit)
                sizes = split(limited.count, parts or options.partitions_per_nsqd, most)
                cut += map(RangeInputPartition, self._split(limited, sizes))
        return cut

    # Private methods

    def _search(self, extent: PartitionExtent) -> OffsetSearch:
        fail = self._options.fail_on_data_loss
        search = self._searches[extent.key] = search_of(self._monitor, extent, fail=fail)
        return search

    def _limit(self, whole: MessageRange, limit: int) -> MessageRange:
        """Return the first messages of a range."""
        if limit >= whole.count:
            return whole
        return self._split(whole, [limit, whole.count - limit])[0]

    def _split(self, whole: MessageRange, sizes: Iterable[int]) -> list[MessageRange]:
        """Return ranges with these numbers of messages, which are all that the whole one has."""
        search = self._searches[whole.key]
        numbers = [*accumulate(sizes, initial=whole.number)]
        bounds = [search.message(number) for number in numbers[1:-1]]
        starts = [(whole.start, whole.first_timestamp)]
        starts += [(each.offset, each.timestamp) for each in bounds]
        ends = [*(each.offset for each in bounds), whole.end]
        return [
            replace(
                whole, start=start, end=end, number=low, count=high - low, first_timestamp=first
            )
            for (start, first), end, (low, high) in zip(
                starts, ends, pairwise(numbers), strict=True
            )
        ]


def _range(
    extent: PartitionExtent,
    first: BrowsedMessage,
    beyond: BrowsedMessage | None,
    *,
    since: int = 0,
    until: int | None = None,
) -> MessageRange | None:
    """Return the messages from the first one up to another, or to the end."""
    count = (extent.message_count + 1 if beyond is None else beyond.number) - first.number
    end = extent.end if beyond is None else beyond.offset
    if count <= 0:
        return None
    return MessageRange(
        key=extent.key,
        start=first.offset,
        end=end,
        number=first.number,
        count=count,
        first_timestamp=first.timestamp,
        since=since,
        until=until,
    )


def _read_stats(monitor: BacklogMonitor, options: SourceOptions) -> list[PartitionStats]:
    """Return all partitions of all topics, once each has a leader that answers."""
    deadline = monotonic() + LEADER_TIMEOUT
    while True:
        try:
            stats = monitor.partition_stats()
        except NetworkError:  # no leader answers
            if monotonic() > deadline:
                raise
            sleep(RETRY_INTERVAL)
            continue
        topics = monitor.partitions.topics
        known = {(each.topic, each.partition) for each in stats}
        missing = [
            (topic, number)
            for topic, found in sorted(topics.items())
            for number in range(found.meta.partition_num)
            if (topic, number) not in known
        ]
        if not missing:
            _check_channels(monitor, options)
            partitions = {topic: each.meta.partition_num for topic, each in topics.items()}
            check_named(options.starting_position, partitions)
            return sorted(stats, key=lambda each: (each.topic, each.partition))
        if monotonic() > deadline:
            topic, number = missing[0]
            raise DiscoveryError(
                f"partition {number} of {topic!r} has no leader that answers: try again later"
            )
        sleep(RETRY_INTERVAL)


def _check_channels(monitor: BacklogMonitor, options: SourceOptions) -> None:
    """Raise ``ConfigError`` for a topic in which a task can't create a channel that vanishes."""
    for topic, found in sorted(monitor.partitions.topics.items()):
        if found.meta.disable_channel_auto_create:
            raise ConfigError(
                f"mode={options.mode} is invalid for topic {topic!r}: nsqlookupd alone creates its "
                "channels, and keeps them; must be consume, with a channel"
            )
