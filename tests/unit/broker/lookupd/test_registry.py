"""The registry, beside a model that is as simple as can be: a set of who has what."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nsqflow.broker.lookupd.registry import ANY, Node, Producer, Registration, Registry
from nsqflow.protocol import Peer

INACTIVE, LIFETIME = 300, 45

names = st.sampled_from(["a", "b", "c#ephemeral"])
channels = st.sampled_from(["", "x", "y", "z#ephemeral"])
numbers = st.integers(0, 2)
anything = names | st.just(ANY)


def node(number: int, now: int = 0) -> Node:
    peer = Peer(broadcast_address=f"host{number}", tcp_port=1, http_port=1000 + number, version="1")
    return Node(f"10.0.0.{number}:5", peer, now)


class Beside(RuleBasedStateMachine):
    """Whatever is said to the registry, it knows what the model knows."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry(inactive_timeout=INACTIVE, tombstone_lifetime=LIFETIME)
        self.now = 1000
        self.nodes = {number: node(number, self.now) for number in range(3)}
        self.known: set[tuple[str, str]] = set()  # topic, channel or nothing
        self.having: set[tuple[int, str, str]] = set()  # node, topic, channel or nothing
        self.buried: dict[tuple[int, str], int] = {}  # node, topic; since when

    @initialize()
    def come(self) -> None:
        for each in self.nodes.values():
            self.registry.join(each)

    @rule(seconds=st.integers(1, 200))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(number=numbers)
    def ping(self, number: int) -> None:
        self.nodes[number].last_update = self.now

    @rule(number=numbers, topic=names, channel=channels)
    def register(self, number: int, topic: str, channel: str) -> None:
        new = {(number, topic, ""), (number, topic, channel)} - self.having
        told = self.registry.register(self.nodes[number], topic, channel)
        assert {(key, subkey) for _, key, subkey in told} == {(key, sub) for _, key, sub in new}
        self.having |= new
        self.known |= {(topic, ""), (topic, channel)}

    @rule(number=numbers, topic=names, channel=channels)
    def unregister(self, number: int, topic: str, channel: str) -> None:
        gone = {
            each
            for each in self.having
            if each[:2] == (number, topic) and (not channel or each[2] == channel)
        }
        told = self.registry.unregister(self.nodes[number], topic, channel)
        assert {(key, subkey) for _, key, subkey in told} == {(key, sub) for _, key, sub in gone}
        self.forget(gone)
        left = any(each[1:] == (topic, channel) for each in self.having)
        if (channel or topic).endswith("#ephemeral") and not left:
            self.known.discard((topic, channel))

    @rule(number=numbers)
    def come_back(self, number: int) -> None:
        gone = {each for each in self.having if each[0] == number}
        told = self.registry.leave(self.nodes[number])
        assert len(told) == len(gone) + 1
        assert self.registry.leave(self.nodes[number]) == []
        self.forget(gone)
        self.nodes[number] = node(number, self.now)
        self.registry.join(self.nodes[number])

    @rule(topic=names, channel=channels)
    def create(self, topic: str, channel: str) -> None:
        self.registry.create(topic, channel)
        self.known |= {(topic, ""), (topic, channel)}

    @rule(topic=anything)
    def delete_topic(self, topic: str) -> None:
        gone = {key for key in self.known if topic in (ANY, key[0])}
        told = self.registry.delete_topic(topic)
        assert {(key, subkey) for _, key, subkey in told} == gone
        self.known -= gone
        self.forget({each for each in self.having if each[1:] in gone})

    @rule(topic=names, channel=channels.filter(bool))
    def delete_channel(self, topic: str, channel: str) -> None:
        assert self.registry.delete_channel(topic, channel) == ((topic, channel) in self.known)
        self.known.discard((topic, channel))
        self.forget({each for each in self.having if each[1:] == (topic, channel)})

    @rule(number=numbers, topic=anything)
    def tombstone(self, number: int, topic: str) -> None:
        self.registry.tombstone(topic, f"host{number}:{1000 + number}", self.now)
        for each, name, channel in self.having:
            if each == number and topic in (ANY, name) and not channel:
                self.buried[each, name] = self.now

    @invariant()
    def it_knows_the_names(self) -> None:
        topics = {topic for topic, channel in self.known if not channel}
        assert sorted(self.registry.topics()) == sorted(topics)
        for name in ("a", "b", "c#ephemeral"):
            assert self.registry.topics(name) == [name] * (name in topics)
            of_name = [channel for topic, channel in self.known if channel and topic == name]
            assert sorted(self.registry.channels(name)) == sorted(of_name)
        every = [channel for _, channel in self.known if channel]
        assert sorted(self.registry.channels(ANY)) == sorted(every)

    @invariant()
    def it_names_the_nodes_of_a_topic(self) -> None:
        for topic in ("a", "b", "c#ephemeral", ANY):
            expected = {
                self.nodes[number].id
                for number, name, channel in self.having
                if topic in (ANY, name) and not channel
                if self.is_active(number) and not self.is_buried(number, name)
            }
            found = [each.id for each in self.registry.producers(topic, self.now)]
            assert sorted(found) == sorted(expected)

    @invariant()
    def it_lists_all_nodes_with_their_topics(self) -> None:
        expected = {
            self.nodes[number].id: {
                name: self.is_buried(number, name)
                for each, name, channel in self.having
                if each == number and not channel
            }
            for number in self.nodes
            if self.is_active(number)
        }
        assert {each.id: topics for each, topics in self.registry.nodes(self.now)} == expected

    @invariant()
    def it_shows_every_registration(self) -> None:
        expected: dict[Registration, set[Any]] = {
            Registration("client"): {each.id for each in self.nodes.values()}
        }
        for number, topic, channel in self.having:
            key = Registration("channel" if channel else "topic", topic, channel)
            expected.setdefault(key, set()).add(self.nodes[number].id)
        found = self.registry.registrations().items()
        assert {key: {each.node.id for each in producers} for key, producers in found} == expected

    def forget(self, gone: set[tuple[int, str, str]]) -> None:
        self.having -= gone
        for number, topic, channel in gone:
            if not channel:
                self.buried.pop((number, topic), None)

    def is_active(self, number: int) -> bool:
        return self.now - self.nodes[number].last_update <= INACTIVE

    def is_buried(self, number: int, topic: str) -> bool:
        since = self.buried.get((number, topic))
        return since is not None and self.now - since < LIFETIME


