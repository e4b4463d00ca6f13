"""A topic: copies for its channels, messages it keeps, publishes it refuses."""

from __future__ import annotations

import pytest

from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.engine.message import MESSAGE_OVERHEAD
from nsqflow.broker.engine.topic import OutOfMemory
from tests.unit.broker.engine.ledger import Ledger
from tests.unit.broker.engine.parts import (
    NOW,
    SECOND,
    RecordingObserver,
    bodies,
    deliver,
    numbered,
    publish,
    settle,
    subscribe,
)


def test_a_topic_and_a_channel_are_created_once() -> None:
    observer = RecordingObserver()
    engine = Engine(observer=observer)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    assert engine.topic("t", NOW) is topic
    assert topic.channel("c", NOW) is channel
    assert observer.calls == [("created", "t", None), ("created", "t", "c")]
    assert repr(topic) == "Topic('t')"
    assert repr(channel) == "Channel('t', 'c')"


def test_every_channel_gets_its_own_copy() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    first, second = subscribe(topic.channel("a", NOW)), subscribe(topic.channel("b", NOW))
    topic.publish(numbered(1, 2), NOW)
    given = dict(engine.deliver(NOW))
    assert [message.body for message in given[first]] == [b"1", b"2"]
    assert [message.id for message in given[first]] == [message.id for message in given[second]]
    topic.channels["a"].requeue(first, given[first][0].id, 0, NOW)
    deliver(engine)
    assert (given[first][0].attempts, given[second][0].attempts) == (2, 1)
    assert topic.depth == 0


def test_a_topic_without_a_channel_keeps_its_messages_for_the_first_one() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    topic.publish(numbered(1, 2), NOW)
    assert topic.depth == 2
    first = topic.channel("a", NOW)
    second = topic.channel("b", NOW)
    assert (topic.depth, first.depth, second.depth) == (0, 2, 0)
    assert (first.message_count, second.message_count) == (2, 0)


def test_a_paused_topic_keeps_new_messages_until_it_is_unpaused() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    subscribe(topic.channel("a", NOW))
    topic.publish(numbered(1), NOW)
    topic.pause()
    topic.publish(numbered(2), NOW)
    late = topic.channel("b", NOW)
    assert bodies(engine) == [b"1"], "a pause of the topic does not pause its channels"
    assert (topic.depth, late.depth) == (1, 0)
    topic.unpause(NOW)
    assert bodies(engine) == [b"2"]
    assert (topic.depth, late.depth) == (0, 1)


def test_a_topic_that_waits_for_its_channels_keeps_messages_until_all_exist() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    topic.waiting = True
    first = topic.channel("a", NOW)
    topic.publish(numbered(1, 2), NOW)
    topic.pause()
    topic.unpause(NOW)
    assert (topic.depth, first.depth) == (2, 0)
    topic.start(["a", "b"], NOW)
    assert topic.channels["a"] is first
    assert (topic.depth, first.depth, topic.channels["b"].depth) == (0, 2, 2)
    topic.publish(numbered(3), NOW)
    assert first.depth == 3


def test_a_topic_counts_messages_and_bytes_once_for_all_channels() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    topic.publish([b"12345"], NOW)
    topic.channel("a", NOW)
    topic.channel("b", NOW)
    topic.publish([b"678", b"90"], NOW)
    topic.pause()
    topic.publish([b"x"], NOW, delay=SECOND)
    assert (topic.message_count, topic.message_bytes) == (4, 11)


def test_publishing_nothing_does_nothing() -> None:
    engine = Engine(journal=Ledger())
    topic = engine.topic("t", NOW)
    topic.publish([], NOW)
    topic.channel("c", NOW)
    topic.publish([], NOW)
    assert topic.message_count == 0


def test_emptying_a_topic_leaves_its_channels_alone() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    topic.publish(numbered(1), NOW)
    topic.pause()
    topic.publish(numbered(2, 3), NOW)
    topic.empty()
    assert (topic.depth, channel.depth) == (0, 1)
    assert engine.memory.used == MESSAGE_OVERHEAD + 1
    topic.unpause(NOW)
    assert channel.depth == 1


def test_a_delay_counts_from_the_publish() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    topic.publish(numbered(1), NOW, delay=3 * SECOND)
    topic.publish(numbered(2), NOW, delay=5 * SECOND)
    topic.publish(numbered(3), NOW)
    channel = topic.channel("c", NOW + 4 * SECOND)
    subscribe(channel)
    assert bodies(engine, NOW + 4 * SECOND) == [b"1", b"3"]
    assert (channel.deferred_count, channel.message_count) == (1, 3)
    assert engine.next_at == NOW + 5 * SECOND
    engine.tick(NOW + 5 * SECOND)
    assert bodies(engine, NOW + 5 * SECOND) == [b"2"]


