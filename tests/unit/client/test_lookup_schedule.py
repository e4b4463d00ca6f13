"""When nsqlookupd is asked next: ordinary rounds, and early ones after a loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.client.lookup_schedule import LookupSchedule

A, B = "nsqd1:4150", "nsqd2:4150"

chances = st.floats(0, 1, exclude_max=True)


def begun(interval: float = 60, jitter: float = 0.0, now: float = 1000.0) -> LookupSchedule:
    """A schedule after its first round."""
    schedule = LookupSchedule(interval, jitter)
    hold_round(schedule, now)
    return schedule


def hold_round(schedule: LookupSchedule, now: float, jitter_part: float = 0.0) -> None:
    schedule.begin()
    schedule.end(now, jitter_part)


def gaps_of(schedule: LookupSchedule, now: float, count: int) -> list[float]:
    """The seconds from each round to the next, from ``now`` on."""
    gaps = []
    for _ in range(count):
        gaps.append(schedule.round_at - now)
        now = schedule.round_at
        hold_round(schedule, now)
    return gaps


def test_the_first_round_is_now() -> None:
    assert LookupSchedule(60, 0.3).round_at < 0


@given(chances)
def test_every_ordinary_round_is_jittered_forward(jitter_part: float) -> None:
    schedule = LookupSchedule(60, 0.3)
    for now in (0.0, 70.0, 140.0):
        hold_round(schedule, now, jitter_part)
        assert schedule.round_at == now + 60 * (1 + 0.3 * jitter_part)


def test_a_loss_makes_a_round_due_at_once_even_right_after_one() -> None:
    schedule = begun(now=1000)
    schedule.lost(A, 1000.1, 0, worked=True)
    assert schedule.round_at == 1000.1


def test_early_rounds_come_at_doubling_distances_until_they_are_ordinary() -> None:
    schedule = begun(now=1000)
    schedule.lost(A, 1030, 0, worked=True)
    assert gaps_of(schedule, 1030, 9) == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_early_rounds_end_when_the_nsqd_is_connected_again() -> None:
    schedule = begun(now=1000)
    schedule.lost(A, 1030, 0, worked=True)
    schedule.lost(B, 1030, 0, worked=True)
    assert gaps_of(schedule, 1030, 2) == [0, 1]
    schedule.connected(A)
    assert schedule.round_at == 1033, "the other one is still missing"
    schedule.connected(B)
    assert schedule.round_at == 1091
    schedule.lost(A, 1050, 0, worked=True)
    assert gaps_of(schedule, 1050, 2) == [0, 1], "as the first time"


def test_a_connection_that_does_not_last_goes_on_with_the_doubling() -> None:
    schedule, now, gaps = begun(now=1000), 1030.0, []
    schedule.lost(A, now, 0, worked=True)
    for _ in range(9):
        gaps.append(schedule.round_at - now)
        now = schedule.round_at
        hold_round(schedule, now)
        schedule.connected(A)
        schedule.lost(A, now, 0, worked=False)
    assert gaps == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_what_is_lost_during_a_round_is_asked_for_after_it() -> None:
    schedule = begun(now=1000)
    schedule.lost(A, 1030, 0, worked=True)
    schedule.begin()
    schedule.lost(B, 1030.5, 0, worked=True)
    schedule.end(1031, 0)
    assert schedule.round_at == 1032, "early rounds are a second apart at least"
    schedule.begin()
    schedule.end(1032, 0)
    assert schedule.round_at == 1033


def test_after_failures_the_next_rounds_come_soon_but_not_at_once() -> None:
    schedule, now, gaps = begun(now=1000), 1060.0, []
    for _ in range(8):
        schedule.begin()
        schedule.retry(now, 0)
        schedule.end(now, 0)
        gaps.append(schedule.round_at - now)
        now = schedule.round_at
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60]
    hold_round(schedule, now)  # answered, and ordinary
    hold_round(schedule, now + 60)
    schedule.retry(now + 60, 0)
    assert schedule.round_at == now + 61, "as the first time"


def test_a_retry_is_not_ended_by_a_connection() -> None:
    schedule = begun(now=1000)
    schedule.retry(1000, 0)
    schedule.connected(A)
    assert schedule.round_at == 1001


@pytest.mark.parametrize("jitter_part", [0.0, 0.5, 0.99])
def test_early_rounds_are_jittered_even_if_they_could_be_now(jitter_part: float) -> None:
    schedule = begun(jitter=0.3, now=1000)
    schedule.lost(A, 1030, jitter_part, worked=True)
    assert schedule.round_at == 1030 + 0.3 * jitter_part
    hold_round(schedule, 1031, jitter_part)
    assert schedule.round_at == 1032 + 0.3 * jitter_part


def test_an_interval_below_a_second_is_never_exceeded() -> None:
    schedule = begun(interval=0.1, now=1000)
    schedule.lost(A, 1000.05, 0, worked=True)
    assert gaps_of(schedule, 1000.05, 3) == pytest.approx([0, 0.1, 0.1])


@given(
    st.floats(1, 100),
    st.floats(0, 1),
    st.lists(
        st.tuples(
            st.sampled_from(["lost", "short", "connected", "retry", "round"]),
            st.sampled_from([A, B]),
            st.floats(0, 10),
            chances,
        ),
        max_size=80,
    ),
)
def test_whatever_happens_a_round_comes_within_the_interval_and_early_ones_are_apart(
    interval: float, jitter: float, steps: list[tuple[str, str, float, float]]
) -> None:
    now, rounds = 1000.0, [1000.0]
    schedule = begun(interval, jitter, now)
    for what, address, seconds, jitter_part in steps:
        now += seconds
        if what in ("lost", "short"):
            schedule.lost(address, now, jitter_part, worked=what == "lost")
        elif what == "connected":
            schedule.connected(address)
        elif what == "retry":
            schedule.retry(now, jitter_part)
        while schedule.round_at <= now:
            rounds.append(schedule.round_at)
            hold_round(schedule, schedule.round_at, jitter_part)
        assert schedule.round_at - rounds[-1] <= interval * (1 + jitter) + 1e-6
    # One may be at once, after an ordinary one; the next is a second later.
    for first, third in zip(rounds, rounds[2:], strict=False):
        assert third - first >= 1 - 1e-6
