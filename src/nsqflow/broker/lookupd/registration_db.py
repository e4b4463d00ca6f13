"""The registrations of nsqlookupd: topics, channels, and the nsqd that have them.

A topic or channel stays known when the last nsqd that had it disconnects; only deleting it, or
unregistering an ephemeral one, removes it. An nsqd that is tombstoned for a topic is not listed for
it for some time, so that consumers leave it before the topic is deleted there.

Pure: times are integers in nanoseconds, and ``now`` is an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nsqflow.protocol import Peer
from nsqflow.protocol.names import is_ephemeral

ANY = "*"
"""As a topic's name: all topics."""


class Registration(NamedTuple):
    """What an nsqd can be registered for: a topic, a channel, or as a client."""

    category: str
    key: str = ""
    subkey: str = ""


@dataclass(slots=True, eq=False)
class RegisteredNode:
    """An nsqd while it is connected."""

    id: str
    """The address that it connected from."""
    peer: Peer
    last_update: int
    """The time of its last ping."""


@dataclass(slots=True, eq=False)
class RegisteredProducer:
    """An nsqd as a producer of one topic or channel."""

    node: RegisteredNode
    tombstoned_at: int | None = None

    def is_tombstoned(self, now: int, lifetime: int) -> bool:
        """Return whether it is hidden from lookups."""
        return self.tombstoned_at is not None and now - self.tombstoned_at < lifetime


ProducerMap = dict[str, RegisteredProducer]
"""Producers by the ids of their nodes."""


