"""The registrations compared with a simple model: sets of names and of nodes."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nsqflow.broker.lookupd.registration_db import (
    ANY,
    RegisteredNode,
    RegisteredProducer,
    Registration,
    RegistrationDb,
)
from nsqflow.protocol import Peer

INACTIVE, LIFETIME = 300, 45

names = st.sampled_from(["a", "b", "c#ephemeral"])
channels = st.sampled_from(["", "x", "y", "z#ephemeral"])
numbers = st.integers(0, 2)
anything = names | st.just(ANY)


def node(number: int, now: int = 0) -> RegisteredNode:
    peer = Peer(broadcast_address=f"host{number}", tcp_port=1, http_port=1000 + number, version="1")
    return RegisteredNode(f"10.0.0.{number}:5", peer, now)


class RegistrationMachine(RuleBasedStateMachine):
    """Random calls leave the registrations and the model in the same state."""

    def __init__(self) -> None:
        super().__init__()
        self.db = RegistrationDb(inactive_timeout=INACTIVE, tombstone_lifetime=LIFETIME)
        self.now = 1000
        self.nodes = {number: node(number, self.now) for number in range(3)}
        self.known: set[tuple[str, str]] = set()  # topic, channel or nothing
        self.registered: set[tuple[int, str, str]] = set()  # node, topic, channel or nothing
        self.tombstones: dict[tuple[int, str], int] = {}  # node, topic; since when

    @initialize()
    def join_all(self) -> None:
        for each in self.nodes.values():
            self.db.join(each)

    @rule(seconds=st.integers(1, 200))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(number=numbers)
    def ping(self, number: int) -> None:
        self.nodes[number].last_update = self.now

    @rule(number=numbers, topic=names, channel=channels)
    def register(self, number: int, topic: str, channel: str) -> None:
        new = {(number, topic, ""), (number, topic, channel)} - self.registered
        returned = self.db.register(self.nodes[number], topic, channel)
        assert {(key, subkey) for _, key, subkey in returned} == {(key, sub) for _, key, sub in new}
        self.registered |= new
        self.known |= {(topic, ""), (topic, channel)}

    @rule(number=numbers, topic=names, channel=channels)
    def unregister(self, number: int, topic: str, channel: str) -> None:
        removed = {
            each
            for each in self.registered
            if each[:2] == (number, topic) and (not channel or each[2] == channel)
        }
        returned = self.db.unregister(self.nodes[number], topic, channel)
        assert {(key, subkey) for _, key, subkey in returned} == {
            (key, sub) for _, key, sub in removed
        }
        self.remove(removed)
        left = any(each[1:] == (topic, channel) for each in self.registered)
        if (channel or topic).endswith("#ephemeral") and not left:
            self.known.discard((topic, channel))

    @rule(number=numbers)
    def rejoin(self, number: int) -> None:
        removed = {each for each in self.registered if each[0] == number}
        returned = self.db.leave(self.nodes[number])
        assert len(returned) == len(removed) + 1
        assert self.db.leave(self.nodes[number]) == []
        self.remove(removed)
        self.nodes[number] = node(number, self.now)
        self.db.join(self.nodes[number])

    @rule(topic=names, channel=channels)
    def create(self, topic: str, channel: str) -> None:
        self.db.create(topic, channel)
        self.known |= {(topic, ""), (topic, channel)}

    @rule(topic=anything)
    def delete_topic(self, topic: str) -> None:
        removed = {key for key in self.known if topic in (ANY, key[0])}
        returned = self.db.delete_topic(topic)
        assert {(key, subkey) for _, key, subkey in returned} == removed
        self.known -= removed
        self.remove({each for each in self.registered if each[1:] in removed})

    @rule(topic=names, channel=channels.filter(bool))
    def delete_channel(self, topic: str, channel: str) -> None:
        assert self.db.delete_channel(topic, channel) == ((topic, channel) in self.known)
        self.known.discard((topic, channel))
        self.remove({each for each in self.registered if each[1:] == (topic, channel)})

    @rule(number=numbers, topic=anything)
    def tombstone(self, number: int, topic: str) -> None:
        self.db.tombstone(topic, f"host{number}:{1000 + number}", self.now)
        for each, name, channel in self.registered:
            if each == number and topic in (ANY, name) and not channel:
                self.tombstones[each, name] = self.now

    @invariant()
    def it_knows_the_names(self) -> None:
        topics = {topic for topic, channel in self.known if not channel}
        assert sorted(self.db.topics()) == sorted(topics)
        for name in ("a", "b", "c#ephemeral"):
            assert self.db.topics(name) == [name] * (name in topics)
            of_name = [channel for topic, channel in self.known if channel and topic == name]
            assert sorted(self.db.channels(name)) == sorted(of_name)
        every = [channel for _, channel in self.known if channel]
        assert sorted(self.db.channels(ANY)) == sorted(every)

    @invariant()
    def it_names_the_nodes_of_a_topic(self) -> None:
        for topic in ("a", "b", "c#ephemeral", ANY):
            expected = {
                self.nodes[number].id
                for number, name, channel in self.registered
                if topic in (ANY, name) and not channel
                if self.is_active(number) and not self.is_tombstoned(number, name)
            }
            found = [each.id for each in self.db.producers(topic, self.now)]
            assert sorted(found) == sorted(expected)

    @invariant()
    def it_lists_all_nodes_with_their_topics(self) -> None:
        expected = {
            self.nodes[number].id: {
                name: self.is_tombstoned(number, name)
                for each, name, channel in self.registered
                if each == number and not channel
            }
            for number in self.nodes
            if self.is_active(number)
        }
        assert {each.id: topics for each, topics in self.db.nodes(self.now)} == expected

    @invariant()
    def it_shows_every_registration(self) -> None:
        expected: dict[Registration, set[Any]] = {
            Registration("client"): {each.id for each in self.nodes.values()}
        }
        for number, topic, channel in self.registered:
            key = Registration("channel" if channel else "topic", topic, channel)
            expected.setdefault(key, set()).add(self.nodes[number].id)
        found = self.db.registrations().items()
        assert {key: {each.node.id for each in producers} for key, producers in found} == expected

    def remove(self, removed: set[tuple[int, str, str]]) -> None:
        self.registered -= removed
        for number, topic, channel in removed:
            if not channel:
                self.tombstones.pop((number, topic), None)

    def is_active(self, number: int) -> bool:
        return self.now - self.nodes[number].last_update <= INACTIVE

    def is_tombstoned(self, number: int, topic: str) -> bool:
        since = self.tombstones.get((number, topic))
        return since is not None and self.now - since < LIFETIME


TestRegistrations = RegistrationMachine.TestCase
TestRegistrations.settings = settings(max_examples=100, stateful_step_count=40)


def test_a_tombstone_lasts_for_its_lifetime() -> None:
    producer = RegisteredProducer(node(1), tombstoned_at=100)
    assert [producer.is_tombstoned(at, 45) for at in (100, 144, 145)] == [True, True, False]
    assert not RegisteredProducer(node(1)).is_tombstoned(100, 45)


def test_a_node_is_listed_until_it_is_inactive() -> None:
    db = RegistrationDb(inactive_timeout=300, tombstone_lifetime=45)
    one = node(1, now=1000)
    db.join(one)
    db.register(one, "t")
    assert db.producers("t", 1300) == [one]
    assert db.producers("t", 1301) == []
    assert db.nodes(1300) == [(one, {"t": False})]
    assert db.nodes(1301) == []
    one.last_update = 1301
    assert db.producers("t", 1301) == [one]


def test_registering_again_does_not_lift_a_tombstone() -> None:
    db = RegistrationDb(inactive_timeout=300, tombstone_lifetime=45)
    one = node(1)
    db.join(one)
    db.register(one, "t")
    db.tombstone("t", "host1:1001", 10)
    assert db.register(one, "t", "c") == [Registration("channel", "t", "c")]
    assert db.producers("t", 11) == []
    db.unregister(one, "t")
    db.register(one, "t")
    assert db.producers("t", 11) == [one]


def test_a_topic_stays_known_after_its_last_node_left() -> None:
    db = RegistrationDb(inactive_timeout=300, tombstone_lifetime=45)
    one = node(1)
    db.join(one)
    db.register(one, "t#ephemeral", "c#ephemeral")
    db.leave(one)
    assert db.topics() == ["t#ephemeral"]
    assert db.channels("t#ephemeral") == ["c#ephemeral"]
