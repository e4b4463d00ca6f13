"""The engine of an nsqd: its topics, its clockwork, its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from nsqflow.broker.engine.backlog import Backlog, Memory
from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.entry import Entry
from nsqflow.broker.engine.ids import Ids
from nsqflow.broker.engine.journal import NOWHERE, Journal
from nsqflow.broker.engine.publication import Publication
from nsqflow.broker.engine.subscriber import Subscriber
from nsqflow.broker.engine.timers import Timers
from nsqflow.broker.engine.topic import Topic
from nsqflow.protocol.names import is_ephemeral

# However small the queue is to be, there must be room for a page from the journal, and for what
# comes between two deliveries to something ephemeral, which would drop it.
_LEAST_CAPACITY = 100


class Listener:
    """Hears of what comes and goes; a subclass acts on it."""

    def created(self, topic: str, channel: str | None) -> None:
        """A topic, or a channel, has been made."""

    def deleted(self, topic: str, channel: str | None) -> None:
        """A topic, or a channel, is gone."""

    def closed(self, subscribers: Sequence[Subscriber]) -> None:
        """The channel of these subscribers is gone."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A topic or a channel as the journal has kept it."""

    place: int
    topic: str
    channel: str | None = None
    paused: bool = False
    spilled: int = 0
    """How many of its messages were never put off: they are asked for when they are needed."""
    entries: Sequence[Entry] = field(default=(), repr=False)
    """The others."""


