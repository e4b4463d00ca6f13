"""What is in flight too long: it comes again, neither early nor late."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqflow.broker.engine.engine import Engine
from tests.unit.broker.engine.parts import NOW, SECOND, bodies, deliver, numbered, subscribe

UTMOST = 10

acts = st.one_of(
    st.tuples(st.just("deliver"), st.just(0)),
    st.tuples(st.just("touch"), st.integers(0, 5)),
    st.tuples(st.just("finish"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.integers(1, 4)),
)


@settings(max_examples=200)
@given(timeout=st.integers(2, UTMOST + 2), acts=st.lists(acts, min_size=15, max_size=50))
def test_every_message_times_out_at_its_deadline(timeout: int, acts: list[tuple[str, int]]) -> None:
    engine = Engine(max_msg_timeout=UTMOST)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, timeout=timeout)
    now, timed_out = NOW, 0
    times: dict[bytes, tuple[int, int]] = {}  # delivered, deadline
    for act, number in acts:
        ids = [*times]
        if act == "deliver":
            topic.publish([b"x"], now)
            times |= {entry.id: (now, now + timeout) for entry in deliver(engine, now)}
        elif act == "wait":
            now += number
            engine.tick(now)
            assert engine.next_at is None or engine.next_at > now
            timed_out += sum(deadline <= now for _, deadline in times.values())
            times = {id: each for id, each in times.items() if each[1] > now}
        elif act == "touch" and number < len(ids):
            channel.touch(subscriber, ids[number], now)
            delivered, _ = times[ids[number]]
            times[ids[number]] = delivered, min(now + timeout, delivered + UTMOST)
        elif act == "finish" and number < len(ids):
            assert channel.finish(subscriber, [ids[number]]) == []
            del times[ids[number]]
        assert subscriber.held.keys() == times.keys()
        assert channel.timeout_count == timed_out
        if times:
            assert engine.next_at is not None
            assert engine.next_at <= min(deadline for _, deadline in times.values())


def test_a_message_that_timed_out_comes_again_and_is_counted() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, timeout=SECOND)
    topic.publish(numbered(1), NOW)
    [entry] = deliver(engine)
    engine.tick(NOW + SECOND - 1)
    assert channel.timeout_count == 0
    assert channel.finish(subscriber, []) == []
    engine.tick(NOW + SECOND)
    assert (channel.timeout_count, channel.requeue_count, subscriber.requeue_count) == (1, 0, 0)
    assert (subscriber.in_flight, channel.depth) == (0, 1)
    assert channel.finish(subscriber, [entry.id]) == [(entry.id, "ID not in flight")]
    [again] = deliver(engine, NOW + SECOND)
    assert (again.attempts, again.deadline) == (2, NOW + 2 * SECOND)


def test_each_subscriber_has_a_time_of_its_own() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    slow, quick = subscribe(channel, 1, timeout=9), subscribe(channel, 1, timeout=3)
    topic.publish(numbered(1, 2), NOW)
    deliver(engine)
    assert engine.next_at == NOW + 3
    engine.tick(NOW + 3)
    assert (slow.in_flight, quick.in_flight) == (1, 0)


def test_a_touched_message_has_its_time_anew_but_never_more_than_the_utmost() -> None:
    engine = Engine(max_msg_timeout=25)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, timeout=10)
    topic.publish(numbered(1), NOW)
    [entry] = deliver(engine)
    deadlines = []
    for now in (5, 14, 16, 24):
        engine.tick(NOW + now)
        channel.touch(subscriber, entry.id, NOW + now)
        deadlines.append(entry.deadline - NOW)
    assert deadlines == [15, 24, 25, 25]
    assert channel.in_flight_count == 1
    engine.tick(NOW + 25)
    assert channel.timeout_count == 1
    [again] = deliver(engine, NOW + 25)
    assert again.deadline == NOW + 35
    channel.touch(subscriber, entry.id, NOW + 33)
    assert again.deadline == NOW + 43, "the utmost counts from the last delivery"


def test_a_subscriber_needs_one_timer_however_much_it_is_given() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel)
    for now in range(NOW, NOW + 100):
        topic.publish(numbered(1), now)
        channel.finish(subscriber, [entry.id for entry in deliver(engine, now)])
    assert len(engine.timers._heap) == 1


@pytest.mark.parametrize("timeout", [10, 9])
def test_who_touches_over_and_over_leaves_no_heap_of_timers(timeout: int) -> None:
    engine = Engine(max_msg_timeout=10)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, timeout=timeout)
    topic.publish(numbered(1), NOW)
    [entry] = deliver(engine)
    for _ in range(100):
        channel.touch(subscriber, entry.id, NOW + 5)
    assert len(engine.timers._heap) <= 2


def test_a_message_at_its_utmost_keeps_its_place_when_it_is_touched() -> None:
    engine = Engine(max_msg_timeout=10)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, timeout=10)
    topic.publish(numbered(1), NOW)
    [first] = deliver(engine)
    topic.publish(numbered(2), NOW + 5)
    deliver(engine, NOW + 5)
    channel.touch(subscriber, first.id, NOW + 6)
    engine.tick(NOW + 10)
    assert bodies(engine, NOW + 10) == [b"1"]


def test_the_timer_of_a_touched_message_is_not_that_of_its_next_delivery() -> None:
    engine = Engine(max_msg_timeout=10)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, timeout=8)
    topic.publish(numbered(1), NOW)
    [entry] = deliver(engine)
    channel.touch(subscriber, entry.id, NOW + 7)
    channel.requeue(subscriber, entry.id, 0, NOW + 8)
    deliver(engine, NOW + 8)
    engine.tick(NOW + 10)
    assert (channel.timeout_count, channel.in_flight_count) == (0, 1)
    engine.tick(NOW + 16)
    assert channel.timeout_count == 1
