"""Messages that the journal has not confirmed: they are in no queue until they are stored."""

from __future__ import annotations

import pytest

from nsqflow.broker.engine import engine as engine_module
from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.engine.message import MESSAGE_OVERHEAD
from nsqflow.broker.engine.topic import OutOfMemory, Topic
from tests.unit.broker.engine.ledger import Ledger
from tests.unit.broker.engine.parts import (
    NOW,
    bodies,
    deliver,
    numbered,
    publish,
    settle,
    store,
    subscribe,
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_MIN_CAPACITY", 4)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def engine(ledger: Ledger) -> Engine:
    return Engine(mem_queue_size=0, journal=ledger)


def fail(engine: Engine, ledger: Ledger) -> None:
    """Report everything published as not stored."""
    group = engine.take_unstored()
    ledger.remove(message.id for each in group for message in each.messages)
    engine.not_stored(group)


def test_a_message_is_delivered_and_counted_once_it_is_stored(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscribe(channel)
    assert topic.publish(numbered(1, 2), NOW), "it must be stored"
    assert bodies(engine) == []
    assert (topic.message_count, topic.message_bytes) == (0, 0)
    assert (channel.depth, channel.message_count) == (0, 0)
    store(engine)
    assert (topic.message_count, topic.message_bytes) == (2, 2)
    assert (channel.depth, channel.message_count) == (2, 2)
    assert engine.has_work
    assert bodies(engine) == numbered(1, 2)


def test_a_message_that_could_not_be_stored_leaves_no_trace(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    subscribe(channel)
    topic.publish(numbered(1), NOW)
    topic.publish(numbered(2), NOW, delay=1)
    fail(engine, ledger)
    engine.tick(NOW + 1)
    assert bodies(engine, NOW + 1) == []
    assert (topic.message_count, topic.message_bytes) == (0, 0)
    assert (channel.depth, channel.deferred_count, channel.message_count) == (0, 0, 0)
    assert (engine.memory.used, engine.next_at) == (0, None)
    publish(topic, numbered(3))
    assert bodies(engine) == [b"3"]


def test_messages_of_one_commit_become_visible_together_and_in_order(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscribe(channel)
    topic.publish(numbered(1), NOW)
    topic.publish(numbered(2), NOW)
    first = engine.take_unstored()
    topic.publish(numbered(3), NOW)
    second = engine.take_unstored()
    engine.stored(first, NOW)
    assert bodies(engine) == numbered(1, 2)
    engine.stored(second, NOW)
    assert bodies(engine) == numbered(3)


def test_a_failed_commit_between_two_others_leaves_their_order_alone(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    subscribe(channel)
    groups = []
    for number in (1, 2, 3):
        topic.publish(numbered(number), NOW)
        groups.append(engine.take_unstored())
    engine.stored(groups[0], NOW)
    engine.not_stored(groups[1])
    engine.stored(groups[2], NOW)
    assert bodies(engine) == numbered(1, 3)


def test_a_requeued_message_does_not_wait_for_new_ones_to_be_stored(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    publish(topic, numbered(1))
    [message] = deliver(engine)
    topic.publish(numbered(2), NOW)
    channel.requeue(subscriber, message.id, 0, NOW)
    assert bodies(engine) == [b"1"]


def test_a_delay_that_ends_before_the_commit_is_not_waited_for_again(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscribe(channel)
    topic.publish(numbered(1), NOW, delay=5)
    topic.publish(numbered(2), NOW, delay=9)
    engine.tick(NOW + 7)
    assert bodies(engine, NOW + 7) == []
    store(engine, NOW + 7)
    assert bodies(engine, NOW + 7) == [b"1"]
    assert channel.deferred_count == 1
    engine.tick(NOW + 9)
    assert bodies(engine, NOW + 9) == [b"2"]


def test_all_channels_get_a_stored_message_at_the_same_time(engine: Engine, topic: Topic) -> None:
    channels = [topic.channel(name, NOW) for name in ("a", "b", "c#ephemeral")]
    for channel in channels:
        subscribe(channel)
    topic.publish(numbered(1), NOW)
    assert bodies(engine) == []
    store(engine)
    assert bodies(engine) == [b"1", b"1", b"1"]


def test_an_ephemeral_topic_does_not_wait_for_a_commit(engine: Engine) -> None:
    topic = engine.topic("t#ephemeral", NOW)
    subscribe(topic.channel("c", NOW))
    assert not topic.publish(numbered(1), NOW)
    assert engine.take_unstored() == []
    assert bodies(engine) == [b"1"]


def test_the_first_channel_gets_stored_and_unstored_messages_of_its_topic(
    engine: Engine, ledger: Ledger, topic: Topic
) -> None:
    publish(topic, numbered(1))
    topic.publish(numbered(2), NOW)
    first = topic.channel("first", NOW)
    topic.publish(numbered(3), NOW)
    second = topic.channel("second", NOW)
    assert (topic.depth, first.depth, second.depth) == (0, 1, 0)
    store(engine)
    assert (topic.depth, first.depth, second.depth) == (0, 3, 0)
    assert len(ledger.rows("t", "first")) == 3
    assert not ledger.rows("t", "second")
    subscribe(first)
    assert bodies(engine) == numbered(1, 2, 3)


def test_the_first_channel_gets_unstored_messages_of_an_empty_topic(
    engine: Engine, ledger: Ledger, topic: Topic
) -> None:
    topic.publish(numbered(1), NOW)
    channel = topic.channel("c", NOW)
    assert not ledger.rows("t")
    store(engine)
    assert (topic.depth, channel.depth) == (0, 1)


def test_a_paused_topic_keeps_stored_messages_until_it_is_unpaused(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    topic.pause()
    topic.publish(numbered(1), NOW)
    topic.publish(numbered(2), NOW, delay=1)
    store(engine)
    topic.publish(numbered(3), NOW)
    assert (topic.depth, channel.depth) == (2, 0)
    topic.unpause(NOW + 1)
    store(engine)
    assert (topic.depth, channel.depth) == (0, 3)
    assert len(ledger.rows("t", "c")) == 3


def test_a_pause_does_not_hold_back_earlier_unstored_messages(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    topic.publish(numbered(1), NOW)
    topic.pause()
    store(engine)
    assert (topic.depth, channel.depth) == (0, 1)


def test_an_emptied_or_deleted_channel_gets_no_earlier_unstored_messages(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    other, gone = topic.channel("other", NOW), topic.channel("gone", NOW)
    topic.publish(numbered(1), NOW)
    channel.empty()
    topic.delete_channel("gone")
    topic.publish(numbered(2), NOW)
    store(engine)
    assert (channel.depth, gone.depth, other.depth) == (1, 0, 2)
    assert len(ledger.rows("t", "c")) == 1
    assert topic.message_count == 2


def test_an_emptied_topic_keeps_no_earlier_unstored_messages(
    engine: Engine, ledger: Ledger, topic: Topic
) -> None:
    topic.publish(numbered(1), NOW)
    topic.empty()
    topic.publish(numbered(2), NOW)
    topic.channel("c", NOW).empty()
    store(engine)
    assert (topic.depth, topic.channels["c"].depth, engine.memory.used) == (0, 0, 0)
    assert not ledger.rows("t", "c")


def test_a_deleted_topic_leaves_no_unstored_messages_to_the_next_of_its_name(
    engine: Engine,
) -> None:
    for name in ("t", "u"):
        engine.topic(name, NOW)
    engine.topics["u"].channel("c", NOW)
    for name in ("t", "u"):
        engine.topics[name].publish(numbered(1), NOW)
        engine.delete_topic(name)
        engine.topic(name, NOW).channel("c", NOW)
    store(engine)
    for name in ("t", "u"):
        topic = engine.topics[name]
        assert (topic.message_count, topic.depth, topic.channels["c"].depth) == (0, 0, 0)
    assert engine.memory.used == 0


def test_unstored_messages_count_as_memory(ledger: Ledger) -> None:
    engine = Engine(max_memory=2 * (MESSAGE_OVERHEAD + 1), journal=ledger)
    topic = engine.topic("t", NOW)
    topic.publish(numbered(1), NOW, delay=1)
    topic.publish(numbered(2), NOW, delay=1)
    with pytest.raises(OutOfMemory):
        topic.publish(numbered(3), NOW, delay=1)
    assert engine.memory.used == 2 * (MESSAGE_OVERHEAD + 1)
    fail(engine, ledger)
    assert engine.memory.used == 0


def test_messages_stored_after_spilled_ones_are_spilled_and_delivered_once(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(6)))
    topic.publish(numbered(6, 7), NOW)
    subscribe(channel)
    assert bodies(engine) == numbered(0, 1, 2, 3)
    # The page that is requested now has everything that was put.
    assert [message.body for message in ledger.requests[0].page] == numbered(4, 5, 6, 7)
    store(engine)
    assert channel.backend_depth == 4
    assert [message.body for message in settle(engine, ledger)] == numbered(4, 5, 6, 7)
    assert (channel.depth, channel.backend_depth) == (0, 0)


def test_failed_messages_after_spilled_ones_are_not_counted(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(5)))
    topic.publish(numbered(5, 6), NOW)
    fail(engine, ledger)
    assert (channel.depth, channel.backend_depth) == (5, 1)
    subscribe(channel)
    assert [message.body for message in settle(engine, ledger)] == numbered(*range(5))
