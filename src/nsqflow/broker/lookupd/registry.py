"""What nsqlookupd knows: topics, channels, and the nsqd that have them.

A topic or channel, once known, stays known when the last nsqd that had it goes; only deleting
it, or unregistering an ephemeral one, makes it forgotten. An nsqd that is tombstoned for a topic
is not named for it during some time, so that consumers leave it before the topic is deleted there.

Pure: times are integers, in nanoseconds, and ``now`` is an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nsqflow.protocol import Peer
from nsqflow.protocol.names import is_ephemeral

ANY = "*"
"""In the place of a topic's name: all that there are."""


class Registration(NamedTuple):
    """What an nsqd can be registered for: a topic, a channel, or as a client of nsqlookupd."""

    category: str
    key: str = ""
    subkey: str = ""


@dataclass(slots=True, eq=False)
class Node:
    """An nsqd, for as long as its connection lasts."""

    id: str
    """The address that it connected from."""
    peer: Peer
    last_update: int
    """When it was last heard of."""


@dataclass(slots=True, eq=False)
class Producer:
    """An nsqd in its role for one topic or channel."""

    node: Node
    tombstoned_at: int | None = None

    def is_tombstoned(self, now: int, lifetime: int) -> bool:
        """Tell whether it is not to be named."""
        return self.tombstoned_at is not None and now - self.tombstoned_at < lifetime


Producers = dict[str, Producer]
"""By the nodes' ids."""


class Registry:
    """The registrations; nsqd older than ``inactive_timeout`` are not named."""

    def __init__(self, *, inactive_timeout: int, tombstone_lifetime: int) -> None:
        self._inactive_timeout = inactive_timeout
        self._tombstone_lifetime = tombstone_lifetime
        self._clients: Producers = {}
        self._topics: dict[str, Producers] = {}
        # By topic and channel. They don't depend on the topics: an ephemeral topic goes alone.
        self._channels: dict[str, dict[str, Producers]] = {}

    # What nsqd say

    def join(self, node: Node) -> None:
        """Take in an nsqd."""
        self._clients[node.id] = Producer(node)

    def leave(self, node: Node) -> list[Registration]:
        """Forget it; tells what it was registered for. The names stay known."""
        return [key for key, producers in self._everything() if producers.pop(node.id, None)]

    def register(self, node: Node, topic: str, channel: str = "") -> list[Registration]:
        """Say that it has the topic, and the channel if one is given; tells what is news."""
        news = []
        if channel:
            producers = self._channels.setdefault(topic, {}).setdefault(channel, {})
            if _add(producers, node):
                news.append(Registration("channel", topic, channel))
        if _add(self._topics.setdefault(topic, {}), node):
            news.append(Registration("topic", topic))
        return news

    def unregister(self, node: Node, topic: str, channel: str = "") -> list[Registration]:
        """Say that it no longer has the channel, or the topic with all its channels.

        Tells what is news. Something ephemeral is forgotten with its last nsqd.
        """
        if channel:
            return self._drop_channel(node, topic, channel)
        gone = [
            Registration("channel", topic, name)
            for name, producers in self._channels.get(topic, {}).items()
            if producers.pop(node.id, None)
        ]
        producers = self._topics.get(topic, {})
        if producers.pop(node.id, None):
            gone.append(Registration("topic", topic))
        if not producers and is_ephemeral(topic):
            self._topics.pop(topic, None)
        return gone

    # What an administrator says

    def create(self, topic: str, channel: str = "") -> None:
        """Make a topic known, and a channel if one is given, before any nsqd has it."""
        self._topics.setdefault(topic, {})
        if channel:
            self._channels.setdefault(topic, {}).setdefault(channel, {})

    def delete_topic(self, topic: str) -> list[Registration]:
        """Forget a topic and its channels, or all of them; tells what was forgotten."""
        gone = [
            Registration("channel", name, channel)
            for name in _named(self._channels, topic)
            for channel in self._channels.pop(name)
        ]
        for name in _named(self._topics, topic):
            del self._topics[name]
            gone.append(Registration("topic", name))
        return gone

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Forget a channel; False: there was none."""
        channels = self._channels.get(topic, {})
        found = channels.pop(channel, None) is not None
        if not channels:
            self._channels.pop(topic, None)
        return found

    def tombstone(self, topic: str, address: str, now: int) -> None:
        """Don't name the nsqd with this HTTP address for the topic, during some time."""
        for name in _named(self._topics, topic):
            for producer in self._topics[name].values():
                peer = producer.node.peer
                # Not bracketed as an IPv6 address should be: so it is in the original.
                if address == f"{peer.broadcast_address}:{peer.http_port}":
                    producer.tombstoned_at = now

    # What it knows

    def topics(self, topic: str = ANY) -> list[str]:
        """Name the topics, or the one topic if it is known."""
        return _named(self._topics, topic)

    def channels(self, topic: str) -> list[str]:
        """Name the channels of a topic, or of all."""
        return [
            channel for name in _named(self._channels, topic) for channel in self._channels[name]
        ]

    def producers(self, topic: str, now: int) -> list[Node]:
        """Give the nsqd to be named for a topic, or for any."""
        found: dict[str, Node] = {}
        for name in _named(self._topics, topic):
            for producer in self._topics[name].values():
                node = producer.node
                tombstoned = producer.is_tombstoned(now, self._tombstone_lifetime)
                if self._is_active(node, now) and not tombstoned:
                    found[node.id] = node
        return [*found.values()]

    def nodes(self, now: int) -> list[tuple[Node, dict[str, bool]]]:
        """Give all nsqd, and which topics each has; True: but is tombstoned for."""
        active = (each.node for each in self._clients.values() if self._is_active(each.node, now))
        found: dict[str, tuple[Node, dict[str, bool]]] = {node.id: (node, {}) for node in active}
        for topic, producers in self._topics.items():
            for id_, producer in producers.items():
                if id_ in found:
                    tombstoned = producer.is_tombstoned(now, self._tombstone_lifetime)
                    found[id_][1][topic] = tombstoned
        return [*found.values()]

    def registrations(self) -> dict[Registration, list[Producer]]:
        """Give everything that an nsqd is registered for."""
        return {key: [*producers.values()] for key, producers in self._everything() if producers}

    # Private methods

    def _is_active(self, node: Node, now: int) -> bool:
        return now - node.last_update <= self._inactive_timeout

    def _drop_channel(self, node: Node, topic: str, channel: str) -> list[Registration]:
        producers = self._channels.get(topic, {}).get(channel, {})
        removed = producers.pop(node.id, None)
        if not producers and is_ephemeral(channel):
            self.delete_channel(topic, channel)
        return [Registration("channel", topic, channel)] if removed else []

    def _everything(self) -> Iterator[tuple[Registration, Producers]]:
        yield Registration("client"), self._clients
        for topic, producers in self._topics.items():
            yield Registration("topic", topic), producers
        for topic, channels in self._channels.items():
            for channel, producers in channels.items():
                yield Registration("channel", topic, channel), producers


def _named(known: Collection[str], topic: str) -> list[str]:
    """Give the names that a topic's name stands for."""
    if topic == ANY:
        return [*known]
    return [topic] if topic in known else []


def _add(producers: Producers, node: Node) -> bool:
    """Add the nsqd; one that is there already stays as it is, with its tombstone."""
    if node.id in producers:
        return False
    producers[node.id] = Producer(node)
    return True
