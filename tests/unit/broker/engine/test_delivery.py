"""Delivery: who gets what, in which order, and how much of it at a time."""

from __future__ import annotations

from collections.abc import Iterator

from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.engine.entry import COST, MOST_ATTEMPTS
from nsqflow.broker.engine.subscriber import Subscriber
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


def test_no_more_is_in_flight_than_rdy_says(engine: Engine, topic: Topic, channel: Channel) -> None:
    subscriber = subscribe(channel, 2)
    topic.publish(numbered(1, 2, 3, 4), NOW)
    first, second = deliver(engine)
    assert (subscriber.in_flight, channel.in_flight_count, channel.depth) == (2, 2, 2)
    assert not engine.restless
    channel.finish(subscriber, [first.id])
    assert bodies(engine) == [b"3"]
    subscriber.rdy = 1
    channel.changed()
    channel.finish(subscriber, [second.id])
    assert bodies(engine) == []
    subscriber.rdy = 3
    channel.changed()
    assert bodies(engine) == [b"4"]
    assert (subscriber.message_count, subscriber.finish_count) == (4, 2)


def test_messages_go_out_in_the_order_in_which_they_came(
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
    channel.changed()
    [entry] = deliver(engine)
    subscriber.closing = True
    topic.publish(numbered(2), NOW)
    assert bodies(engine) == []
    assert channel.finish(subscriber, [entry.id]) == []
    assert bodies(engine) == []


def test_a_paused_channel_takes_messages_and_gives_none(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    topic.publish(numbered(1), NOW)
    [entry] = deliver(engine)
    channel.pause()
    topic.publish(numbered(2), NOW)
    assert bodies(engine) == []
    assert channel.finish(subscriber, [entry.id]) == []
    assert bodies(engine) == []
    channel.unpause()
    assert bodies(engine) == [b"2"]


def test_hungry_subscribers_share_what_there_is(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscribers = [subscribe(channel, rdy) for rdy in (100, 2, 100)]
    topic.publish(numbered(*range(30)), NOW)
    given = {subscriber: len(entries) for subscriber, entries in engine.deliver(NOW)}
    assert given[subscribers[1]] == 2
    assert sorted(given[each] for each in (subscribers[0], subscribers[2])) == [10, 18]


def test_single_messages_go_round(engine: Engine, topic: Topic, channel: Channel) -> None:
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
    while engine.restless:
        counts.append(len(deliver(engine)))
    assert counts == [3, 3, 3, 1]


def test_one_large_body_holds_up_nobody_else(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscribe(channel, 2500)
    subscribe(channel, 2500)
    topic.publish([bytes(1024 * 1024)] * 4, NOW)
    assert [len(entries) for _, entries in engine.deliver(NOW)] == [1, 1]
    assert [len(entries) for _, entries in engine.deliver(NOW)] == [1, 1]


def test_of_a_sampled_channel_the_rest_is_dropped() -> None:
    chances: Iterator[int] = iter([9, 10, 11, 99, 0])
    engine = Engine(chance=lambda: next(chances))
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, sample_rate=10)
    topic.publish(numbered(1, 2, 3, 4, 5), NOW)
    assert bodies(engine) == numbered(1, 2, 5), "nsqd drops what is above the rate, not at it"
    assert (channel.depth, channel.in_flight_count, subscriber.message_count) == (0, 3, 3)
    assert engine.memory.used == 3 * (COST + 1)


def test_a_subscriber_whose_sample_is_empty_is_given_nothing() -> None:
    ledger = Ledger()
    engine = Engine(chance=lambda: 99, journal=ledger)
    topic = engine.topic("t", NOW)
    subscribe(topic.channel("c", NOW), sample_rate=1)
    publish(topic, numbered(1, 2))
    assert engine.deliver(NOW) == []
    assert engine.next_at is None
    assert not ledger.rows("t", "c")


def test_attempts_count_up_to_what_two_bytes_hold(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    topic.publish(numbered(1), NOW)
    [entry] = deliver(engine)
    assert entry.attempts == 1
    entry.attempts = MOST_ATTEMPTS - 1
    for _ in range(2):
        channel.requeue(subscriber, entry.id, 0, NOW)
        assert [each.attempts for each in deliver(engine)] == [MOST_ATTEMPTS]


def test_a_subscriber_has_room_for_what_its_rdy_leaves() -> None:
    subscriber = Subscriber(None, SECOND)
    assert subscriber.room == 0
    subscriber.rdy = 3
    assert subscriber.room == 3
    subscriber.closing = True
    assert subscriber.room == 0
