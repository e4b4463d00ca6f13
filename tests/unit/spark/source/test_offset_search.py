"""Searching a partition over HTTP, compared with the log of the broker as it is."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.admin.partition import BrowsedMessage
from nsqflow.broker.redesigned.engine.log import PartitionLog
from nsqflow.broker.redesigned.engine.position import find_message
from nsqflow.client.position import EARLIEST, LATEST, Position
from nsqflow.errors import AdminError, ConfigError, DataLossError
from nsqflow.spark.source.offset_search import OffsetSearch, PartitionExtent

TIMES = st.lists(st.integers(0, 30), max_size=40).map(sorted)


class SearchedLog:
    """A log, and the search of what it had when the search was made."""

    def __init__(self, times: Sequence[int], *, dropped: int = 0, fail: bool = True) -> None:
        self.log = PartitionLog(1)
        self.requests = 0
        for number, time in enumerate(times):
            self.publish(time, b"x" * (1 + number * 7 % 50))
        self.log.drop_before(min(dropped, self.log.end))
        log = self.log
        extent = PartitionExtent("orders|1", log.start_offset, log.end_offset, log.end)
        self.search = OffsetSearch(extent, self._at, self._number, fail=fail)

    def publish(self, time: int, body: bytes) -> None:
        self.log.append((body,), time)

    def kept(self) -> list[tuple[int, int]]:
        """The offsets and times of the messages that are kept."""
        log = self.log
        indexes = range(log.first, log.end)
        return [(log.offset_of(index), log.timestamp_of(index)) for index in indexes]

    def _at(self, offset: int) -> BrowsedMessage:
        return self._find("virtual_offset", offset)

    def _number(self, number: int) -> BrowsedMessage:
        return self._find("count", number)

    def _find(self, mode: str, value: int) -> BrowsedMessage:
        self.requests += 1
        found = find_message(self.log, mode, value)
        if found is None:
            raise AdminError(500, "INTERNAL_ERROR")
        return BrowsedMessage(
            partition=1,
            internal_id=found.internal_id,
            trace_id=0,
            timestamp=found.timestamp,
            offset=found.offset,
            number=found.log_index + 1,
            body="",
            headers=None,
        )


def offset_of(message: BrowsedMessage | None) -> int | None:
    return None if message is None else message.offset


@given(TIMES, st.integers(0, 45), st.integers(-1, 32))
def test_the_first_message_at_a_time_or_after_it_is_found(
    times: list[int], dropped: int, since: int
) -> None:
    searched = SearchedLog(times, dropped=dropped)
    expected = [offset for offset, time in searched.kept() if time >= since]
    assert offset_of(searched.search.first_since(since)) == next(iter(expected), None)


@given(TIMES, st.integers(0, 45), st.integers(0, 3000))
def test_the_first_message_at_an_offset_or_after_it_is_found(
    times: list[int], dropped: int, offset: int
) -> None:
    searched = SearchedLog(times, dropped=dropped)
    expected = [each for each, _ in searched.kept() if each >= offset]
    assert offset_of(searched.search.first_from(offset)) == next(iter(expected), None)


def test_what_is_published_later_is_not_found() -> None:
    searched = SearchedLog([1, 2, 3])
    end = searched.log.end_offset
    searched.publish(5, b"later")
    assert searched.search.first_since(4) is None
    assert searched.search.first_from(end) is None
    assert searched.search.first_from(end - 1) is None


def test_a_time_in_a_large_partition_takes_few_requests() -> None:
    searched = SearchedLog([*range(0, 20_000, 2)])
    found = searched.search.first_since(9_001)
    assert found is not None
    assert found.timestamp == 9_002
    assert searched.requests <= 18


def test_equal_times_are_found_from_their_first_message_on() -> None:
    searched = SearchedLog([1] + [5] * 30 + [9])
    assert offset_of(searched.search.first_since(5)) == searched.log.offset_of(1)
    assert offset_of(searched.search.first_since(6)) == searched.log.offset_of(31)


def test_an_empty_partition_has_no_first_message() -> None:
    for searched in (SearchedLog([]), SearchedLog([1, 2], dropped=2)):
        search = searched.search
        for position in (EARLIEST, LATEST, Position("timestamp", 0)):
            assert search.find_start(position) is None
        assert search.first is None
        assert search.first_since(0) is None
        assert searched.requests == 0


def test_positions_are_found() -> None:
    searched = SearchedLog([10, 20, 30])
    search, offset = searched.search, searched.log.offset_of
    assert offset_of(search.find_start(EARLIEST)) == 0
    assert search.find_start(LATEST) is None
    assert offset_of(search.find_start(Position("timestamp", 0), 20)) == offset(1)
    assert offset_of(search.find_start(Position("virtual_queue", offset(1)))) == offset(1)
    assert offset_of(search.find_start(Position("virtual_queue", offset(1) + 1))) == offset(2)
    assert search.find_start(Position("virtual_queue", offset(2) + 1)) is None
    assert search.find_start(Position("virtual_queue", offset(3))) is None
    assert search.message(2).offset == offset(1)


def test_an_offset_beyond_the_end_is_refused() -> None:
    searched = SearchedLog([10])
    end = searched.log.end_offset
    with pytest.raises(ConfigError) as caught:
        searched.search.find_start(Position("virtual_queue", end + 1))
    assert str(caught.value) == (
        f"startingPosition has offset {end + 1} for partition 1 of 'orders', which is invalid: "
        f"must be from 0 to {end}, its end"
    )


@pytest.mark.parametrize(
    ("position", "since", "what"),
    [
        (Position("virtual_queue", 3), 0, "offset 3 is gone"),
        (Position("timestamp", 0), 15 * 10**9, "what it had at 15 is gone"),
    ],
)
def test_a_start_that_is_not_kept_any_more_is_a_loss(
    position: Position, since: int, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    times = [10 * 10**9, 20 * 10**9, 30 * 10**9]
    strict = SearchedLog(times, dropped=1)
    start = strict.log.start_offset
    words = f"startingPosition: partition 1 of 'orders' keeps nothing before offset {start}, and "
    with pytest.raises(DataLossError) as caught:
        strict.search.find_start(position, since)
    assert str(caught.value).startswith(f"{words}{what}; start once with failOnDataLoss=false")
    lenient = SearchedLog(times, dropped=1, fail=False)
    with caplog.at_level(logging.WARNING):
        assert offset_of(lenient.search.find_start(position, since)) == start
    assert caplog.messages == [f"{words}{what}; continuing without them"]


@pytest.mark.parametrize("since", [20, 25, 30, 31])
def test_a_start_that_is_still_kept_is_no_loss(since: int) -> None:
    searched = SearchedLog([10, 20, 30], dropped=1)
    found = searched.search.find_start(Position("timestamp", 0), since)
    expected = {20: 1, 25: 2, 30: 2}.get(since)
    assert offset_of(found) == (None if expected is None else searched.log.offset_of(expected))


def test_the_oldest_message_of_all_is_no_loss() -> None:
    searched = SearchedLog([10, 20])
    assert offset_of(searched.search.find_start(Position("timestamp", 0), 5)) == 0
    assert offset_of(searched.search.find_start(EARLIEST)) == 0
