"""How many commit requests share a transaction."""

from __future__ import annotations

import threading
import time

import pytest

from nsqflow.broker.storage import commit_queue
from nsqflow.broker.storage.commit_queue import CommitQueue
from nsqflow.broker.storage.writer import CommitRequest
from tests.fixtures.servers import PATIENCE


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the longest wait longer than a test may take."""
    monkeypatch.setattr(commit_queue, "_MAX_WAIT", PATIENCE)


def request(waiters: int = 1) -> CommitRequest:
    return CommitRequest([], waiters=waiters)


def put_later(requests: CommitQueue, *later: CommitRequest) -> threading.Thread:
    """Put requests after the test's thread probably waits; a test also holds if it does not."""

    def put() -> None:
        for each in later:
            time.sleep(0.01)
            requests.put(each)

    thread = threading.Thread(target=put)
    thread.start()
    return thread


def test_all_waiting_requests_are_taken_at_once() -> None:
    requests = CommitQueue()
    waiting = [request() for _ in range(100)]
    for each in waiting:
        requests.put(each)
    assert requests.take(None) == (waiting, False)


def test_without_requests_take_returns_none_after_the_timeout() -> None:
    assert CommitQueue().take(0.001) == ([], False)


def test_after_the_end_take_returns_no_requests() -> None:
    requests = CommitQueue()
    last = request()
    requests.put(last)
    requests.end()
    assert requests.take(None) == ([last], True)
    assert requests.take(None) == ([], True)


def test_a_single_publisher_never_waits() -> None:
    requests = CommitQueue()
    requests.written(answered=1, seconds=10 * PATIENCE)
    before = time.monotonic()
    first = request()
    requests.put(first)
    assert requests.take(None) == ([first], False)
    assert time.monotonic() - before < PATIENCE


def test_publishers_that_arrived_meanwhile_wait_for_the_acknowledged_ones() -> None:
    requests = CommitQueue()
    arrived, again, more = request(), request(), request()
    requests.put(arrived)
    requests.written(answered=2, seconds=10 * PATIENCE)
    thread = put_later(requests, again, more)
    assert requests.take(None) == ([arrived, again, more], False)
    thread.join()


def test_publishers_that_were_acknowledged_together_wait_for_each_other() -> None:
    requests = CommitQueue()
    requests.written(answered=3, seconds=10 * PATIENCE)
    first, others = request(), request(waiters=2)
    thread = put_later(requests, first, others)
    assert requests.take(None) == ([first, others], False)
    thread.join()


def test_requests_without_publishers_are_taken_along() -> None:
    requests = CommitQueue()
    requests.written(answered=1, seconds=10 * PATIENCE)
    finished, published = request(waiters=0), request()
    requests.put(finished)
    thread = put_later(requests, published)
    assert requests.take(None) == ([finished, published], False)
    thread.join()


def test_the_wait_for_publishers_is_limited_by_the_last_duration() -> None:
    requests = CommitQueue()
    arrived = request()
    requests.put(arrived)
    requests.written(answered=1, seconds=0.001)
    assert requests.take(None) == ([arrived], False)


def test_the_end_interrupts_the_wait() -> None:
    requests = CommitQueue()
    arrived = request()
    requests.put(arrived)
    requests.written(answered=2, seconds=10 * PATIENCE)
    thread = threading.Thread(target=requests.end)
    thread.start()
    assert requests.take(None) == ([arrived], True)
    thread.join()