TestBeside = Beside.TestCase
TestBeside.settings = settings(max_examples=100, stateful_step_count=40)


def test_a_tombstone_lasts_for_its_lifetime_and_no_longer() -> None:
    producer = Producer(node(1), tombstoned_at=100)
    assert [producer.is_tombstoned(at, 45) for at in (100, 144, 145)] == [True, True, False]
    assert not Producer(node(1)).is_tombstoned(100, 45)


def test_a_node_is_named_until_it_has_been_silent_for_too_long() -> None:
    registry = Registry(inactive_timeout=300, tombstone_lifetime=45)
    one = node(1, now=1000)
    registry.join(one)
    registry.register(one, "t")
    assert registry.producers("t", 1300) == [one]
    assert registry.producers("t", 1301) == []
    assert registry.nodes(1300) == [(one, {"t": False})]
    assert registry.nodes(1301) == []
    one.last_update = 1301
    assert registry.producers("t", 1301) == [one]


def test_registering_again_does_not_lift_a_tombstone() -> None:
    registry = Registry(inactive_timeout=300, tombstone_lifetime=45)
    one = node(1)
    registry.join(one)
    registry.register(one, "t")
    registry.tombstone("t", "host1:1001", 10)
    assert registry.register(one, "t", "c") == [Registration("channel", "t", "c")]
    assert registry.producers("t", 11) == []
    registry.unregister(one, "t")
    registry.register(one, "t")
    assert registry.producers("t", 11) == [one]


def test_a_topic_whose_nodes_are_gone_is_still_known() -> None:
    registry = Registry(inactive_timeout=300, tombstone_lifetime=45)
    one = node(1)
    registry.join(one)
    registry.register(one, "t#ephemeral", "c#ephemeral")
    registry.leave(one)
    assert registry.topics() == ["t#ephemeral"]
    assert registry.channels("t#ephemeral") == ["c#ephemeral"]
