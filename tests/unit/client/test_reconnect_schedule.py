"""When an nsqd is dialled next, after any losses, failures and triggers."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.client.reconnect_schedule import (
    TRIGGER_GAP,
    ReconnectSchedule,
    TriggerLimit,
    reconnect_delay,
)

ADDRESS = "nsqd:4150"

seconds = st.floats(0.001, 1000)
chances = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, 10**6), seconds, seconds, chances)
def test_a_delay_doubles_up_to_its_limit_less_some_jitter(
    failures: int, first: float, longest: float, jitter: float
) -> None:
    whole = min(longest, first * 2.0 ** min(failures - 1, 100))
    assert 0.75 * whole <= reconnect_delay(failures, first, longest, jitter) <= whole


@given(st.integers(1, 10**6), seconds, seconds, chances)
def test_a_delay_never_shrinks_with_more_failures(
    failures: int, first: float, longest: float, jitter: float
) -> None:
    now = reconnect_delay(failures, first, longest, jitter)
    assert reconnect_delay(failures + 1, first, longest, jitter) >= now > 0


def test_without_jitter_it_is_exactly_twice_as_long_each_time() -> None:
    delays = [reconnect_delay(failures, 8, 120, 0) for failures in range(1, 8)]
    assert delays == [8, 16, 32, 64, 120, 120, 120]


def test_jitter_sets_clients_apart() -> None:
    random = Random(1)
    assert len({reconnect_delay(3, 8, 120, random.random()) for _ in range(100)}) == 100


@given(seconds, st.floats(0, 1e6), chances)
def test_a_connection_that_worked_is_dialled_at_once_whatever_was_before(
    first: float, now: float, jitter: float
) -> None:
    schedule = ReconnectSchedule(first, 60)
    for _ in range(5):
        schedule.failed(now, jitter)
    schedule.lost(now, jitter, worked=True)
    assert now <= schedule.dial_at <= now + min(first, 0.5)
    assert schedule.failures == 0
    at = schedule.dial_at
    schedule.failed(at, 0)
    assert schedule.dial_at == at + min(first, 60), "the next is the first delay"


@pytest.mark.parametrize(("lasted", "worked"), [(0.0, False), (0.99, False), (1.0, True)])
def test_a_connection_worked_if_it_lasted_as_long_as_the_first_delay(
    lasted: float, worked: bool
) -> None:
    assert ReconnectSchedule(1, 60).lasted(lasted) is worked


def test_a_peer_that_accepts_and_closes_is_dialled_less_and_less_often() -> None:
    schedule, now, delays = ReconnectSchedule(1, 60), 0.0, []
    for _ in range(8):
        schedule.lost(now, 0, worked=False)
        delays.append(schedule.dial_at - now)
        now = schedule.dial_at
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_triggered_dial_that_fails_does_not_put_off_the_planned_one() -> None:
    schedule = ReconnectSchedule(8, 60)
    schedule.failed(100, 0)
    for now in (101, 102, 103):
        schedule.trigger(now)
        assert schedule.dial_at == now
        schedule.failed(now + 0.1, 0)
        assert schedule.dial_at == 108
    schedule.failed(108, 0)
    assert (schedule.dial_at, schedule.failures) == (108 + 16, 5)


def test_a_triggered_dial_that_outlasts_the_plan_takes_its_place() -> None:
    schedule = ReconnectSchedule(1, 60)
    schedule.failed(100, 0)
    schedule.trigger(100.5)
    schedule.failed(105.5, 0)  # no answer within the timeout
    assert schedule.dial_at == 107.5


def test_a_trigger_when_the_dial_is_due_changes_nothing() -> None:
    schedule = ReconnectSchedule(1, 60)
    schedule.failed(100, 0)
    schedule.trigger(101)
    schedule.failed(101, 0)
    assert schedule.dial_at == 103


def test_one_trigger_per_second_and_nsqd_is_granted() -> None:
    limit = TriggerLimit()
    granted = [tenth for tenth in range(35) if limit.grant(ADDRESS, 50 + tenth * 0.1)]
    assert len(granted) == 4
    assert limit.grant("another:4150", 50)
    assert not limit.grant(ADDRESS, 53.5)
    limit.keep({"another:4150"})
    assert limit.grant(ADDRESS, 53.5), "it is not remembered for longer than it is named"


@given(
    st.floats(0.1, 10),
    st.lists(st.tuples(st.floats(0, 5), chances, st.floats(0, 3), st.booleans()), max_size=60),
    st.lists(st.floats(0, 60), max_size=200),
)
def test_dials_are_never_more_than_planned_ones_and_one_trigger_per_second(
    first: float,
    results: list[tuple[float, float, float, bool]],
    publishes: list[float],
) -> None:
    """Play one nsqd: each dial has a result, and publishes trigger while it waits."""
    schedule, limit, now = ReconnectSchedule(first, 60), TriggerLimit(), 0.0
    triggers, planned, dials = 0, [0.0], 0
    publishes = sorted(publishes)
    for takes, jitter, lasts, connects in results:
        dials += 1
        now += takes
        if connects:
            now += lasts
            schedule.lost(now, jitter, worked=schedule.lasted(lasts))
        else:
            schedule.failed(now, jitter)
        assert schedule.dial_at >= now
        before = schedule.dial_at
        while publishes and publishes[0] <= schedule.dial_at:
            at = max(publishes.pop(0), now)
            if limit.grant(ADDRESS, at):
                schedule.trigger(at)
                assert schedule.dial_at <= before
                triggers += schedule.dial_at < before
                break
        if schedule.dial_at == before:
            planned.append(before)
        now = max(now, schedule.dial_at)
    assert triggers <= now / TRIGGER_GAP + 1
    assert dials <= len(planned) + triggers
    # A connection that does not last is no reason to dial at once.
    if not any(connects and lasts >= first for _, _, lasts, connects in results):
        gaps = [later - sooner for sooner, later in pairwise(planned[1:])]
        assert all(gap >= 0.75 * min(first, 60) - 1e-9 for gap in gaps)
