"""What the journal was given and could not keep: it was refused, and is forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nsqflow.broker.engine import engine as engine_module
from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.engine.entry import COST, Entry
from nsqflow.broker.engine.topic import Topic
from tests.unit.broker.engine.ledger import Ledger
from tests.unit.broker.engine.parts import NOW, bodies, deliver, numbered, settle, subscribe


class Unreliable(Ledger):
    """Keeps no new messages while it is full, and tells the engine when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.lost: list[tuple[int, list[bytes]]] = []

    def put(self, place: int, entries: Sequence[Entry]) -> None:
        if self.full:
            self.lost.append((place, [entry.id for entry in entries]))
        else:
            super().put(place, entries)

    def tell(self, engine: Engine) -> None:
        self.full = False
        for place, ids in self.lost:
            engine.withdraw(place, ids)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_LEAST_CAPACITY", 4)


@pytest.fixture
def ledger() -> Unreliable:
    return Unreliable()


@pytest.fixture
def engine(ledger: Unreliable) -> Engine:
    return Engine(mem_queue_size=0, journal=ledger)


def test_what_waits_is_forgotten(
    engine: Engine, ledger: Unreliable, topic: Topic, channel: Channel
) -> None:
    topic.publish(numbered(1), NOW)
    ledger.full = True
    topic.publish(numbered(2, 3), NOW)
    ledger.tell(engine)
    assert (channel.depth, engine.memory.used) == (1, COST + 1)
    topic.publish(numbered(4), NOW)
    subscribe(channel)
    assert bodies(engine) == numbered(1, 4)


def test_what_is_put_off_is_forgotten_and_the_others_come_at_their_time(
    engine: Engine, ledger: Unreliable, topic: Topic, channel: Channel
) -> None:
    topic.publish(numbered(3), NOW, delay=3)
    topic.publish(numbered(4), NOW, delay=4)
    ledger.full = True
    topic.publish(numbered(2), NOW, delay=2)
    ledger.tell(engine)
    assert (channel.deferred_count, engine.memory.used) == (2, 2 * (COST + 1))
    subscribe(channel)
    engine.tick(NOW + 3)
    assert bodies(engine) == [b"3"]
    engine.tick(NOW + 4)
    assert bodies(engine) == [b"4"]


def test_after_the_last_that_was_put_off_there_is_nothing_to_wait_for(
    engine: Engine, ledger: Unreliable, topic: Topic, channel: Channel
) -> None:
    ledger.full = True
    topic.publish(numbered(1), NOW, delay=2)
    ledger.tell(engine)
    assert (channel.deferred_count, engine.memory.used) == (0, 0)
    engine.tick(NOW + 2)
    assert (channel.depth, engine.next_at) == (0, None)


def test_what_somebody_has_stays_in_flight(
    engine: Engine, ledger: Unreliable, topic: Topic, channel: Channel
) -> None:
    subscriber = subscribe(channel)
    ledger.full = True
    topic.publish(numbered(1), NOW)
    deliver(engine)
    ledger.tell(engine)
    assert (subscriber.in_flight, channel.in_flight_count) == (1, 1)
    assert engine.memory.used == COST + 1


def test_what_a_topic_was_given_is_forgotten_by_it_and_by_the_channels_that_got_it_since(
    engine: Engine, ledger: Unreliable, topic: Topic
) -> None:
    topic.publish(numbered(1), NOW)
    ledger.full = True
    topic.publish(numbered(2), NOW)
    channel = topic.channel("c", NOW)
    topic.pause()
    topic.publish(numbered(3), NOW)
    ledger.tell(engine)
    assert (topic.depth, channel.depth, engine.memory.used) == (0, 1, COST + 1)


def test_what_was_spilled_is_counted_until_the_journal_is_asked_for_it(
    engine: Engine, ledger: Unreliable, topic: Topic, channel: Channel
) -> None:
    topic.publish(numbered(*range(5)), NOW)
    ledger.full = True
    topic.publish(numbered(5, 6), NOW)
    ledger.tell(engine)
    assert (channel.depth, channel.backend_depth) == (7, 3)
    subscribe(channel)
    assert [entry.body for entry in settle(engine, ledger)] == numbered(*range(5))
    assert (channel.depth, channel.backend_depth) == (0, 0)


def test_what_comes_while_the_journal_finds_nothing_is_not_forgotten_with_it(
    engine: Engine, ledger: Unreliable, topic: Topic, channel: Channel
) -> None:
    topic.publish(numbered(*range(4)), NOW)
    ledger.full = True
    topic.publish(numbered(4), NOW)
    ledger.tell(engine)
    subscribe(channel)
    deliver(engine)
    topic.publish(numbered(5), NOW)
    ledger.answer(engine)
    assert (channel.depth, channel.backend_depth) == (1, 1)
    assert [entry.body for entry in settle(engine, ledger)] == [b"5"]
    assert channel.depth == 0


def test_what_belongs_to_a_topic_that_is_gone_is_of_no_account(
    engine: Engine, ledger: Unreliable, topic: Topic, channel: Channel
) -> None:
    ledger.full = True
    topic.publish(numbered(1), NOW)
    engine.delete_topic("t")
    ledger.tell(engine)
    assert engine.memory.used == 0
