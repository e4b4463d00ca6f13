"""What of a partition was read before: by internal ids, and by where the query began."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import DataLossError
from nsqflow.spark.source.rows import position_totals, row_totals
from nsqflow.spark.source.seen_ranges import SeenRanges
from nsqflow.spark.spool.coverage import Coverage, RangeSet
from nsqflow.spark.spool.slot_format import PartitionTotals
from tests.unit.spark.source.position_rows import message, rows_at

if TYPE_CHECKING:
    import pyarrow as pa

NOTHING = PartitionTotals()


def read(*numbers: int) -> Coverage:
    """Return what a query has read that has read these messages."""
    totals = row_totals(rows_at(map(message, numbers)))
    return Coverage(ids=totals.ids, offsets=totals.offsets, newest=totals.newest)


def seen(coverage: Coverage, *, dedupe: bool = True, fail: bool = True) -> SeenRanges:
    return SeenRanges(coverage, "partition 0 of 't'", dedupe=dedupe, fail=fail)


def known(
    seen: SeenRanges, rows: pa.RecordBatch, so_far: PartitionTotals
) -> tuple[set[int], set[int]]:
    return seen.find(rows, row_totals(rows).ids, so_far)


def test_messages_that_were_read_before_are_found_whatever_their_attempts() -> None:
    rows = rows_at(map(message, [3, 4, 5, 9, 10]))
    assert known(seen(read(1, 2, 3, 5, 9)), rows, NOTHING) == (set(), {0, 2, 3})


def test_messages_of_the_same_batch_and_of_the_same_read_are_found_too() -> None:
    so_far = row_totals(rows_at(map(message, [1, 2])))
    rows = rows_at(map(message, [2, 3, 3, 4]))
    assert known(seen(Coverage()), rows, so_far) == (set(), {0, 2})


def test_without_dedupe_nothing_counts_as_read() -> None:
    rows = rows_at(map(message, [1, 1]))
    assert known(seen(read(1), dedupe=False), rows, NOTHING) == (set(), set())


def test_what_is_before_the_beginning_is_skipped() -> None:
    rows = rows_at(map(message, [1, 2, 3, 4]))
    assert known(seen(Coverage(base=30, first=30)), rows, NOTHING) == ({0, 1}, set())
    assert known(seen(Coverage(since=1003)), rows, NOTHING) == ({0, 1}, set())


def test_what_waited_in_the_channel_may_come_from_before_the_offset_where_the_query_began() -> None:
    rows = rows_at([message(1), message(7)])
    assert known(seen(Coverage(base=50)), rows, NOTHING) == (set(), set())


def test_ids_that_start_over_are_a_topic_that_was_created_again() -> None:
    rows = rows_at([message(2, timestamp=9000)])
    with pytest.raises(DataLossError, match="partition 0 of 't' was created again"):
        known(seen(read(1, 2, 3)), rows, NOTHING)


def test_they_are_rows_if_the_loss_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    rows = rows_at([message(2, timestamp=9000), message(3)])
    with caplog.at_level(logging.WARNING):
        assert known(seen(read(1, 2, 3), fail=False), rows, NOTHING) == (set(), {1})
    assert "was created again" in caplog.text


def test_a_message_that_comes_twice_in_one_read_is_no_topic_that_was_created_again() -> None:
    rows = rows_at([message(7), message(7)])
    assert known(seen(read(1, 2)), rows, NOTHING) == (set(), {1})
    so_far = row_totals(rows_at([message(7)]))
    assert known(seen(read(1, 2)), rows, so_far) == (set(), {0, 1})


@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=6))
def test_each_message_is_new_once(chunks: list[list[int]]) -> None:
    coverage, found = Coverage(), list[int]()
    for numbers in chunks:
        rows = rows_at(map(message, numbers))
        skipped, repeated = known(seen(coverage), rows, NOTHING) if numbers else (set(), set())
        new = [n for index, n in enumerate(numbers) if index not in repeated | skipped]
        found += new
        totals = row_totals(rows_at(map(message, new)))
        coverage |= Coverage(ids=totals.ids, offsets=totals.offsets, newest=totals.newest)
    assert sorted(found) == sorted({n for numbers in chunks for n in numbers})


@given(st.sets(st.integers(0, 60)))
def test_the_bytes_of_messages_are_as_few_ranges_as_can_be(numbers: set[int]) -> None:
    totals = position_totals(rows_at(map(message, numbers)))
    assert totals.offsets == RangeSet.of((n * 10, n * 10 + 10) for n in numbers)
    assert totals.ids == RangeSet.of_numbers(numbers)


def test_a_message_that_comes_twice_does_not_stand_for_one_that_is_missing() -> None:
    totals = position_totals(rows_at(map(message, [1, 3, 3])))
    assert totals.offsets == RangeSet(((10, 20), (30, 40)))