class Engine:
    """All topics of one nsqd."""

    def __init__(
        self,
        *,
        node_id: int = 0,
        mem_queue_size: int = 10_000,
        max_memory: int = 256 * 1024 * 1024,
        max_msg_timeout: int = 900 * 10**9,
        max_channel_consumers: int = 0,
        journal: Journal | None = None,
        listener: Listener | None = None,
        chance: Callable[[], int] = lambda: 0,
    ) -> None:
        self.topics: dict[str, Topic] = {}
        self.journal = journal or _NOTHING
        self.durable = journal is not None
        self.listener = listener or Listener()
        self.memory = Memory(max_memory)
        self.timers = Timers()
        self.ids = Ids(node_id)
        self.max_msg_timeout = max_msg_timeout
        self.max_channel_consumers = max_channel_consumers
        self.chance = chance
        """A number from 0 to 99, for the sample rate."""
        self._node_id = node_id
        self._mem_queue_size = mem_queue_size
        self._places = count(1)
        self._at: dict[int, Topic | Channel] = {}
        self._awake: dict[Channel, None] = {}
        self._unstored: list[Publication] = []  # published since they were last taken

    # Public methods

    def topic(self, name: str, now: int) -> Topic:
        """Return the topic, which is made if there is none of that name."""
        topic = self.topics.get(name)
        if topic is None:
            place = self.new_place(kept=not is_ephemeral(name))
            topic = self.topics[name] = Topic(self, name, place)
            self.journal_of(place).create(place, name, None)
            self.register(topic)
            self.listener.created(name, None)
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its channels; raise ``KeyError`` if there is none."""
        topic = self.topics.pop(name)
        topic.close()
        self.unregister(topic)
        self.journal_of(topic.place).drop(topic.place)
        self.listener.deleted(name, None)

    def tick(self, now: int) -> None:
        """Do what time has brought: messages time out, others come due."""
        self.timers.tick(now)

    @property
    def next_at(self) -> int | None:
        """When there is something for ``tick`` to do."""
        return self.timers.next_at

    @property
    def restless(self) -> bool:
        """There may be something for ``deliver`` to do."""
        return bool(self._awake)

    def deliver(self, now: int) -> list[tuple[Subscriber, list[Entry]]]:
        """Put in flight what can be, and say who is to be sent what."""
        awake, self._awake = self._awake, {}
        return [given for channel in awake if not channel.gone for given in channel.deliver(now)]

    def loaded(self, place: int, entries: Sequence[Entry]) -> None:
        """Take what the journal was asked for."""
        if (at := self._at.get(place)) is not None:
            at.loaded(entries)

    def take_unstored(self) -> list[Publication]:
        """Return what was given to the journal since the last call.

        Each such group must go to ``stored`` or ``refused``, in the order of these calls.
        """
        group, self._unstored = self._unstored, []
        return group

    def stored(self, group: Iterable[Publication], now: int) -> None:
        """Have publications in the queues: the journal has stored them."""
        self._settle(group, lambda publication: publication.topic.stored(publication, now))

    def refused(self, group: Iterable[Publication]) -> None:
        """Forget publications: the journal could not store them."""
        self._settle(group, lambda publication: publication.topic.refused(publication))

    def recall(self, now: int) -> None:
        """Take back all that is in flight, as a server does that stops."""
        for topic in self.topics.values():
            topic.begin((), now)
            for channel in topic.channels.values():
                channel.recall(now)

    def without_messages(self) -> Engine:
        """Return what a server that was killed has after its restart, without a journal.

        nsqd writes down which topics and channels there are, and which are paused.
        """
        survivor = Engine(
            node_id=self._node_id,
            mem_queue_size=self._mem_queue_size,
            max_memory=self.memory.limit,
            max_msg_timeout=self.max_msg_timeout,
            max_channel_consumers=self.max_channel_consumers,
            chance=self.chance,
        )
        survivor.ids = self.ids
        for topic in self.topics.values():
            if topic.ephemeral:
                continue
            again = survivor.topics[topic.name] = Topic(survivor, topic.name, NOWHERE)
            again.paused = topic.paused
            for channel in topic.channels.values():
                if not channel.ephemeral:
                    again.restore_channel(channel.name, NOWHERE, 0).paused = channel.paused
        return survivor

    def restore(
        self, places: Iterable[Restored], last_id: bytes, last_place: int, now: int
    ) -> None:
        """Have again what the journal has kept; topics come before their channels."""
        self.ids = Ids(self._node_id, last_id)
        self._places = count(last_place + 1)
        for each in places:
            at: Topic | Channel
            if each.channel is None:
                at = self.topics[each.topic] = Topic(
                    self, each.topic, each.place, spilled=each.spilled
                )
                self.register(at)
                for entry in each.entries:
                    at.restore(entry)
            else:
                topic = self.topics[each.topic]
                at = topic.restore_channel(each.channel, each.place, each.spilled)
                for entry in each.entries:
                    at.restore(entry, now)
                self.wake(at)
            at.paused = each.paused
        for topic in self.topics.values():
            topic.spread(now)

    # For topics and channels.

    def await_storage(self, publication: Publication) -> None:
        """Hold a publication that was given to the journal until it is stored."""
        self.memory.used += publication.size
        self._unstored.append(publication)

    def wake(self, channel: Channel) -> None:
        """Look at a channel with the next ``deliver``."""
        self._awake[channel] = None

    def journal_of(self, place: int) -> Journal:
        """Return who keeps what is in a place."""
        return _NOTHING if place == NOWHERE else self.journal

    def new_place(self, *, kept: bool) -> int:
        """Return a place of its own for what is kept."""
        return next(self._places) if kept and self.durable else NOWHERE

    def backlog(self, place: int, ephemeral: bool, spilled: int) -> Backlog:
        """Return an empty backlog: bounded, if what does not fit can be had again, or dropped."""
        bounded = place != NOWHERE or ephemeral
        capacity = max(self._mem_queue_size, _LEAST_CAPACITY) if bounded else None
        return Backlog(place, self.journal_of(place), self.memory, capacity, spilled)

    def register(self, at: Topic | Channel) -> None:
        """Know whom a page is for."""
        if at.place != NOWHERE:
            self._at[at.place] = at

    def unregister(self, at: Topic | Channel) -> None:
        """Forget whom a page is for."""
        self._at.pop(at.place, None)

    # Private methods

    def _settle(self, group: Iterable[Publication], settle: Callable[[Publication], None]) -> None:
        """Settle all of them, then raise the first error: each has its place in its topic."""
        errors: list[Exception] = []
        for publication in group:
            self.memory.used -= publication.size
            try:
                settle(publication)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


_NOTHING = Journal()
