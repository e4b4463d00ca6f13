"""Topics of the redesigned NSQ on the command line: their partitions, and positions in them."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Self

import typer

from nsqflow.admin import PartitionedTopic, PartitionStats
from nsqflow.cli.cluster import NEEDS_LOOKUPD, CliCluster, unknown_channel, unknown_topic
from nsqflow.cli.errors import USAGE_ERROR, CommandError
from nsqflow.cli.servers import CliServers
from nsqflow.client.position import Position, parse_position


def complete_position(incomplete: str) -> list[str]:
    """Return the words for a position that start with ``incomplete``."""
    return [word for word in ("earliest", "latest") if word.startswith(incomplete)]


POSITIONS = "earliest, latest, timestamp:SECONDS, an ISO time with its zone, offset:N or count:N"

PartitionsOption = Annotated[
    list[int] | None,
    typer.Option(
        "--partition",
        metavar="N",
        min=0,
        help="Only this partition; may be repeated. For topics of the redesigned NSQ.",
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="POSITION",
        autocompletion=complete_position,
        help=f"Where to begin: {POSITIONS}. For topics of the redesigned NSQ.",
    ),
]


async def find_partitioned(
    cluster: CliCluster, topic: str, what: str, instead: str = ""
) -> PartitionedTopic:
    """Return a topic of the redesigned NSQ; raise ``CommandError`` if it is classic, or missing.

    ``what`` is the verb or the option that is for such topics only, ``instead`` the hint for a
    classic one.
    """
    check_lookupd(cluster.servers, what)
    found = await cluster.partitioned_topic(topic)
    if found is not None:
        return found
    known = await cluster.topics()
    if topic not in known:
        raise unknown_topic(topic, known)
    text = f"{what} is for topics of the redesigned NSQ: {topic!r} is a classic topic"
    raise CommandError(text, instead, USAGE_ERROR)


def check_lookupd(servers: CliServers, what: str) -> None:
    """Raise ``CommandError`` unless the servers are named by nsqlookupd."""
    if not servers.lookupd:
        raise CommandError(
            f"{what} is for topics of the redesigned NSQ", NEEDS_LOOKUPD, USAGE_ERROR
        )


def check_position(name: str, text: str) -> Position:
    """Return the position that an option or argument holds; raise ``ConfigError`` if none."""
    return parse_position(name, text, time.time())


def choose_partitions(topic: PartitionedTopic, wanted: Collection[int]) -> list[int]:
    """Return the partitions that are wanted, all if none is; raise if one does not exist."""
    last = topic.meta.partition_num - 1
    if unknown := [number for number in wanted if number > last]:
        raise CommandError(
            f"--partition {unknown[0]} is invalid: {topic.name!r} has {partition_range(topic)}",
            code=USAGE_ERROR,
        )
    return sorted({*wanted}) or [*range(last + 1)]


def check_leaders(topic: PartitionedTopic, wanted: Collection[int]) -> None:
    """Raise ``CommandError`` if a partition has no leader."""
    if missing := sorted({*wanted} - topic.leaders.keys()):
        raise CommandError(
            f"partition {missing[0]} of {topic.name!r} has no leader now",
            "its nsqd may have stopped, or another one is being elected; try again later",
        )


@dataclass(frozen=True, slots=True)
class ChannelState:
    """Where a channel is in a partition."""

    cursor: int
    """The offset of the oldest message that is not finished."""
    end: int
    """The offset of the next message that is published."""
    depth: int
    in_flight: int

    @classmethod
    def of(cls, stats: PartitionStats, channel: str) -> Self | None:
        """Return it; None if the partition has no such channel."""
        found = stats.channel(channel)
        if found is None:
            return None
        return cls(stats.end - found.depth_bytes, stats.end, found.depth, found.in_flight_count)


async def find_channel(
    cluster: CliCluster,
    topic: PartitionedTopic,
    channel: str,
    wanted: Collection[int] | None = None,
) -> dict[int, ChannelState]:
    """Return the channel in each partition that has it, of all or of those that are wanted.

    Raises ``CommandError`` if no partition is known to have it.
    """
    stats = await cluster.redesigned().stats(topic.name, partitions=wanted)
    states = {each.partition: ChannelState.of(each, channel) for each in stats}
    found = {number: state for number, state in states.items() if state is not None}
    names = {one.name for each in stats for one in each.channels}
    if wanted is not None:
        names |= {*topic.channels}  # those of the other partitions, as nsqlookupd knows them
    if not found and channel not in names:
        raise unknown_channel(topic.name, channel, sorted(names))
    return found


def partition_range(topic: PartitionedTopic) -> str:
    """Return which partitions a topic has, in words."""
    last = topic.meta.partition_num - 1
    return f"partitions 0 to {last}" if last else "partition 0 only"


def name_partitions(numbers: Collection[int]) -> str:
    """Return the numbers of some partitions in words."""
    word = "partition" if len(numbers) == 1 else "partitions"
    return f"{word} {', '.join(map(str, numbers))}"