class RegistrationDb:
    """The registrations; nsqd without a ping for ``inactive_timeout`` are not listed."""

    def __init__(self, *, inactive_timeout: int, tombstone_lifetime: int) -> None:
        self._inactive_timeout = inactive_timeout
        self._tombstone_lifetime = tombstone_lifetime
        self._clients: ProducerMap = {}
        self._topics: dict[str, ProducerMap] = {}
        # By topic and channel. Independent of the topics: an ephemeral topic is removed alone.
        self._channels: dict[str, dict[str, ProducerMap]] = {}

    # Commands of nsqd

    def join(self, node: RegisteredNode) -> None:
        """Add an nsqd."""
        self._clients[node.id] = RegisteredProducer(node)

    def leave(self, node: RegisteredNode) -> list[Registration]:
        """Remove an nsqd; return its registrations. The names stay known."""
        return [key for key, producers in self._everything() if producers.pop(node.id, None)]

    def register(self, node: RegisteredNode, topic: str, channel: str = "") -> list[Registration]:
        """Register a topic, and a channel if given; return the new registrations."""
        added = []
        if channel:
            producers = self._channels.setdefault(topic, {}).setdefault(channel, {})
            if _add(producers, node):
                added.append(Registration("channel", topic, channel))
        if _add(self._topics.setdefault(topic, {}), node):
            added.append(Registration("topic", topic))
        return added

    def unregister(self, node: RegisteredNode, topic: str, channel: str = "") -> list[Registration]:
        """Unregister a channel, or a topic with all its channels; return what was removed.

        An ephemeral topic or channel is removed with its last nsqd.
        """
        if channel:
            return self._drop_channel(node, topic, channel)
        removed = [
            Registration("channel", topic, name)
            for name, producers in self._channels.get(topic, {}).items()
            if producers.pop(node.id, None)
        ]
        producers = self._topics.get(topic, {})
        if producers.pop(node.id, None):
            removed.append(Registration("topic", topic))
        if not producers and is_ephemeral(topic):
            self._topics.pop(topic, None)
        return removed

    # Administration

    def create(self, topic: str, channel: str = "") -> None:
        """Add a topic, and a channel if given, before any nsqd has it."""
        self._topics.setdefault(topic, {})
        if channel:
            self._channels.setdefault(topic, {}).setdefault(channel, {})

    def delete_topic(self, topic: str) -> list[Registration]:
        """Delete a topic with its channels, or all topics; return what was deleted."""
        removed = [
            Registration("channel", name, channel)
            for name in _named(self._channels, topic)
            for channel in self._channels.pop(name)
        ]
        for name in _named(self._topics, topic):
            del self._topics[name]
            removed.append(Registration("topic", name))
        return removed

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Delete a channel; return False if there was none."""
        channels = self._channels.get(topic, {})
        found = channels.pop(channel, None) is not None
        if not channels:
            self._channels.pop(topic, None)
        return found

    def tombstone(self, topic: str, address: str, now: int) -> None:
        """Hide the nsqd with this HTTP address from lookups of the topic for some time."""
        for name in _named(self._topics, topic):
            for producer in self._topics[name].values():
                peer = producer.node.peer
                # Without brackets around an IPv6 address, as in nsqlookupd.
                if address == f"{peer.broadcast_address}:{peer.http_port}":
                    producer.tombstoned_at = now

    # Queries

    def topics(self, topic: str = ANY) -> list[str]:
        """Return all topics, or the given one if it is known."""
        return _named(self._topics, topic)

    def channels(self, topic: str) -> list[str]:
        """Return the channels of a topic, or of all."""
        return [
            channel for name in _named(self._channels, topic) for channel in self._channels[name]
        ]

    def producers(self, topic: str, now: int) -> list[RegisteredNode]:
        """Return the nsqd to list for a topic, or for any."""
        found: dict[str, RegisteredNode] = {}
        for name in _named(self._topics, topic):
            for producer in self._topics[name].values():
                node = producer.node
                tombstoned = producer.is_tombstoned(now, self._tombstone_lifetime)
                if self._is_active(node, now) and not tombstoned:
                    found[node.id] = node
        return [*found.values()]

    def nodes(self, now: int) -> list[tuple[RegisteredNode, dict[str, bool]]]:
        """Return all nsqd and their topics; the value is True where tombstoned."""
        active = (each.node for each in self._clients.values() if self._is_active(each.node, now))
        found: dict[str, tuple[RegisteredNode, dict[str, bool]]] = {
            node.id: (node, {}) for node in active
        }
        for topic, producers in self._topics.items():
            for id_, producer in producers.items():
                if id_ in found:
                    tombstoned = producer.is_tombstoned(now, self._tombstone_lifetime)
                    found[id_][1][topic] = tombstoned
        return [*found.values()]

    def registrations(self) -> dict[Registration, list[RegisteredProducer]]:
        """Return all registrations with their producers."""
        return {key: [*producers.values()] for key, producers in self._everything() if producers}

    # Private methods

    def _is_active(self, node: RegisteredNode, now: int) -> bool:
        return now - node.last_update <= self._inactive_timeout

    def _drop_channel(self, node: RegisteredNode, topic: str, channel: str) -> list[Registration]:
        producers = self._channels.get(topic, {}).get(channel, {})
        removed = producers.pop(node.id, None)
        if not producers and is_ephemeral(channel):
            self.delete_channel(topic, channel)
        return [Registration("channel", topic, channel)] if removed else []

    def _everything(self) -> Iterator[tuple[Registration, ProducerMap]]:
        yield Registration("client"), self._clients
        for topic, producers in self._topics.items():
            yield Registration("topic", topic), producers
        for topic, channels in self._channels.items():
            for channel, producers in channels.items():
                yield Registration("channel", topic, channel), producers


def _named(known: Collection[str], topic: str) -> list[str]:
    """Return the names that ``topic`` stands for."""
    if topic == ANY:
        return [*known]
    return [topic] if topic in known else []


def _add(producers: ProducerMap, node: RegisteredNode) -> bool:
    """Add a producer; one that exists stays, with its tombstone. Return whether it is new."""
    if node.id in producers:
        return False
    producers[node.id] = RegisteredProducer(node)
    return True