def test_a_publish_that_does_not_fit_into_memory_is_refused_as_a_whole() -> None:
    engine = Engine(max_memory=2 * (MESSAGE_OVERHEAD + 10))
    topic = engine.topic("t", NOW)
    topic.publish([bytes(10)], NOW)
    with pytest.raises(
        OutOfMemory,
        match=f"^{2 * MESSAGE_OVERHEAD + 11} bytes beside {MESSAGE_OVERHEAD + 10} of at most 620 ",
    ):
        topic.publish([bytes(10), b"1"], NOW)
    assert (topic.depth, topic.message_count, topic.message_bytes) == (1, 1, 10)
    assert engine.memory.used == MESSAGE_OVERHEAD + 10
    topic.publish([bytes(10)], NOW)
    assert engine.memory.full


def test_the_memory_check_counts_a_copy_for_each_channel() -> None:
    engine = Engine(max_memory=3 * (MESSAGE_OVERHEAD + 1))
    topic = engine.topic("t", NOW)
    topic.channel("a", NOW)
    topic.channel("b", NOW)
    topic.publish([b"1"], NOW)
    with pytest.raises(OutOfMemory, match=r"max-memory"):
        topic.publish([b"2"], NOW)
    assert [channel.depth for channel in topic.channels.values()] == [1, 1]


def test_with_a_journal_only_deferred_and_ephemeral_messages_need_memory() -> None:
    ledger = Ledger()
    engine = Engine(max_memory=MESSAGE_OVERHEAD, journal=ledger)
    topic = engine.topic("t", NOW)
    subscribe(topic.channel("c", NOW))
    for number in range(5):
        publish(topic, numbered(number))
    with pytest.raises(OutOfMemory):
        topic.publish(numbered(6), NOW, delay=SECOND)
    with pytest.raises(OutOfMemory):
        engine.topic("e#ephemeral", NOW).publish(numbered(7), NOW)
    assert [message.body for message in settle(engine, ledger)] == numbered(0, 1, 2, 3, 4)


def test_an_ephemeral_topic_is_deleted_with_its_last_channel() -> None:
    observer = RecordingObserver()
    engine = Engine(observer=observer)
    topic = engine.topic("t#ephemeral", NOW)
    topic.channel("a", NOW)
    topic.channel("b", NOW)
    topic.delete_channel("a")
    assert "t#ephemeral" in engine.topics
    topic.delete_channel("b")
    assert engine.topics == {}
    assert [call[1:] for call in observer.calls if call[0] == "deleted"] == [
        *(("t#ephemeral", "a"), ("t#ephemeral", "b"), ("t#ephemeral", None)),
    ]


def test_a_topic_that_is_not_ephemeral_stays_without_channels() -> None:
    engine = Engine()
    topic = engine.topic("t", NOW)
    topic.channel("c", NOW)
    topic.delete_channel("c")
    assert engine.topics == {"t": topic}
    topic.publish(numbered(1), NOW)
    assert topic.depth == 1


def test_an_ephemeral_topic_drops_what_its_queue_cannot_hold() -> None:
    engine = Engine(mem_queue_size=150, journal=Ledger())
    topic = engine.topic("t#ephemeral", NOW)
    topic.publish(numbered(*range(200)), NOW)
    assert (topic.depth, topic.backend_depth, topic.message_count) == (150, 0, 200)


def test_an_ephemeral_channel_works_with_a_mem_queue_size_of_0() -> None:
    engine = Engine(mem_queue_size=0)
    topic = engine.topic("t", NOW)
    subscribe(topic.channel("c#ephemeral", NOW))
    topic.publish(numbered(1, 2, 3), NOW)
    assert bodies(engine) == numbered(1, 2, 3)


def test_a_deleted_topic_closes_the_subscribers_of_its_channels() -> None:
    observer = RecordingObserver()
    engine = Engine(observer=observer)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    first, second = subscribe(channel, 1), subscribe(channel, 1)
    topic.publish(numbered(1, 2, 3), NOW)
    deliver(engine)
    del observer.calls[:]
    engine.delete_topic("t")
    assert observer.calls == [
        ("deleted", "t", "c"),
        ("closed", first, second),
        ("deleted", "t", None),
    ]
    assert engine.memory.used == 0
    assert (first.in_flight_count, second.in_flight_count) == (0, 0)
    assert not channel.subscribers
    assert not engine.topics


def test_deleting_an_unknown_topic_or_channel_raises() -> None:
    engine = Engine()
    with pytest.raises(KeyError):
        engine.delete_topic("t")
    with pytest.raises(KeyError):
        engine.topic("t", NOW).delete_channel("c")


def test_a_topic_that_is_created_again_is_empty() -> None:
    ledger = Ledger()
    engine = Engine(journal=ledger)
    engine.topic("t", NOW).publish(numbered(1), NOW)
    engine.delete_topic("t")
    topic = engine.topic("t", NOW)
    assert (topic.depth, topic.message_count, topic.paused) == (0, 0, False)
    assert [*ledger.queues] == [2]
