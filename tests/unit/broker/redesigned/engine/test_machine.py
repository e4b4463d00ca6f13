"""Whatever happens in whatever order: nothing acknowledged is lost, doubled or out of order.

A partition with three replicas and two channels, one of them ordered, under consumers that come and
go and nodes that stop, die, start and take over.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from nsqflow.broker.redesigned.engine.subscriber import DeliverySettings, PartitionSubscriber
from nsqflow.protocol import Layout
from tests.unit.broker.redesigned.engine.cluster_parts import TIMES, Lab
from tests.unit.broker.redesigned.engine.model import ExpectedChannel
from tests.unit.broker.redesigned.engine.parts import SECOND, decode

NODES = 3
TIMEOUT = 30 * SECOND
LONG = 1000 * SECOND  # a delay that takes a message out of the log
SETTLED = 120.0  # seconds after which every change has come to its end
NAMES = ("plain", "ordered")
WINDOW = 3


class Machine(RuleBasedStateMachine):
    """The cluster, and what it should do."""

    def __init__(self) -> None:
        super().__init__()
        self.lab = Lab(NODES, times=TIMES, settings=DeliverySettings(max_confirm_win=WINDOW))
        self.partition = self.lab.create(replica=NODES)
        self.acknowledged: list[bytes] = []
        self.waiting: list[bytes] = []
        self.number = 0
        self.expected = {name: ExpectedChannel(set()) for name in NAMES}
        for name in NAMES:
            self.partition.channel(name)
        self.partition.channels["ordered"].order(True)
        self.expected["ordered"].ordered = True
        self.homes: dict[PartitionSubscriber, str] = {}
        self.quiet = 0.0  # seconds since the last event
        self.terms = self.partition.terms

    @initialize(rdy=st.integers(1, 4))
    def begin(self, rdy: int) -> None:
        for name in NAMES:
            self.subscribe(name, rdy)

    # Publishing

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        bodies = [b"m%d" % (self.number + each) for each in range(count)]
        self.number += count
        answer = self.lab.publish(self.partition, *bodies)
        if answer == "OK":
            self.accepted(bodies)
        elif answer == "waits":
            self.waiting += [b"|".join(bodies)]

    def accepted(self, bodies: list[bytes]) -> None:
        for channel in self.expected.values():
            start = len(self.acknowledged)
            channel.owed |= set(range(start, start + len(bodies)))
        self.acknowledged += bodies

    def hear_results(self) -> None:
        """Note how publishes ended that had to wait."""
        for result in self.lab.results:
            bodies = self.waiting.pop(0).split(b"|")
            if result == "OK":
                self.accepted(bodies)
        self.lab.results.clear()

    # Consuming

    @rule(name=st.sampled_from(NAMES), rdy=st.integers(0, 4))
    def subscribe(self, name: str, rdy: int) -> None:
        if self.partition.leader is not None and len(self.homes) < 4:
            subscriber = PartitionSubscriber(None, TIMEOUT)
            subscriber.rdy = rdy
            self.partition.channel(name).add(subscriber)
            self.homes[subscriber] = name

    @precondition(lambda self: self.homes)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        subscriber = data.draw(st.sampled_from([*self.homes]))
        name = self.homes.pop(subscriber)
        self.partition.channels[name].remove(subscriber)
        self.expected[name].left(subscriber)

    @precondition(lambda self: self.homes)
    @rule(data=st.data(), rdy=st.integers(0, 5))
    def set_rdy(self, data: st.DataObject, rdy: int) -> None:
        subscriber = data.draw(st.sampled_from([*self.homes]))
        subscriber.rdy = rdy
        self.partition.channels[self.homes[subscriber]].subscriber_changed()

    @rule()
    def deliver(self) -> None:
        while self.lab.cluster.has_work:
            for subscriber, data in self.lab.cluster.deliver(self.lab.now):
                for message in decode(data, Layout()):
                    index = message.internal_id - self.partition.log.base_id
                    assert message.body == self.acknowledged[index]
                    expected = self.expected[self.homes[subscriber]]
                    expected.delivered(index, message.attempts, subscriber, self.lab.now)

    @precondition(lambda self: any(each.flight for each in self.expected.values()))
    @rule(data=st.data(), act=st.sampled_from(["finish", "finish", "requeue", "defer", "delay"]))
    def answer(self, data: st.DataObject, act: str) -> None:
        name = data.draw(st.sampled_from([n for n in NAMES if self.expected[n].flight]))
        expected, channel = self.expected[name], self.partition.channels[name]
        index = data.draw(st.sampled_from([*expected.flight]))
        subscriber = expected.flight[index]
        id = (self.partition.log.base_id + index).to_bytes(8, "big") + bytes(8)
        now = self.lab.now
        if act == "finish":
            assert channel.finish(subscriber, [id]) == []
            expected.finished(index)
            return
        delay = {"requeue": 0, "defer": 5 * SECOND, "delay": LONG}[act]
        if delay and name == "ordered":
            channel.requeue(subscriber, id, delay, now)  # has no effect
        elif not channel.reader.too_much_unfinished or act != "defer":
            channel.requeue(subscriber, id, delay, now)
            expected.put_off(index, now + delay)

    @rule(name=st.sampled_from(NAMES))
    def heartbeat(self, name: str) -> None:
        if name in self.partition.channels:
            self.partition.channels[name].wake()

    # Time and nodes

    @rule(seconds=st.sampled_from([0.5, 2.0, 13.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.quiet += seconds
        self.lab.wait(seconds)
        self.hear_results()
        self.note_closed()
        for name in NAMES:
            expected, channel = self.expected[name], self.partition.channels[name]
            for index, holder in [*expected.flight.items()]:
                if index not in holder.in_flight:  # it has timed out
                    del expected.flight[index]
                    expected.waiting[index] = self.lab.now
            assert channel.deleted is False

    @rule(node=st.integers(0, NODES - 1), how=st.sampled_from(["kill", "stop"]))
    def end(self, node: int, how: str) -> None:
        alive = self.lab.leadership.alive
        if alive[node]:
            self.quiet = 0.0
            if how == "kill":
                self.lab.leadership.kill_node(node, self.lab.now)
            else:
                self.lab.leadership.stop_node(node, self.lab.now)
                self.lab.wait(1)  # as the broker does before the next event
                assert not alive[node]
            self.hear_results()
            self.note_closed()

    @rule(node=st.integers(0, NODES - 1))
    def start(self, node: int) -> None:
        if not self.lab.leadership.alive[node]:
            self.quiet = 0.0
            self.lab.leadership.start_node(node, self.lab.now)
            self.hear_results()
            self.note_closed()

    @rule(node=st.integers(0, NODES - 1))
    def move(self, node: int) -> None:
        if self.lab.leadership.alive[node] and self.partition.leader is not None:
            self.quiet = 0.0
            self.lab.leadership.move_leader(self.partition, node, self.lab.now)
            self.hear_results()
            self.note_closed()

    def note_closed(self) -> None:
        """Forget consumers whose leader has gone, and what was in flight to them."""
        gone, self.lab.observer.gone = self.lab.observer.gone, []
        for subscriber in gone:
            self.homes.pop(subscriber, None)
        if self.partition.terms != self.terms:
            self.terms = self.partition.terms
            for name in NAMES:
                reader = self.partition.channels[name].reader
                delayed = {index: each.due for index, each in reader.delayed.items()}
                attempts = {index: each.attempts for index, each in reader.delayed.items()}
                self.expected[name].attempts |= attempts
                self.expected[name].forget(delayed=delayed)

    # What always holds

    @invariant()
    def the_log_is_what_was_acknowledged(self) -> None:
        log = self.partition.log
        assert [log.read(index).body for index in range(log.end)] == self.acknowledged

    @invariant()
    def channels_are_as_they_should_be(self) -> None:
        for name in NAMES:
            self.expected[name].check(self.partition.channels[name], len(self.acknowledged))

    @invariant()
    def a_leader_runs_and_has_everything(self) -> None:
        leader = self.partition.leader
        if leader is not None:
            assert self.lab.leadership.alive[leader]
            assert leader in self.partition.in_sync

    @invariant()
    def a_majority_that_is_left_alone_takes_publishes(self) -> None:
        if self.quiet >= SETTLED:
            alive = sum(self.lab.leadership.alive)
            in_sync = [n for n in self.partition.in_sync if self.lab.leadership.alive[n]]
            if alive >= 2 and in_sync:
                assert self.partition.writable
                assert self.partition.leader is not None
            if alive < 2:
                assert not self.partition.writable

    def teardown(self) -> None:
        """Start everything, and let everything be delivered and finished."""
        for node in range(NODES):
            self.start(node)
        self.wait(SETTLED)
        assert self.partition.writable
        self.publish(1)
        for name in NAMES:
            for subscriber in [each for each, home in self.homes.items() if home == name]:
                subscriber.rdy = 0
            subscriber = PartitionSubscriber(None, 10 * LONG)
            subscriber.rdy = 1000
            self.partition.channels[name].add(subscriber)
            self.homes[subscriber] = name
        self.wait(2 * LONG / SECOND)
        while any(each.owed for each in self.expected.values()):
            before = sum(len(each.owed) for each in self.expected.values())
            for name in NAMES:
                self.heartbeat(name)
            self.deliver()
            for name, expected in self.expected.items():
                for index, holder in [*expected.flight.items()]:
                    id = (self.partition.log.base_id + index).to_bytes(8, "big") + bytes(8)
                    assert self.partition.channels[name].finish(holder, [id]) == []
                    expected.finished(index)
            assert sum(len(each.owed) for each in self.expected.values()) < before
        self.channels_are_as_they_should_be()
        assert all(self.partition.channels[name].reader.depth == 0 for name in NAMES)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
