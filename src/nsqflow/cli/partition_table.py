"""The partitions of topics of the redesigned NSQ: their leaders, copies and statistics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from nsqflow.admin import (
    ChannelStats,
    NsqdNode,
    PartitionChannelStats,
    PartitionedTopic,
    PartitionStats,
    TopicStats,
)
from nsqflow.cli.cluster import CliCluster, is_redesigned_node
from nsqflow.cli.errors import CommandError
from nsqflow.errors import NsqError
from nsqflow.protocol.lookup import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedPartition:
    """One partition of a topic."""

    topic: PartitionedTopic
    number: int
    copies: tuple[str, ...] = ()
    """The TCP addresses of the nsqd that have a copy and answer, the leader first."""
    stats: PartitionStats | None = None
    """As its leader describes it; None without a leader that answers."""

    @property
    def node(self) -> Node | None:
        """Its leader; None if it has none now."""
        return self.topic.leaders.get(self.number)

    @property
    def leader(self) -> str | None:
        """The TCP address of its leader."""
        return None if self.node is None else self.node.address

    def has_channel(self, channel: str) -> bool:
        """Return whether its leader has a channel."""
        return self.stats is not None and self.stats.channel(channel) is not None


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """The partitions of some topics, and what the nsqd of the redesigned NSQ have."""

    partitions: tuple[LocatedPartition, ...] = ()
    copies: tuple[tuple[NsqdNode, tuple[PartitionStats, ...]], ...] = ()
    """Each nsqd that answers, with the partitions of which it has a copy."""


def show_numbers(numbers: Iterable[int]) -> str:
    """Return the numbers of partitions as text; empty if there is none."""
    texts = [*map(str, sorted(numbers))]
    return f"partition{'s' * (len(texts) > 1)} {', '.join(texts)}" if texts else ""


def no_leader(topic: str, numbers: Iterable[int]) -> CommandError:
    """Return the error for partitions that have no leader, or none that answers."""
    text = f"{show_numbers(numbers)} of {topic}: there is no leader that answers now"
    return CommandError(text, "try again later; 'nsqflow doctor' looks for a reason")


async def find_partitions(
    cluster: CliCluster,
    nodes: Sequence[NsqdNode],
    topics: Collection[str] = (),
    *,
    include_clients: bool = False,
) -> PartitionTable:
    """Return the partitions of topics of the redesigned NSQ, of some or of all.

    ``nodes`` are all nsqd. Without one of the redesigned NSQ, no server is asked.
    """
    asked = [node for node in nodes if is_redesigned_node(node)]
    if not asked:
        return PartitionTable()
    found = await cluster.partitioned_topics(topics or await cluster.topics())
    return await read_partitions(cluster, asked, found.values(), include_clients=include_clients)


async def find_topic_partitions(cluster: CliCluster, topic: PartitionedTopic) -> PartitionTable:
    """Return the partitions of one topic."""
    nodes = filter(is_redesigned_node, await cluster.nodes())
    return await read_partitions(cluster, [*nodes], [topic])


async def read_partitions(
    cluster: CliCluster,
    nodes: Sequence[NsqdNode],
    topics: Iterable[PartitionedTopic],
    *,
    include_clients: bool = False,
) -> PartitionTable:
    """Ask the nsqd of the redesigned NSQ for partitions; each has its own, and copies of others."""
    topics = [*topics]
    only = topics[0].name if len(topics) == 1 else None

    async def ask(node: NsqdNode) -> tuple[PartitionStats, ...]:
        assert node.registration is not None  # else its dialect is not known
        async with cluster.partition_api(node.registration) as api:
            return (*await api.partition_stats(only, include_clients=include_clients),)

    answers = await cluster.for_each(nodes, ask)
    by_key = {
        (stats.topic, stats.partition, node.address): stats
        for node, some in answers
        for stats in some
    }
    addresses = [node.address for node, _ in answers]
    partitions = []
    for topic in sorted(topics, key=lambda each: each.name):
        for number in range(topic.meta.partition_num):
            leader = topic.leaders.get(number)
            first = leader.address if leader is not None else ""
            copies = [each for each in addresses if (topic.name, number, each) in by_key]
            copies.sort(key=lambda each: (each != first, each))
            stats = by_key.get((topic.name, number, first))
            partitions.append(
                LocatedPartition(topic=topic, number=number, copies=(*copies,), stats=stats)
            )
    return PartitionTable((*partitions,), (*answers,))


async def read_ages(
    cluster: CliCluster, partitions: Iterable[LocatedPartition]
) -> list[LocatedPartition]:
    """Return the partitions with the times of backlogs of which nsqd has read nothing yet.

    For these, the first message says how long it has waited.
    """

    async def fill(partition: LocatedPartition) -> LocatedPartition:
        stats, node = partition.stats, partition.node
        if stats is None or node is None or not any(map(_is_unread, stats.channels)):
            return partition
        channels = []
        async with cluster.partition_api(node) as api:
            for each in stats.channels:
                if _is_unread(each):
                    offset = stats.end - each.depth_bytes
                    # It may be gone, or the leader; then the age stays unknown.
                    with suppress(NsqError):
                        found = await api.get_message(stats.topic, stats.partition, offset)
                        each = replace(each, depth_timestamp=found.timestamp)
                channels.append(each)
        return replace(partition, stats=replace(stats, channels=(*channels,)))

    return [filled for _, filled in await cluster.for_each([*partitions], fill)]


def _is_unread(channel: PartitionChannelStats) -> bool:
    return channel.depth > 0 and not channel.depth_timestamp


def topic_stats(partition: PartitionStats) -> TopicStats:
    """Return the statistics of a partition as those of a classic topic.

    Its messages are all in its channels, as a new channel begins at the end.
    """
    channels = tuple(channel_stats(each, partition.message_count) for each in partition.channels)
    count = partition.message_count
    return TopicStats(name=partition.topic, message_count=count, channels=channels)


def channel_stats(channel: PartitionChannelStats, message_count: int) -> ChannelStats:
    """Return the statistics of a channel as those of a classic one.

    The depth of a redesigned nsqd has the messages that are in flight in it, and these have the
    deferred ones; a classic one counts each message once.
    """
    deferred = channel.deferred_count
    return ChannelStats(
        name=channel.name,
        depth=max(channel.depth - channel.in_flight_count, 0),
        in_flight_count=max(channel.in_flight_count - deferred, 0),
        deferred_count=deferred + channel.delayed_count,
        message_count=message_count,
        requeue_count=channel.requeue_count,
        timeout_count=channel.timeout_count,
        client_count=channel.client_count,
        clients=channel.clients,
        paused=channel.paused,
    )
