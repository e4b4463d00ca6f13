"""The division of RDY where not all can have some: turns at RDY 1, and tests by one."""

import math

from nsqflow.client.consumer.rdy_policy import FlowState, RdyReason
from tests.unit.client.consumer.plans import rdys, reasons, sole, started, with_rdy

# Turns


def test_fewer_messages_than_connections_are_given_to_a_random_set() -> None:
    chosen = set()
    for seed in range(40):
        plan = started("abcd", max_in_flight=2, seed=seed)
        assert sorted(rdys(plan, "abcd")) == [0, 0, 1, 1]
        chosen.add("".join(with_rdy(plan, "abcd")))
    assert chosen == {"ab", "ac", "ad", "bc", "bd", "cd"}


def test_a_connection_that_brings_nothing_loses_its_turn() -> None:
    plan = started("abc", max_in_flight=1)
    first = sole(with_rdy(plan, "abc"))
    assert plan.state(first).reason is RdyReason.ON_TURN
    assert plan.pending_updates(9) == {}
    assert plan.next_update_at(9) == 10
    assert plan.pending_updates(10) == {first: 0}
    assert with_rdy(plan, "abc") == []
    ((second, rdy),) = plan.pending_updates(10.5).items()
    assert (second != first, rdy) == (True, 1)
    assert plan.state(first).reason is RdyReason.OFF_TURN
    assert plan.next_update_at(10.5) == 20.5


def test_a_connection_that_brings_messages_loses_its_turn_in_the_end() -> None:
    plan = started("abc", max_in_flight=1)
    first = sole(with_rdy(plan, "abc"))
    for now in range(1, 30):
        plan.received(first, 1, now)
        plan.answered(first, 1)
        assert plan.pending_updates(now) == {}
    assert plan.next_update_at(29) == 30
    assert plan.pending_updates(30) == {first: 0}


def test_turns_change_once_in_an_interval_and_no_more() -> None:
    plan = started("abc", max_in_flight=2)
    first, second = with_rdy(plan, "abc")
    third = sole([key for key in "abc" if key not in (first, second)])
    plan.received(first, 1, 3)
    plan.answered(first, 1)
    assert plan.pending_updates(10) == {second: 0}
    assert plan.pending_updates(10.5) == {third: 1}
    assert plan.pending_updates(13) == {}, (
        "the turn of the first is over, yet not five seconds passed"
    )
    assert plan.next_update_at(13) == 15
    assert plan.pending_updates(15) == {first: 0}
    assert plan.pending_updates(15.5) == {second: 1}


def test_a_turn_is_given_away_only_if_someone_waits_for_it() -> None:
    plan = started("abc", max_in_flight=2)
    plan.remove(sole([key for key in "abc" if not plan.state(key).rdy]), 0)
    plan.pending_updates(2)
    assert plan.pending_updates(100) == {}


def test_a_turn_begins_when_max_in_flight_allows_it() -> None:
    plan = started("ab", max_in_flight=1)
    first = sole(with_rdy(plan, "ab"))
    plan.received(first, 1, 2)
    assert plan.pending_updates(12) == {first: 0}
    assert plan.pending_updates(12.5) == {}
    assert plan.next_update_at(12.5) is None
    plan.answered(first, 1)
    assert list(plan.pending_updates(100).values()) == [1]
    assert plan.next_update_at(100) == 110


def test_the_time_before_turns_were_taken_does_not_count() -> None:
    plan = started("abc", max_in_flight=3)
    plan.set_max_in_flight(1)
    plan.pending_updates(100)
    assert plan.next_update_at(100) == 110


def test_turns_are_drawn_again_after_a_time_with_enough_for_all() -> None:
    plan, chosen = started("abc", max_in_flight=1), set()
    for i in range(30):  # within three seconds: too soon for a turn to be over
        plan.set_max_in_flight(3)
        plan.pending_updates(1 + i / 10)
        plan.set_max_in_flight(1)
        plan.pending_updates(1 + i / 10)
        chosen.update(with_rdy(plan, "abc"))
    assert chosen == {"a", "b", "c"}


