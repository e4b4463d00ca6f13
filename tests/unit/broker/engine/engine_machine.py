"""The state machine of the engine's tests: the engine, its expected state, the time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from nsqflow.broker.engine import channel as channel_module
from nsqflow.broker.engine import engine as engine_module
from nsqflow.broker.engine.channel import Subscriber
from nsqflow.broker.engine.engine import Engine, EngineObserver
from nsqflow.broker.engine.topic import PendingPublish
from tests.unit.broker.engine.expected import (
    Copy,
    ExpectedChannel,
    ExpectedPublication,
    ExpectedTopic,
)
from tests.unit.broker.engine.ledger import Ledger, Row

SECOND = 10**9
MAX_MSG_TIMEOUT = 15 * SECOND
MAX_BYTES = 64
UNKNOWN = b"f" * 16


class ObservedNames(EngineObserver):
    """Tracks topics, channels and closed subscribers by the notifications."""

    def __init__(self) -> None:
        self.known: set[tuple[str, str | None]] = set()
        self.closed_subscribers: list[Subscriber] = []

    def created(self, topic: str, channel: str | None) -> None:
        assert (topic, channel) not in self.known
        self.known.add((topic, channel))

    def deleted(self, topic: str, channel: str | None) -> None:
        self.known.remove((topic, channel))

    def closed(self, subscribers: Sequence[Subscriber]) -> None:
        self.closed_subscribers += subscribers


class EngineMachine(RuleBasedStateMachine):
    """The state that the rules change and check."""

    def __init__(self) -> None:
        super().__init__()
        self.small = [
            patch.object(engine_module, "_MIN_CAPACITY", 1),
            patch.object(channel_module, "_MAX_BYTES", MAX_BYTES),
        ]
        for each in self.small:
            each.start()
        self.engine: Engine
        self.capacity: int
        self.max_memory: int
        self.now = 1_700_000_000 * SECOND
        self.topics: dict[str, ExpectedTopic] = {}
        self.channel_of: dict[Subscriber, ExpectedChannel] = {}
        self.observer = ObservedNames()
        self.ledger: Ledger | None = None
        self.last_id = b""
        self.unstored: list[ExpectedPublication] = []
        """The publishes to persisted topics that are not confirmed, the oldest first."""
        self.taken: list[PendingPublish] = []
        """Those of them that were taken from the engine."""

    def new_engine(self) -> Engine:
        return Engine(
            mem_queue_size=self.capacity,
            max_memory=self.max_memory,
            max_msg_timeout=MAX_MSG_TIMEOUT,
            journal=self.ledger,
            observer=self.observer,
        )

    def enlarge(self) -> None:
        """Restore the engine's usual limits."""
        for each in self.small:
            each.stop()

    def names(self) -> Iterable[tuple[str, str | None]]:
        for name, topic in self.topics.items():
            yield name, None
            for channel in topic.channels:
                yield name, channel

    def rows(self, at: ExpectedTopic | ExpectedChannel) -> dict[bytes, Row] | None:
        if self.ledger is None or not at.kept:
            return None
        rows = self.ledger.queues[at.real.queue_id].rows
        unstored = {copy.id for each in self.unstored if each.goes_to(at) for copy in each.copies}
        assert unstored <= rows.keys()
        return {id: row for id, row in rows.items() if id not in unstored}

    def unstored_ids(self) -> set[bytes]:
        return {copy.id for each in self.unstored for copy in each.copies}

    def everything(self) -> list[ExpectedTopic | ExpectedChannel]:
        return [*self.topics.values(), *self.channels()]

    def channels(self) -> list[ExpectedChannel]:
        return [each for topic in self.topics.values() for each in topic.channels.values()]

    def draw_channel(self, data: st.DataObject) -> ExpectedChannel:
        return data.draw(st.sampled_from(self.channels()))

    def draw_subscriber(self, data: st.DataObject) -> tuple[Subscriber, ExpectedChannel]:
        subscribers = [*self.channel_of]
        subscriber = subscribers[data.draw(st.integers(0, len(subscribers) - 1))]
        return subscriber, self.channel_of[subscriber]

    def ids(self, subscriber: Subscriber) -> st.SearchStrategy[bytes]:
        """Return ids in flight to it, else any of its channel, or an unknown one."""
        others = st.sampled_from([UNKNOWN, *self.channel_of[subscriber].copies])
        return st.sampled_from([*subscriber.in_flight]) | others if subscriber.in_flight else others

    def make_topic(self, name: str) -> ExpectedTopic:
        real = self.engine.topic(name, self.now)
        if name not in self.topics:
            kept = self.ledger is not None and not real.ephemeral
            self.topics[name] = ExpectedTopic(real, kept)
        assert self.topics[name].real is real
        return self.topics[name]

    def add(self, channel: ExpectedChannel, rdy: int, timeout: int) -> None:
        subscriber = Subscriber(None, timeout * SECOND)
        subscriber.rdy = rdy
        channel.real.add(subscriber)
        channel.subscribers.append(subscriber)
        self.channel_of[subscriber] = channel

    def keep_in_topic(self, topic: ExpectedTopic, copies: list[Copy]) -> None:
        if topic.ephemeral:
            copies = self.fitting(topic, copies, len(topic.copies))
        topic.copies |= {copy.id: copy for copy in copies}

    def in_memory(self, topic: ExpectedTopic) -> set[bytes]:
        return {message.id for message in topic.real._queue.ready}

    def fan_out(self, topic: ExpectedTopic, in_memory: set[bytes]) -> None:
        if topic.paused or not topic.channels:
            return
        # An ephemeral channel gets no spilled messages.
        first = [copy for copy in topic.copies.values() if copy.id in in_memory]
        for channel in topic.channels.values():
            missing = 0 if channel.kept else len(topic.copies) - len(first)
            self.put_into(channel, first if missing else [*topic.copies.values()], missing)
        topic.copies.clear()
        for publication in self.unstored:
            publication.fan_out(topic)

    def accept(
        self, topic: ExpectedTopic, copies: list[Copy], to: list[ExpectedChannel] | None
    ) -> None:
        """Put messages into the queues."""
        topic.message_count += len(copies)
        topic.message_bytes += sum(len(copy.body) for copy in copies)
        if to is None:
            self.keep_in_topic(topic, copies)
        for channel in to or ():
            self.put_into(channel, copies, spilled=0)

    def forget_unstored(self, at: ExpectedTopic | ExpectedChannel) -> None:
        for publication in self.unstored:
            publication.forget(at)

    def put_into(self, channel: ExpectedChannel, copies: list[Copy], spilled: int) -> None:
        channel.message_count += len(copies) + spilled
        copies = [copy.for_channel(self.now) for copy in copies]
        if channel.ephemeral:
            copies = self.fitting(channel, copies, len(channel.waiting()))
        channel.copies |= {copy.id: copy for copy in copies}

    def fitting(
        self, at: ExpectedTopic | ExpectedChannel, copies: list[Copy], waiting: int
    ) -> list[Copy]:
        """Return the messages that an ephemeral queue takes; it drops the others, as nsqd does."""
        deferred = [copy for copy in copies if copy.due]
        waiting += sum(not copy.deferred for copy in deferred)
        in_order = [copy for copy in copies if not copy.due]
        fitting = in_order[: max(self.capacity - waiting, 0)]
        ready = {message.id for message in at.real._queue.ready}
        if self.engine.memory.full and not any(copy.id in ready for copy in fitting):
            fitting = []
        return [*deferred, *fitting]

    def due(self) -> list[tuple[ExpectedChannel, Copy]]:
        return [
            (channel, copy)
            for channel in self.channels()
            for copy in channel.copies.values()
            if (copy.deferred and copy.due <= self.now)
            or (copy.owner is not None and copy.deadline <= self.now)
        ]

    def failure_reason(self, channel: ExpectedChannel, subscriber: Subscriber, id: bytes) -> str:
        owner = channel.copies[id].owner if id in channel.copies else None
        if owner is None:
            return "ID not in flight"
        return "" if owner is subscriber else "client does not own message"

    def channel_is_gone(self, channel: ExpectedChannel) -> None:
        topic = self.topics[channel.real.topic]
        del topic.channels[channel.real.name]
        self.forget_unstored(channel)
        self.check_closed(channel.subscribers)
        if topic.ephemeral and not topic.channels:
            self.topic_is_gone(topic.real.name)

    def topic_is_gone(self, name: str) -> None:
        topic = self.topics.pop(name)
        self.forget_unstored(topic)
        for channel in topic.channels.values():
            self.forget_unstored(channel)
        self.check_closed(
            [each for channel in topic.channels.values() for each in channel.subscribers]
        )

    def check_closed(self, subscribers: list[Subscriber]) -> None:
        closed, self.observer.closed_subscribers = self.observer.closed_subscribers, []
        assert {*closed} == {*subscribers}
        for subscriber in subscribers:
            assert subscriber.in_flight_count == 0
            del self.channel_of[subscriber]
