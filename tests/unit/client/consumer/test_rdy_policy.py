"""The division of RDY where there is enough for all: even shares and loans."""

from nsqflow.client.consumer.rdy import RdyDistributor
from nsqflow.client.consumer.rdy_policy import FlowState, RdyReason
from tests.unit.client.consumer.plans import new_distributor, rdys, reasons, started

# Start


def test_a_new_connection_has_1_and_then_its_share_after_a_second() -> None:
    plan = new_distributor()
    plan.add("a", 2500, 10)
    assert plan.pending_updates(10) == {"a": 1}
    assert plan.state("a").reason is RdyReason.STARTING
    assert plan.next_update_at(10) == 11
    assert plan.pending_updates(10.9) == {}
    assert plan.pending_updates(11) == {"a": 100}
    assert plan.state("a").reason is RdyReason.SHARING
    assert plan.next_update_at(11) is None


def test_a_new_connection_has_its_share_with_its_first_message() -> None:
    plan = new_distributor()
    plan.add("a", 2500, 0)
    plan.pending_updates(0)
    plan.received("a", 1, 0.1)
    assert plan.next_update_at(0.1) == 0.1
    assert plan.pending_updates(0.1) == {"a": 100}


def test_the_second_counts_from_the_last_connection_added() -> None:
    plan = new_distributor()
    plan.add("a", 2500, 0)
    plan.pending_updates(0)
    plan.add("b", 2500, 0.8)
    assert plan.pending_updates(0.8) == {"b": 1}
    assert plan.pending_updates(1) == {}
    assert plan.pending_updates(1.8) == {"a": 50, "b": 50}


def test_others_release_rdy_for_a_new_connection() -> None:
    plan = started("a")
    plan.add("b", 2500, 5)
    assert plan.pending_updates(5) == {"a": 50}, "b must wait: nsqd may still go by 100"
    assert plan.state("b").is_short
    assert plan.next_update_at(5) == 5.5
    assert plan.pending_updates(5.5) == {"b": 1}
    assert not plan.state("b").is_short
    assert plan.pending_updates(6) == {"b": 50}


# Even shares


def test_shares_are_even_and_the_rest_goes_to_the_first() -> None:
    assert rdys(started("abc", max_in_flight=11), "abc") == [4, 4, 3]


def test_no_rdy_is_above_what_the_server_allows_and_others_have_the_rest() -> None:
    plan = new_distributor(100)
    for key, limit in {"a": 10, "b": 2500, "c": 2500}.items():
        plan.add(key, limit, 0)
    plan.pending_updates(1)
    assert rdys(plan, "abc") == [10, 45, 45]


def test_all_is_shared_again_when_a_connection_is_lost() -> None:
    plan = started("ab")
    plan.remove("b", 0)
    assert plan.pending_updates(2) == {"a": 100}


def test_only_what_differs_is_sent() -> None:
    plan = started("ab", max_in_flight=11)
    plan.set_max_in_flight(12)
    assert plan.pending_updates(2) == {"b": 6}
    assert plan.pending_updates(2) == {}


# Lending


def busy_and_idle() -> RdyDistributor[str]:
    """Where b has brought nothing for six seconds and a more than it may; c a little."""
    plan = started("abc", max_in_flight=30)
    plan.received("a", 9, 4)
    plan.received("c", 1, 4)
    plan.answered("a", 8)
    assert plan.next_update_at(5) == 5
    return plan


def test_idle_connections_lend_all_but_one_to_busy_ones() -> None:
    plan = busy_and_idle()
    assert plan.pending_updates(5) == {"b": 1}
    assert plan.pending_updates(5.5) == {"a": 19}
    assert reasons(plan, "abc") == [RdyReason.BORROWING, RdyReason.LENDING, RdyReason.SHARING]


