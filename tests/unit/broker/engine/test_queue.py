"""Spilled messages: what does not fit into memory is loaded from the journal in order."""

from __future__ import annotations

import pytest

from nsqflow.broker.engine import engine as engine_module
from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.engine.message import MESSAGE_OVERHEAD, QueuedMessage
from nsqflow.broker.engine.queue import MemoryBudget, MemoryQueue
from nsqflow.broker.engine.topic import Topic
from tests.unit.broker.engine.ledger import Ledger
from tests.unit.broker.engine.parts import NOW, SECOND, bodies, numbered, publish, settle, subscribe

CAPACITY = 4


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_MIN_CAPACITY", CAPACITY)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def engine(ledger: Ledger) -> Engine:
    return Engine(mem_queue_size=0, journal=ledger)


def test_messages_after_a_full_queue_are_spilled_and_come_back_in_order(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    for number in range(0, 10, 2):
        publish(topic, numbered(number, number + 1), NOW)
    assert (channel.depth, channel.backend_depth, channel.message_count) == (10, 6, 10)
    assert engine.memory.used == CAPACITY * (MESSAGE_OVERHEAD + 1)
    subscribe(channel)
    assert bodies(engine) == numbered(0, 1, 2, 3)
    publish(topic, numbered(10), NOW)
    assert channel.backend_depth == 7, "new messages come after spilled ones even if there is space"
    assert [message.body for message in settle(engine, ledger)] == numbered(*range(4, 11))
    publish(topic, numbered(11), NOW)
    assert channel.backend_depth == 0
    assert bodies(engine) == [b"11"]


def test_a_page_is_requested_once_half_of_the_queue_is_free(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel, 1)
    publish(topic, numbered(*range(10)), NOW)
    engine.deliver(NOW)
    assert not ledger.requests
    subscriber.rdy = 2
    channel.subscriber_changed()
    engine.deliver(NOW)
    [(queue_id, _, limit, page, _)] = ledger.requests
    assert (queue_id, limit, [message.body for message in page]) == (
        channel.queue_id,
        2,
        numbered(4, 5),
    )
    channel.subscriber_changed()
    engine.deliver(NOW)
    assert len(ledger.requests) == 1, "one page at a time"


def test_a_short_page_is_followed_by_another(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(9)), NOW)
    subscribe(channel)
    seen = bodies(engine)
    while ledger.requests:
        ledger.answer(engine, most=1)
        seen += bodies(engine)
    assert seen == numbered(*range(9))


def test_an_empty_page_means_that_nothing_is_left(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(6)), NOW)
    subscribe(channel)
    engine.deliver(NOW)
    ledger.rows("t", "c").clear()
    ledger.answer(engine, late=True)
    assert (channel.depth, channel.backend_depth) == (0, 0)
    engine.deliver(NOW)
    assert not ledger.requests


