"""RDY: whatever happens in whatever order, with servers that obey as late as they may.

The plan waits ``settle`` for a lower RDY. Half of that is the way of the command to the
server here, half the way of a message back; within its half each comes as late as it likes.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsqflow.client.consumer.rdy import RdyDistributor
from nsqflow.client.consumer.rdy_policy import FlowState

SETTLE = 0.5
WAY = SETTLE / 2


@dataclass
class Server:
    """One nsqd that obeys RDY, and the two ways to and from it."""

    limit: int
    rdy: int = 0
    to_come: deque[tuple[float, int]] = field(default_factory=deque)
    """RDY on their way, each with the time at which it arrives at the latest."""
    on_the_way: deque[float] = field(default_factory=deque)
    """Messages on their way, each by the time at which it arrives at the latest."""
    outstanding: int = 0
    sent: deque[tuple[float, int]] = field(default_factory=lambda: deque([(-1.0, 0)]))
    """The RDY sent, of which the server may go by any that is not known to be replaced."""

    @property
    def in_flight(self) -> int:
        return len(self.on_the_way) + self.outstanding

    def most(self, now: float) -> int:
        """How many messages may be in flight, as far as the client can know."""
        while len(self.sent) > 1 and now >= self.sent[1][0] + SETTLE:
            self.sent.popleft()
        return max(self.outstanding, *(rdy for _, rdy in self.sent))

    def receive_rdy(self) -> None:
        self.rdy = self.to_come.popleft()[1]

    def push(self, count: int, now: float) -> None:
        free = max(0, self.rdy - self.in_flight)
        self.on_the_way.extend([now + WAY] * min(count, free))


class Consumer(RuleBasedStateMachine):
    """One consumer's plan and its servers, and a clock that the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.servers: dict[int, Server] = {}
        self.now = 1000.0
        self.orphans = 0
        self.added = 0
        self.excess = 0
        """What was allowed when max_in_flight was higher, above what is allowed now."""

    @initialize(max_in_flight=st.integers(1, 30), seed=st.integers(0, 99))
    def begin(self, max_in_flight: int, seed: int) -> None:
        self.max_in_flight = max_in_flight
        self.plan: RdyDistributor[int] = RdyDistributor(
            max_in_flight, random=Random(seed), settle=SETTLE
        )

    # What may happen

    @precondition(lambda self: len(self.servers) < 8)
    @rule(limit=st.integers(1, 5) | st.just(2500))
    def add(self, limit: int) -> None:
        self.added += 1
        self.servers[self.added] = Server(limit)
        self.plan.add(self.added, limit, self.now)

    @precondition(lambda self: self.servers)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        key = self.draw_key(data)
        server = self.servers.pop(key)
        outstanding = data.draw(st.integers(0, server.outstanding))
        self.orphans += outstanding
        self.plan.remove(key, outstanding)

    @precondition(lambda self: self.servers)
    @rule(data=st.data(), count=st.integers(1, 40))
    def push(self, data: st.DataObject, count: int) -> None:
        self.servers[self.draw_key(data)].push(count, self.now)

    @precondition(lambda self: self.servers)
    @rule(data=st.data())
    def hear_rdy_early(self, data: st.DataObject) -> None:
        server = self.servers[self.draw_key(data)]
        if server.to_come:
            server.receive_rdy()

    @precondition(lambda self: self.servers)
    @rule(data=st.data())
    def receive_early(self, data: st.DataObject) -> None:
        key = self.draw_key(data)
        self.receive(key, len(self.servers[key].on_the_way))

    @precondition(lambda self: self.servers)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        key = self.draw_key(data)
        server = self.servers[key]
        count = data.draw(st.integers(0, server.outstanding))
        server.outstanding -= count
        self.plan.answered(key, count)

    @rule(data=st.data())
    def answer_orphans(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.orphans))
        self.orphans -= count
        self.plan.orphans_answered(count)

    @rule(max_in_flight=st.integers(1, 30))
    def set_max_in_flight(self, max_in_flight: int) -> None:
        self.excess = max(0, self.excess + self.max_in_flight - max_in_flight)
        self.max_in_flight = max_in_flight
        self.plan.set_max_in_flight(max_in_flight)

    @rule(window=st.integers(0, 40) | st.just(math.inf))
    def set_window(self, window: float) -> None:
        self.plan.window = window

    @rule(flow_state=st.sampled_from(FlowState))
    def set_throttle(self, flow_state: FlowState) -> None:
        self.plan.flow_state = flow_state

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.24, 0.25, 0.3, 0.5, 1, 5, 10, 30]))
    def pass_time(self, seconds: float) -> None:
        self.go_to(self.now + seconds)

    @rule()
    def wait_for_review(self) -> None:
        review = self.plan.next_update_at(self.now)
        if review is not None and review > self.now:
            self.go_to(review)
        self.change()

    @rule()
    def change(self) -> None:
        changes = self.plan.pending_updates(self.now)
        raised = False
        for key, rdy in changes.items():
            server = self.servers[key]
            assert rdy != server.sent[-1][1], "sent for nothing"
            raised = raised or rdy > server.sent[-1][1]
            server.sent.append((self.now, rdy))
            server.to_come.append((self.now + WAY, rdy))
        if raised:
            assert self.most_in_flight() <= self.max_in_flight
        self.check_after_change()

    # What must hold

    @invariant()
    def no_more_is_in_flight_than_allowed(self) -> None:
        if self.servers or self.orphans:
            in_flight = sum(server.in_flight for server in self.servers.values()) + self.orphans
            self.excess = max(0, min(self.excess, self.most_in_flight() - self.max_in_flight))
            assert in_flight <= self.max_in_flight + self.excess

    def check_after_change(self) -> None:
        rdys = {key: server.sent[-1][1] for key, server in self.servers.items()}
        assert all(0 <= rdys[key] <= server.limit for key, server in self.servers.items())
        assert sum(rdys.values()) + min(self.orphans, self.max_in_flight) <= self.max_in_flight
        if self.plan.flow_state is FlowState.STOPPED:
            assert not any(rdys.values())
        if self.plan.flow_state is FlowState.TESTING:
            assert sum(rdys.values()) <= 1
        window = self.plan.window
        assert sum(rdys.values()) <= (window + max(1, window // 4) if window else 0)
        review = self.plan.next_update_at(self.now)
        assert review is None or review > self.now, "the owner would spin"
        for key, server in self.servers.items():
            state = self.plan.state(key)
            assert (state.rdy, state.in_flight) == (rdys[key], server.outstanding)
        assert not self.plan.pending_updates(self.now)

    def teardown(self) -> None:
        if hasattr(self, "plan"):
            self.answer_everything()
            self.follow_reviews(seconds=30)
            self.check_shares()

    # How it is done

    def draw_key(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.servers)))

    def go_to(self, now: float) -> None:
        self.now = now
        for key, server in self.servers.items():
            while server.to_come and server.to_come[0][0] <= self.now:
                server.receive_rdy()
            self.receive(key, sum(latest <= self.now for latest in server.on_the_way))

    def receive(self, key: int, count: int) -> None:
        server = self.servers[key]
        for _ in range(count):
            server.on_the_way.popleft()
        if count:
            server.outstanding += count
            self.plan.received(key, count, self.now)

    def most_in_flight(self) -> int:
        return sum(server.most(self.now) for server in self.servers.values()) + self.orphans

    def answer_everything(self) -> None:
        self.pass_time(SETTLE)
        for key, server in self.servers.items():
            self.plan.answered(key, server.outstanding)
            server.outstanding = 0
        self.plan.orphans_answered(self.orphans)
        self.orphans = 0
        self.plan.flow_state = FlowState.FULL
        self.plan.window = math.inf

    def follow_reviews(self, seconds: float) -> None:
        end, rounds = self.now + seconds, 0
        self.change()
        while self.plan.next_update_at(self.now) is not None and self.now < end:
            self.wait_for_review()
            rounds += 1
        assert rounds <= 2 * seconds

    def check_shares(self) -> None:
        rdys = [server.sent[-1][1] for server in self.servers.values()]
        limits = [server.limit for server in self.servers.values()]
        if self.max_in_flight < len(rdys):
            while self.turn_is_settling():
                self.wait_for_review()
            rdys = [server.sent[-1][1] for server in self.servers.values()]
            assert max(rdys) == 1
        assert sum(rdys) == min(self.max_in_flight, sum(limits))
        uncut = [rdy for rdy, limit in zip(rdys, limits, strict=True) if rdy < limit]
        assert max(rdys, default=0) <= min(uncut, default=2500) + 1

    def turn_is_settling(self) -> bool:
        return any(self.plan.state(key).is_short for key in self.servers)


TestConsumer = Consumer.TestCase
TestConsumer.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
