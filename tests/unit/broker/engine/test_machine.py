"""Whatever happens in whatever order: nothing is lost, doubled, early, late or miscounted.

Once with an engine that has all in memory, and once with one whose journal answers late, and
from which another engine goes on after a crash.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from tests.unit.broker.engine.expected import ExpectedChannel, ExpectedTopic
from tests.unit.broker.engine.ledger import Ledger
from tests.unit.broker.engine.rules import Rules
from tests.unit.broker.engine.world import SECOND


class InMemory(Rules):
    """An engine that has nothing but its memory."""

    @invariant()
    def all_is_as_it_should_be(self) -> None:
        assert self.engine.topics == {name: each.real for name, each in self.topics.items()}
        assert self.listener.known == set(self.names())
        used = 0
        for topic in self.topics.values():
            used += topic.check(self.rows(topic))
            for channel in topic.channels.values():
                used += channel.check(self.rows(channel))
        used += sum(each.size for each in self.unstored)
        assert self.engine.memory.used == used

    @invariant()
    def the_next_time_is_not_after_anything_that_has_one(self) -> None:
        times = [copy.deadline for each in self.channels() for copy in each.in_flight()]
        times += [copy.due for each in self.channels() for copy in each.deferred()]
        if times:
            assert self.engine.next_at is not None
            assert self.engine.next_at <= min(times)

    @invariant()
    def a_channel_that_can_deliver_is_looked_at(self) -> None:
        for channel in self.channels():
            hungry = not channel.paused and any(each.room for each in channel.subscribers)
            if hungry and channel.real.depth and not channel.real._backlog._loading:
                assert channel.real in self.engine._awake

    @invariant()
    def queues_are_bounded(self) -> None:
        for at in self.everything():
            in_order = [entry for entry in at.real._backlog.ready if not entry.due]
            if at.kept or at.ephemeral:
                assert len(in_order) <= self.capacity

    def teardown(self) -> None:
        try:
            if hasattr(self, "engine"):
                self.deliver_and_finish_all_there_is()
        finally:
            self.enlarge()

    def deliver_and_finish_all_there_is(self) -> None:
        for name in [*self.topics]:
            if not self.topics[name].channels:
                self.make_channel(name, "a")
        for topic in self.topics.values():
            in_memory = self.in_memory(topic)
            topic.real.unpause(self.now)
            topic.paused = False
            self.spread(topic, in_memory)
        for channel in self.channels():
            channel.real.unpause()
            channel.paused = False
            for subscriber in channel.subscribers:
                subscriber.blocked = True
            self.add(channel, rdy=1000, timeout=3)
        for _ in range(4):  # what others have in flight, and what is put off, takes its time
            self.settle()
            self.all_is_as_it_should_be()
            for channel in self.channels():
                channel.real.finish(channel.subscribers[-1], [*channel.subscribers[-1].held])
                channel.copies = {
                    id: copy
                    for id, copy in channel.copies.items()
                    if copy.owner is not channel.subscribers[-1]
                }
            self.tick(21 * SECOND)
        assert not any(each.copies for each in self.everything())
        self.all_is_as_it_should_be()
        assert self.engine.memory.used == 0
        assert self.engine.next_at is None


class Journaled(InMemory):
    """The same, with a journal that answers when it likes and outlives the engine."""

    ledger: Ledger

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()

    @precondition(lambda self: self.unstored)
    @rule(stored=st.sampled_from([True, True, False]))
    def store_one(self, stored: bool) -> None:
        """Let the oldest publication be stored, or refused."""
        self.taken += self.engine.take_unstored()
        publication = self.taken.pop(0)
        expected = self.unstored.pop(0)
        if stored:
            self.engine.stored([publication], self.now)
            self.accept(expected.topic, expected.copies, expected.channels)
        else:
            self.ledger.refuse(copy.id for copy in expected.copies)
            self.engine.refused([publication])

    @precondition(lambda self: self.unstored)
    @rule()
    def store_all(self) -> None:
        while self.unstored:
            self.store_one(stored=True)

    @precondition(lambda self: self.ledger.asked)
    @rule(late=st.booleans(), most=st.sampled_from([1, 2, 100]), stored=st.booleans())
    def answer(self, late: bool, most: int, stored: bool) -> None:
        # What was put before the page was asked for is stored by now, or refused.
        last_id = self.ledger.asked[0].last_id
        while self.unstored and self.unstored[0].copies[0].id <= last_id:
            self.store_one(stored=stored)
        self.ledger.answer(self.engine, late=late, most=most, unstored=self.unstored_ids())

    def answer_all(self) -> bool:
        asked = bool(self.ledger.asked or self.unstored)
        self.store_all()
        while self.ledger.asked:
            self.ledger.answer(self.engine)
        return asked

    @rule(graceful=st.booleans(), stored=st.integers(0, 3))
    def restart(self, graceful: bool, stored: int) -> None:
        if graceful:
            self.engine.recall(self.now)
            for copy in [copy for channel in self.channels() for copy in channel.in_flight()]:
                copy.again(self.now, self.now)
        while self.unstored:
            self.store_one(stored=stored > 0)
            stored -= 1
        self.now += SECOND  # or ids of what is not kept could be given out again
        self.engine = self.new_engine()
        self.ledger.restore(self.engine, self.now)
        before, self.homes = self.homes, {}
        self.topics = {
            name: self.begun_anew(each) for name, each in self.topics.items() if each.kept
        }
        self.listener.known = {*self.names()}
        for subscriber, channel in before.items():
            if channel.kept:  # it comes back
                at = self.topics[channel.real.topic].channels[channel.real.name]
                self.add(at, subscriber.rdy, subscriber.msg_timeout // SECOND)

    def begun_anew(self, topic: ExpectedTopic) -> ExpectedTopic:
        real = self.engine.topics[topic.real.name]
        anew = ExpectedTopic(real, True, topic.paused, topic.copies)
        kept = {name: channel for name, channel in topic.channels.items() if channel.kept}
        for name, old in kept.items():
            anew.channels[name] = ExpectedChannel(real.channels[name], True, old.paused, old.copies)
            for copy in old.copies.values():
                copy.owner, copy.attempts = None, copy.noted
                copy.deferred = copy.due > self.now
        return anew

    @invariant()
    def the_journal_has_what_is_kept(self) -> None:
        kept = {each.real.place: each.real for each in self.everything() if each.kept}
        assert self.ledger.places.keys() == kept.keys()
        assert self.engine._at == kept


TestInMemory = InMemory.TestCase
TestInMemory.settings = settings(max_examples=100, stateful_step_count=50)

TestJournaled = Journaled.TestCase
TestJournaled.settings = settings(max_examples=100, stateful_step_count=50)