def test_a_lender_has_its_share_back_with_its_first_message() -> None:
    plan = busy_and_idle()
    plan.pending_updates(5)
    plan.pending_updates(5.5)
    plan.received("a", 18, 5.6)
    plan.received("b", 1, 6)
    assert plan.pending_updates(6) == {"a": 10}
    assert plan.pending_updates(6.5) == {}, "a has 19 in flight"
    plan.answered("a", 9)
    assert plan.pending_updates(6.6) == {"b": 10}


def test_without_a_busy_connection_shares_are_even_again() -> None:
    plan = busy_and_idle()
    plan.pending_updates(5)
    plan.pending_updates(5.5)
    plan.answered("a", 1)
    plan.answered("c", 1)
    assert plan.next_update_at(5.5) == 10
    assert plan.pending_updates(10) == {"a": 10}
    assert plan.pending_updates(10.5) == {"b": 10}


def test_a_borrower_stays_one_as_long_as_its_own_share_would_not_do() -> None:
    plan = busy_and_idle()
    plan.pending_updates(5)
    plan.pending_updates(5.5)
    plan.received("a", 9, 6)
    assert plan.pending_updates(10) == {}
    assert rdys(plan, "abc") == [19, 1, 10]


def test_lenders_are_chosen_once_in_an_interval_and_no_more() -> None:
    plan = busy_and_idle()
    plan.pending_updates(5)
    plan.answered("c", 1)
    plan.received("a", 9, 9)
    plan.set_max_in_flight(31)
    plan.pending_updates(9)
    assert plan.state("c").reason is RdyReason.SHARING, "though it is idle by now"
    assert plan.pending_updates(9.9) == {}
    assert plan.pending_updates(10) == {"c": 1}


def test_messages_held_for_long_are_demand_too() -> None:
    plan = started("ab", max_in_flight=20)
    plan.received("a", 10, 2)
    assert plan.pending_updates(5) == {"b": 1}
    assert plan.pending_updates(5.5) == {"a": 19}
    assert plan.pending_updates(10) == {}


def test_a_connection_that_was_busy_does_not_lend_however_quiet_it_is_since() -> None:
    plan = new_distributor(20)
    plan.add("a", 12, 0)
    plan.add("b", 2500, 0)
    plan.pending_updates(0)
    plan.pending_updates(5)
    plan.received("a", 10, 5)
    plan.answered("a", 10)
    plan.pending_updates(10)
    plan.pending_updates(10.5)
    assert rdys(plan, "ab") == [12, 8]


def test_a_new_connection_lends_nothing_of_what_it_never_had() -> None:
    plan = new_distributor(50)
    for i, key in enumerate("abcdefg"):  # each within a second of the one before
        plan.add(key, 2500, i * 0.9)
        plan.pending_updates(i * 0.9)
        if key == "b":
            plan.received(key, 50, i * 0.9)
    assert reasons(plan, "ab") == [RdyReason.STARTING, RdyReason.SHARING]


def test_loans_are_forgotten_where_there_was_nothing_to_lend() -> None:
    plan = busy_and_idle()
    plan.pending_updates(5)
    plan.set_max_in_flight(2)
    plan.pending_updates(6)
    plan.set_max_in_flight(30)
    plan.pending_updates(7)
    assert reasons(plan, "abc") == [RdyReason.SHARING] * 3


def test_one_message_is_not_demand_where_rdy_is_1() -> None:
    plan = started("ab", max_in_flight=20)
    plan.add("c", 2500, 3)
    plan.pending_updates(3)
    plan.pending_updates(3.5)
    plan.received("c", 1, 3.6)
    plan.pending_updates(6)
    assert RdyReason.LENDING not in reasons(plan, "abc")


def test_a_connection_that_was_stopped_is_not_taken_for_idle() -> None:
    plan = started("ab")
    plan.flow_state = FlowState.STOPPED
    plan.pending_updates(2)
    plan.flow_state = FlowState.FULL
    plan.received("a", 50, 20)
    plan.pending_updates(20)
    assert rdys(plan, "ab") == [50, 50]
