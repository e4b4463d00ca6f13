"""Ranges of ids and offsets: as sets of integers, only smaller."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.spark.spool.coverage import MAX_RANGES, Coverage, RangeSet

numbers = st.frozensets(st.integers(0, 40))
ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)).map(lambda r: (r[0], sum(r))))


def members(found: RangeSet) -> set[int]:
    return {number for start, end in found.ranges for number in range(start, end)}


def is_canonical(found: RangeSet) -> bool:
    edges = [edge for each in found.ranges for edge in each]
    return edges == sorted(set(edges))


@given(numbers, numbers)
def test_a_range_set_is_a_set_of_integers(one: frozenset[int], two: frozenset[int]) -> None:
    both = RangeSet.of_numbers(one) | RangeSet.of_numbers(two)
    assert members(both) == one | two
    assert is_canonical(both)
    assert len(both) == len(one | two)
    assert bool(both) == bool(one | two)
    assert [number in both for number in range(-1, 45)] == [
        number in one | two for number in range(-1, 45)
    ]


@given(ranges)
def test_ranges_that_touch_or_overlap_are_one(given_ranges: list[tuple[int, int]]) -> None:
    found = RangeSet.of(given_ranges)
    assert members(found) == {n for start, end in given_ranges for n in range(start, end)}
    assert is_canonical(found)


@given(numbers, st.integers(0, 45))
def test_the_end_from_a_start_is_the_first_integer_that_is_missing(
    present: frozenset[int], start: int
) -> None:
    found = RangeSet.of_numbers(present)
    assert found.end_from(start) == next(n for n in range(start, 100) if n not in present)


def test_integers_in_a_row_are_one_range_in_any_order() -> None:
    assert RangeSet.of_numbers([7, 5, 6]).ranges == ((5, 8),)
    assert RangeSet.of_numbers([5, 5, 7]).ranges == ((5, 6), (7, 8))


@pytest.mark.parametrize("wrong", [[[2, 1]], [[1]], [["a", "b"]], [[1, 2, 3]], [1]])
def test_what_is_no_range_is_an_error(wrong: list[list[int]]) -> None:
    with pytest.raises((ValueError, TypeError)):
        RangeSet.of(wrong)


def test_a_coverage_resumes_where_something_is_missing() -> None:
    begun = Coverage(base=100)
    assert begun.resume == 100
    read = begun | Coverage(offsets=RangeSet(((100, 130), (160, 190))), newest=5)
    assert (read.base, read.resume, read.newest) == (100, 130, 5)
    assert (read | Coverage(offsets=RangeSet(((130, 160),)))).resume == 190


@given(st.integers(0, 2**60), numbers, numbers, st.integers(0, 2**62))
def test_a_coverage_survives_json(
    base: int, ids: frozenset[int], offsets: frozenset[int], newest: int
) -> None:
    coverage = Coverage(
        base=base,
        first=base // 2,
        ids=RangeSet.of_numbers(ids),
        offsets=RangeSet.of_numbers(offsets),
        newest=newest,
    )
    assert Coverage.decode(json.loads(json.dumps(coverage.encode()))) == coverage


def test_a_coverage_with_too_many_ranges_keeps_the_highest_ids_and_the_lowest_offsets() -> None:
    """A shared channel may have more and more: its other readers take every second message."""
    coverage = Coverage()
    step = MAX_RANGES // 4
    for begin in range(0, 10 * step, step):
        odd = RangeSet.of_numbers(range(2 * begin + 1, 2 * (begin + step), 2))
        coverage |= Coverage(ids=odd, offsets=odd)
    assert len(coverage.ids.ranges) == len(coverage.offsets.ranges) == MAX_RANGES
    assert coverage.ids.last == 20 * step - 1
    assert coverage.resume == 0
    assert (coverage | Coverage(offsets=RangeSet(((0, 1),)))).resume == 2
