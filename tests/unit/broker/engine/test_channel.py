"""A channel: what subscribers and operators can do about its messages."""

from __future__ import annotations

import pytest

from nsqflow.broker.engine.channel import Channel, NotInFlight, TooManyConsumers
from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.engine.topic import Topic
from tests.unit.broker.engine.parts import (
    NOW,
    SECOND,
    Diary,
    bodies,
    deliver,
    numbered,
    subscribe,
)

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
    seen = {}
    for now in range(1, 7):
        assert now > 5 or engine.next_at == NOW + now + (now == 4)
        engine.tick(NOW + now)
        seen[now] = bodies(engine, NOW + now)
    assert seen == {1: [b"1", b"1"], 2: [b"2"], 3: [b"3"], 4: [], 5: [b"5"], 6: []}


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
