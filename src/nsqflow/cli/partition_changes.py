"""Deletes, empties and pauses topics and channels of the redesigned NSQ, in every partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsqflow.admin.redesigned import ChannelChange
from nsqflow.cli.cluster import CliCluster, unknown_channel
from nsqflow.cli.errors import USAGE_ERROR, CommandError
from nsqflow.cli.partition_table import LocatedPartition, find_topic_partitions, no_leader
from nsqflow.cli.topic_or_channel import TopicOrChannel


@dataclass(frozen=True, slots=True)
class EmptiedPartition:
    """What ``empty`` did in one partition."""

    partition: LocatedPartition
    dropped: int
    """The number of messages right before."""
    is_exact: bool
    """Whether no message can have arrived or left at the same time."""


@dataclass(frozen=True, slots=True)
class PartitionedTarget:
    """A topic, or the partitions that have a channel."""

    target: TopicOrChannel
    partitions: Sequence[LocatedPartition]
    """Those of the topic; of a channel those whose leader has it."""
    without_leader: Sequence[int] = ()
    registered_channels: bool = False
    """Whether nsqlookupd creates and deletes the topic's channels."""

    @property
    def messages(self) -> int:
        """The number of messages that wait in its channels."""
        return sum(map(self._waiting, self.partitions))

    async def delete(self, cluster: CliCluster) -> list[LocatedPartition]:
        """Delete it; return the partitions that had it."""
        if self.target.channel is None:
            await cluster.redesigned().delete_topic(self.target.topic)
            return [*self.partitions]
        if self.registered_channels:
            change = cluster.redesigned().change_channel
            await change("delete", self.target.topic, self.target.channel)
            return [*self.partitions]
        return await self.change(cluster, "delete")

    async def change(self, cluster: CliCluster, change: ChannelChange) -> list[LocatedPartition]:
        """Change a channel where it is; return the partitions where that succeeded."""

        async def act(each: LocatedPartition) -> None:
            await self._change(cluster, change, each)

        done = [each for each, _ in await cluster.for_each(self.partitions, act)]
        self._report_missing(cluster)
        return done

    async def empty(self, cluster: CliCluster) -> list[EmptiedPartition]:
        """Drop a channel's messages; return their number for each partition."""

        async def act(each: LocatedPartition) -> None:
            await self._change(cluster, "empty", each)

        # Messages may have come since the user was asked.
        before = {each.number: each for each in self.partitions} | {
            each.number: each for each in await _ask_again(cluster, self.target.topic)
        }
        done = [each.number for each, _ in await cluster.for_each(self.partitions, act)]
        after = {each.number: each for each in await _ask_again(cluster, self.target.topic)}
        self._report_missing(cluster)
        return [
            EmptiedPartition(
                before[number],
                self._waiting(before[number]),
                self._is_still(before[number], after.get(number)),
            )
            for number in done
        ]

    # Private methods

    async def _change(
        self, cluster: CliCluster, change: ChannelChange, each: LocatedPartition
    ) -> None:
        channel = self.target.channel
        assert channel is not None  # a topic is only deleted, which is checked
        assert each.node is not None  # it was asked for the channel
        async with cluster.partition_api(each.node) as api:
            await api.change_partition_channel(change, each.topic.name, each.number, channel)

    def _report_missing(self, cluster: CliCluster) -> None:
        if self.without_leader:
            cluster.errors.append(no_leader(self.target.topic, self.without_leader))

    def _waiting(self, each: LocatedPartition) -> int:
        channels = each.stats.channels if each.stats else ()
        return sum(
            channel.depth + channel.delayed_count
            for channel in channels
            if self.target.channel in (None, channel.name)
        )

    def _is_still(self, before: LocatedPartition, after: LocatedPartition | None) -> bool:
        """Return whether no message arrived or left while it was emptied."""
        channel = self.target.channel
        if after is None or after.stats is None or before.stats is None or channel is None:
            return False
        found = before.stats.channel(channel)
        unchanged = before.stats.message_count == after.stats.message_count
        return unchanged and found is not None and found.client_count == 0


async def find_partitioned_target(
    cluster: CliCluster, target: TopicOrChannel, verb: str
) -> PartitionedTarget | None:
    """Return it as one of the redesigned NSQ; None if it is of the classic one, or missing.

    Of a topic itself, only ``delete`` is possible.
    """
    topic = await cluster.partitioned_topic(target.topic)
    if topic is None:
        return None
    if target.channel is None and verb != "delete":
        text = f"topic {topic.name} is of the redesigned NSQ: {verb} is for its channels"
        raise CommandError(text, f"nsqflow {verb} {topic.name} CHANNEL", USAGE_ERROR)
    found = (await find_topic_partitions(cluster, topic)).partitions
    if target.channel is None:
        return PartitionedTarget(target, found)
    channel = target.channel
    having = [each for each in found if each.has_channel(channel)]
    missing = [each.number for each in found if each.stats is None]
    if not having:
        if missing:
            raise no_leader(topic.name, missing)
        raise unknown_channel(topic.name, channel, sorted(topic.channels))
    registered = topic.meta.disable_channel_auto_create
    return PartitionedTarget(target, having, missing, registered)


async def _ask_again(cluster: CliCluster, name: str) -> Sequence[LocatedPartition]:
    topic = await cluster.partitioned_topic(name)
    return () if topic is None else (await find_topic_partitions(cluster, topic)).partitions
