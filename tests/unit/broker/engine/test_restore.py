"""Restoring an engine: unfinished messages of persisted topics and channels."""

from __future__ import annotations

import pytest

from nsqflow.broker.engine.engine import Engine, RestoredQueue
from nsqflow.broker.engine.message import QueuedMessage
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


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def restart(ledger: Ledger, now: int = NOW) -> Engine:
    engine = Engine(journal=ledger)
    ledger.restore(engine, now)
    return engine


def test_unfinished_messages_are_delivered_again_after_a_restart(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, 3)
    publish(topic, numbered(*range(6)), NOW)
    finished, _, requeued = deliver(engine)
    channel.finish(subscriber, [finished.id])
    channel.requeue(subscriber, requeued.id, 0, NOW)
    engine.deliver(NOW)

    engine = restart(ledger)
    channel = engine.topics["t"].channels["c"]
    assert (channel.depth, channel.in_flight_count, channel.message_count) == (5, 0, 0)
    subscribe(channel)
    attempts = {message.body: message.attempts for message in settle(engine, ledger)}
    assert attempts == {b"1": 1, b"2": 2, b"3": 1, b"4": 1, b"5": 1}, "as the journal has stored it"


def test_a_server_that_stops_requeues_messages_in_flight_with_their_attempts(
    ledger: Ledger,
) -> None:
    engine = Engine(journal=ledger)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    gone, subscriber = subscribe(channel, 1), subscribe(channel, 1)
    publish(topic, numbered(1, 2, 3), NOW)
    engine.deliver(NOW)
    channel.remove(gone)
    engine.requeue_in_flight(NOW)
    assert (channel.depth, channel.in_flight_count, subscriber.in_flight_count) == (3, 0, 0)
    assert (channel.requeue_count, channel.timeout_count) == (0, 0)
    assert not channel.subscribers

    engine = restart(ledger)
    subscribe(engine.topics["t"].channels["c"])
    assert [message.attempts for message in settle(engine, ledger)] == [2, 2, 1]


