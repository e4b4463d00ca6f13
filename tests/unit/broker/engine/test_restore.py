"""What outlives an engine: all that was published to what is kept, and not finished."""

from __future__ import annotations

import pytest

from nsqflow.broker.engine.engine import Engine, Restored
from nsqflow.broker.engine.entry import Entry
from tests.unit.broker.engine.ledger import Ledger
from tests.unit.broker.engine.parts import (
    NOW,
    SECOND,
    Diary,
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


def go_on(ledger: Ledger, now: int = NOW) -> Engine:
    engine = Engine(journal=ledger)
    ledger.restore(engine, now)
    return engine


def test_what_was_not_finished_is_delivered_again(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    subscriber = subscribe(channel, 3)
    publish(topic, numbered(*range(6)), NOW)
    finished, _, requeued = deliver(engine)
    channel.finish(subscriber, [finished.id])
    channel.requeue(subscriber, requeued.id, 0, NOW)
    engine.deliver(NOW)

    engine = go_on(ledger)
    channel = engine.topics["t"].channels["c"]
    assert (channel.depth, channel.in_flight_count, channel.message_count) == (5, 0, 0)
    subscribe(channel)
    attempts = {entry.body: entry.attempts for entry in settle(engine, ledger)}
    assert attempts == {b"1": 1, b"2": 2, b"3": 1, b"4": 1, b"5": 1}, "as the journal knows it"


def test_a_server_that_stops_takes_back_what_is_in_flight_with_its_attempts(
    ledger: Ledger,
) -> None:
    engine = Engine(journal=ledger)
    topic = engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    gone, subscriber = subscribe(channel, 1), subscribe(channel, 1)
    publish(topic, numbered(1, 2, 3), NOW)
    engine.deliver(NOW)
    channel.remove(gone)
    engine.recall(NOW)
    assert (channel.depth, channel.in_flight_count, subscriber.in_flight) == (3, 0, 0)
    assert (channel.requeue_count, channel.timeout_count) == (0, 0)
    assert not channel.subscribers

    engine = go_on(ledger)
    subscribe(engine.topics["t"].channels["c"])
    assert [entry.attempts for entry in settle(engine, ledger)] == [2, 2, 1]


def test_what_was_put_off_comes_at_its_time_or_at_once_if_that_is_over(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    topic = engine.topic("t", NOW)
    publish(topic, numbered(1), NOW, delay=2 * SECOND)
    publish(topic, numbered(2), NOW, delay=9 * SECOND)
    topic.channel("c", NOW)

    engine = go_on(ledger, NOW + 5 * SECOND)
    channel = engine.topics["t"].channels["c"]
    assert (channel.depth, channel.deferred_count) == (1, 1)
    assert engine.next_at == NOW + 9 * SECOND
    subscribe(channel)
    assert bodies(engine) == [b"1"]
    engine.tick(NOW + 9 * SECOND)
    assert bodies(engine) == [b"2"]


def test_a_topic_without_a_channel_has_its_messages_again(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    topic = engine.topic("t", NOW)
    publish(topic, numbered(1, 2), NOW)
    publish(topic, numbered(3), NOW, delay=SECOND)

    engine = go_on(ledger, NOW + SECOND)
    topic = engine.topics["t"]
    assert (topic.depth, topic.backend_depth, topic.message_count) == (3, 2, 0)
    publish(topic, numbered(4), NOW + SECOND)
    subscribe(topic.channel("c", NOW + SECOND))
    assert {entry.body for entry in settle(engine, ledger)} == {b"1", b"2", b"3", b"4"}


def test_what_was_forgotten_does_not_come_again(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    for name in ("t", "u"):
        publish(engine.topic(name, NOW), numbered(1), NOW)
        publish(engine.topic(name, NOW), numbered(2), NOW, delay=SECOND)
    engine.topics["t"].empty()
    engine.topics["u"].channel("c", NOW).empty()

    engine = go_on(ledger)
    assert [topic.depth for topic in engine.topics.values()] == [0, 0]
    channel = engine.topics["u"].channels["c"]
    assert (channel.depth, channel.deferred_count) == (0, 0)


def test_the_first_page_is_asked_for_before_anybody_wants_it(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    engine.topic("t", NOW).channel("c", NOW)
    publish(engine.topics["t"], numbered(1), NOW)

    engine = go_on(ledger)
    assert engine.deliver(NOW) == []
    ledger.answer(engine)
    assert engine.topics["t"].channels["c"].backend_depth == 0


def test_pauses_are_kept(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    for name in ("paused", "going"):
        topic = engine.topic(name, NOW)
        topic.channel("paused", NOW).pause()
        topic.channel("going", NOW).pause()
        topic.channels["going"].unpause()
        topic.pause()
    engine.topics["going"].unpause(NOW)
    publish(engine.topics["paused"], numbered(1), NOW)

    engine = go_on(ledger)
    for name, topic in engine.topics.items():
        assert topic.paused == (name == "paused")
        assert topic.channels["paused"].paused
        assert not topic.channels["going"].paused
    assert engine.topics["paused"].depth == 1
    subscribe(engine.topics["paused"].channels["going"])
    assert settle(engine, ledger) == []
    engine.topics["paused"].unpause(NOW)
    assert [entry.body for entry in settle(engine, ledger)] == [b"1"]


def test_nothing_ephemeral_is_kept(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    engine.topic("t", NOW).channel("c#ephemeral", NOW)
    engine.topic("t#ephemeral", NOW).channel("c", NOW)
    for topic in engine.topics.values():
        publish(topic, numbered(1), NOW)
    engine = go_on(ledger)
    assert [*engine.topics] == ["t"]
    assert engine.topics["t"].channels == {}


def test_ids_and_places_go_on_where_they_were(ledger: Ledger) -> None:
    engine = Engine(journal=ledger)
    publish(engine.topic("t", NOW), numbered(*range(5000)), NOW)
    engine.topic("gone", NOW)
    engine.delete_topic("gone")
    last = ledger.last_id

    engine = go_on(ledger)
    publish(engine.topic("t", NOW), numbered(1), NOW)
    assert ledger.last_id > last
    assert engine.topic("u", NOW).place == 3


def test_nobody_hears_of_what_is_restored(ledger: Ledger) -> None:
    Engine(journal=ledger).topic("t", NOW).channel("c", NOW)
    diary = Diary()
    ledger.restore(Engine(journal=ledger, listener=diary), NOW)
    assert diary.pages == []


def test_what_a_topic_had_for_channels_it_could_not_give_it_to_goes_to_them(
    ledger: Ledger,
) -> None:
    engine = Engine(journal=ledger)
    engine.topic("t", NOW).pause()
    engine.topics["t"].channel("c", NOW)
    publish(engine.topics["t"], numbered(1), NOW)
    publish(engine.topics["t"], numbered(2), NOW, delay=1)
    for place in ledger.places.values():
        place.paused = False

    engine = go_on(ledger, NOW + 1)
    assert engine.topics["t"].depth == 0
    subscribe(engine.topics["t"].channels["c"])
    assert {entry.body for entry in settle(engine, ledger)} == {b"1", b"2"}


def test_what_is_restored_is_told_in_one_line() -> None:
    restored = Restored(1, "t", "c", True, 3, [Entry(b"0" * 16, NOW, b"x" * 10_000, 2, NOW)])
    assert repr(restored) == ("Restored(place=1, topic='t', channel='c', paused=True, spilled=3)")
    assert repr(restored.entries[0]) == f"Entry(b'{'0' * 16}', attempts=2, due={NOW})"


def test_without_a_journal_a_killed_server_knows_its_topics_and_channels_but_no_messages() -> None:
    engine = Engine(max_channel_consumers=1)
    topic = engine.topic("t", NOW)
    topic.channel("going", NOW)
    topic.channel("paused", NOW).pause()
    topic.channel("c#ephemeral", NOW)
    engine.topic("u", NOW).pause()
    engine.topic("e#ephemeral", NOW).channel("c", NOW)
    publish(topic, numbered(1), NOW)
    [before] = [entry.id for entry in topic.channels["going"]._backlog.ready]

    engine = engine.without_messages()
    names = {name: [*each.channels] for name, each in engine.topics.items()}
    assert names == {"t": ["going", "paused"], "u": []}
    topic = engine.topics["t"]
    assert (engine.memory.used, topic.depth, topic.channels["going"].depth) == (0, 0, 0)
    assert [each.paused for each in topic.channels.values()] == [False, True]
    assert (topic.paused, engine.topics["u"].paused) == (False, True)
    subscribe(topic.channels["going"])
    publish(topic, numbered(2), NOW)
    [entry] = deliver(engine)
    assert (entry.body, entry.id > before) == (b"2", True)
