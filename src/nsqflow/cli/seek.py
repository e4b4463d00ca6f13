"""``nsqflow seek``: moves a channel of the redesigned NSQ, for all of its consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from nsqflow.admin.partition import PartitionApi
from nsqflow.cli.cluster import CliCluster
from nsqflow.cli.completion import NamedChannelArgument, TopicArgument
from nsqflow.cli.coroutines import run_async
from nsqflow.cli.errors import FAILED, OK, USAGE_ERROR, CommandError, error_message
from nsqflow.cli.lists import JsonOption
from nsqflow.cli.manage import YesOption, confirm
from nsqflow.cli.partitions import (
    POSITIONS,
    ChannelState,
    PartitionsOption,
    check_leaders,
    check_position,
    choose_partitions,
    complete_position,
    find_channel,
    find_partitioned,
    name_partitions,
    partition_range,
)
from nsqflow.cli.terminal import count, print_err, print_json
from nsqflow.client.position import Position
from nsqflow.errors import NsqError
from nsqflow.protocol.lookup import Node
from nsqflow.protocol.names import check_channel, check_topic

_PLACES = ("offset:", "count:")  # each partition has its own
_ON_CLASSIC = (
    "classic NSQ keeps no finished messages; 'nsqflow empty' drops those that a channel has"
)


def seek(
    cluster: CliCluster,
    topic: TopicArgument,
    channel: NamedChannelArgument,
    position: Annotated[
        str,
        typer.Argument(
            metavar="POSITION",
            help=f"Where the channel goes on: {POSITIONS}.",
            autocompletion=complete_position,
        ),
    ],
    partition: PartitionsOption = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> int:
    """Move a channel of the redesigned NSQ, in all partitions or some, for all of its consumers.

    Moved back, it delivers messages again that were finished; moved forward, it skips what lies
    between. Messages that are in flight, and one that nsqd has read ahead, may come first. A
    change of leaders soon afterwards may undo the move: then seek again.

    Example:
      $ nsqflow seek orders billing earliest --yes
      $ nsqflow seek orders billing offset:0 --partition 0 --yes
    """
    check_topic(topic)
    check_channel(channel)
    move = ChannelMove(cluster, topic, channel, check_position("POSITION", position))
    is_place = position.startswith(_PLACES)
    planning = move.plan(partition or (), position if is_place else None)
    wanted = run_async(planning, f"asking {cluster.servers}")
    question = (
        f"Move channel {channel} of {topic} to {position} in {name_partitions(wanted)}? Its "
        "consumers then get messages again, or skip some."
    )
    if not confirm(question, yes=yes):
        print_err("nothing was moved")
        return FAILED
    run_async(move.run())
    for result in move.results:
        if json:
            print_json(result)
        else:
            print(_describe(result))
    for error in move.errors:
        print_err(error)
    return FAILED if move.errors else OK


class ChannelMove:
    """A channel that is to be moved, and what became of it in each partition."""

    def __init__(self, cluster: CliCluster, topic: str, channel: str, position: Position) -> None:
        self.results: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self._cluster = cluster
        self._topic = topic
        self._channel = channel
        self._position = position
        self._leaders: dict[int, Node] = {}

    async def plan(self, partitions: Sequence[int], place: str | None) -> list[int]:
        """Return the partitions to move it in; raise if one has no such channel, or no leader.

        ``place`` is the position if it is one of a single partition.
        """
        topic = await find_partitioned(self._cluster, self._topic, "seek", _ON_CLASSIC)
        wanted = choose_partitions(topic, partitions)
        if place is not None and len(wanted) > 1:
            raise CommandError(
                f"{place} is a place in one partition, and {self._topic!r} has "
                f"{partition_range(topic)}",
                "name it by --partition",
                USAGE_ERROR,
            )
        check_leaders(topic, wanted)
        stats = await find_channel(self._cluster, topic, self._channel, wanted)
        if missing := [number for number in wanted if number not in stats]:
            raise CommandError(
                f"topic {self._topic!r} has no channel {self._channel!r} in "
                f"{name_partitions(missing)}",
                "a consumer creates it there; --partition names those to move it in",
            )
        for number in wanted:
            self._check_end(number, stats[number].end)
        self._leaders = {number: topic.leaders[number] for number in wanted}
        return wanted

    async def run(self) -> None:
        """Move it; an error in one partition does not keep it from the others."""
        await asyncio.gather(*map(self._move, self._leaders))
        self.results.sort(key=lambda result: int(result["partition"]))

    def _check_end(self, number: int, end: int) -> None:
        kind, offset = self._position
        if kind == "virtual_queue" and offset > end:
            raise CommandError(
                f"offset {offset} is beyond the end of partition {number}, which is {end}",
                "'latest' is the end",
                USAGE_ERROR,
            )

    async def _move(self, number: int) -> None:
        after: ChannelState | None = None
        try:
            async with self._cluster.partition_api(self._leaders[number]) as api:
                before = await self._stats(api, number)
                await api.set_offset(self._topic, number, self._channel, self._position)
                with suppress(NsqError):  # it is moved anyway
                    after = await self._stats(api, number)
        except NsqError as error:
            self.errors.append(f"partition {number}: {error_message(error)}")
            return
        self.results.append(
            {
                "topic": self._topic,
                "channel": self._channel,
                "partition": number,
                "from": before.cursor,
                "to": after and after.cursor,
                "depth": after and after.depth,
            }
        )

    async def _stats(self, api: PartitionApi, number: int) -> ChannelState:
        for stats in await api.partition_stats(self._topic):
            if stats.partition == number and (state := ChannelState.of(stats, self._channel)):
                return state
        raise CommandError(f"{api.address} has no channel {self._channel!r} any more")


def _describe(result: Mapping[str, Any]) -> str:
    before, after = result["from"], result["to"]
    partition = f"partition {result['partition']}"
    if after is None:
        return f"{partition}: moved; its new position is unknown"
    moved = f"stays at offset {after}"
    if after < before:
        moved = (
            f"moved back from offset {before} to {after}; its consumers get those messages again"
        )
    elif after > before:
        moved = f"moved forward from offset {before} to {after}; its consumers skip those messages"
    depth = count(result["depth"], "message")
    return f"{partition}: {moved}; {depth} from there on"
