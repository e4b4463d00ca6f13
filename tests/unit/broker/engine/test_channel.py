"""A channel: the commands of subscribers and operators."""

from __future__ import annotations

import pytest

from nsqflow.broker.engine.channel import Channel, NotInFlight, TooManyConsumers
from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.engine.topic import Topic
from tests.unit.broker.engine.parts import (
    NOW,
    SECOND,
    RecordingObserver,
    bodies,
    deliver,
    numbered,
    subscribe,
)

# Commands of subscribers


def test_a_finished_message_is_never_delivered_again(
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


def test_a_message_can_be_answered_only_by_its_subscriber(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    topic.publish(numbered(1), NOW)
    [message] = deliver(engine)
    other = subscribe(channel)
    assert channel.finish(other, [message.id, b"f" * 16]) == [
        (message.id, "client does not own message"),
        (b"f" * 16, "ID not in flight"),
    ]
    with pytest.raises(NotInFlight, match=r"^client does not own message$"):
        channel.requeue(other, message.id, 0, NOW)
    with pytest.raises(NotInFlight, match=r"^client does not own message$"):
        channel.touch(other, message.id, NOW)
    channel.finish(subscriber, [message.id])
    with pytest.raises(NotInFlight, match=r"^ID not in flight$"):
        channel.requeue(subscriber, message.id, 0, NOW)
    with pytest.raises(NotInFlight, match=r"^ID not in flight$"):
        channel.touch(subscriber, message.id, NOW)
    assert (channel.requeue_count, other.finish_count, other.requeue_count) == (0, 0, 0)


def test_one_unknown_id_does_not_prevent_finishing_the_others(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    topic.publish(numbered(1, 2), NOW)
    first, second = deliver(engine)
    failed = channel.finish(subscriber, [first.id, first.id, second.id])
    assert failed == [(first.id, "ID not in flight")]
    assert (channel.in_flight_count, subscriber.finish_count) == (0, 2)


def test_a_requeued_message_is_delivered_after_the_others(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel, 1)
    topic.publish(numbered(1, 2), NOW)
    [message] = deliver(engine)
    channel.requeue(subscriber, message.id, 0, NOW)
    assert (channel.depth, channel.requeue_count, subscriber.requeue_count) == (2, 1, 1)
    assert bodies(engine) == [b"2"]
    subscriber.rdy = 2
    channel.subscriber_changed()
    [again] = deliver(engine)
    assert (again.id, again.body, again.attempts) == (message.id, b"1", 2)
    assert again.timestamp == NOW


def test_a_message_requeued_with_a_delay_is_delivered_when_due(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    topic.publish(numbered(1), NOW)
    [message] = deliver(engine)
    channel.requeue(subscriber, message.id, 5, NOW)
    assert (channel.depth, channel.deferred_count, channel.in_flight_count) == (0, 1, 0)
    engine.tick(NOW + 4)
    assert bodies(engine, NOW + 4) == []
    assert engine.next_at == NOW + 5
    engine.tick(NOW + 5)
    assert (channel.depth, channel.deferred_count) == (1, 0)
    assert bodies(engine, NOW + 5) == [b"1"]


def test_a_message_requeued_with_a_delay_frees_capacity(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel, 1)
    topic.publish(numbered(1, 2), NOW)
    [message] = deliver(engine)
    channel.requeue(subscriber, message.id, SECOND, NOW)
    assert bodies(engine) == [b"2"]


def test_deferred_messages_are_delivered_in_the_order_of_their_due_times(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscribe(channel)
    for delay in (3, 1, 2, 5, 1):
        topic.publish(numbered(delay), NOW, delay)
    seen = {}
    for now in range(1, 7):
        assert now > 5 or engine.next_at == NOW + now + (now == 4)
        engine.tick(NOW + now)
        seen[now] = bodies(engine, NOW + now)
    assert seen == {1: [b"1", b"1"], 2: [b"2"], 3: [b"3"], 4: [], 5: [b"5"], 6: []}


def test_an_emptied_deferred_message_does_not_delay_the_next(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    topic.publish(numbered(1), NOW, delay=9)
    channel.empty()
    topic.publish(numbered(2), NOW + 1, delay=9)
    engine.tick(NOW + 9)
    assert channel.deferred_count == 1
    engine.tick(NOW + 10)
    assert (channel.deferred_count, channel.depth) == (0, 1)


def test_emptied_deferred_messages_leave_no_timers(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    topic.publish([b"x"] * 1000, NOW, delay=3600 * SECOND)
    channel.empty()
    assert engine.next_at is None
    assert engine.memory.used == 0


# Subscribing, unsubscribing, deleting


def test_max_channel_consumers_limits_the_subscribers() -> None:
    engine = Engine(max_channel_consumers=2)
    channel = engine.topic("t", NOW).channel("c", NOW)
    first, _ = subscribe(channel), subscribe(channel)
    with pytest.raises(TooManyConsumers, match=r"^consumers for t:c exceeds limit of 2$"):
        subscribe(channel)
    channel.add(first)
    assert len(channel.subscribers) == 2
    channel.remove(first)
    subscribe(channel)


def test_subscribing_twice_counts_once(engine: Engine, topic: Topic, channel: Channel) -> None:
    first, second = subscribe(channel), subscribe(channel)
    channel.add(first)
    topic.publish(numbered(*range(10)), NOW)
    given = dict(engine.deliver(NOW))
    assert (len(given[first]), len(given[second])) == (5, 5)
    channel.remove(first)
    channel.remove(first)
    assert [*channel.subscribers] == [second]


def test_messages_of_a_lost_subscriber_are_delivered_again_after_their_timeout(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel, timeout=3 * SECOND)
    topic.publish(numbered(1), NOW)
    [message] = deliver(engine)
    channel.remove(subscriber)
    other = subscribe(channel)
    assert bodies(engine) == []
    assert channel.in_flight_count == 1
    assert channel.finish(other, [message.id]) == [(message.id, "client does not own message")]
    engine.tick(NOW + 3 * SECOND)
    assert (channel.timeout_count, channel.in_flight_count) == (1, 0)
    assert [each.attempts for each in deliver(engine)] == [2]


def test_an_ephemeral_channel_is_deleted_with_its_last_subscriber() -> None:
    observer = RecordingObserver()
    engine = Engine(observer=observer)
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
    assert observer.calls[-2:] == [("deleted", "t", "c#ephemeral"), ("closed",)]


def test_an_ephemeral_topic_is_deleted_with_the_last_subscriber_of_its_channel() -> None:
    engine = Engine()
    channel = engine.topic("t#ephemeral", NOW).channel("c#ephemeral", NOW)
    channel.remove(subscribe(channel))
    assert engine.topics == {}


def test_a_deleted_channel_has_no_messages_and_accepts_no_answers(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    topic.publish(numbered(1), NOW)
    [message] = deliver(engine)
    topic.publish(numbered(2), NOW)
    topic.delete_channel("c")
    assert channel.deleted
    assert channel.finish(subscriber, [message.id]) == [(message.id, "ID not in flight")]
    with pytest.raises(NotInFlight):
        channel.touch(subscriber, message.id, NOW)
    channel.remove(subscriber)
    channel.subscriber_changed()
    assert engine.deliver(NOW) == []
    engine.tick(NOW + 60 * SECOND)
    assert (channel.depth, channel.timeout_count, engine.memory.used) == (0, 0, 0)


def test_an_emptied_channel_drops_queued_deferred_and_in_flight_messages(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    gone, subscriber = subscribe(channel, 1), subscribe(channel, 1)
    topic.publish(numbered(1, 2, 3), NOW)
    topic.publish(numbered(4), NOW, delay=SECOND)
    messages = deliver(engine)
    channel.remove(gone)
    assert (channel.in_flight_count, channel.depth, channel.deferred_count) == (2, 1, 1)
    channel.empty()
    assert (channel.in_flight_count, channel.depth, channel.deferred_count) == (0, 0, 0)
    assert (subscriber.in_flight_count, engine.memory.used, channel.message_count) == (0, 0, 4)
    failed = channel.finish(subscriber, [message.id for message in messages])
    assert [why for _, why in failed] == ["ID not in flight"] * 2
    engine.tick(NOW + 60 * SECOND)
    assert bodies(engine) == []
    topic.publish(numbered(5), NOW)
    assert bodies(engine) == [b"5"], "there is capacity for it"
