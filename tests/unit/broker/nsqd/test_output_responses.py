"""The order of responses, some of which are known pending_responses."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from nsqflow.broker.nsqd.output import ResponseQueue


def append(sent: list[int], number: int) -> Callable[[], None]:
    return lambda: sent.append(number)


def test_a_response_is_sent_known_now_if_none_is_pending() -> None:
    responses, sent = ResponseQueue(), list[int]()
    responses.send_in_order(append(sent, 1))
    assert sent == [1]
    assert len(responses) == 0
    assert responses.unflushed


def test_a_response_waits_for_earlier_ones() -> None:
    responses, sent = ResponseQueue(), list[int]()
    pending = responses.reserve()
    responses.send_in_order(append(sent, 2))
    assert (sent, len(responses), responses.unflushed) == ([], 2, False)
    responses.resolve(pending, append(sent, 1))
    assert (sent, len(responses), responses.unflushed) == ([1, 2], 0, True)


def test_a_response_that_is_resolved_early_waits_for_earlier_ones() -> None:
    responses, sent = ResponseQueue(), list[int]()
    first, second = responses.reserve(), responses.reserve()
    responses.resolve(second, append(sent, 2))
    assert (sent, responses.unflushed) == ([], False)
    responses.resolve(first, append(sent, 1))
    assert sent == [1, 2]


def test_after_clear_no_response_is_sent() -> None:
    responses, sent = ResponseQueue(), list[int]()
    first, second = responses.reserve(), responses.reserve()
    responses.send_in_order(append(sent, 3))
    responses.clear()
    assert len(responses) == 0
    responses.resolve(first, append(sent, 1))
    responses.resolve(second, append(sent, 2))
    assert sent == []


def test_a_response_may_clear_later_ones() -> None:
    responses, sent = ResponseQueue(), list[int]()
    pending = responses.reserve()
    responses.send_in_order(responses.clear)
    responses.send_in_order(append(sent, 3))
    responses.resolve(pending, append(sent, 1))
    assert sent == [1]


@given(st.lists(st.booleans(), max_size=20), st.randoms(use_true_random=False))
def test_responses_are_sent_in_the_order_of_their_commands(
    known: list[bool], random: Random
) -> None:
    responses, sent = ResponseQueue(), list[int]()
    pending_responses = []
    for number, known_now in enumerate(known):
        if known_now:
            responses.send_in_order(append(sent, number))
        else:
            pending_responses.append((responses.reserve(), number))
    random.shuffle(pending_responses)
    for pending, number in pending_responses:
        responses.resolve(pending, append(sent, number))
    assert sent == [*range(len(known))]
