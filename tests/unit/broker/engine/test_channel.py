"""A channel: who gets what, and what subscribers and operators can do about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsqflow.broker.engine.channel import Channel, NotInFlight, TooManyConsumers
from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.engine.entry import COST, MOST_ATTEMPTS
from nsqflow.broker.engine.subscriber import Subscriber
from nsqflow.broker.engine.topic import Topic
from tests.unit.broker.engine.ledger import Ledger
from tests.unit.broker.engine.parts import (
    NOW,
    SECOND,
    Diary,
    bodies,
    deliver,
    numbered,
    subscribe,
)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def topic(engine: Engine) -> Topic:
    return engine.topic("t", NOW)


@pytest.fixture
def channel(topic: Topic) -> Channel:
    return topic.channel("c", NOW)


# Delivery


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


def test_of_a_sampled_channel_the_rest_is_dropped(topic: Topic) -> None:
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
    topic.publish(numbered(1, 2), NOW)
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


# What subscribers say


def test_a_finished_message_never_comes_again(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel, timeout=SECOND)
    topic.publish(numbered(1, 2), NOW)
    first, second = deliver(engine)
    assert channel.finish(subscriber, [second.id, first.id]) == []
    assert (channel.in_flight_count, engine.memory.used) == (0, 0)
    engine.tick(NOW + SECOND)
    assert bodies(engine) == []
    assert channel.timeout_count == 0
    assert engine.next_at is None


def test_a_message_can_be_answered_only_by_whom_it_was_given_to(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    topic.publish(numbered(1), NOW)
    [entry] = deliver(engine)
    other = subscribe(channel)
    assert channel.finish(other, [entry.id, b"f" * 16]) == [
        (entry.id, "client does not own message"),
        (b"f" * 16, "ID not in flight"),
    ]
    with pytest.raises(NotInFlight, match=r"^client does not own message$"):
        channel.requeue(other, entry.id, 0, NOW)
    with pytest.raises(NotInFlight, match=r"^client does not own message$"):
        channel.touch(other, entry.id, NOW)
    channel.finish(subscriber, [entry.id])
    with pytest.raises(NotInFlight, match=r"^ID not in flight$"):
        channel.requeue(subscriber, entry.id, 0, NOW)
    with pytest.raises(NotInFlight, match=r"^ID not in flight$"):
        channel.touch(subscriber, entry.id, NOW)
    assert (channel.requeue_count, other.finish_count, other.requeue_count) == (0, 0, 0)


def test_one_bad_id_does_not_keep_the_others_from_being_finished(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    topic.publish(numbered(1, 2), NOW)
    first, second = deliver(engine)
    failed = channel.finish(subscriber, [first.id, first.id, second.id])
    assert failed == [(first.id, "ID not in flight")]
    assert (channel.in_flight_count, subscriber.finish_count) == (0, 2)


def test_a_requeued_message_comes_again_behind_the_others(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel, 1)
    topic.publish(numbered(1, 2), NOW)
    [entry] = deliver(engine)
    channel.requeue(subscriber, entry.id, 0, NOW)
    assert (channel.depth, channel.requeue_count, subscriber.requeue_count) == (2, 1, 1)
    assert bodies(engine) == [b"2"]
    subscriber.rdy = 2
    channel.changed()
    [again] = deliver(engine)
    assert (again.id, again.body, again.attempts) == (entry.id, b"1", 2)
    assert again.timestamp == NOW


def test_a_message_requeued_for_later_comes_at_its_time(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    topic.publish(numbered(1), NOW)
    [entry] = deliver(engine)
    channel.requeue(subscriber, entry.id, 5, NOW)
    assert (channel.depth, channel.deferred_count, channel.in_flight_count) == (0, 1, 0)
    engine.tick(NOW + 4)
    assert bodies(engine, NOW + 4) == []
    assert engine.next_at == NOW + 5
    engine.tick(NOW + 5)
    assert (channel.depth, channel.deferred_count) == (1, 0)
    assert bodies(engine, NOW + 5) == [b"1"]


def test_a_message_requeued_for_later_makes_room_for_another(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel, 1)
    topic.publish(numbered(1, 2), NOW)
    [entry] = deliver(engine)
    channel.requeue(subscriber, entry.id, SECOND, NOW)
    assert bodies(engine) == [b"2"]


def test_what_is_put_off_comes_in_the_order_of_its_times(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscribe(channel)
    for delay in (3, 1, 2, 5, 1):
        topic.publish(numbered(delay), NOW, delay)
    seen = []
    while (now := engine.next_at) is not None and channel.deferred_count:
        engine.tick(now)
        seen.append((now - NOW, bodies(engine, now)))
    assert seen == [(1, [b"1", b"1"]), (2, [b"2"]), (3, [b"3"]), (5, [b"5"])]


def test_a_message_put_off_before_another_was_finished_has_a_timer_of_its_own(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    topic.publish(numbered(1), NOW, delay=9)
    channel.empty()
    topic.publish(numbered(2), NOW + 1, delay=9)
    engine.tick(NOW + 9)
    assert channel.deferred_count == 1
    engine.tick(NOW + 10)
    assert (channel.deferred_count, channel.depth) == (0, 1)


def test_what_is_put_off_and_emptied_leaves_no_heap_of_timers(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    topic.publish([b"x"] * 1000, NOW, delay=3600 * SECOND)
    channel.empty()
    assert len(engine.timers._heap) == 1
    assert engine.memory.used == 0


# Who comes and goes


def test_no_more_may_subscribe_than_the_limit_says() -> None:
    engine = Engine(max_channel_consumers=2)
    channel = engine.topic("t", NOW).channel("c", NOW)
    first, _ = subscribe(channel), subscribe(channel)
    with pytest.raises(TooManyConsumers, match=r"^consumers for t:c exceeds limit of 2$"):
        subscribe(channel)
    channel.add(first)
    assert len(channel.subscribers) == 2
    channel.remove(first)
    subscribe(channel)


def test_who_subscribes_twice_counts_once(engine: Engine, topic: Topic, channel: Channel) -> None:
    first, second = subscribe(channel), subscribe(channel)
    channel.add(first)
    topic.publish(numbered(*range(10)), NOW)
    given = dict(engine.deliver(NOW))
    assert (len(given[first]), len(given[second])) == (5, 5)
    channel.remove(first)
    channel.remove(first)
    assert [*channel.subscribers] == [second]


def test_what_someone_left_in_flight_comes_again_after_its_time(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel, timeout=3 * SECOND)
    topic.publish(numbered(1), NOW)
    [entry] = deliver(engine)
    channel.remove(subscriber)
    other = subscribe(channel)
    assert bodies(engine) == []
    assert channel.in_flight_count == 1
    assert channel.finish(other, [entry.id]) == [(entry.id, "client does not own message")]
    engine.tick(NOW + 3 * SECOND)
    assert (channel.timeout_count, channel.in_flight_count) == (1, 0)
    assert [each.attempts for each in deliver(engine)] == [2]


def test_an_ephemeral_channel_goes_with_its_last_subscriber() -> None:
    diary = Diary()
    engine = Engine(listener=diary)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c#ephemeral", NOW)
    first, second = subscribe(channel, 1), subscribe(channel, 1)
    topic.publish(numbered(1, 2, 3), NOW)
    deliver(engine)
    channel.remove(first)
    assert channel.in_flight_count == 2
    channel.remove(second)
    assert topic.channels == {}
    assert engine.memory.used == 0
    assert diary.pages[-2:] == [("deleted", "t", "c#ephemeral"), ("closed",)]


def test_the_last_subscriber_of_what_is_ephemeral_takes_its_topic_along() -> None:
    engine = Engine()
    channel = engine.topic("t#ephemeral", NOW).channel("c#ephemeral", NOW)
    channel.remove(subscribe(channel))
    assert engine.topics == {}


def test_a_deleted_channel_knows_nothing_any_more(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    topic.publish(numbered(1), NOW)
    [entry] = deliver(engine)
    topic.publish(numbered(2), NOW)
    topic.delete_channel("c")
    assert channel.gone
    assert channel.finish(subscriber, [entry.id]) == [(entry.id, "ID not in flight")]
    with pytest.raises(NotInFlight):
        channel.touch(subscriber, entry.id, NOW)
    channel.remove(subscriber)
    channel.changed()
    assert engine.deliver(NOW) == []
    engine.tick(NOW + 60 * SECOND)
    assert (channel.depth, channel.timeout_count, engine.memory.used) == (0, 0, 0)


def test_an_emptied_channel_forgets_what_waits_what_is_put_off_and_what_is_in_flight(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    gone, subscriber = subscribe(channel, 1), subscribe(channel, 1)
    topic.publish(numbered(1, 2, 3), NOW)
    topic.publish(numbered(4), NOW, delay=SECOND)
    entries = deliver(engine)
    channel.remove(gone)
    assert (channel.in_flight_count, channel.depth, channel.deferred_count) == (2, 1, 1)
    channel.empty()
    assert (channel.in_flight_count, channel.depth, channel.deferred_count) == (0, 0, 0)
    assert (subscriber.in_flight, engine.memory.used, channel.message_count) == (0, 0, 4)
    failed = channel.finish(subscriber, [entry.id for entry in entries])
    assert [why for _, why in failed] == ["ID not in flight"] * 2
    engine.tick(NOW + 60 * SECOND)
    assert bodies(engine) == []
    topic.publish(numbered(5), NOW)
    assert bodies(engine) == [b"5"], "there is room for it"


def test_a_subscriber_has_room_for_what_its_rdy_leaves() -> None:
    subscriber = Subscriber(None, SECOND)
    assert subscriber.room == 0
    subscriber.rdy = 3
    assert subscriber.room == 3
    subscriber.closing = True
    assert subscriber.room == 0