def test_a_page_for_a_channel_that_was_emptied_is_ignored(
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
    channel.subscriber_changed()
    assert [message.body for message in settle(engine, ledger)] == numbered(*range(10, 17))


def test_pages_requested_before_and_after_emptying_are_not_confused(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    subscribe(channel)
    publish(topic, numbered(*range(6)), NOW)
    engine.deliver(NOW)
    channel.empty()
    publish(topic, numbered(*range(10, 16)), NOW)
    engine.deliver(NOW)
    assert len(ledger.requests) == 2
    ledger.answer(engine)
    assert bodies(engine) == []
    ledger.answer(engine)
    assert bodies(engine) == numbered(14, 15)


def test_a_page_for_a_deleted_channel_is_ignored(
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


def test_a_page_for_a_topic_is_ignored(engine: Engine, ledger: Ledger, topic: Topic) -> None:
    publish(topic, numbered(1), NOW)
    engine.page_loaded(topic.queue_id, [QueuedMessage(b"0" * 16, NOW, b"x")])
    assert topic.depth == 1


def test_the_spilled_messages_of_a_topic_go_to_all_its_channels(
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
    out = [message.body for message in settle(engine, ledger)]
    assert sorted(out) == sorted(numbered(*range(1, 10)) * 2)
    engine.tick(NOW + SECOND)
    assert bodies(engine, NOW + SECOND) == [b"0", b"0"]


def test_spilled_messages_of_a_topic_come_after_those_of_its_channel(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(6)), NOW)
    topic.pause()
    publish(topic, numbered(*range(6, 12)), NOW)
    topic.unpause(NOW)
    assert (channel.depth, channel.backend_depth) == (12, 8)
    subscribe(channel)
    assert [message.body for message in settle(engine, ledger)] == numbered(*range(12))


def test_an_ephemeral_channel_of_a_persisted_topic_drops_what_it_cannot_hold(
    engine: Engine, ledger: Ledger, topic: Topic
) -> None:
    publish(topic, numbered(*range(6)), NOW)
    channel = topic.channel("c#ephemeral", NOW)
    assert ledger.rows("t") == {}
    assert ledger.names() == {("t", None)}
    publish(topic, numbered(7), NOW)
    assert (channel.depth, channel.backend_depth, channel.message_count) == (4, 0, 7)
    subscribe(channel)
    assert [message.body for message in settle(engine, ledger)] == numbered(*range(4))


def test_a_full_memory_spills_persisted_messages_and_drops_ephemeral_ones(ledger: Ledger) -> None:
    engine = Engine(max_memory=1, journal=ledger)
    topic = engine.topic("t", NOW)
    kept, ephemeral = topic.channel("c", NOW), topic.channel("c#ephemeral", NOW)
    publish(topic, numbered(1), NOW)
    publish(topic, numbered(2), NOW)
    assert (kept.depth, kept.backend_depth, ephemeral.depth) == (2, 1, 0)
    subscriber = subscribe(kept)
    assert [message.body for message in settle(engine, ledger)] == numbered(1, 2)
    kept.finish(subscriber, [*subscriber.in_flight])
    publish(topic, numbered(3), NOW)
    assert engine.memory.full
    assert engine.memory.used == MESSAGE_OVERHEAD + 1


def test_with_a_full_memory_a_page_is_requested_only_if_the_queue_is_empty(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel, 3)
    publish(topic, numbered(*range(8)), NOW)
    engine.memory.limit = 1
    engine.deliver(NOW)
    assert channel.depth == 5
    assert not ledger.requests
    subscriber.rdy = 4
    channel.subscriber_changed()
    engine.deliver(NOW)
    assert len(ledger.requests) == 1


def test_deferred_messages_are_never_spilled(
    engine: Engine, ledger: Ledger, topic: Topic, channel: Channel
) -> None:
    publish(topic, numbered(*range(9)), NOW, delay=1)
    engine.tick(NOW + 1)
    assert (channel.depth, channel.backend_depth) == (9, 0)
    subscribe(channel)
    assert bodies(engine, NOW + 1) == numbered(*range(9))


def test_sampling_drops_messages_of_loaded_pages_too(ledger: Ledger) -> None:
    percents = iter([0, 99] * 5)
    engine = Engine(mem_queue_size=0, journal=ledger, random_percent=lambda: next(percents))
    topic = engine.topic("t", NOW)
    subscribe(topic.channel("c", NOW), sample_rate=50)
    publish(topic, numbered(*range(10)), NOW)
    assert [message.body for message in settle(engine, ledger)] == numbered(0, 2, 4, 6, 8)
    assert len(ledger.rows("t", "c")) == 5


def test_an_unbounded_queue_keeps_everything_in_memory() -> None:
    memory = MemoryBudget(limit=0)
    queue = MemoryQueue(0, Ledger().record, memory, capacity=None)
    queue.put([QueuedMessage(b"%016x" % number, NOW, b"x") for number in range(500)])
    queue.request_page()
    assert (len(queue), queue.spilled, memory.used) == (500, 0, 500 * (MESSAGE_OVERHEAD + 1))
    queue.clear()
    assert (len(queue), memory.used) == (0, 0)
