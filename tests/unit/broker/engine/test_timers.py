"""Timers: what is due is done, in order."""

from __future__ import annotations

from nsqflow.broker.engine.timers import Timers


def test_what_is_due_is_done_in_the_order_of_its_times() -> None:
    timers = Timers()
    done: list[tuple[str, int]] = []

    def act(thing: str, now: int) -> None:
        done.append((thing, now))

    assert timers.next_at is None
    for when, thing in [(30, "d"), (10, "a"), (20, "b"), (20, "c")]:
        timers.at(when, act, thing)
    assert timers.next_at == 10
    timers.tick(9)
    assert done == []
    timers.tick(20)
    assert done == [("a", 20), ("b", 20), ("c", 20)]
    assert timers.next_at == 30
    timers.tick(30)
    assert done[-1] == ("d", 30)
    assert timers.next_at is None


def test_what_is_done_may_set_another_timer() -> None:
    timers = Timers()
    times: list[int] = []

    def act(step: int, now: int) -> None:
        times.append(now)
        timers.at(now + step, act, step)

    timers.at(5, act, 5)
    timers.tick(5)
    timers.tick(10)
    assert times == [5, 10]
    assert timers.next_at == 15
