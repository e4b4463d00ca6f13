"""RDY under a window of prefetch: how it is shared, and that every connection is probed."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from nsqflow.client.consumer.rdy import RdyDistributor
from nsqflow.client.consumer.rdy_policy import SHORT_TURN, RdyReason
from tests.unit.client.consumer.plans import rdys, reasons, started


def limited(keys: str, window: int) -> RdyDistributor[str]:
    plan = started(keys)
    plan.window = window
    plan.pending_updates(10)
    return plan


def test_without_a_window_nothing_is_asked_for() -> None:
    plan = limited("abc", 0)
    assert rdys(plan, "abc") == [0, 0, 0]
    assert set(reasons(plan, "abc")) == {RdyReason.PREFETCH}
    assert plan.next_update_at(10) is None


def test_a_window_is_shared_evenly_while_no_connection_needs_more() -> None:
    assert rdys(limited("abc", 7), "abc") == [3, 2, 2]
    assert rdys(limited("a", 7), "a") == [7]


def test_a_window_above_max_in_flight_changes_nothing() -> None:
    assert rdys(limited("ab", 1000), "ab") == [50, 50]


def test_a_connection_that_uses_all_it_has_gets_the_window_and_the_others_turns_on_top() -> None:
    plan = limited("abcd", 4)
    plan.received("a", 1, 10)
    now, probed = 10.0, set()
    for _ in range(12):
        now += SHORT_TURN
        plan.pending_updates(now)
        for _ in range(plan.state("a").rdy - plan.state("a").in_flight):
            plan.received("a", 1, now)
        probed |= {key for key in "bcd" if plan.state(key).rdy}
        assert sum(rdys(plan, "bcd")) <= 4
    assert plan.state("a").in_flight == 4
    assert probed == set("bcd")
    assert sum(rdys(plan, "bcd")) == 1


def test_a_window_smaller_than_the_number_of_connections_goes_round() -> None:
    plan = limited("abcde", 1)
    seen, now = set(), 10.0
    for _ in range(12):
        assert sum(rdys(plan, "abcde")) <= 1
        seen |= {key for key in "abcde" if plan.state(key).rdy}
        at = plan.next_update_at(now)
        assert at is not None
        assert now < at <= now + SHORT_TURN
        now = at
        plan.pending_updates(now)
    assert seen == set("abcde")


def test_what_is_in_flight_elsewhere_is_part_of_the_window() -> None:
    plan = limited("ab", 1)
    [holder] = [key for key in "ab" if plan.state(key).rdy]
    [other] = {"a", "b"} - {holder}
    plan.received(holder, 1, 10)
    for step in range(1, 10):
        plan.pending_updates(10 + step * SHORT_TURN)
        assert plan.state(other).rdy == 0
    plan.answered(holder, 1)
    plan.pending_updates(13)
    assert sum(rdys(plan, "ab")) == 1


# Two that used nearly all they had, and one of several that is given what another left.
@example(window=13, loads=[6, 7])
@example(window=20, loads=[9, 11])
@example(window=23, loads=[6, 8, 9])
@example(window=4, loads=[0, 1, 1, 2])
@example(window=8, loads=[0, 1, 2, 4])
@given(
    window=st.integers(1, 40),
    loads=st.lists(st.integers(0, 100), min_size=1, max_size=8),
)
def test_the_whole_window_is_used_wherever_the_messages_are(window: int, loads: list[int]) -> None:
    keys = "abcdefgh"[: len(loads)]
    plan = limited(keys, window)
    left, now = dict(zip(keys, loads, strict=True)), 10.0
    for _ in range(4 * len(keys) + 4):
        for key in keys:
            count = min(left[key], max(0, plan.state(key).rdy - plan.state(key).in_flight))
            if count:
                plan.received(key, count, now)
                left[key] -= count
        now += SHORT_TURN
        plan.pending_updates(now)
    in_flight = sum(plan.state(key).in_flight for key in keys)
    assert in_flight >= min(window, sum(loads)), "readers would wait though there are messages"
    assert in_flight <= window + max(1, window // 4) * len(keys)
