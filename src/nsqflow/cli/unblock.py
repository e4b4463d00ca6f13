"""``nsqflow unblock``: skips the message that holds up an ordered channel of the redesigned NSQ."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from nsqflow.admin import AdminError, BrowsedMessage
from nsqflow.cli.cluster import CliCluster
from nsqflow.cli.completion import NamedChannelArgument, TopicArgument
from nsqflow.cli.coroutines import run_async
from nsqflow.cli.errors import FAILED, OK, USAGE_ERROR, CommandError
from nsqflow.cli.lists import JsonOption
from nsqflow.cli.manage import YesOption, confirm
from nsqflow.cli.partitions import (
    check_leaders,
    choose_partitions,
    find_channel,
    find_partitioned,
    name_partitions,
)
from nsqflow.cli.terminal import print_err, print_json
from nsqflow.protocol.names import check_channel, check_topic

_ON_CLASSIC = "on classic NSQ no message holds up others; 'nsqflow empty' drops those of a channel"
_NOT_IN_FLIGHT = "not in flight"  # in what nsqd says of a message that no consumer has
_SHOWN = 60  # characters of a body


def unblock(
    cluster: CliCluster,
    topic: TopicArgument,
    channel: NamedChannelArgument,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            metavar="N",
            min=0,
            help="The partition; required if messages are in flight in several.",
        ),
    ] = None,
    yes: YesOption = False,
    json: JsonOption = False,
) -> int:
    """Skip the message that is in flight in an ordered partition, so that the next one is sent.

    For messages that no consumer can handle. It is finished for the channel, and other channels
    keep it; 'nsqflow browse' still shows it.

    Example:
      $ nsqflow unblock orders billing --partition 0 --yes
    """
    check_topic(topic)
    check_channel(channel)
    blocked = run_async(_find(cluster, topic, channel, partition), f"asking {cluster.servers}")
    if not confirm(f"Skip {_describe(blocked)} in channel {channel} of {topic}?", yes=yes):
        print_err("nothing was skipped")
        return FAILED
    run_async(_skip(cluster, topic, channel, blocked))
    if json:
        print_json(
            {
                "topic": topic,
                "channel": channel,
                "partition": blocked.partition,
                "offset": blocked.offset,
                "internal_id": str(blocked.internal_id),
                "result": "skipped",
            }
        )
    else:
        print(
            f"skipped a message of channel {channel} of {topic}: partition {blocked.partition}, "
            f"offset {blocked.offset}, internal id {blocked.internal_id}"
        )
    return OK


async def _find(
    cluster: CliCluster, name: str, channel: str, partition: int | None
) -> BrowsedMessage:
    """Return the message to skip; raise ``CommandError`` unless there is exactly one."""
    topic = await find_partitioned(cluster, name, "unblock", _ON_CLASSIC)
    if not topic.meta.ordered:
        raise CommandError(
            f"unblock is for ordered topics: {name!r} is not ordered",
            "its messages do not hold each other up",
            USAGE_ERROR,
        )
    wanted = choose_partitions(topic, [] if partition is None else [partition])
    check_leaders(topic, wanted)
    states = await find_channel(cluster, topic, channel, wanted)
    busy = [number for number in wanted if number in states and states[number].in_flight]
    if not busy:
        raise CommandError(
            f"no message of channel {channel!r} is in flight in {name_partitions(wanted)}",
            "a message can be skipped while a consumer has it",
        )
    if len(busy) > 1:
        # Most of them are just being processed.
        raise CommandError(
            f"messages of channel {channel!r} are in flight in {name_partitions(busy)}",
            "name one by --partition",
            USAGE_ERROR,
        )
    [number] = busy
    async with cluster.partition_api(topic.leaders[number]) as api:
        return await api.get_message(name, number, states[number].cursor)


async def _skip(cluster: CliCluster, topic: str, channel: str, message: BrowsedMessage) -> None:
    try:
        await cluster.redesigned().unblock(topic, message.partition, channel, message.internal_id)
    except AdminError as error:
        if _NOT_IN_FLIGHT not in error.message:
            raise
        raise CommandError(
            f"nothing was skipped: the message at offset {message.offset} of partition "
            f"{message.partition} is not in flight any more ({error.message})",
            "it was finished, or waits to be sent again; try again",
        ) from error


def _describe(message: BrowsedMessage) -> str:
    at = datetime.fromtimestamp(message.timestamp / 1e9)
    body = message.body if len(message.body) <= _SHOWN else f"{message.body[:_SHOWN]}..."
    return (
        f"the message at offset {message.offset} of partition {message.partition} (internal id "
        f"{message.internal_id}, published {at:%Y-%m-%d %H:%M:%S}, {body!r})"
    )
