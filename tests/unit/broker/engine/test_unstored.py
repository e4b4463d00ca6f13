"""What the journal was given and has not confirmed: it is in no queue until it is stored."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from nsqflow.broker.engine import engine as engine_module
from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.engine.entry import COST
from nsqflow.broker.engine.topic import Full, Topic
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
    monkeypatch.setattr(engine_module, "_LEAST_CAPACITY", 4)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def engine(ledger: Ledger) -> Engine:
    return Engine(mem_queue_size=0, journal=ledger)


def refuse(engine: Engine, ledger: Ledger) -> None:
    """Let the journal store nothing of what was published."""
    group = engine.take_unstored()
    ledger.refuse(entry.id for each in group for entry in each.entries)
    engine.refused(group)


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
    assert engine.restless
    assert bodies(engine) == numbered(1, 2)


@pytest.mark.parametrize("outcome", ["stored", "refused"])
def test_publications_are_settled_in_their_order(
    engine: Engine, topic: Topic, channel: Channel, outcome: str
) -> None:
    subscribe(channel)
    topic.publish(numbered(1), NOW)
    topic.publish(numbered(2), NOW)
    first, second = engine.take_unstored()
    with pytest.raises(RuntimeError, match="other than the oldest"):
        topic.stored(second, NOW) if outcome == "stored" else topic.refused(second)
    assert bodies(engine) == []
    engine.stored([first, second], NOW)
    assert bodies(engine) == numbered(1, 2), "nothing is lost by it"
    with pytest.raises(RuntimeError, match="other than the oldest"):
        topic.refused(first)


def test_a_defect_with_one_publication_keeps_none_of_the_others_out(
    engine: Engine, topic: Topic, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(channel)
    accept, calls = topic._accept, count()

    def fail_once(*args: Any) -> None:
        if not next(calls):
            raise ZeroDivisionError("a defect")
        accept(*args)

    monkeypatch.setattr(topic, "_accept", fail_once)
    for number in (1, 2):
        topic.publish(numbered(number), NOW)
    with pytest.raises(ZeroDivisionError):
        store(engine)
    topic.publish(numbered(3), NOW)
    store(engine)
    assert bodies(engine) == numbered(2, 3)
    assert engine.memory.used == sum(COST + 1 for _ in (2, 3))


def test_a_message_that_is_refused_was_never_there(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    subscribe(channel)
    topic.publish(numbered(1), NOW)
    topic.publish(numbered(2), NOW, delay=1)
    refuse(engine, ledger)
    engine.tick(NOW + 1)
    assert bodies(engine, NOW + 1) == []
    assert (topic.message_count, topic.message_bytes) == (0, 0)
    assert (channel.depth, channel.deferred_count, channel.message_count) == (0, 0, 0)
    assert (engine.memory.used, engine.next_at) == (0, None)
    publish(topic, numbered(3))
    assert bodies(engine) == [b"3"]


def test_what_was_published_together_becomes_visible_together_and_in_order(
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


def test_a_group_that_is_refused_between_two_others_leaves_their_order_alone(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    subscribe(channel)
    groups = []
    for number in (1, 2, 3):
        topic.publish(numbered(number), NOW)
        groups.append(engine.take_unstored())
    engine.stored(groups[0], NOW)
    engine.refused(groups[1])
    engine.stored(groups[2], NOW)
    assert bodies(engine) == numbered(1, 3)


def test_a_requeued_message_does_not_wait_for_new_ones_to_be_stored(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    publish(topic, numbered(1))
    [entry] = deliver(engine)
    topic.publish(numbered(2), NOW)
    channel.requeue(subscriber, entry.id, 0, NOW)
    assert bodies(engine) == [b"1"]


def test_a_delay_that_is_over_when_the_message_is_stored_is_not_waited_for_again(
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


def test_all_channels_get_it_at_the_same_time_an_ephemeral_one_too(
    engine: Engine, topic: Topic
) -> None:
    channels = [topic.channel(name, NOW) for name in ("a", "b", "c#ephemeral")]
    for channel in channels:
        subscribe(channel)
    topic.publish(numbered(1), NOW)
    assert bodies(engine) == []
    store(engine)
    assert bodies(engine) == [b"1", b"1", b"1"]


def test_an_ephemeral_topic_need_not_wait(engine: Engine) -> None:
    topic = engine.topic("t#ephemeral", NOW)
    subscribe(topic.channel("c", NOW))
    assert not topic.publish(numbered(1), NOW)
    assert engine.take_unstored() == []
    assert bodies(engine) == [b"1"]


def test_the_first_channel_gets_what_the_topic_had_stored_or_not(
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


def test_a_topic_without_stored_messages_gives_the_others_to_its_first_channel(
    engine: Engine, ledger: Ledger, topic: Topic
) -> None:
    topic.publish(numbered(1), NOW)
    channel = topic.channel("c", NOW)
    assert not ledger.rows("t")
    store(engine)
    assert (topic.depth, channel.depth) == (0, 1)


def test_a_paused_topic_keeps_what_is_stored_and_gives_it_up_when_it_goes_on(
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


def test_a_topic_that_is_paused_meanwhile_has_passed_on_what_came_before(
    engine: Engine, topic: Topic, channel: Channel
) -> None:
    topic.publish(numbered(1), NOW)
    topic.pause()
    store(engine)
    assert (topic.depth, channel.depth) == (0, 1)


def test_a_channel_that_is_emptied_or_deleted_gets_nothing_of_what_came_before(
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


def test_a_topic_that_is_emptied_keeps_nothing_of_what_came_before(
    engine: Engine, ledger: Ledger, topic: Topic
) -> None:
    topic.publish(numbered(1), NOW)
    topic.empty()
    topic.publish(numbered(2), NOW)
    topic.channel("c", NOW).empty()
    store(engine)
    assert (topic.depth, topic.channels["c"].depth, engine.memory.used) == (0, 0, 0)
    assert not ledger.rows("t", "c")


def test_a_deleted_topic_leaves_nothing_to_the_next_one_of_its_name(engine: Engine) -> None:
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


def test_what_is_not_stored_takes_memory_too(ledger: Ledger) -> None:
    engine = Engine(max_memory=2 * (COST + 1), journal=ledger)
    topic = engine.topic("t", NOW)
    topic.publish(numbered(1), NOW, delay=1)
    topic.publish(numbered(2), NOW, delay=1)
    with pytest.raises(Full):
        topic.publish(numbered(3), NOW, delay=1)
    assert engine.memory.used == 2 * (COST + 1)
    refuse(engine, ledger)
    assert engine.memory.used == 0


def test_what_is_stored_after_spilled_messages_is_spilled_too_and_comes_once(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(6)))
    topic.publish(numbered(6, 7), NOW)
    subscribe(channel)
    assert bodies(engine) == numbered(0, 1, 2, 3)
    # The page that is asked for now has all that was put.
    assert [entry.body for entry in ledger.asked[0].page] == numbered(4, 5, 6, 7)
    store(engine)
    assert channel.backend_depth == 4
    assert [entry.body for entry in settle(engine, ledger)] == numbered(4, 5, 6, 7)
    assert (channel.depth, channel.backend_depth) == (0, 0)


def test_refused_messages_after_spilled_ones_are_not_counted(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(5)))
    topic.publish(numbered(5, 6), NOW)
    refuse(engine, ledger)
    assert (channel.depth, channel.backend_depth) == (5, 1)
    subscribe(channel)
    assert [entry.body for entry in settle(engine, ledger)] == numbered(*range(5))
