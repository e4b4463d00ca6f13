"""What tests of the engine begin with."""

from __future__ import annotations

from collections.abc import Sequence

from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.engine import Engine, Listener
from nsqflow.broker.engine.entry import Entry
from nsqflow.broker.engine.subscriber import Subscriber
from nsqflow.broker.engine.topic import Topic
from tests.unit.broker.engine.ledger import Ledger

SECOND = 10**9
NOW = 1_700_000_000 * SECOND


class Diary(Listener):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.pages: list[tuple[object, ...]] = []

    def created(self, topic: str, channel: str | None) -> None:
        self.pages.append(("created", topic, channel))

    def deleted(self, topic: str, channel: str | None) -> None:
        self.pages.append(("deleted", topic, channel))

    def closed(self, subscribers: Sequence[Subscriber]) -> None:
        self.pages.append(("closed", *subscribers))


def subscribe(
    channel: Channel, rdy: int = 10_000, *, timeout: int = 60 * SECOND, sample_rate: int = 0
) -> Subscriber:
    """Let someone new have messages of a channel."""
    subscriber = Subscriber(None, timeout, sample_rate)
    subscriber.rdy = rdy
    channel.add(subscriber)
    return subscriber


def publish(topic: Topic, bodies: Sequence[bytes], now: int = NOW, delay: int = 0) -> None:
    """Publish, and have the journal store it at once."""
    topic.publish(bodies, now, delay)
    store(topic._engine, now)


def store(engine: Engine, now: int = NOW) -> None:
    """Have the journal store all that was published."""
    engine.stored(engine.take_unstored(), now)


def deliver(engine: Engine, now: int = NOW) -> list[Entry]:
    """Deliver once; returns what went out, in order."""
    return [entry for _, entries in engine.deliver(now) for entry in entries]


def bodies(engine: Engine, now: int = NOW) -> list[bytes]:
    """Deliver once; returns the bodies of what went out, in order."""
    return [entry.body for entry in deliver(engine, now)]


def settle(engine: Engine, ledger: Ledger, now: int = NOW) -> list[Entry]:
    """Deliver, and answer for the journal, until nothing is left to do."""
    out = deliver(engine, now)
    while engine.restless or ledger.asked:
        while ledger.asked:
            ledger.answer(engine)
        out += deliver(engine, now)
    return out


def numbered(*numbers: int) -> list[bytes]:
    """Bodies that can be told apart."""
    return [b"%d" % number for number in numbers]
