"""Finds messages of a partition by their offset, their time or their number, over HTTP.

A request returns one message. Times rise with the numbers of messages, so a time is found by
bisection. It goes by numbers, not by offsets: nsqd fails if it is asked for an offset within the
last message.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from time import monotonic, sleep
from typing import NamedTuple, TypeVar

from nsqflow.admin.partition import BrowsedMessage
from nsqflow.client.position import EARLIEST, LATEST, Position
from nsqflow.errors import AdminError, ConfigError, DiscoveryError, NetworkError
from nsqflow.spark.source.backlog_monitor import BacklogMonitor
from nsqflow.spark.source.data_loss import report_loss
from nsqflow.spark.source.offsets import describe_place, split_key

T = TypeVar("T")

LEADER_TIMEOUT = 30.0
"""Seconds for a partition to have a leader that answers."""

RETRY_INTERVAL = 0.2
"""Seconds until it is asked again."""

_NANOSECONDS = 10**9


class PartitionExtent(NamedTuple):
    """What a partition has at one moment."""

    key: str
    start: int
    """The offset of the oldest byte that is kept."""
    end: int
    """The offset of the next message."""
    message_count: int
    """How many messages there were ever: the number of the last one."""

    @property
    def name(self) -> str:
        """The partition and its topic, for users."""
        return f"{describe_place(self.key)} of {split_key(self.key)[0]!r}"


class OffsetSearch:
    """Searches one partition; what is published later is not found.

    ``message_at`` returns the first message at an offset or after it, ``message_number`` the one
    with a number. ``fail`` is ``failOnDataLoss``.
    """

    def __init__(
        self,
        extent: PartitionExtent,
        message_at: Callable[[int], BrowsedMessage],
        message_number: Callable[[int], BrowsedMessage],
        *,
        fail: bool,
    ) -> None:
        self._extent = extent
        self._message_at = message_at
        self._message_number = message_number
        self._fail = fail

    def find_start(self, position: Position, since: int = 0) -> BrowsedMessage | None:
        """Return the first message from a position on; None at the end.

        For a time ``since`` is that in nanoseconds. Reports a loss if the message that was at the
        position is not kept any more.
        """
        if position == LATEST:
            return None
        if position == EARLIEST:
            return self.first
        if position.kind == "timestamp":
            found = self.first_since(since)
            oldest = self._extent.start > 0 and found is self.first
            if oldest and found is not None and found.timestamp > since:
                self._report_removed(f"what it had at {since / _NANOSECONDS:.0f}")
            return found
        return self._from_offset(position.value)

    @cached_property
    def first(self) -> BrowsedMessage | None:
        """The oldest message that is kept; None if there is none."""
        extent = self._extent
        return None if extent.start >= extent.end else self._message_at(extent.start)

    def first_since(self, since: int) -> BrowsedMessage | None:
        """Return the first message at a time or after it, in nanoseconds; None if all are older."""
        first = self.first
        if first is None or first.timestamp >= since:
            return first
        low, found = first.number, self._message_number(self._extent.message_count)
        if found.timestamp < since:
            return None
        while found.number - low > 1:  # the message at low is older, the found one is not
            middle = (low + found.number) // 2
            message = self._message_number(middle)
            if message.timestamp < since:
                low = middle
            else:
                found = message
        return found

    def first_from(self, offset: int) -> BrowsedMessage | None:
        """Return the first message at an offset or after it; None at the end."""
        if offset <= self._extent.start:
            return self.first
        if offset >= self._extent.end:
            return None
        last = self._message_number(self._extent.message_count)
        if offset > last.offset:
            return None
        return last if offset == last.offset else self._message_at(offset)

    def message(self, number: int) -> BrowsedMessage:
        """Return the message with a number, which must not be beyond the last one."""
        return self._message_number(number)

    # Private methods

    def _from_offset(self, offset: int) -> BrowsedMessage | None:
        extent = self._extent
        if offset > extent.end:
            raise ConfigError(
                f"startingPosition has offset {offset} for {extent.name}, which is invalid: must "
                f"be from 0 to {extent.end}, its end"
            )
        if offset < extent.start:
            self._report_removed(f"offset {offset}")
            return self.first
        return self.first_from(offset)

    def _report_removed(self, what: str) -> None:
        report_loss(
            f"startingPosition: {self._extent.name} keeps nothing before offset "
            f"{self._extent.start}, and {what} is gone",
            fail=self._fail,
        )


def search_of(monitor: BacklogMonitor, extent: PartitionExtent, *, fail: bool) -> OffsetSearch:
    """Return the search of a partition, which follows its leader."""
    key = extent.key
    return OffsetSearch(
        extent,
        lambda offset: until_led(monitor, lambda: monitor.message_at(key, offset)),
        lambda number: until_led(monitor, lambda: monitor.message_number(key, number)),
        fail=fail,
    )


def until_led(monitor: BacklogMonitor, request: Callable[[], T]) -> T:
    """Repeat a request while the partition has no leader that answers."""
    deadline = monotonic() + LEADER_TIMEOUT
    while True:
        try:
            return request()
        except (NetworkError, DiscoveryError, AdminError):
            if monotonic() > deadline:
                raise
        sleep(RETRY_INTERVAL)
        with suppress(NetworkError, DiscoveryError):
            monitor.find()
