"""The rules of the engine's state machine: calls, and what is expected of them."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from nsqflow.broker.engine.channel import NotInFlight
from nsqflow.broker.engine.message import MESSAGE_OVERHEAD
from nsqflow.broker.engine.topic import OutOfMemory
from tests.unit.broker.engine.engine_machine import (
    MAX_BYTES,
    MAX_MSG_TIMEOUT,
    SECOND,
    EngineMachine,
)
from tests.unit.broker.engine.expected import (
    Copy,
    ExpectedChannel,
    ExpectedPublication,
    ExpectedTopic,
)

# Few names, so that operations often meet in one topic.
topic_names = st.sampled_from(["t", "t", "t", "u", "v#ephemeral"])
channel_names = st.sampled_from(["a", "b", "c#ephemeral"])
delays = st.sampled_from([0, 0, 0, 1, SECOND, 5 * SECOND, 20 * SECOND])
bodies = st.lists(st.integers(1, 50).map(bytes), min_size=1, max_size=8)


class Rules(EngineMachine):
    """Publishers, operators, subscribers, and a server whose time is an argument."""

    @initialize(
        capacity=st.integers(1, 6), max_memory=st.sampled_from([6 * MESSAGE_OVERHEAD, 10**9])
    )
    def start(self, capacity: int, max_memory: int) -> None:
        self.capacity = capacity
        self.max_memory = max_memory
        self.engine = self.new_engine()
        self.make_channel("t", "a")
        self.add(self.topics["t"].channels["a"], rdy=3, timeout=3)
        self.publish("t", [b"x"] * 5, 0)
        self.deliver()

    # Publishers

    @rule(name=topic_names, bodies=bodies, delay=delays)
    def publish(self, name: str, bodies: list[bytes], delay: int) -> None:
        topic = self.make_topic(name)
        size = (sum(map(len, bodies)) + MESSAGE_OVERHEAD * len(bodies)) * max(
            len(topic.channels), 1
        )
        if (delay or not topic.kept) and self.engine.memory.used + size > self.max_memory:
            with pytest.raises(OutOfMemory):
                topic.real.publish(bodies, self.now, delay)
            return
        ids = deepcopy(self.engine.ids).take(len(bodies), self.now)
        assert [self.last_id, *ids] == sorted({self.last_id, *ids}), "ids ascend"
        self.last_id = ids[-1]
        assert topic.real.publish(bodies, self.now, delay) is topic.kept
        due = self.now + delay if delay else 0
        copies = [Copy(id, body, self.now, due) for id, body in zip(ids, bodies, strict=True)]
        keep = topic.paused or not topic.channels
        to = None if keep else [*topic.channels.values()]
        if topic.kept:
            self.unstored.append(ExpectedPublication(topic, copies, to))
        else:
            self.accept(topic, copies, to)

    @rule(name=topic_names, bodies=bodies)
    def publish_and_deliver(self, name: str, bodies: list[bytes]) -> None:
        self.publish(name, bodies, 0)
        self.deliver()

    # Operators

    @rule(name=topic_names, channel=channel_names)
    def make_channel(self, name: str, channel: str) -> None:
        topic = self.make_topic(name)
        in_memory = self.in_memory(topic)
        real = topic.real.channel(channel, self.now)
        if channel in topic.channels:
            assert real is topic.channels[channel].real
        else:
            kept = topic.kept and not real.ephemeral
            topic.channels[channel] = ExpectedChannel(real, kept)
            self.fan_out(topic, in_memory)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), what=st.sampled_from(["pause", "pause", "empty", "delete"]))
    def administer(self, data: st.DataObject, what: str) -> None:
        at = data.draw(st.sampled_from(self.everything()))
        if what == "pause":
            at.real.pause()
            at.paused = True
        elif what == "empty":
            at.real.empty()
            at.copies.clear()
            self.forget_unstored(at)
        else:
            self.delete(at)

    def delete(self, at: ExpectedTopic | ExpectedChannel) -> None:
        if isinstance(at, ExpectedTopic):
            self.engine.delete_topic(at.real.name)
            self.topic_is_gone(at.real.name)
        else:
            self.topics[at.real.topic].real.delete_channel(at.real.name)
            self.channel_is_gone(at)

    @precondition(lambda self: any(each.paused for each in self.everything()))
    @rule(data=st.data())
    def unpause(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from([each for each in self.everything() if each.paused]))
        at.paused = False
        if isinstance(at, ExpectedTopic):
            in_memory = self.in_memory(at)
            at.real.unpause(self.now)
            self.fan_out(at, in_memory)
        else:
            at.real.unpause()

    # Subscribers

    @precondition(lambda self: self.channels() and len(self.channel_of) < 6)
    @rule(data=st.data(), rdy=st.integers(0, 9), timeout=st.sampled_from([3, 10, 15, 20]))
    def subscribe(self, data: st.DataObject, rdy: int, timeout: int) -> None:
        self.add(self.draw_channel(data), rdy, timeout)

    @precondition(lambda self: self.channel_of)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        subscriber, channel = self.draw_subscriber(data)
        del self.channel_of[subscriber]
        channel.subscribers.remove(subscriber)
        channel.former_subscribers.append(subscriber)
        channel.real.remove(subscriber)
        if channel.ephemeral and not channel.subscribers:
            self.channel_is_gone(channel)

    @precondition(lambda self: self.channel_of)
    @rule(data=st.data(), rdy=st.integers(0, 9), blocked=st.sampled_from([False, False, True]))
    def change(self, data: st.DataObject, rdy: int, blocked: bool) -> None:
        subscriber, channel = self.draw_subscriber(data)
        subscriber.rdy, subscriber.blocked = rdy, blocked
        subscriber.closing = subscriber.closing or (blocked and rdy == 9)
        channel.real.subscriber_changed()

    @precondition(lambda self: self.channel_of)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        subscriber, channel = self.draw_subscriber(data)
        ids = data.draw(st.lists(self.ids(subscriber), unique=True, max_size=8))
        reasons = {id: self.failure_reason(channel, subscriber, id) for id in ids}
        done = [id for id in ids if not reasons[id]]
        count = subscriber.finish_count
        failed = channel.real.finish(subscriber, ids)
        assert failed == [(id, reason) for id, reason in reasons.items() if reason]
        assert subscriber.finish_count == count + len(done)
        for id in done:
            del channel.copies[id]

    @precondition(lambda self: self.channel_of)
    @rule(data=st.data(), delay=delays)
    def requeue(self, data: st.DataObject, delay: int) -> None:
        subscriber, channel = self.draw_subscriber(data)
        id = data.draw(self.ids(subscriber))
        if reason := self.failure_reason(channel, subscriber, id):
            with pytest.raises(NotInFlight, match=f"^{reason}$"):
                channel.real.requeue(subscriber, id, delay, self.now)
            return
        count = subscriber.requeue_count
        channel.real.requeue(subscriber, id, delay, self.now)
        channel.copies[id].put_back(self.now + delay, self.now)
        channel.requeue_count += 1
        assert subscriber.requeue_count == count + 1

    @precondition(lambda self: self.channel_of)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        subscriber, channel = self.draw_subscriber(data)
        id = data.draw(self.ids(subscriber))
        if reason := self.failure_reason(channel, subscriber, id):
            with pytest.raises(NotInFlight, match=f"^{reason}$"):
                channel.real.touch(subscriber, id, self.now)
            return
        channel.real.touch(subscriber, id, self.now)
        copy = channel.copies[id]
        copy.deadline = min(self.now + subscriber.msg_timeout, copy.delivered + MAX_MSG_TIMEOUT)

    # The server

    @rule()
    def deliver(self) -> None:
        given = self.engine.deliver(self.now)
        assert len({subscriber for subscriber, _ in given}) == len(given)
        for subscriber, messages in given:
            channel = self.channel_of[subscriber]
            assert not channel.paused
            assert not subscriber.closing
            assert not subscriber.blocked
            assert len(subscriber.in_flight) <= subscriber.rdy
            assert sum(len(message.body) for message in messages[:-1]) < MAX_BYTES
            unstored = self.unstored_ids()
            for message in messages:
                assert message.id not in unstored, "a message is delivered before it is stored"
                copy = channel.copies[message.id]
                assert copy.waiting
                assert copy.due <= self.now
                copy.owner = subscriber
                copy.attempts += 1
                copy.delivered = self.now
                copy.deadline = self.now + subscriber.msg_timeout
                if not copy.due:
                    assert copy.id > channel.last_in_order
                    channel.last_in_order = copy.id

    @rule(time=st.sampled_from([1, SECOND]))
    def let_time_pass(self, time: int) -> None:
        """Let time pass without a tick."""
        self.now += time

    @rule(time=st.sampled_from([0, 1, SECOND, 3 * SECOND]))
    def tick(self, time: int) -> None:
        self.now += time
        due = self.due()
        next_at = self.engine.next_at
        assert not due or (next_at is not None and next_at <= self.now)
        self.engine.tick(self.now)
        for channel, copy in due:
            channel.timeout_count += copy.owner is not None
            if copy.owner is not None:
                copy.put_back(self.now, self.now)
            copy.deferred = False

    @rule()
    def tick_at_the_next_time(self) -> None:
        if (next_at := self.engine.next_at) is not None:
            self.tick(max(next_at - self.now, 0))
            assert self.engine.next_at is None or self.engine.next_at > next_at

    @rule()
    def settle(self) -> None:
        """Deliver until nothing is left to deliver."""
        self.deliver()
        rounds = 0
        while self.engine.has_work or self.answer_all():
            self.deliver()
            rounds += 1
            assert rounds < 1000, "the deliveries never end"
        for channel in self.channels():
            if not channel.paused and any(each.capacity for each in channel.subscribers):
                assert channel.real.depth == 0

    def answer_all(self) -> bool:
        """Answer all requests to the journal; return whether there were any."""
        return False
