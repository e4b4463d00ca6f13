"""What does not fit into memory: it goes to the journal, and comes back in order."""

from __future__ import annotations

import pytest

from nsqflow.broker.engine import engine as engine_module
from nsqflow.broker.engine.backlog import Backlog, Memory
from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.engine.entry import COST, Entry
from nsqflow.broker.engine.topic import Topic
from tests.unit.broker.engine.ledger import Ledger
from tests.unit.broker.engine.parts import NOW, SECOND, bodies, numbered, publish, settle, subscribe

CAPACITY = 4


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_LEAST_CAPACITY", CAPACITY)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def engine(ledger: Ledger) -> Engine:
    return Engine(mem_queue_size=0, journal=ledger)


def test_what_is_behind_a_full_queue_is_spilled_and_comes_back_in_order(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    for number in range(0, 10, 2):
        publish(topic, numbered(number, number + 1), NOW)
    assert (channel.depth, channel.backend_depth, channel.message_count) == (10, 6, 10)
    assert engine.memory.used == CAPACITY * (COST + 1)
    subscribe(channel)
    assert bodies(engine) == numbered(0, 1, 2, 3)
    publish(topic, numbered(10), NOW)
    assert channel.backend_depth == 7, "what comes is behind what is spilled, room or not"
    assert [entry.body for entry in settle(engine, ledger)] == numbered(*range(4, 11))
    publish(topic, numbered(11), NOW)
    assert channel.backend_depth == 0
    assert bodies(engine) == [b"11"]


def test_the_journal_is_asked_once_half_of_the_queue_is_free(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel, 1)
    publish(topic, numbered(*range(10)), NOW)
    engine.deliver(NOW)
    assert not ledger.asked
    subscriber.rdy = 2
    channel.changed()
    engine.deliver(NOW)
    [(place, _, limit, page, _)] = ledger.asked
    assert (place, limit, [entry.body for entry in page]) == (channel.place, 2, numbered(4, 5))
    channel.changed()
    engine.deliver(NOW)
    assert len(ledger.asked) == 1, "one page at a time"


def test_a_short_page_is_followed_by_another(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(9)), NOW)
    subscribe(channel)
    seen = bodies(engine)
    while ledger.asked:
        ledger.answer(engine, most=1)
        seen += bodies(engine)
    assert seen == numbered(*range(9))


def test_a_page_without_messages_says_that_there_are_none(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(6)), NOW)
    subscribe(channel)
    engine.deliver(NOW)
    ledger.rows("t", "c").clear()
    ledger.answer(engine, late=True)
    assert (channel.depth, channel.backend_depth) == (0, 0)
    engine.deliver(NOW)
    assert not ledger.asked


def test_a_page_that_comes_after_the_channel_was_emptied_is_of_no_account(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(6)), NOW)
    subscriber = subscribe(channel)
    engine.deliver(NOW)
    channel.empty()
    subscriber.rdy = 0
    publish(topic, numbered(*range(10, 17)), NOW)
    ledger.answer(engine)
    assert (channel.depth, channel.backend_depth) == (7, 3)
    subscriber.rdy = 100
    channel.changed()
    assert [entry.body for entry in settle(engine, ledger)] == numbered(*range(10, 17))


def test_pages_asked_before_and_after_emptying_are_not_mistaken_for_each_other(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    subscribe(channel)
    publish(topic, numbered(*range(6)), NOW)
    engine.deliver(NOW)
    channel.empty()
    publish(topic, numbered(*range(10, 16)), NOW)
    engine.deliver(NOW)
    assert len(ledger.asked) == 2
    ledger.answer(engine)
    assert bodies(engine) == []
    ledger.answer(engine)
    assert bodies(engine) == numbered(14, 15)


def test_a_page_that_comes_after_the_channel_was_deleted_is_of_no_account(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(6)), NOW)
    subscribe(channel)
    engine.deliver(NOW)
    topic.delete_channel("c")
    subscribe(topic.channel("c", NOW))
    ledger.answer(engine)
    assert bodies(engine) == []
    assert engine.memory.used == 0


def test_a_page_for_a_topic_is_of_no_account(engine: Engine, ledger: Ledger, topic: Topic) -> None:
    publish(topic, numbered(1), NOW)
    engine.loaded(topic.place, [Entry(b"0" * 16, NOW, b"x")])
    assert topic.depth == 1


