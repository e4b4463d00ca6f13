"""RDY: the limit, its cost, and the state of a connection; shares are in test_rdy_policy."""

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from nsqflow.client.consumer.rdy import needs_refresh
from nsqflow.client.consumer.rdy_policy import FlowState, RdyReason
from tests.unit.client.consumer.plans import rdys, started

# The limit


def test_a_lowered_rdy_counts_at_its_old_value_until_it_has_settled() -> None:
    plan = started("a")
    plan.received("a", 100, 1.5)
    plan.add("b", 2500, 2)
    assert plan.pending_updates(2) == {"a": 50}
    plan.answered("a", 100)
    assert plan.pending_updates(2.4) == {}
    assert plan.pending_updates(2.5) == {"b": 1}


def test_then_it_counts_with_what_is_still_in_flight() -> None:
    plan = started("a")
    plan.received("a", 100, 1.5)
    plan.add("b", 2500, 2)
    plan.pending_updates(2)
    assert plan.pending_updates(2.5) == {}
    assert plan.next_update_at(2.5) == 3, "only the end of the start: answers come when they come"
    plan.answered("a", 10)
    assert plan.pending_updates(3) == {"b": 10}
    plan.answered("a", 30)
    assert plan.pending_updates(3) == {"b": 40}
    plan.answered("a", 60)
    assert plan.pending_updates(3) == {"b": 50}


def test_a_second_lowering_does_not_make_the_first_settle() -> None:
    plan = started("a")
    plan.set_max_in_flight(50)
    plan.pending_updates(2)
    plan.set_max_in_flight(40)
    plan.pending_updates(2.4)
    plan.set_max_in_flight(100)
    plan.add("b", 2500, 2.5)
    assert plan.pending_updates(2.5) == {"a": 50}, (
        "within what a may still have, so it needs no more"
    )
    assert plan.pending_updates(2.8) == {}
    assert plan.pending_updates(2.9) == {"b": 1}


def test_what_has_settled_is_forgotten() -> None:
    plan = started("a")
    plan.set_max_in_flight(50)
    plan.pending_updates(2)
    plan.set_max_in_flight(60)
    plan.add("b", 2500, 10)
    assert plan.pending_updates(10) == {"a": 30, "b": 1}, "there are ten beside the 50 of a"


def test_a_lower_maximum_lowers_at_once() -> None:
    plan = started("ab")
    plan.received("a", 50, 1.5)
    plan.set_max_in_flight(10)
    assert plan.pending_updates(2) == {"a": 5, "b": 5}


def test_orphans_count_towards_max_in_flight_until_they_are_answered() -> None:
    plan = started("ab")
    plan.received("a", 30, 1.5)
    plan.remove("a", 30)
    assert plan.orphans == 30
    assert plan.pending_updates(2) == {"b": 70}
    plan.orphans_answered(20)
    assert plan.pending_updates(3) == {"b": 90}


def test_orphans_alone_may_fill_all_there_is() -> None:
    plan = started("ab", max_in_flight=10)
    plan.received("a", 5, 1.5)
    plan.remove("a", 5)
    plan.set_max_in_flight(5)
    assert plan.pending_updates(2) == {"b": 0}
    assert plan.state("b").reason is RdyReason.CROWDED_OUT
    assert plan.next_update_at(2) is None
    plan.orphans_answered(1)
    assert plan.pending_updates(3) == {"b": 1}


def test_surplus_messages_keep_others_from_being_raised_until_answered() -> None:
    plan = started("ab")
    plan.received("a", 150, 1.5)  # nsqd gave up waiting for 100 of them
    plan.set_max_in_flight(200)
    assert plan.pending_updates(2) == {"a": 100}, "which takes nothing from what a holds anyway"
    assert plan.next_update_at(2) == 5, "for lending"
    plan.answered("a", 60)
    assert plan.pending_updates(3) == {"b": 100}


