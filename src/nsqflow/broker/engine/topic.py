"""A topic: messages come in, and each of its channels gets a copy."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.entry import COST, Entry
from nsqflow.broker.engine.journal import NOWHERE
from nsqflow.broker.engine.place import Place
from nsqflow.broker.engine.publication import Publication
from nsqflow.protocol.names import is_ephemeral

if TYPE_CHECKING:
    from nsqflow.broker.engine.engine import Engine


class Full(Exception):
    """There is no memory left for what is to be published; nothing of it was taken."""


class Topic(Place):
    """A stream of messages; it keeps them itself while there is no channel to take them."""

    def __init__(self, engine: Engine, name: str, place: int, *, spilled: int = 0) -> None:
        super().__init__(engine, name, place, spilled)
        self.message_bytes = 0
        self.channels: dict[str, Channel] = {}
        self.waiting = False
        """Nothing goes to the channels yet: it is being found out which there are to be."""
        self._unstored: deque[Publication] = deque()  # the oldest first

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    def publish(self, bodies: Sequence[bytes], now: int, delay: int = 0) -> bool:
        """Take messages; raise ``Full`` and take none of them if there is no room.

        Returns whether the journal must store them: then they are in no queue until it has.
        """
        if not bodies:
            return False
        size = sum(map(len, bodies))
        self._check_room(size + COST * len(bodies), spillable=not delay)
        due = now + delay if delay else 0
        ids = self._engine.ids.take(len(bodies), now)
        entries = [*map(Entry, ids, repeat(now), bodies, repeat(0), repeat(due))]
        keep = self.paused or self.waiting or not self.channels
        channels = None if keep else [*self.channels.values()]
        if self.place == NOWHERE:
            self._accept(entries, size, channels, now)
            return False
        self._await_storage(Publication(self, entries, size, channels))
        return True

    def stored(self, publication: Publication, now: int) -> None:
        """Have the oldest publication in the queues: it is stored."""
        self._take(publication)
        self._accept(publication.entries, publication.body_bytes, publication.channels, now)

    def refused(self, publication: Publication) -> None:
        """Forget the oldest publication: it could not be stored."""
        self._take(publication)

    def channel(self, name: str, now: int) -> Channel:
        """Return the channel, which is made if there is none of that name."""
        channel = self.channels.get(name)
        if channel is None:
            place = self._engine.new_place(kept=self.place != NOWHERE and not is_ephemeral(name))
            channel = self.channels[name] = Channel(self._engine, self.name, name, place)
            self._engine.journal_of(place).create(place, self.name, name)
            self._engine.register(channel)
            self._engine.listener.created(self.name, name)
            self.spread(now)
        return channel

    def delete_channel(self, name: str) -> None:
        """Delete a channel with its messages; raise ``KeyError`` if there is none."""
        self._drop(self.channels.pop(name))
        if self.ephemeral and not self.channels:
            self._engine.delete_topic(self.name)

    def restore_channel(self, name: str, place: int, spilled: int) -> Channel:
        """Have a channel again that the journal knows."""
        channel = Channel(self._engine, self.name, name, place, spilled=spilled)
        self.channels[name] = channel
        self._engine.register(channel)
        return channel

    def restore(self, entry: Entry) -> None:
        """Have a message again that was put off."""
        self._backlog.hold(entry)

    def loaded(self, entries: Sequence[Entry]) -> None:
        """Take no page: a topic's messages go to its channels without having been loaded."""

    def begin(self, channels: Iterable[str], now: int) -> None:
        """Have these channels, and wait for no others."""
        for name in channels:
            self.channel(name, now)
        self.waiting = False
        self.spread(now)

    def pause(self) -> None:
        """Keep what comes, and give nothing to the channels."""
        self._set_paused(True)

    def unpause(self, now: int) -> None:
        """Give the channels what they have missed."""
        self._set_paused(False)
        self.spread(now)

    def spread(self, now: int) -> None:
        """Give the channels what was kept while they could not have it."""
        if self.paused or self.waiting or not self.channels:
            return
        unstored = self._kept_unstored()
        if not self._backlog and not unstored:
            return
        spilled, entries = self._backlog.spilled, [*self._backlog.ready]
        self._backlog.clear()
        places = [each.place for each in self.channels.values() if each.place != NOWHERE]
        self._journal.spread(self.place, places)
        for channel in self.channels.values():
            self._give(channel, [entry.copy() for entry in entries], now)
            channel.take_spilled(spilled)
        # By then the journal has moved them, too.
        for publication in unstored:
            publication.channels = [*self.channels.values()]

    def empty(self) -> None:
        """Forget the messages that no channel has got."""
        self._journal.clear(self.place)
        self._clear()

    def forget_unstored(self, channel: Channel) -> None:
        """Let a channel get nothing of what is not stored yet: it loses all its messages."""
        for publication in self._unstored:
            if publication.channels is not None and channel in publication.channels:
                publication.channels.remove(channel)

    def close(self) -> None:
        """Delete all channels, and forget the messages: the topic is being deleted."""
        while self.channels:
            self._drop(self.channels.popitem()[1])
        self._clear()

    # Private methods

    def _check_room(self, size: int, spillable: bool) -> None:
        # What the journal has need not be in memory, unless it is put off.
        engine = self._engine
        if spillable and engine.durable and self.place != NOWHERE:
            return
        size *= max(len(self.channels), 1)
        if engine.memory.used + size > engine.memory.limit:
            raise Full(
                f"{size} bytes beside {engine.memory.used} of at most {engine.memory.limit} "
                "in memory (max-memory)"
            )

    def _await_storage(self, publication: Publication) -> None:
        channels = publication.channels
        for place in [self.place] if channels is None else [each.place for each in channels]:
            self._engine.journal_of(place).put(place, publication.entries)
        self._unstored.append(publication)
        self._engine.await_storage(publication)

    def _take(self, publication: Publication) -> None:
        if not self._unstored or self._unstored[0] is not publication:
            raise RuntimeError(f"{self!r}: a publication other than the oldest is settled")
        self._unstored.popleft()

    def _kept_unstored(self) -> list[Publication]:
        return [each for each in self._unstored if each.channels is None]

    def _accept(
        self, entries: Sequence[Entry], size: int, channels: Sequence[Channel] | None, now: int
    ) -> None:
        self.message_count += len(entries)
        self.message_bytes += size
        if channels is None:
            self._keep(entries)
            return
        for number, channel in enumerate(channels):
            # The first one takes them as they are.
            self._give(channel, [entry.copy() for entry in entries] if number else entries, now)

    def _keep(self, entries: Sequence[Entry]) -> None:
        if entries[0].due:
            for entry in entries:
                self._backlog.hold(entry)
        else:
            self._backlog.put(entries)

    def _clear(self) -> None:
        for publication in self._kept_unstored():
            publication.channels = []
        self._backlog.clear()

    @staticmethod
    def _give(channel: Channel, entries: Sequence[Entry], now: int) -> None:
        put_off = [entry for entry in entries if entry.due]
        for entry in put_off:
            channel.hold(entry, now)
        if len(put_off) < len(entries):
            channel.put([entry for entry in entries if not entry.due] if put_off else entries)

    def _drop(self, channel: Channel) -> None:
        subscribers = [*channel.subscribers]
        self.forget_unstored(channel)
        channel.close()
        self._engine.unregister(channel)
        self._engine.journal_of(channel.place).drop(channel.place)
        self._engine.listener.deleted(self.name, channel.name)
        self._engine.listener.closed(subscribers)
