"""What the partitions of a topic have stored, in the order in which they have it."""

from __future__ import annotations

from collections.abc import Iterable

from nsqflow.blocking import Consumer
from nsqflow.broker import BackgroundBroker
from nsqflow.client.message import Message

CHANNEL = "c"


def new_topic(
    broker: BackgroundBroker,
    name: str,
    partitions: int = 4,
    replicas: int = 1,
    *,
    ordered: bool = False,
    extended: bool = False,
) -> str:
    """Create a topic, with a channel in which ``stored`` finds all that is published to it."""
    broker.create_topic(name, partitions, replicas, ordered, extended)
    broker.create_channel(name, CHANNEL)
    return name


def stored(broker: BackgroundBroker, topic: str, count: int) -> list[Message]:
    """Read this many different messages, and return them by partition and age."""
    found: dict[tuple[int, int], Message] = {}
    with Consumer(topic, CHANNEL, lookupd=broker.lookupd_addresses, max_in_flight=2500) as consumer:
        for message in consumer:
            message.finish()
            assert message.partition is not None
            assert message.internal_id is not None
            found[message.partition, message.internal_id] = message
            if len(found) == count:
                break
    return [found[place] for place in sorted(found)]


def bodies_by_partition(messages: Iterable[Message]) -> dict[int, list[bytes]]:
    """The bodies of each partition, oldest first."""
    found: dict[int, list[bytes]] = {}
    for message in messages:
        assert message.partition is not None
        found.setdefault(message.partition, []).append(message.body)
    return found
