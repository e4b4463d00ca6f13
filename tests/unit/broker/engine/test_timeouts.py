"""Message timeouts: redelivery at the deadline, neither earlier nor later."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqflow.broker.engine.engine import Engine
from tests.unit.broker.engine.parts import NOW, SECOND, bodies, deliver, numbered, subscribe

MAX_MSG_TIMEOUT = 10

acts = st.one_of(
    st.tuples(st.just("deliver"), st.just(0)),
    st.tuples(st.just("touch"), st.integers(0, 5)),
    st.tuples(st.just("finish"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.integers(1, 4)),
)


@settings(max_examples=200)
@given(timeout=st.integers(2, MAX_MSG_TIMEOUT + 2), acts=st.lists(acts, min_size=15, max_size=50))
def test_every_message_times_out_at_its_deadline(timeout: int, acts: list[tuple[str, int]]) -> None:
    engine = Engine(max_msg_timeout=MAX_MSG_TIMEOUT)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, timeout=timeout)
    now, timed_out = NOW, 0
    times: dict[bytes, tuple[int, int]] = {}  # delivered, deadline
    for act, number in acts:
        ids = [*times]
        if act == "deliver":
            topic.publish([b"x"], now)
            times |= {message.id: (now, now + timeout) for message in deliver(engine, now)}
        elif act == "wait":
            now += number
            engine.tick(now)
            assert engine.next_at is None or engine.next_at > now
            timed_out += sum(deadline <= now for _, deadline in times.values())
            times = {id: each for id, each in times.items() if each[1] > now}
        elif act == "touch" and number < len(ids):
            channel.touch(subscriber, ids[number], now)
            delivered, _ = times[ids[number]]
            times[ids[number]] = delivered, min(now + timeout, delivered + MAX_MSG_TIMEOUT)
        elif act == "finish" and number < len(ids):
            assert channel.finish(subscriber, [ids[number]]) == []
            del times[ids[number]]
        assert subscriber.in_flight.keys() == times.keys()
        assert channel.timeout_count == timed_out
        if times:
            assert engine.next_at is not None
            assert engine.next_at <= min(deadline for _, deadline in times.values())


def test_a_message_that_timed_out_is_delivered_again_and_counted() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, timeout=SECOND)
    topic.publish(numbered(1), NOW)
    [message] = deliver(engine)
    engine.tick(NOW + SECOND - 1)
    assert channel.timeout_count == 0
    assert channel.finish(subscriber, []) == []
    engine.tick(NOW + SECOND)
    assert (channel.timeout_count, channel.requeue_count, subscriber.requeue_count) == (1, 0, 0)
    assert (subscriber.in_flight_count, channel.depth) == (0, 1)
    assert channel.finish(subscriber, [message.id]) == [(message.id, "ID not in flight")]
    [again] = deliver(engine, NOW + SECOND)
    assert (again.attempts, again.deadline) == (2, NOW + 2 * SECOND)


def test_each_subscriber_has_its_own_msg_timeout() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    slow, quick = subscribe(channel, 1, timeout=9), subscribe(channel, 1, timeout=3)
    topic.publish(numbered(1, 2), NOW)
    deliver(engine)
    assert engine.next_at == NOW + 3
    engine.tick(NOW + 3)
    assert (slow.in_flight_count, quick.in_flight_count) == (1, 0)


def test_a_touch_restarts_the_timeout_up_to_max_msg_timeout() -> None:
    engine = Engine(max_msg_timeout=25)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, timeout=10)
    topic.publish(numbered(1), NOW)
    [message] = deliver(engine)
    deadlines = []
    for now in (5, 14, 16, 24):
        engine.tick(NOW + now)
        channel.touch(subscriber, message.id, NOW + now)
        deadlines.append(message.deadline - NOW)
    assert deadlines == [15, 24, 25, 25]
    assert channel.in_flight_count == 1
    engine.tick(NOW + 25)
    assert channel.timeout_count == 1
    [again] = deliver(engine, NOW + 25)
    assert again.deadline == NOW + 35
    channel.touch(subscriber, message.id, NOW + 33)
    assert again.deadline == NOW + 43, "the maximum counts from the last delivery"


def test_a_subscriber_needs_one_timer_for_all_its_messages() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel)
    for now in range(NOW, NOW + 100):
        topic.publish(numbered(1), now)
        channel.finish(subscriber, [message.id for message in deliver(engine, now)])
    assert len(engine.timers._heap) == 1


@pytest.mark.parametrize("timeout", [10, 9])
def test_repeated_touches_do_not_accumulate_timers(timeout: int) -> None:
    engine = Engine(max_msg_timeout=10)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, timeout=timeout)
    topic.publish(numbered(1), NOW)
    [message] = deliver(engine)
    for _ in range(100):
        channel.touch(subscriber, message.id, NOW + 5)
    assert len(engine.timers._heap) <= 2


def test_a_touch_at_the_maximum_does_not_reorder_messages_in_flight() -> None:
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


def test_the_timer_of_a_touched_message_does_not_end_its_next_delivery() -> None:
    engine = Engine(max_msg_timeout=10)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, timeout=8)
    topic.publish(numbered(1), NOW)
    [message] = deliver(engine)
    channel.touch(subscriber, message.id, NOW + 7)
    channel.requeue(subscriber, message.id, 0, NOW + 8)
    deliver(engine, NOW + 8)
    engine.tick(NOW + 10)
    assert (channel.timeout_count, channel.in_flight_count) == (0, 1)
    engine.tick(NOW + 16)
    assert channel.timeout_count == 1
