"""Backoff: one result per timeout, up with failures and down with successes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.client.consumer.backoff import Backoff, BackoffPhase


def blocked(level: int, max_duration: float = 120, multiplier: float = 1) -> Backoff:
    """A backoff after ``level`` counted failures; blocked from time 0."""
    backoff = Backoff(max_duration, multiplier)
    for _ in range(level):
        assert backoff.failed(0 if backoff.until is None else backoff.until)
    if backoff.until is not None:
        backoff.until = backoff.duration(level)
    return backoff


def test_it_begins_without_backoff() -> None:
    backoff = Backoff(120, 1)
    assert (backoff.level, backoff.until, backoff.phase(0)) == (0, None, BackoffPhase.FULL)


def test_the_first_failure_blocks_for_twice_the_multiplier() -> None:
    backoff = Backoff(120, 1.5)
    assert backoff.failed(100)
    assert (backoff.level, backoff.until) == (1, 103)
    assert backoff.phase(102.9) is BackoffPhase.BLOCKED
    assert backoff.phase(103) is BackoffPhase.TESTING


def test_each_failed_test_doubles_the_time_up_to_the_maximum() -> None:
    backoff, now, waits = Backoff(10, 1), 0.0, []
    for _ in range(5):
        assert backoff.failed(now)
        assert backoff.until is not None
        waits.append(backoff.until - now)
        now = backoff.until
    assert waits == [2, 4, 8, 10, 10]
    assert backoff.level == 4, "a level more would be one more success to come back, for nothing"


def test_results_of_what_was_in_flight_do_not_count_while_blocked() -> None:
    backoff = blocked(level=2)
    assert not backoff.failed(3.9)
    assert not backoff.succeeded(3.9)
    assert (backoff.level, backoff.until) == (2, 4)


def test_a_successful_test_lowers_the_level_and_blocks_for_the_shorter_time() -> None:
    backoff = blocked(level=3)
    assert backoff.succeeded(8)
    assert (backoff.level, backoff.until) == (2, 12)
    assert backoff.phase(9) is BackoffPhase.BLOCKED


def test_the_last_success_ends_it() -> None:
    backoff = blocked(level=1)
    assert backoff.succeeded(2)
    assert (backoff.level, backoff.until, backoff.phase(2)) == (0, None, BackoffPhase.FULL)


def test_a_success_without_backoff_changes_nothing() -> None:
    backoff = Backoff(120, 1)
    assert not backoff.succeeded(5)
    assert (backoff.level, backoff.until) == (0, None)


def test_a_maximum_of_zero_switches_it_off() -> None:
    backoff = Backoff(0, 1)
    assert not backoff.failed(1)
    assert not backoff.succeeded(1)
    assert (backoff.level, backoff.phase(1)) == (0, BackoffPhase.FULL)
    assert backoff.duration(7) == 0


def test_a_maximum_below_the_first_step_is_the_only_step() -> None:
    backoff = blocked(level=1, max_duration=0.5, multiplier=30)
    assert backoff.until == 0.5
    assert backoff.failed(1)
    assert backoff.level == 1


positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@given(positive, positive, st.integers(min_value=0, max_value=10**9))
def test_no_level_overflows(max_duration: float, multiplier: float, level: int) -> None:
    assert 0 <= Backoff(max_duration, multiplier).duration(level) <= max_duration


@given(st.floats(0.1, 1e6), st.floats(0.01, 1e3), st.integers(1, 60))
def test_durations_are_powers_of_two_below_the_maximum(
    max_duration: float, multiplier: float, level: int
) -> None:
    expected = min(max_duration, multiplier * 2**level)
    assert Backoff(max_duration, multiplier).duration(level) == pytest.approx(expected)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 20))))
def test_whatever_comes_the_way_back_has_a_success_for_each_level(
    results: list[tuple[bool, float]],
) -> None:
    backoff, now = Backoff(10, 1), 0.0
    for failed, later in results:
        now += later
        phase, level = backoff.phase(now), backoff.level
        counted = backoff.failed(now) if failed else backoff.succeeded(now)
        assert counted is (phase is BackoffPhase.TESTING or (failed and phase is BackoffPhase.FULL))
        assert abs(backoff.level - level) <= counted
        assert (
            (backoff.until is None)
            is (backoff.level == 0)
            is (backoff.phase(now) is BackoffPhase.FULL)
        )
        if counted and backoff.until is not None:
            assert backoff.until == now + min(10, 2**backoff.level)
    for _ in range(backoff.level):
        assert backoff.until is not None
        assert backoff.succeeded(backoff.until)
    assert backoff.phase(now) is BackoffPhase.FULL
