"""The division of RDY where there is enough for all: even shares and loans."""

from nsqflow.client.rdy import RdyPlan, Standing, Throttle
from tests.unit.client.plans import new_plan, rdys, standings, started

# Start


def test_a_new_connection_has_1_and_then_its_share_after_a_second() -> None:
    plan = new_plan()
    plan.add("a", 2500, 10)
    assert plan.changes(10) == {"a": 1}
    assert plan.state("a").standing is Standing.STARTING
    assert plan.next_review(10) == 11
    assert plan.changes(10.9) == {}
    assert plan.changes(11) == {"a": 100}
    assert plan.state("a").standing is Standing.SHARING
    assert plan.next_review(11) is None


def test_a_new_connection_has_its_share_with_its_first_message() -> None:
    plan = new_plan()
    plan.add("a", 2500, 0)
    plan.changes(0)
    plan.received("a", 1, 0.1)
    assert plan.next_review(0.1) == 0.1
    assert plan.changes(0.1) == {"a": 100}


def test_the_second_counts_from_the_last_connection_added() -> None:
    plan = new_plan()
    plan.add("a", 2500, 0)
    plan.changes(0)
    plan.add("b", 2500, 0.8)
    assert plan.changes(0.8) == {"b": 1}
    assert plan.changes(1) == {}
    assert plan.changes(1.8) == {"a": 50, "b": 50}


def test_others_make_room_for_the_first_rdy_of_a_new_connection() -> None:
    plan = started("a")
    plan.add("b", 2500, 5)
    assert plan.changes(5) == {"a": 50}, "b must wait: nsqd may still go by 100"
    assert plan.state("b").waits_for_room
    assert plan.next_review(5) == 5.5
    assert plan.changes(5.5) == {"b": 1}
    assert not plan.state("b").waits_for_room
    assert plan.changes(6) == {"b": 50}


# Even shares


def test_shares_are_even_and_the_rest_goes_to_the_first() -> None:
    assert rdys(started("abc", max_in_flight=11), "abc") == [4, 4, 3]


def test_no_rdy_is_above_what_the_server_allows_and_others_have_the_rest() -> None:
    plan = new_plan(100)
    for key, limit in {"a": 10, "b": 2500, "c": 2500}.items():
        plan.add(key, limit, 0)
    plan.changes(1)
    assert rdys(plan, "abc") == [10, 45, 45]


def test_all_is_shared_again_when_a_connection_is_lost() -> None:
    plan = started("ab")
    plan.remove("b", 0)
    assert plan.changes(2) == {"a": 100}


def test_only_what_differs_is_sent() -> None:
    plan = started("ab", max_in_flight=11)
    plan.set_max_in_flight(12)
    assert plan.changes(2) == {"b": 6}
    assert plan.changes(2) == {}


# Lending


def busy_and_idle() -> RdyPlan[str]:
    """Where b has brought nothing for six seconds and a more than it may; c a little."""
    plan = started("abc", max_in_flight=30)
    plan.received("a", 9, 4)
    plan.received("c", 1, 4)
    plan.answered("a", 8)
    assert plan.next_review(5) == 5
    return plan


def test_idle_connections_lend_all_but_one_to_busy_ones() -> None:
    plan = busy_and_idle()
    assert plan.changes(5) == {"b": 1}
    assert plan.changes(5.5) == {"a": 19}
    assert standings(plan, "abc") == [Standing.BORROWING, Standing.LENDING, Standing.SHARING]


def test_a_lender_has_its_share_back_with_its_first_message() -> None:
    plan = busy_and_idle()
    plan.changes(5)
    plan.changes(5.5)
    plan.received("a", 18, 5.6)
    plan.received("b", 1, 6)
    assert plan.changes(6) == {"a": 10}
    assert plan.changes(6.5) == {}, "a has 19 in flight"
    plan.answered("a", 9)
    assert plan.changes(6.6) == {"b": 10}


def test_without_a_busy_connection_shares_are_even_again() -> None:
    plan = busy_and_idle()
    plan.changes(5)
    plan.changes(5.5)
    plan.answered("a", 1)
    plan.answered("c", 1)
    assert plan.next_review(5.5) == 10
    assert plan.changes(10) == {"a": 10}
    assert plan.changes(10.5) == {"b": 10}


def test_a_borrower_stays_one_as_long_as_its_own_share_would_not_do() -> None:
    plan = busy_and_idle()
    plan.changes(5)
    plan.changes(5.5)
    plan.received("a", 9, 6)
    assert plan.changes(10) == {}
    assert rdys(plan, "abc") == [19, 1, 10]


def test_lenders_are_chosen_once_in_an_interval_and_no_more() -> None:
    plan = busy_and_idle()
    plan.changes(5)
    plan.answered("c", 1)
    plan.received("a", 9, 9)
    plan.set_max_in_flight(31)
    plan.changes(9)
    assert plan.state("c").standing is Standing.SHARING, "though it is idle by now"
    assert plan.changes(9.9) == {}
    assert plan.changes(10) == {"c": 1}


def test_messages_held_for_long_are_demand_too() -> None:
    plan = started("ab", max_in_flight=20)
    plan.received("a", 10, 2)
    assert plan.changes(5) == {"b": 1}
    assert plan.changes(5.5) == {"a": 19}
    assert plan.changes(10) == {}


def test_a_connection_that_was_busy_does_not_lend_however_quiet_it_is_since() -> None:
    plan = new_plan(20)
    plan.add("a", 12, 0)
    plan.add("b", 2500, 0)
    plan.changes(0)
    plan.changes(5)
    plan.received("a", 10, 5)
    plan.answered("a", 10)
    plan.changes(10)
    plan.changes(10.5)
    assert rdys(plan, "ab") == [12, 8]


def test_a_new_connection_lends_nothing_of_what_it_never_had() -> None:
    plan = new_plan(50)
    for i, key in enumerate("abcdefg"):  # each within a second of the one before
        plan.add(key, 2500, i * 0.9)
        plan.changes(i * 0.9)
        if key == "b":
            plan.received(key, 50, i * 0.9)
    assert standings(plan, "ab") == [Standing.STARTING, Standing.SHARING]


def test_loans_are_forgotten_where_there_was_nothing_to_lend() -> None:
    plan = busy_and_idle()
    plan.changes(5)
    plan.set_max_in_flight(2)
    plan.changes(6)
    plan.set_max_in_flight(30)
    plan.changes(7)
    assert standings(plan, "abc") == [Standing.SHARING] * 3


def test_one_message_is_no_demand_where_rdy_is_1() -> None:
    plan = started("ab", max_in_flight=20)
    plan.add("c", 2500, 3)
    plan.changes(3)
    plan.changes(3.5)
    plan.received("c", 1, 3.6)
    plan.changes(6)
    assert Standing.LENDING not in standings(plan, "abc")


def test_a_connection_that_was_stopped_is_not_taken_for_idle() -> None:
    plan = started("ab")
    plan.throttle = Throttle.STOPPED
    plan.changes(2)
    plan.throttle = Throttle.FULL
    plan.received("a", 50, 20)
    plan.changes(20)
    assert rdys(plan, "ab") == [50, 50]
