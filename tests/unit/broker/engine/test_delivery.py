"""Delivery: which subscriber gets which messages, in which order, how many at a time."""

from __future__ import annotations

from collections.abc import Iterator

from nsqflow.broker.engine.channel import Channel, Subscriber
from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.engine.message import MAX_ATTEMPTS, MESSAGE_OVERHEAD
from nsqflow.broker.engine.topic import Topic
from tests.unit.broker.engine.ledger import Ledger
from tests.unit.broker.engine.parts import (
    NOW,
    SECOND,
    bodies,
    deliver,
    numbered,
    publish,
    subscribe,
)


def test_in_flight_never_exceeds_rdy(engine: Engine, topic: Topic, channel: Channel) -> None:
    subscriber = subscribe(channel, 2)
    topic.publish(numbered(1, 2, 3, 4), NOW)
    first, second = deliver(engine)
    assert (subscriber.in_flight_count, channel.in_flight_count, channel.depth) == (2, 2, 2)
    assert not engine.has_work
    channel.finish(subscriber, [first.id])
    assert bodies(engine) == [b"3"]
    subscriber.rdy = 1
    channel.subscriber_changed()
    channel.finish(subscriber, [second.id])
    assert bodies(engine) == []
    subscriber.rdy = 3
    channel.subscriber_changed()
    assert bodies(engine) == [b"4"]
    assert (subscriber.message_count, subscriber.finish_count) == (4, 2)


def test_messages_are_delivered_in_the_order_of_their_publishes(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscribe(channel)
    topic.publish(numbered(1, 2), NOW)
    topic.publish(numbered(3), NOW)
    assert bodies(engine) == numbered(1, 2, 3)


def test_a_subscriber_that_does_not_read_or_is_closing_gets_nothing(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    subscriber.blocked = True
    topic.publish(numbered(1), NOW)
    assert bodies(engine) == []
    subscriber.blocked = False
    channel.subscriber_changed()
    [message] = deliver(engine)
    subscriber.closing = True
    topic.publish(numbered(2), NOW)
    assert bodies(engine) == []
    assert channel.finish(subscriber, [message.id]) == []
    assert bodies(engine) == []


def test_a_paused_channel_accepts_messages_and_delivers_none(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    topic.publish(numbered(1), NOW)
    [message] = deliver(engine)
    channel.pause()
    topic.publish(numbered(2), NOW)
    assert bodies(engine) == []
    assert channel.finish(subscriber, [message.id]) == []
    assert bodies(engine) == []
    channel.unpause()
    assert bodies(engine) == [b"2"]


def test_ready_subscribers_share_the_queue(engine: Engine, topic: Topic, channel: Channel) -> None:
    subscribers = [subscribe(channel, rdy) for rdy in (100, 2, 100)]
    topic.publish(numbered(*range(30)), NOW)
    given = {subscriber: len(messages) for subscriber, messages in engine.deliver(NOW)}
    assert given[subscribers[1]] == 2
    assert sorted(given[each] for each in (subscribers[0], subscribers[2])) == [10, 18]


def test_single_messages_are_delivered_round_robin(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscribers = [subscribe(channel) for _ in range(3)]
    turns = []
    for number in range(9):
        topic.publish(numbered(number), NOW)
        [(subscriber, _)] = engine.deliver(NOW)
        turns.append(subscriber)
    assert {*turns[:3]} == {*subscribers}
    assert turns == turns[:3] * 3


def test_one_delivery_is_about_256_kib_at_most(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscribe(channel, 2500)
    topic.publish([bytes(100 * 1024)] * 10, NOW)
    counts = []
    while engine.has_work:
        counts.append(len(deliver(engine)))
    assert counts == [3, 3, 3, 1]


def test_a_large_body_delays_no_other_subscriber(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscribe(channel, 2500)
    subscribe(channel, 2500)
    topic.publish([bytes(1024 * 1024)] * 4, NOW)
    assert [len(messages) for _, messages in engine.deliver(NOW)] == [1, 1]
    assert [len(messages) for _, messages in engine.deliver(NOW)] == [1, 1]


def test_messages_outside_the_sample_are_dropped() -> None:
    percents: Iterator[int] = iter([9, 10, 11, 99, 0])
    engine = Engine(random_percent=lambda: next(percents))
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, sample_rate=10)
    topic.publish(numbered(1, 2, 3, 4, 5), NOW)
    assert bodies(engine) == numbered(1, 2, 5), "nsqd drops messages above the rate, not at it"
    assert (channel.depth, channel.in_flight_count, subscriber.message_count) == (0, 3, 3)
    assert engine.memory.used == 3 * (MESSAGE_OVERHEAD + 1)


def test_a_subscriber_with_an_empty_sample_gets_nothing() -> None:
    ledger = Ledger()
    engine = Engine(random_percent=lambda: 99, journal=ledger)
    topic = engine.topic("t", NOW)
    subscribe(topic.channel("c", NOW), sample_rate=1)
    publish(topic, numbered(1, 2))
    assert engine.deliver(NOW) == []
    assert engine.next_at is None
    assert not ledger.rows("t", "c")


def test_attempts_stop_at_what_two_bytes_hold(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    topic.publish(numbered(1), NOW)
    [message] = deliver(engine)
    assert message.attempts == 1
    message.attempts = MAX_ATTEMPTS - 1
    for _ in range(2):
        channel.requeue(subscriber, message.id, 0, NOW)
        assert [each.attempts for each in deliver(engine)] == [MAX_ATTEMPTS]


def test_capacity_is_rdy_minus_what_is_in_flight() -> None:
    subscriber = Subscriber(None, SECOND)
    assert subscriber.capacity == 0
    subscriber.rdy = 3
    assert subscriber.capacity == 3
    subscriber.closing = True
    assert subscriber.capacity == 0
