"""How many units share a transaction."""

from __future__ import annotations

import threading
import time

import pytest

from nsqflow.broker.storage import unit_queue
from nsqflow.broker.storage.unit_queue import UnitQueue
from nsqflow.broker.storage.writer import Unit
from tests.fixtures.servers import PATIENCE


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it wait until a test fails rather than for milliseconds."""
    monkeypatch.setattr(unit_queue, "_MAX_WAIT", PATIENCE)


def unit(waiting: int = 1) -> Unit:
    return Unit([], waiting=waiting)


def put_later(units: UnitQueue, *later: Unit) -> threading.Thread:
    """Put units once the other thread has had time to wait; a test holds if it has not, too."""

    def put() -> None:
        for each in later:
            time.sleep(0.01)
            units.put(each)

    thread = threading.Thread(target=put)
    thread.start()
    return thread


def test_all_that_are_there_are_taken_at_once() -> None:
    units = UnitQueue()
    there = [unit() for _ in range(100)]
    for each in there:
        units.put(each)
    assert units.take(None) == (there, False)


def test_without_units_it_returns_none_after_the_timeout() -> None:
    assert UnitQueue().take(0.001) == ([], False)


def test_after_the_end_there_are_no_more() -> None:
    units = UnitQueue()
    last = unit()
    units.put(last)
    units.end()
    assert units.take(None) == ([last], True)
    assert units.take(None) == ([], True)


def test_one_publisher_never_waits_for_another() -> None:
    units = UnitQueue()
    units.written(answered=1, seconds=10 * PATIENCE)
    before = time.monotonic()
    first = unit()
    units.put(first)
    assert units.take(None) == ([first], False)
    assert time.monotonic() - before < PATIENCE


def test_those_that_came_meanwhile_wait_for_those_that_were_answered() -> None:
    units = UnitQueue()
    came, again, more = unit(), unit(), unit()
    units.put(came)
    units.written(answered=2, seconds=10 * PATIENCE)
    thread = put_later(units, again, more)
    assert units.take(None) == ([came, again, more], False)
    thread.join()


def test_those_that_were_answered_together_wait_for_each_other() -> None:
    units = UnitQueue()
    units.written(answered=3, seconds=10 * PATIENCE)
    first, others = unit(), unit(waiting=2)
    thread = put_later(units, first, others)
    assert units.take(None) == ([first, others], False)
    thread.join()


def test_what_no_publisher_waits_for_is_taken_along() -> None:
    units = UnitQueue()
    units.written(answered=1, seconds=10 * PATIENCE)
    finished, published = unit(waiting=0), unit()
    units.put(finished)
    thread = put_later(units, published)
    assert units.take(None) == ([finished, published], False)
    thread.join()


def test_a_publisher_that_does_not_come_again_is_waited_for_a_part_of_the_last_time() -> None:
    units = UnitQueue()
    came = unit()
    units.put(came)
    units.written(answered=1, seconds=0.001)
    assert units.take(None) == ([came], False)


def test_the_end_is_not_waited_for() -> None:
    units = UnitQueue()
    came = unit()
    units.put(came)
    units.written(answered=2, seconds=10 * PATIENCE)
    thread = threading.Thread(target=units.end)
    thread.start()
    assert units.take(None) == ([came], True)
    thread.join()