def test_deferred_messages_are_delivered_when_due_after_a_restart(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    topic = engine.topic("t", NOW)
    publish(topic, numbered(1), NOW, delay=2 * SECOND)
    publish(topic, numbered(2), NOW, delay=9 * SECOND)
    topic.channel("c", NOW)

    engine = restart(ledger, NOW + 5 * SECOND)
    channel = engine.topics["t"].channels["c"]
    assert (channel.depth, channel.deferred_count) == (1, 1)
    assert engine.next_at == NOW + 9 * SECOND
    subscribe(channel)
    assert bodies(engine) == [b"1"]
    engine.tick(NOW + 9 * SECOND)
    assert bodies(engine) == [b"2"]


def test_the_messages_of_a_topic_without_channels_are_restored(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    topic = engine.topic("t", NOW)
    publish(topic, numbered(1, 2), NOW)
    publish(topic, numbered(3), NOW, delay=SECOND)

    engine = restart(ledger, NOW + SECOND)
    topic = engine.topics["t"]
    assert (topic.depth, topic.backend_depth, topic.message_count) == (3, 2, 0)
    publish(topic, numbered(4), NOW + SECOND)
    subscribe(topic.channel("c", NOW + SECOND))
    assert {message.body for message in settle(engine, ledger)} == {b"1", b"2", b"3", b"4"}


def test_emptied_queues_are_restored_empty(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    for name in ("t", "u"):
        publish(engine.topic(name, NOW), numbered(1), NOW)
        publish(engine.topic(name, NOW), numbered(2), NOW, delay=SECOND)
    engine.topics["t"].empty()
    engine.topics["u"].channel("c", NOW).empty()

    engine = restart(ledger)
    assert [topic.depth for topic in engine.topics.values()] == [0, 0]
    channel = engine.topics["u"].channels["c"]
    assert (channel.depth, channel.deferred_count) == (0, 0)


def test_the_first_page_is_loaded_before_a_client_subscribes(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    engine.topic("t", NOW).channel("c", NOW)
    publish(engine.topics["t"], numbered(1), NOW)

    engine = restart(ledger)
    assert engine.deliver(NOW) == []
    ledger.answer(engine)
    assert engine.topics["t"].channels["c"].backend_depth == 0


def test_pauses_survive_a_restart(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    for name in ("paused", "running"):
        topic = engine.topic(name, NOW)
        topic.channel("paused", NOW).pause()
        topic.channel("running", NOW).pause()
        topic.channels["running"].unpause()
        topic.pause()
    engine.topics["running"].unpause(NOW)
    publish(engine.topics["paused"], numbered(1), NOW)

    engine = restart(ledger)
    for name, topic in engine.topics.items():
        assert topic.paused == (name == "paused")
        assert topic.channels["paused"].paused
        assert not topic.channels["running"].paused
    assert engine.topics["paused"].depth == 1
    subscribe(engine.topics["paused"].channels["running"])
    assert settle(engine, ledger) == []
    engine.topics["paused"].unpause(NOW)
    assert [message.body for message in settle(engine, ledger)] == [b"1"]


def test_nothing_ephemeral_is_restored(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    engine.topic("t", NOW).channel("c#ephemeral", NOW)
    engine.topic("t#ephemeral", NOW).channel("c", NOW)
    for topic in engine.topics.values():
        publish(topic, numbered(1), NOW)
    engine = restart(ledger)
    assert [*engine.topics] == ["t"]
    assert engine.topics["t"].channels == {}


def test_message_ids_and_queue_ids_continue_after_a_restart(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    publish(engine.topic("t", NOW), numbered(*range(5000)), NOW)
    engine.topic("gone", NOW)
    engine.delete_topic("gone")
    last = ledger.last_id

    engine = restart(ledger)
    publish(engine.topic("t", NOW), numbered(1), NOW)
    assert ledger.last_id > last
    assert engine.topic("u", NOW).queue_id == 3


def test_restoring_notifies_no_observer(ledger: Ledger) -> None:
    Engine(journal=ledger).topic("t", NOW).channel("c", NOW)
    observer = RecordingObserver()
    ledger.restore(Engine(journal=ledger, observer=observer), NOW)
    assert observer.calls == []


def test_messages_that_a_paused_topic_kept_go_to_its_channels_on_restore(
    ledger: Ledger,
) -> None:
    engine = Engine(journal=ledger)
    engine.topic("t", NOW).pause()
    engine.topics["t"].channel("c", NOW)
    publish(engine.topics["t"], numbered(1), NOW)
    publish(engine.topics["t"], numbered(2), NOW, delay=1)
    for queue in ledger.queues.values():
        queue.paused = False

    engine = restart(ledger, NOW + 1)
    assert engine.topics["t"].depth == 0
    subscribe(engine.topics["t"].channels["c"])
    assert {message.body for message in settle(engine, ledger)} == {b"1", b"2"}


def test_the_repr_of_a_restored_queue_omits_its_messages() -> None:
    restored = RestoredQueue(
        1, "t", "c", True, 3, [QueuedMessage(b"0" * 16, NOW, b"x" * 10_000, 2, NOW)]
    )
    assert repr(restored) == (
        "RestoredQueue(queue_id=1, topic='t', channel='c', paused=True, spilled=3)"
    )
    assert repr(restored.messages[0]) == f"QueuedMessage(b'{'0' * 16}', attempts=2, due={NOW})"


def test_without_a_journal_a_killed_server_keeps_topics_and_channels_but_no_messages() -> None:
    engine = Engine(max_channel_consumers=1)
    topic = engine.topic("t", NOW)
    topic.channel("running", NOW)
    topic.channel("paused", NOW).pause()
    topic.channel("c#ephemeral", NOW)
    engine.topic("u", NOW).pause()
    engine.topic("e#ephemeral", NOW).channel("c", NOW)
    publish(topic, numbered(1), NOW)
    [before] = [message.id for message in topic.channels["running"]._queue.ready]

    engine = engine.without_messages()
    names = {name: [*each.channels] for name, each in engine.topics.items()}
    assert names == {"t": ["running", "paused"], "u": []}
    topic = engine.topics["t"]
    assert (engine.memory.used, topic.depth, topic.channels["running"].depth) == (0, 0, 0)
    assert [each.paused for each in topic.channels.values()] == [False, True]
    assert (topic.paused, engine.topics["u"].paused) == (False, True)
    subscribe(topic.channels["running"])
    publish(topic, numbered(2), NOW)
    [message] = deliver(engine)
    assert (message.body, message.id > before) == (b"2", True)
