"""The engine's timers."""

from __future__ import annotations

from nsqflow.broker.engine.engine import TimerHeap


def test_timers_run_in_the_order_of_their_times() -> None:
    timers = TimerHeap()
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


def test_a_timer_may_set_another() -> None:
    timers = TimerHeap()
    times: list[int] = []

    def act(step: int, now: int) -> None:
        times.append(now)
        timers.at(now + step, act, step)

    timers.at(5, act, 5)
    timers.tick(5)
    timers.tick(10)
    assert times == [5, 10]
    assert timers.next_at == 15
