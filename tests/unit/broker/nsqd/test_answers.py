"""The order of answers, some of which are known late."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from nsqflow.broker.nsqd.answers import Answers


def to(said: list[int], number: int) -> Callable[[], None]:
    return lambda: said.append(number)


def test_an_answer_that_nothing_stands_before_is_given_at_once() -> None:
    answers, said = Answers(), list[int]()
    answers.give(to(said, 1))
    assert said == [1]
    assert len(answers) == 0
    assert answers.given


def test_an_answer_waits_for_those_before_it() -> None:
    answers, said = Answers(), list[int]()
    ticket = answers.reserve()
    answers.give(to(said, 2))
    assert (said, len(answers), answers.given) == ([], 2, False)
    answers.settle(ticket, to(said, 1))
    assert (said, len(answers), answers.given) == ([1, 2], 0, True)


def test_an_answer_that_is_known_early_waits_for_its_turn() -> None:
    answers, said = Answers(), list[int]()
    first, second = answers.reserve(), answers.reserve()
    answers.settle(second, to(said, 2))
    assert (said, answers.given) == ([], False)
    answers.settle(first, to(said, 1))
    assert said == [1, 2]


def test_nothing_is_answered_once_all_are_forgotten() -> None:
    answers, said = Answers(), list[int]()
    first, second = answers.reserve(), answers.reserve()
    answers.give(to(said, 3))
    answers.clear()
    assert len(answers) == 0
    answers.settle(first, to(said, 1))
    answers.settle(second, to(said, 2))
    assert said == []


def test_an_answer_may_forget_those_behind_it() -> None:
    answers, said = Answers(), list[int]()
    ticket = answers.reserve()
    answers.give(answers.clear)
    answers.give(to(said, 3))
    answers.settle(ticket, to(said, 1))
    assert said == [1]


@given(st.lists(st.booleans(), max_size=20), st.randoms(use_true_random=False))
def test_answers_are_given_in_the_order_of_their_commands(
    known: list[bool], random: Random
) -> None:
    answers, said = Answers(), list[int]()
    late = []
    for number, at_once in enumerate(known):
        if at_once:
            answers.give(to(said, number))
        else:
            late.append((answers.reserve(), number))
    random.shuffle(late)
    for ticket, number in late:
        answers.settle(ticket, to(said, number))
    assert said == [*range(len(known))]
