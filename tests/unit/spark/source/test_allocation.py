"""Budgets: shares that add up, waits that double, targets that are reached."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.spark.source.allocation import (
    MAX_WAIT,
    MIN_WAIT,
    UNCOUNTED,
    AvailableNowTarget,
    ChannelBacklog,
    MinMessagesGate,
    RetryBackoff,
    divide,
    limit_by_bytes,
    share_bytes,
    split,
)

A, B, C = "t|a:4150", "t|b:4150", "t|c:4150"

keys = st.text("abcdef", min_size=1, max_size=4)
backlogs = st.dictionaries(keys, st.integers(0, 10**9), max_size=12)
limits = st.integers(0, 10**9)
plans = st.dictionaries(keys, st.lists(st.integers(1, 10**6), min_size=1, max_size=5), max_size=6)


def backlog(**counts: int | bool) -> ChannelBacklog:
    return ChannelBacklog(topic="t", nsqd="a:4150", **counts)  # type: ignore[arg-type]


# --- what is available


def test_messages_waiting_in_channel_and_topic_are_available() -> None:
    assert backlog(depth=3, topic_depth=4, in_flight=5, deferred=6).available == 7


def test_nothing_is_available_in_a_paused_channel() -> None:
    assert backlog(depth=3, topic_depth=4, paused=True).available == 0


def test_a_paused_topic_keeps_what_it_has() -> None:
    assert backlog(depth=3, topic_depth=4, topic_paused=True).available == 3


def test_the_mean_size_is_rounded_up_and_may_be_unknown() -> None:
    assert backlog(message_count=3, message_bytes=10).mean_size == 4
    assert backlog(depth=5).mean_size == 0


# --- divide


def test_a_limit_is_shared_in_proportion() -> None:
    assert divide({B: 100, A: 300, C: 0}, 41) == {A: 31, B: 10}


def test_each_key_gets_one_message_before_any_gets_more() -> None:
    assert divide({A: 1_000_000, B: 1, C: 1}, 3) == {A: 1, B: 1, C: 1}
    assert divide({A: 1_000_000, B: 1, C: 1}, 10) == {A: 8, B: 1, C: 1}


def test_where_the_limit_is_too_small_the_largest_come_first() -> None:
    assert divide({A: 1, B: 3, C: 2}, 2) == {B: 1, C: 1}


def test_equal_ones_are_served_in_the_order_of_their_keys() -> None:
    assert divide({C: 5, B: 5, A: 5}, 2) == {A: 1, B: 1}


def test_without_a_limit_everything_is_taken() -> None:
    assert divide({B: 2, A: 10**12, C: 0}, None) == {A: 10**12, B: 2}


@given(backlogs, limits)
def test_budgets_add_up_and_no_key_gets_more_than_it_has(
    backlog: dict[str, int], limit: int
) -> None:
    shares = divide(backlog, limit)
    assert sum(shares.values()) == min(limit, sum(backlog.values()))
    assert all(0 < share <= backlog[key] for key, share in shares.items())
    assert list(shares) == sorted(shares)


@given(backlogs, limits)
def test_each_key_with_messages_gets_some_if_the_limit_allows(
    backlog: dict[str, int], limit: int
) -> None:
    waiting = {key for key, count in backlog.items() if count}
    if limit >= len(waiting):
        assert divide(backlog, limit).keys() == waiting


@given(backlogs, limits)
def test_a_key_with_more_messages_gets_no_fewer(backlog: dict[str, int], limit: int) -> None:
    shares = divide(backlog, limit)
    by_size = sorted(backlog, key=lambda key: backlog[key])
    for less, more in pairwise(by_size):
        if backlog[less] < backlog[more]:
            assert shares.get(less, 0) <= shares.get(more, 0)


@given(backlogs, limits)
def test_budgets_are_in_proportion_if_each_key_has_enough(
    backlog: dict[str, int], limit: int
) -> None:
    waiting = {key: count for key, count in backlog.items() if count}
    total = sum(waiting.values())
    exact = {key: limit * count / total for key, count in waiting.items()}
    if limit < total and min(exact.values()) >= 1:
        shares = divide(backlog, limit)
        assert all(abs(shares[key] - exact[key]) < 1 + 1e-6 * exact[key] for key in waiting)


@given(st.permutations(list(range(6))), limits)
def test_the_order_in_which_keys_come_does_not_matter(order: list[int], limit: int) -> None:
    items = [(f"key{number}", 7 * number) for number in range(6)]
    shuffled = dict(items[number] for number in order)
    assert list(divide(shuffled, limit).items()) == list(divide(dict(items), limit).items())


# --- split


@given(st.integers(0, 10**6), st.integers(1, 50), st.integers(1, 10**6) | st.none())
def test_pieces_add_up_and_are_even(budget: int, parts: int, most: int | None) -> None:
    if most is not None:
        most = max(most, budget // 1000)  # a thousand pieces show as much as a million
    pieces = split(budget, parts, most)
    assert sum(pieces) == budget
    assert len(pieces) >= min(parts, budget)
    if pieces:
        assert 1 <= min(pieces) <= max(pieces) <= min(pieces) + 1
        assert most is None or max(pieces) <= most


@pytest.mark.parametrize(
    ("budget", "parts", "most", "pieces"),
    [
        (0, 3, 10, []),
        (2, 3, None, [1, 1]),
        (10, 1, None, [10]),
        (10, 3, None, [4, 3, 3]),
        (10, 1, 4, [4, 3, 3]),
        (10, 5, 4, [2, 2, 2, 2, 2]),
    ],
)
def test_a_budget_is_cut_into_as_few_pieces_as_were_asked_for(
    budget: int, parts: int, most: int | None, pieces: list[int]
) -> None:
    assert split(budget, parts, most) == pieces


# --- bytes


def test_a_limit_of_bytes_becomes_one_of_messages() -> None:
    assert limit_by_bytes({A: 300, B: 100}, {A: 100, B: 500}, 8_000) == 40
    assert limit_by_bytes({A: 300, B: 100}, {A: 100, B: 500}, 80_000) is None


def test_messages_of_unknown_size_are_taken_to_be_like_the_others() -> None:
    assert limit_by_bytes({A: 10, B: 90}, {A: 100, B: 0}, 5_000) == 50
    assert limit_by_bytes({A: 10, B: 90}, {A: 100}, 5_000) == 50
    assert limit_by_bytes({A: 10}, {}, 1) is None


def test_one_message_is_always_allowed() -> None:
    assert limit_by_bytes({A: 5}, {A: 1_000_000}, 10) == 1


@given(
    st.dictionaries(keys, st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=8),
    st.integers(1, 10**9),
)
def test_what_the_limit_allows_has_no_more_bytes(
    sizes: dict[str, tuple[int, int]], max_bytes: int
) -> None:
    available = {key: count for key, (count, _) in sizes.items()}
    means = {key: mean for key, (_, mean) in sizes.items()}
    known = sum(count for count, mean in sizes.values() if mean)
    expected = sum(count * mean for count, mean in sizes.values())
    limit = limit_by_bytes(available, means, max_bytes)
    if limit is None:
        assert expected <= max_bytes
    else:
        assert limit == 1 or limit * expected <= max_bytes * known
        assert (limit + 1) * expected > max_bytes * known


def test_bytes_are_shared_over_all_pieces() -> None:
    assert share_bytes(1000, {B: [10], A: [20, 10]}) == {A: [500, 250], B: [250]}


def test_a_piece_gets_a_byte_even_if_there_are_too_few() -> None:
    assert share_bytes(1, {A: [5, 5], B: [1]}) == {A: [1, 1], B: [1]}


@given(st.integers(1, 10**9), plans)
def test_shares_of_bytes_add_up_and_fit(max_bytes: int, plan: dict[str, list[int]]) -> None:
    shares = share_bytes(max_bytes, plan)
    pieces = sum(map(len, plan.values()))
    assert list(shares) == sorted(plan)
    assert {key: len(counts) for key, counts in shares.items()} == {
        key: len(counts) for key, counts in plan.items()
    }
    assert all(count >= 1 for counts in shares.values() for count in counts)
    assert sum(map(sum, shares.values())) == (max(max_bytes, pieces) if pieces else 0)


# --- Patience


def test_a_key_that_brought_nothing_waits_and_each_time_twice_as_long() -> None:
    patience, now, waits = RetryBackoff(), 100.0, []
    for _ in range(9):
        patience.record(A, planned=10, received=0, now=now)
        assert not patience.allowed(A, now)
        wait = patience.next(now)
        assert wait is not None
        waits.append(wait)
        now += wait
        assert patience.allowed(A, now)
    assert waits == [MIN_WAIT, 1, 2, 4, 8, 16, MAX_WAIT, MAX_WAIT, MAX_WAIT]


def test_others_do_not_wait_for_it() -> None:
    patience = RetryBackoff()
    patience.record(A, planned=10, received=0, now=0)
    assert patience.allowed(B, 0)


@pytest.mark.parametrize("got", [1, 10, 11])
def test_whatever_it_brings_ends_the_wait(got: int) -> None:
    patience = RetryBackoff()
    for now in (0, 10, 20):
        patience.record(A, planned=10, received=0, now=now)
    patience.record(A, planned=10, received=got, now=20)
    assert patience.allowed(A, 20)
    patience.record(A, planned=10, received=0, now=30)
    assert patience.next(30) == MIN_WAIT, "and the next wait is the shortest again"


def test_a_key_without_a_plan_has_not_failed() -> None:
    patience = RetryBackoff()
    patience.record(A, planned=0, received=0, now=0)
    assert patience.allowed(A, 0)
    assert patience.next(0) is None


def test_the_next_is_the_one_that_waits_least() -> None:
    patience = RetryBackoff()
    patience.failed(A, 0)
    patience.failed(A, 10)
    patience.failed(B, 10)
    assert patience.next(10) == MIN_WAIT
    assert patience.next(10.75) == 0.25, "B is allowed already, A is next"
    assert patience.next(11) is None


def test_keys_that_are_gone_are_forgotten() -> None:
    patience = RetryBackoff()
    patience.failed(A, 0)
    patience.failed(B, 0)
    patience.keep([B, C])
    assert patience.allowed(A, 0)
    assert not patience.allowed(B, 0)


# --- Target


def target_of(backlogs: Iterable[ChannelBacklog]) -> AvailableNowTarget:
    found = [*backlogs]
    return AvailableNowTarget(found, {each.key: each.available for each in found})


def test_the_target_is_all_that_was_there_in_flight_included() -> None:
    target = target_of([backlog(depth=1, in_flight=4, deferred=8)])
    assert target.remaining() == {A: 5}


def test_messages_on_their_way_from_topic_to_channel_belong_to_the_target() -> None:
    assert target_of([backlog(depth=1, topic_depth=2)]).remaining() == {A: 3 + UNCOUNTED}
    held_back = backlog(depth=1, topic_depth=2, topic_paused=True)
    assert target_of([held_back]).remaining() == {A: 1}


def test_nothing_is_expected_of_a_paused_channel_nor_of_an_empty_one() -> None:
    other = ChannelBacklog(topic="t", nsqd="b:4150")
    assert target_of([backlog(depth=1, in_flight=4, paused=True), other]).remaining() == {}


def test_what_came_is_taken_off_and_never_below_zero() -> None:
    target = target_of([backlog(depth=10)])
    target.record(A, 4)
    assert target.remaining() == {A: 6}
    target.record(A, 7)
    assert target.remaining() == {}


def test_no_more_is_planned_than_is_expected() -> None:
    target = target_of([backlog(depth=10), ChannelBacklog(topic="t", nsqd="b:4150", depth=10)])
    target.record(A, 4)
    assert target.limit({A: 100, B: 3, C: 50}) == {A: 6, B: 3}
    assert target.limit({A: 0}) == {}


def test_what_others_have_taken_can_be_given_up() -> None:
    target = target_of([backlog(depth=10)])
    target.give_up(A)
    assert target.remaining() == {}


@given(backlogs, st.integers(1, 10**9))
def test_batches_within_a_target_reach_it_exactly(depths: dict[str, int], limit: int) -> None:
    limit = max(limit, sum(depths.values()) // 20 + 1)
    target = target_of(
        ChannelBacklog(topic="t", nsqd=nsqd, depth=depth) for nsqd, depth in depths.items()
    )
    endless = dict.fromkeys(target.remaining(), 10**12)
    brought = 0
    while shares := divide(target.limit(endless), limit):
        for key, share in shares.items():
            target.record(key, share)
        brought += sum(shares.values())
    assert brought == sum(depths.values())
    assert target.remaining() == {}


# --- Hold


def test_few_messages_wait_for_more_until_the_delay_is_over() -> None:
    hold = MinMessagesGate(100, 60)
    hold.triggered(1000)
    assert hold.should_wait(99, 1000)
    assert hold.should_wait(1, 1059.9)
    assert not hold.should_wait(1, 1060)


def test_enough_messages_wait_for_nothing() -> None:
    hold = MinMessagesGate(100, 60)
    hold.triggered(1000)
    assert not hold.should_wait(100, 1000)


def test_the_first_batch_is_not_held_back() -> None:
    assert not MinMessagesGate(100, 60).should_wait(1, 0)


def test_every_batch_restarts_the_delay() -> None:
    hold = MinMessagesGate(100, 60)
    hold.triggered(1000)
    hold.triggered(1050)
    assert hold.should_wait(1, 1109)


def test_without_a_minimum_nothing_is_held_back() -> None:
    hold = MinMessagesGate(None, 60)
    hold.triggered(0)
    assert not hold.should_wait(1, 0)
