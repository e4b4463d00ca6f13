"""A topic or a channel, wherever it is: found, created and changed on all servers that have it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from nsqflow.admin import AdminError, Lookupd, Nsqd, TopicStats
from nsqflow.cli.cluster import Cluster, Place, unknown_channel, unknown_topic
from nsqflow.protocol.names import check_channel, check_topic

Found = dict[Place, TopicStats]
OnTopic = Callable[[Nsqd, str], Awaitable[None]]
OnChannel = Callable[[Nsqd, str, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Target:
    """A topic, or a channel of it."""

    topic: str
    channel: str | None = None

    @classmethod
    def of(cls, topic: str, channel: str | None) -> Self:
        """Check the names."""
        return cls(check_topic(topic), None if channel is None else check_channel(channel))

    def __str__(self) -> str:
        return f"channel {self.channel} of {self.topic}" if self.channel else f"topic {self.topic}"

    async def find(self, cluster: Cluster) -> Found:
        """Tell which nsqd have it, with what they count; raises if there is no such thing.

        None have it while it is known to nsqlookupd alone.
        """
        found = {
            place: topic
            for place, stats in await cluster.stats(self.topic)
            for topic in stats.topics
            if self.channel in (None, *(channel.name for channel in topic.channels))
        }
        if not found:
            await self._check(cluster)
        return found

    def messages(self, found: Found) -> int:
        """How many messages are in it, those in its channels and those put off included."""
        topics = [] if self.channel else found.values()
        channels = [channel for topic in found.values() for channel in topic.channels]
        return sum(topic.depth for topic in topics) + sum(
            channel.depth + channel.in_flight_count + channel.deferred_count
            for channel in channels
            if self.channel in (None, channel.name)
        )

    async def create(self, cluster: Cluster) -> list[str]:
        """Create it; gives the servers that now have it."""
        if not cluster.lookupds:
            places = await cluster.places()
            return _addresses(await cluster.each(places, self._create_on_nsqd))
        holders = await cluster.stats(self.topic) if self.channel else []
        places = [place for place, stats in holders if stats.topics]
        told = await cluster.each(cluster.lookupds, self._create_on_lookupd)
        return [lookupd.address for lookupd, _ in told] + _addresses(
            await cluster.each(places, self._create_on_nsqd)
        )

    async def delete(self, cluster: Cluster, found: Found) -> list[str]:
        """Delete it; gives the servers that had it."""
        if self.channel is None:
            # Nobody is sent to an nsqd meanwhile: to subscribe there would create it again.
            await cluster.each(cluster.lookupds, lambda lookupd: self._hide(lookupd, found))
        done = await self.change(cluster, found, Nsqd.delete_topic, Nsqd.delete_channel)
        told = await cluster.each(cluster.lookupds, self._delete_on_lookupd)
        return done + [lookupd.address for lookupd, _ in told]

    async def change(
        self, cluster: Cluster, found: Found, on_topic: OnTopic, on_channel: OnChannel
    ) -> list[str]:
        """Do something to it on each nsqd that has it; gives those that did it."""

        async def act(place: Place) -> None:
            if self.channel is None:
                await on_topic(place.http, self.topic)
            else:
                await on_channel(place.http, self.topic, self.channel)

        return _addresses(await cluster.each(found, act))

    async def _check(self, cluster: Cluster) -> None:
        topics = await cluster.topics()
        if self.topic not in topics:
            raise unknown_topic(self.topic, topics)
        channels = await cluster.channels(self.topic)
        if self.channel is not None and self.channel not in channels:
            raise unknown_channel(self.topic, self.channel, channels)

    async def _create_on_nsqd(self, place: Place) -> None:
        await place.http.create_topic(self.topic)
        if self.channel is not None:
            await place.http.create_channel(self.topic, self.channel)

    async def _create_on_lookupd(self, lookupd: Lookupd) -> None:
        await lookupd.create_topic(self.topic)
        if self.channel is not None:
            await lookupd.create_channel(self.topic, self.channel)

    async def _hide(self, lookupd: Lookupd, found: Found) -> None:
        for place in found:
            if place.node is not None:
                await lookupd.tombstone(self.topic, place.node)

    async def _delete_on_lookupd(self, lookupd: Lookupd) -> None:
        try:
            if self.channel is None:
                await lookupd.delete_topic(self.topic)
            else:
                await lookupd.delete_channel(self.topic, self.channel)
        except AdminError as error:
            if error.status != 404:  # as it is where the last nsqd has just said so itself
                raise


def _addresses(done: list[tuple[Place, None]]) -> list[str]:
    return [place.address for place, _ in done]