def test_a_spilled_backlog_of_a_topic_goes_to_all_its_channels(
    engine: Engine, ledger: Ledger, topic: Topic
) -> None:
    publish(topic, numbered(0), NOW, delay=SECOND)
    topic.pause()
    first, second = topic.channel("a", NOW), topic.channel("b", NOW)
    publish(topic, numbered(*range(1, 10)), NOW)
    assert (topic.depth, topic.backend_depth) == (10, 6)
    topic.unpause(NOW)
    assert (topic.depth, topic.backend_depth, ledger.rows("t")) == (0, 0, {})
    assert (first.depth, first.deferred_count, first.message_count) == (9, 1, 10)
    subscribe(first)
    subscribe(second)
    out = [entry.body for entry in settle(engine, ledger)]
    assert sorted(out) == sorted(numbered(*range(1, 10)) * 2)
    engine.tick(NOW + SECOND)
    assert bodies(engine, NOW + SECOND) == [b"0", b"0"]


def test_a_channel_with_a_spilled_backlog_takes_that_of_its_topic_behind_it(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(6)), NOW)
    topic.pause()
    publish(topic, numbered(*range(6, 12)), NOW)
    topic.unpause(NOW)
    assert (channel.depth, channel.backend_depth) == (12, 8)
    subscribe(channel)
    assert [entry.body for entry in settle(engine, ledger)] == numbered(*range(12))


def test_an_ephemeral_channel_of_a_kept_topic_drops_what_it_cannot_hold(
    engine: Engine, ledger: Ledger, topic: Topic
) -> None:
    publish(topic, numbered(*range(6)), NOW)
    channel = topic.channel("c#ephemeral", NOW)
    assert ledger.rows("t") == {}
    assert ledger.names() == {("t", None)}
    publish(topic, numbered(7), NOW)
    assert (channel.depth, channel.backend_depth, channel.message_count) == (4, 0, 7)
    subscribe(channel)
    assert [entry.body for entry in settle(engine, ledger)] == numbered(*range(4))


def test_a_full_memory_spills_what_is_kept_and_drops_what_is_ephemeral(ledger: Ledger) -> None:
    engine = Engine(max_memory=1, journal=ledger)
    topic = engine.topic("t", NOW)
    kept, passing = topic.channel("c", NOW), topic.channel("c#ephemeral", NOW)
    publish(topic, numbered(1), NOW)
    publish(topic, numbered(2), NOW)
    assert (kept.depth, kept.backend_depth, passing.depth) == (2, 1, 0)
    subscriber = subscribe(kept)
    assert [entry.body for entry in settle(engine, ledger)] == numbered(1, 2)
    kept.finish(subscriber, [*subscriber.held])
    publish(topic, numbered(3), NOW)
    assert engine.memory.full
    assert engine.memory.used == COST + 1


def test_a_full_memory_asks_for_messages_only_if_there_is_nothing_else_to_deliver(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel, 3)
    publish(topic, numbered(*range(8)), NOW)
    engine.memory.limit = 1
    engine.deliver(NOW)
    assert channel.depth == 5
    assert not ledger.asked
    subscriber.rdy = 4
    channel.changed()
    engine.deliver(NOW)
    assert len(ledger.asked) == 1


def test_what_was_put_off_is_never_spilled(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(9)), NOW, delay=1)
    engine.tick(NOW + 1)
    assert (channel.depth, channel.backend_depth) == (9, 0)
    subscribe(channel)
    assert bodies(engine, NOW + 1) == numbered(*range(9))


def test_a_sampled_subscriber_drops_what_is_loaded_too(ledger: Ledger) -> None:
    chances = iter([0, 99] * 5)
    engine = Engine(mem_queue_size=0, journal=ledger, chance=lambda: next(chances))
    topic = engine.topic("t", NOW)
    subscribe(topic.channel("c", NOW), sample_rate=50)
    publish(topic, numbered(*range(10)), NOW)
    assert [entry.body for entry in settle(engine, ledger)] == numbered(0, 2, 4, 6, 8)
    assert len(ledger.rows("t", "c")) == 5


def test_a_backlog_without_bounds_has_all_in_memory_however_full_it_is() -> None:
    memory = Memory(limit=0)
    backlog = Backlog(0, Ledger(), memory, capacity=None)
    backlog.put([Entry(b"%016x" % number, NOW, b"x") for number in range(500)])
    backlog.want()
    assert (len(backlog), backlog.spilled, memory.used) == (500, 0, 500 * (COST + 1))
    assert backlog.clear() == 500
    assert memory.used == 0
