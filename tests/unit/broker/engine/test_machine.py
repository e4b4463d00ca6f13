"""Random calls in random order: no message is lost, doubled, early, late or miscounted.

Once with an engine that has all in memory, and once with one whose journal answers late, and
from which another engine goes on after a crash.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from tests.unit.broker.engine.engine_machine import SECOND
from tests.unit.broker.engine.expected import ExpectedChannel, ExpectedTopic
from tests.unit.broker.engine.ledger import Ledger
from tests.unit.broker.engine.rules import Rules


class InMemory(Rules):
    """An engine without a journal."""

    @invariant()
    def the_state_is_as_expected(self) -> None:
        assert self.engine.topics == {name: each.real for name, each in self.topics.items()}
        assert self.observer.known == set(self.names())
        used = 0
        for topic in self.topics.values():
            used += topic.check(self.rows(topic))
            for channel in topic.channels.values():
                used += channel.check(self.rows(channel))
        used += sum(each.size for each in self.unstored)
        assert self.engine.memory.used == used

    @invariant()
    def the_next_timer_is_not_later_than_any_deadline(self) -> None:
        times = [copy.deadline for each in self.channels() for copy in each.in_flight_copies()]
        times += [copy.due for each in self.channels() for copy in each.deferred()]
        if times:
            assert self.engine.next_at is not None
            assert self.engine.next_at <= min(times)

    @invariant()
    def a_channel_that_can_deliver_is_marked_dirty(self) -> None:
        for channel in self.channels():
            ready = not channel.paused and any(each.capacity for each in channel.subscribers)
            if ready and channel.real.depth and not channel.real._queue._loading:
                assert channel.real in self.engine._dirty_channels

    @invariant()
    def queues_are_bounded(self) -> None:
        for at in self.everything():
            in_order = [message for message in at.real._queue.ready if not message.due]
            if at.kept or at.ephemeral:
                assert len(in_order) <= self.capacity

    def teardown(self) -> None:
        try:
            if hasattr(self, "engine"):
                self.deliver_and_finish_everything()
        finally:
            self.enlarge()

    def deliver_and_finish_everything(self) -> None:
        for name in [*self.topics]:
            if not self.topics[name].channels:
                self.make_channel(name, "a")
        for topic in self.topics.values():
            in_memory = self.in_memory(topic)
            topic.real.unpause(self.now)
            topic.paused = False
            self.fan_out(topic, in_memory)
        for channel in self.channels():
            channel.real.unpause()
            channel.paused = False
            for subscriber in channel.subscribers:
                subscriber.blocked = True
            self.add(channel, rdy=1000, timeout=3)
        for _ in range(4):  # messages in flight to others and deferred ones come later
            self.settle()
            self.the_state_is_as_expected()
            for channel in self.channels():
                channel.real.finish(channel.subscribers[-1], [*channel.subscribers[-1].in_flight])
                channel.copies = {
                    id: copy
                    for id, copy in channel.copies.items()
                    if copy.owner is not channel.subscribers[-1]
                }
            self.tick(21 * SECOND)
        assert not any(each.copies for each in self.everything())
        self.the_state_is_as_expected()
        assert self.engine.memory.used == 0
        assert self.engine.next_at is None


class Journaled(InMemory):
    """An engine with a journal that answers at any time and survives restarts."""

    ledger: Ledger

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()

    @precondition(lambda self: self.unstored)
    @rule(stored=st.sampled_from([True, True, False]))
    def store_one(self, stored: bool) -> None:
        """Report the oldest publish as stored or not stored."""
        self.taken += self.engine.take_unstored()
        publication = self.taken.pop(0)
        expected = self.unstored.pop(0)
        if stored:
            self.engine.stored([publication], self.now)
            self.accept(expected.topic, expected.copies, expected.channels)
        else:
            self.ledger.remove(copy.id for copy in expected.copies)
            self.engine.not_stored([publication])

    @precondition(lambda self: self.unstored)
    @rule()
    def store_all(self) -> None:
        while self.unstored:
            self.store_one(stored=True)

    @precondition(lambda self: self.ledger.requests)
    @rule(late=st.booleans(), most=st.sampled_from([1, 2, 100]), stored=st.booleans())
    def answer(self, late: bool, most: int, stored: bool) -> None:
        # What was put before the page was requested is settled by now.
        last_id = self.ledger.requests[0].last_id
        while self.unstored and self.unstored[0].copies[0].id <= last_id:
            self.store_one(stored=stored)
        self.ledger.answer(self.engine, late=late, most=most, unstored=self.unstored_ids())

    def answer_all(self) -> bool:
        pending = bool(self.ledger.requests or self.unstored)
        self.store_all()
        while self.ledger.requests:
            self.ledger.answer(self.engine)
        return pending

    @rule(graceful=st.booleans(), stored=st.integers(0, 3))
    def restart(self, graceful: bool, stored: int) -> None:
        if graceful:
            self.engine.requeue_in_flight(self.now)
            for copy in [
                copy for channel in self.channels() for copy in channel.in_flight_copies()
            ]:
                copy.put_back(self.now, self.now)
        while self.unstored:
            self.store_one(stored=stored > 0)
            stored -= 1
        self.now += SECOND  # or ids of messages that are not persisted could be used again
        self.engine = self.new_engine()
        self.ledger.restore(self.engine, self.now)
        before, self.channel_of = self.channel_of, {}
        self.topics = {name: self.restored(each) for name, each in self.topics.items() if each.kept}
        self.observer.known = {*self.names()}
        for subscriber, channel in before.items():
            if channel.kept:  # it reconnects
                at = self.topics[channel.real.topic].channels[channel.real.name]
                self.add(at, subscriber.rdy, subscriber.msg_timeout // SECOND)

    def restored(self, topic: ExpectedTopic) -> ExpectedTopic:
        real = self.engine.topics[topic.real.name]
        restored = ExpectedTopic(real, True, topic.paused, topic.copies)
        kept = {name: channel for name, channel in topic.channels.items() if channel.kept}
        for name, old in kept.items():
            restored.channels[name] = ExpectedChannel(
                real.channels[name], True, old.paused, old.copies
            )
            for copy in old.copies.values():
                copy.owner, copy.attempts = None, copy.stored_attempts
                copy.deferred = copy.due > self.now
        return restored

    @invariant()
    def the_journal_has_all_persisted_queues(self) -> None:
        kept = {each.real.queue_id for each in self.everything() if each.kept}
        assert self.ledger.queues.keys() == kept
        channels = {each.real.queue_id: each.real for each in self.channels() if each.kept}
        assert self.engine.stored_channels == channels


TestInMemory = InMemory.TestCase
TestInMemory.settings = settings(max_examples=100, stateful_step_count=50)

TestJournaled = Journaled.TestCase
TestJournaled.settings = settings(max_examples=100, stateful_step_count=50)