def test_every_connection_has_a_turn_some_day() -> None:
    plan, now, seen = started("abcdefgh", max_in_flight=2), 1.0, set()
    while now < 1000:
        seen.update(with_rdy(plan, "abcdefgh"))
        now = plan.next_update_at(now) or math.inf
        plan.pending_updates(now)
    assert seen == set("abcdefgh")


def test_a_lower_maximum_ends_turns_and_a_higher_one_ends_taking_turns() -> None:
    plan = started("abcd", max_in_flight=3)
    plan.set_max_in_flight(1)
    assert list(plan.pending_updates(2).values()) == [0, 0]
    plan.set_max_in_flight(40)
    plan.pending_updates(3)
    assert rdys(plan, "abcd") == [10, 10, 10, 10]


# FlowState


def test_stopped_means_0_for_all_and_no_review() -> None:
    plan = started("ab")
    plan.flow_state = FlowState.STOPPED
    assert plan.flow_state is FlowState.STOPPED
    assert plan.pending_updates(2) == {"a": 0, "b": 0}
    assert reasons(plan, "ab") == [RdyReason.STOPPED] * 2
    assert plan.next_update_at(2) is None
    plan.add("c", 2500, 3)
    assert plan.pending_updates(3) == {}
    plan.flow_state = FlowState.FULL
    plan.pending_updates(4)
    assert rdys(plan, "abc") == [34, 33, 33]


def test_testing_means_1_on_one_random_connection() -> None:
    chosen = set()
    for seed in range(20):
        plan = started("abc", seed=seed)
        plan.flow_state = FlowState.TESTING
        plan.pending_updates(2)
        assert sorted(rdys(plan, "abc")) == [0, 0, 1]
        tester = sole(with_rdy(plan, "abc"))
        assert plan.state(tester).reason is RdyReason.TESTED
        chosen.add(tester)
    assert chosen == {"a", "b", "c"}


def test_another_connection_tests_if_the_first_brings_nothing() -> None:
    plan = started("ab")
    plan.flow_state = FlowState.TESTING
    plan.pending_updates(100)
    first = sole(with_rdy(plan, "ab"))
    assert plan.next_update_at(100) == 110
    plan.received(first, 1, 105)
    assert plan.pending_updates(110) == {}, "it brought something"
    plan.answered(first, 1)
    assert plan.next_update_at(110) == 115
    assert plan.pending_updates(115) == {first: 0, sole("ab".replace(first, "")): 1}
    assert plan.next_update_at(115) == 125


def test_another_connection_tests_if_the_first_is_lost() -> None:
    plan = started("ab")
    plan.flow_state = FlowState.TESTING
    plan.pending_updates(2)
    first = sole(with_rdy(plan, "ab"))
    plan.remove(first, 0)
    assert plan.pending_updates(3) == {sole("ab".replace(first, "")): 1}


def test_another_connection_tests_if_the_first_gets_no_rdy() -> None:
    plan = started("abc", max_in_flight=9)
    plan.received("a", 3, 1)
    plan.flow_state = FlowState.STOPPED
    plan.set_max_in_flight(3)
    plan.pending_updates(2)
    plan.flow_state = FlowState.TESTING
    now = 3.0
    plan.pending_updates(now)
    while not with_rdy(plan, "abc"):
        now = plan.next_update_at(now) or math.inf
        plan.pending_updates(now)
    assert with_rdy(plan, "abc") == ["a"], "which holds all there is anyway"


def test_a_sole_connection_tests_as_long_as_it_takes() -> None:
    plan = started("a")
    plan.flow_state = FlowState.TESTING
    assert plan.pending_updates(2) == {"a": 1}
    assert plan.next_update_at(2) is None
    assert plan.pending_updates(1000) == {}


def test_each_test_draws_its_connection_again() -> None:
    plan, chosen = started("abc"), set()
    for now in range(2, 40, 2):
        plan.flow_state = FlowState.TESTING
        plan.pending_updates(now)
        chosen.update(with_rdy(plan, "abc"))
        plan.flow_state = FlowState.STOPPED
        plan.pending_updates(now + 1)
    assert chosen == {"a", "b", "c"}
