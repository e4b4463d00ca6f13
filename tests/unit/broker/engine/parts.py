"""Helpers of the engine's tests: an observer, subscribing, publishing and delivering."""

from __future__ import annotations

from collections.abc import Sequence

from nsqflow.broker.engine.channel import Channel, Subscriber
from nsqflow.broker.engine.engine import Engine, EngineObserver
from nsqflow.broker.engine.message import QueuedMessage
from nsqflow.broker.engine.topic import Topic
from tests.unit.broker.engine.ledger import Ledger

SECOND = 10**9
NOW = 1_700_000_000 * SECOND


class RecordingObserver(EngineObserver):
    """Records the notifications of an engine."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def created(self, topic: str, channel: str | None) -> None:
        self.calls.append(("created", topic, channel))

    def deleted(self, topic: str, channel: str | None) -> None:
        self.calls.append(("deleted", topic, channel))

    def closed(self, subscribers: Sequence[Subscriber]) -> None:
        self.calls.append(("closed", *subscribers))


def subscribe(
    channel: Channel, rdy: int = 10_000, *, timeout: int = 60 * SECOND, sample_rate: int = 0
) -> Subscriber:
    """Add a subscriber to a channel."""
    subscriber = Subscriber(None, timeout, sample_rate)
    subscriber.rdy = rdy
    channel.add(subscriber)
    return subscriber


def publish(topic: Topic, bodies: Sequence[bytes], now: int = NOW, delay: int = 0) -> None:
    """Publish messages that are stored at once."""
    topic.publish(bodies, now, delay)
    store(topic._engine, now)


def store(engine: Engine, now: int = NOW) -> None:
    """Report everything published as stored."""
    engine.stored(engine.take_unstored(), now)


def deliver(engine: Engine, now: int = NOW) -> list[QueuedMessage]:
    """Deliver once; return the messages in order."""
    return [message for _, messages in engine.deliver(now) for message in messages]


def bodies(engine: Engine, now: int = NOW) -> list[bytes]:
    """Deliver once; return the bodies in order."""
    return [message.body for message in deliver(engine, now)]


def settle(engine: Engine, ledger: Ledger, now: int = NOW) -> list[QueuedMessage]:
    """Deliver and load pages until nothing is left to do."""
    out = deliver(engine, now)
    while engine.has_work or ledger.requests:
        while ledger.requests:
            ledger.answer(engine)
        out += deliver(engine, now)
    return out


def numbered(*numbers: int) -> list[bytes]:
    """Return distinct bodies."""
    return [b"%d" % number for number in numbers]
