"""An engine, what it should have, and a clock that only goes when told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from nsqflow.broker.engine import channel as channel_module
from nsqflow.broker.engine import engine as engine_module
from nsqflow.broker.engine.engine import Engine, Listener
from nsqflow.broker.engine.publication import Publication
from nsqflow.broker.engine.subscriber import Subscriber
from tests.unit.broker.engine.expected import (
    Copy,
    ExpectedChannel,
    ExpectedPublication,
    ExpectedTopic,
)
from tests.unit.broker.engine.ledger import Ledger, Row

SECOND = 10**9
UTMOST = 15 * SECOND
MOST_BYTES = 64
UNKNOWN = b"f" * 16


class Names(Listener):
    """Knows which topics and channels there are, from hearsay."""

    def __init__(self) -> None:
        self.known: set[tuple[str, str | None]] = set()
        self.turned_out: list[Subscriber] = []

    def created(self, topic: str, channel: str | None) -> None:
        assert (topic, channel) not in self.known
        self.known.add((topic, channel))

    def deleted(self, topic: str, channel: str | None) -> None:
        self.known.remove((topic, channel))

    def closed(self, subscribers: Sequence[Subscriber]) -> None:
        self.turned_out += subscribers


class World(RuleBasedStateMachine):
    """What the rules play with."""

    def __init__(self) -> None:
        super().__init__()
        self.small = [
            patch.object(engine_module, "_LEAST_CAPACITY", 1),
            patch.object(channel_module, "_MOST_BYTES", MOST_BYTES),
        ]
        for each in self.small:
            each.start()
        self.engine: Engine
        self.capacity: int
        self.max_memory: int
        self.now = 1_700_000_000 * SECOND
        self.topics: dict[str, ExpectedTopic] = {}
        self.homes: dict[Subscriber, ExpectedChannel] = {}
        self.listener = Names()
        self.ledger: Ledger | None = None
        self.last_id = b""
        self.unstored: list[ExpectedPublication] = []
        """What was published to what is kept and is not known to be stored, the oldest first."""
        self.taken: list[Publication] = []
        """Those of them that were taken from the engine."""

    def new_engine(self) -> Engine:
        return Engine(
            mem_queue_size=self.capacity,
            max_memory=self.max_memory,
            max_msg_timeout=UTMOST,
            journal=self.ledger,
            listener=self.listener,
        )

    def enlarge(self) -> None:
        """Undo what has made the engine small."""
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
        rows = self.ledger.places[at.real.place].rows
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
        subscribers = [*self.homes]
        subscriber = subscribers[data.draw(st.integers(0, len(subscribers) - 1))]
        return subscriber, self.homes[subscriber]

    def ids(self, subscriber: Subscriber) -> st.SearchStrategy[bytes]:
        """Ids that it has in flight, or else any of its channel, or one that nobody knows."""
        others = st.sampled_from([UNKNOWN, *self.homes[subscriber].copies])
        return st.sampled_from([*subscriber.held]) | others if subscriber.held else others

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
        self.homes[subscriber] = channel

    def stay(self, topic: ExpectedTopic, copies: list[Copy]) -> None:
        if topic.ephemeral:
            copies = self.fitting(topic, copies, len(topic.copies))
        topic.copies |= {copy.id: copy for copy in copies}

    def in_memory(self, topic: ExpectedTopic) -> set[bytes]:
        return {entry.id for entry in topic.real._backlog.ready}

    def spread(self, topic: ExpectedTopic, in_memory: set[bytes]) -> None:
        if topic.paused or not topic.channels:
            return
        # An ephemeral channel gets none of what would have to be read from the journal.
        first = [copy for copy in topic.copies.values() if copy.id in in_memory]
        for channel in topic.channels.values():
            missing = 0 if channel.kept else len(topic.copies) - len(first)
            self.arrive(channel, first if missing else [*topic.copies.values()], missing)
        topic.copies.clear()
        for publication in self.unstored:
            publication.spread(topic)

    def accept(
        self, topic: ExpectedTopic, copies: list[Copy], to: list[ExpectedChannel] | None
    ) -> None:
        """Have messages in the queues."""
        topic.message_count += len(copies)
        topic.message_bytes += sum(len(copy.body) for copy in copies)
        if to is None:
            self.stay(topic, copies)
        for channel in to or ():
            self.arrive(channel, copies, spilled=0)

    def forget_unstored(self, at: ExpectedTopic | ExpectedChannel) -> None:
        for publication in self.unstored:
            publication.forget(at)

    def arrive(self, channel: ExpectedChannel, copies: list[Copy], spilled: int) -> None:
        channel.message_count += len(copies) + spilled
        copies = [copy.handed_on(self.now) for copy in copies]
        if channel.ephemeral:
            copies = self.fitting(channel, copies, len(channel.waiting()))
        channel.copies |= {copy.id: copy for copy in copies}

    def fitting(
        self, at: ExpectedTopic | ExpectedChannel, copies: list[Copy], waiting: int
    ) -> list[Copy]:
        """Tell what of these something ephemeral takes: the others are dropped, as by nsqd."""
        put_off = [copy for copy in copies if copy.due]
        waiting += sum(not copy.deferred for copy in put_off)
        in_order = [copy for copy in copies if not copy.due]
        fitting = in_order[: max(self.capacity - waiting, 0)]
        ready = {entry.id for entry in at.real._backlog.ready}
        if self.engine.memory.full and not any(copy.id in ready for copy in fitting):
            fitting = []
        return [*put_off, *fitting]

    def due(self) -> list[tuple[ExpectedChannel, Copy]]:
        return [
            (channel, copy)
            for channel in self.channels()
            for copy in channel.copies.values()
            if (copy.deferred and copy.due <= self.now)
            or (copy.owner is not None and copy.deadline <= self.now)
        ]

    def why_not(self, channel: ExpectedChannel, subscriber: Subscriber, id: bytes) -> str:
        owner = channel.copies[id].owner if id in channel.copies else None
        if owner is None:
            return "ID not in flight"
        return "" if owner is subscriber else "client does not own message"

    def channel_is_gone(self, channel: ExpectedChannel) -> None:
        topic = self.topics[channel.real.topic]
        del topic.channels[channel.real.name]
        self.forget_unstored(channel)
        self.turn_out(channel.subscribers)
        if topic.ephemeral and not topic.channels:
            self.topic_is_gone(topic.real.name)

    def topic_is_gone(self, name: str) -> None:
        topic = self.topics.pop(name)
        self.forget_unstored(topic)
        for channel in topic.channels.values():
            self.forget_unstored(channel)
        self.turn_out([each for channel in topic.channels.values() for each in channel.subscribers])

    def turn_out(self, subscribers: list[Subscriber]) -> None:
        heard, self.listener.turned_out = self.listener.turned_out, []
        assert {*heard} == {*subscribers}
        for subscriber in subscribers:
            assert subscriber.in_flight == 0
            del self.homes[subscriber]
