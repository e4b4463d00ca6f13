"""A topic or channel on all servers: finding, creating, emptying, deleting it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self, TypeVar

from nsqflow.admin import AdminError, Lookupd, Nsqd, NsqdNode, TopicStats
from nsqflow.admin.http_api import Change
from nsqflow.cli.cluster import CliCluster, unknown_channel, unknown_topic
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.names import check_channel, check_topic

D = TypeVar("D")
T = TypeVar("T")

FoundOn = dict[NsqdNode, TopicStats]


@dataclass(frozen=True, slots=True)
class CreateResult:
    """What ``create`` did on one server."""

    server: str
    topic_existed: bool
    channel_existed: bool | None
    """None if only a topic was created."""

    @property
    def existed(self) -> bool:
        """Whether everything existed before."""
        return self.topic_existed and self.channel_existed is not False


@dataclass(frozen=True, slots=True)
class EmptyResult:
    """What ``empty`` did on one nsqd."""

    server: str
    dropped: int
    """The number of messages right before."""
    is_exact: bool
    """Whether no message can have arrived or left at the same time."""


@dataclass(frozen=True, slots=True)
class TopicOrChannel:
    """A topic, or a channel of it."""

    topic: str
    channel: str | None = None

    @classmethod
    def of(cls, topic: str, channel: str | None) -> Self:
        """Validate the names."""
        return cls(check_topic(topic), None if channel is None else check_channel(channel))

    def __str__(self) -> str:
        return f"channel {self.channel} of {self.topic}" if self.channel else f"topic {self.topic}"

    async def find(self, cluster: CliCluster) -> FoundOn:
        """Return the nsqd that have it, with their stats; raise if it does not exist.

        Empty if only nsqlookupd knows it.
        """
        found = {
            node: topic
            for node, stats in await cluster.stats(self.topic)
            for topic in stats.topics
            if self.channel in (None, *(channel.name for channel in topic.channels))
        }
        if not found:
            await self._check(cluster)
        return found

    def messages(self, found: FoundOn) -> int:
        """Return the number of its messages, including those in channels and deferred ones."""
        return sum(map(self.messages_of, found.values()))

    def depth(self, found: FoundOn) -> int:
        """Return the number of the topic's messages that no channel has yet."""
        return sum(topic.depth for topic in found.values())

    def messages_of(self, topic: TopicStats) -> int:
        """Return the number of its messages on one nsqd."""
        return (0 if self.channel else topic.depth) + sum(
            channel.depth + channel.in_flight_count + channel.deferred_count
            for channel in topic.channels
            if self.channel in (None, channel.name)
        )

    async def create(self, cluster: CliCluster) -> list[CreateResult]:
        """Create it; return what existed before on each server."""
        if not cluster.lookupds:
            return _results(await cluster.for_each(await cluster.nodes(), self._create_on_nsqd))
        holders = await cluster.stats(self.topic) if self.channel else []
        nodes = [node for node, stats in holders if stats.topics]
        # Those of the redesigned NSQ may have classic nsqd as well, but no names of their own.
        lookupds = await cluster.lookupds_of(Dialect.CLASSIC)
        registered = await cluster.for_each(lookupds, self._create_on_lookupd)
        return _results(registered) + _results(await cluster.for_each(nodes, self._create_on_nsqd))

    async def empty(self, cluster: CliCluster, found: FoundOn) -> list[EmptyResult]:
        """Drop its messages; return their number for each nsqd."""
        return _results(await cluster.for_each(found, self._empty))

    async def delete(self, cluster: CliCluster, found: FoundOn) -> list[str]:
        """Delete it; return the servers that had it."""
        lookupds = await cluster.lookupds_of(Dialect.CLASSIC)
        if self.channel is None:
            # Consumers must not be directed there meanwhile: subscribing would create it again.
            await cluster.for_each(lookupds, lambda lookupd: self._hide(lookupd, found))
        done = await self.change(cluster, found, "delete")
        unregistered = await cluster.for_each(lookupds, self.delete_on_lookupd)
        return done + [lookupd.address for lookupd, _ in unregistered]

    async def change(self, cluster: CliCluster, found: FoundOn, change: Change) -> list[str]:
        """Change it on each nsqd that has it; return the nsqd that succeeded."""

        async def act(node: NsqdNode) -> None:
            await node.http.change(change, self.topic, self.channel)

        return [node.address for node, _ in await cluster.for_each(found, act)]

    async def _check(self, cluster: CliCluster) -> None:
        topics = await cluster.topics()
        if self.topic not in topics:
            raise unknown_topic(self.topic, topics)
        channels = await cluster.channels(self.topic)
        if self.channel is not None and self.channel not in channels:
            raise unknown_channel(self.topic, self.channel, channels)

    async def _create_on_nsqd(self, node: NsqdNode) -> CreateResult:
        topic = await self._stats(node)
        channels = None if topic is None else [channel.name for channel in topic.channels]
        return await self._create(node.http, node.address, channels)

    async def _create_on_lookupd(self, lookupd: Lookupd) -> CreateResult:
        exists = self.topic in await lookupd.topics()
        channels = await lookupd.channels(self.topic) if exists else None
        return await self._create(lookupd, lookupd.address, channels)

    async def _create(
        self, api: Nsqd | Lookupd, server: str, channels: Collection[str] | None
    ) -> CreateResult:
        """Create it on one server; ``channels`` are those of the topic, None if there is none."""
        await api.create_topic(self.topic)
        if self.channel is None:
            return CreateResult(server, channels is not None, None)
        await api.create_channel(self.topic, self.channel)
        return CreateResult(server, channels is not None, self.channel in (channels or ()))

    async def _empty(self, node: NsqdNode) -> EmptyResult:
        before = await self._stats(node)
        await node.http.change("empty", self.topic, self.channel)
        after = await self._stats(node)
        return EmptyResult(node.address, self.droppable(before), self._is_still(before, after))

    async def _stats(self, node: NsqdNode) -> TopicStats | None:
        stats = await node.http.stats(self.topic, include_clients=False)
        return next(iter(stats.topics), None)

    def droppable(self, topic: TopicStats | None) -> int:
        """Return how many messages ``empty`` drops on one nsqd."""
        if topic is None:
            return 0
        return self.messages_of(topic) if self.channel else topic.depth

    def _is_still(self, before: TopicStats | None, after: TopicStats | None) -> bool:
        """Return whether no message arrived or left while it was emptied."""
        if before is None or after is None or before.message_count != after.message_count:
            return False
        if self.channel is None:
            return before.depth == 0 or before.paused or not before.channels
        channels = [one for one in before.channels if one.name == self.channel]
        # Otherwise the channel may still get messages of the topic.
        still = before.depth == 0 or before.paused
        return still and all(one.client_count == 0 for one in channels)

    async def _hide(self, lookupd: Lookupd, found: FoundOn) -> None:
        for node in found:
            if node.registration is not None:
                await lookupd.tombstone(self.topic, node.registration)

    async def delete_on_lookupd(self, lookupd: Lookupd) -> None:
        """Delete its name from one nsqlookupd."""
        try:
            await lookupd.change("delete", self.topic, self.channel)
        except AdminError as error:
            if error.status != 404:  # the last nsqd may have just unregistered it
                raise


def _results(done: list[tuple[D, T]]) -> list[T]:
    return [result for _, result in done]