def test_nothing_is_raised_while_more_is_in_flight_than_allowed() -> None:
    plan = started("ab")
    plan.received("a", 50, 1.5)
    plan.received("b", 50, 1.5)
    plan.set_max_in_flight(10)
    plan.pending_updates(2)
    plan.set_max_in_flight(20)
    assert plan.pending_updates(3) == {}
    plan.answered("a", 50)
    assert plan.pending_updates(3) == {}, "b alone has more than 20"
    plan.answered("b", 35)
    assert plan.pending_updates(3) == {"b": 10}, "which has 15 in flight still"
    plan.answered("b", 5)
    assert plan.pending_updates(3) == {"a": 10}


def test_rdy_1_for_each_comes_before_more_for_some() -> None:
    plan = started("abc", max_in_flight=90)
    plan.received("a", 30, 1.1)
    plan.flow_state = FlowState.STOPPED
    plan.pending_updates(2)
    plan.received("a", 57, 2.1)
    plan.flow_state = FlowState.FULL
    plan.pending_updates(3)
    assert rdys(plan, "abc") == [30, 2, 1]


# Cost and state


def calls(function: Callable[..., object], *args: object) -> int:
    """How many calls of Python and C functions one call makes."""
    count = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return count


def test_without_changes_no_connection_is_checked() -> None:
    few, many = started("ab"), started("".join(map(chr, range(256))), max_in_flight=1000)
    assert calls(few.pending_updates, 1.5) == calls(many.pending_updates, 1.5) <= 3
    many.received("a", 1, 1.5)
    many.answered("a", 1)
    assert calls(few.pending_updates, 1.6) == calls(many.pending_updates, 1.6)


def test_a_connection_with_85_percent_of_its_rdy_in_flight_is_starved() -> None:
    plan = started("ab", max_in_flight=40)
    assert not plan.is_starved()
    plan.received("b", 16, 2)
    assert not plan.is_starved()
    plan.received("b", 1, 2)
    assert plan.is_starved()
    plan.flow_state = FlowState.STOPPED
    plan.pending_updates(3)
    plan.answered("b", 16)
    assert plan.is_starved(), "what it has is all it will have"
    plan.answered("b", 1)
    assert not plan.is_starved()


@pytest.mark.parametrize(
    ("last_rdy", "in_flight", "expected"),
    [
        (100, 0, False),
        (100, 75, False),
        (100, 76, True),
        (100, 100, True),
        (100, 130, True),
        (1, 0, False),
        (1, 1, True),
        (0, 0, True),
    ],
)
def test_a_refresh_is_due_below_a_quarter(last_rdy: int, in_flight: int, expected: bool) -> None:
    assert needs_refresh(last_rdy, in_flight) is expected


def test_a_state_has_all_of_one_connection() -> None:
    plan = started("ab")
    plan.received("a", 3, 2)
    plan.answered("a", 1)
    state = plan.state("a")
    assert (state.rdy, state.wanted, state.share, state.limit) == (50, 50, 50, 2500)
    assert (state.in_flight, state.last_message_at, state.settles_at) == (2, 2, -math.inf)
    plan.set_max_in_flight(50)
    plan.pending_updates(3)
    assert (plan.max_in_flight, plan.state("a").settles_at) == (50, 3.5)
    assert plan.state("b").last_message_at is None


def test_no_more_can_be_answered_than_was_received() -> None:
    plan = started("a")
    plan.received("a", 2, 1)
    with pytest.raises(ValueError, match="3 messages answered: must be 0 to 2"):
        plan.answered("a", 3)
    with pytest.raises(ValueError, match="3 outstanding messages: must be 0 to 2"):
        plan.remove("a", 3)
    plan.remove("a", 2)
    with pytest.raises(ValueError, match="3 orphans answered: must be 0 to 2"):
        plan.orphans_answered(3)
    with pytest.raises(KeyError):
        plan.answered("a", 1)
