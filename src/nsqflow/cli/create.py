"""``nsqflow create``: a topic or a channel, on servers of either NSQ."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated

import typer

from nsqflow.cli.cluster import CliCluster, needs_lookupd
from nsqflow.cli.completion import ChannelArgument, TopicArgument
from nsqflow.cli.coroutines import run_async
from nsqflow.cli.errors import USAGE_ERROR, CommandError
from nsqflow.cli.lists import JsonOption, report_errors
from nsqflow.cli.manage import print_result, show_servers
from nsqflow.cli.partition_creation import CreatedPartition, PartitionCreator, TopicSettings
from nsqflow.cli.partition_table import show_numbers
from nsqflow.cli.terminal import print_err
from nsqflow.cli.topic_or_channel import CreateResult, TopicOrChannel
from nsqflow.config.numbers import Duration
from nsqflow.protocol.dialect import Dialect

_WAIT = Duration(0, 3600)
_DEFAULT_WAIT = 150.0  # seconds


def create(
    cluster: CliCluster,
    topic: TopicArgument,
    channel: ChannelArgument = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", metavar="N", min=1, max=255, help="Redesigned NSQ: how many.  [1]"
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", metavar="N", min=1, max=5, help="Redesigned: nsqd with a copy each.  [1]"
        ),
    ] = None,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Redesigned: consumers get partitions in order.")
    ] = False,
    extended: Annotated[
        bool, typer.Option("--extended", help="Redesigned: messages have headers and tags.")
    ] = False,
    multi_part: Annotated[
        bool, typer.Option("--multi-part", help="Redesigned: an nsqd may have several partitions.")
    ] = False,
    registered_channels: Annotated[
        bool,
        typer.Option("--registered-channels", help="Redesigned: consumers create no channels."),
    ] = False,
    retention_days: Annotated[
        int | None,
        typer.Option(
            "--retention-days", metavar="N", min=1, help="Redesigned: how long messages are kept."
        ),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="DURATION",
            help="Redesigned: how long to wait until it is writable.  [150s]",
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Create a topic or a channel; existing ones are left as they are, and reported.

    With nsqlookupd it is registered there, and an nsqd creates it when it gets its first message of
    that topic; a channel is also created on the nsqd that have the topic already. With --nsqd it is
    created on these.

    The nsqlookupd of the redesigned NSQ create the topic with its partitions at once; this returns
    when all are writable, and creates the channel in each.

    Example:
      $ nsqflow create orders
      $ nsqflow create orders billing
      $ nsqflow create payments billing --partitions 2 --replicas 3 --ordered
    """
    target = TopicOrChannel.of(topic, channel)
    settings = TopicSettings(
        partitions=partitions,
        replicas=replicas,
        ordered=ordered,
        extended=extended,
        multi_part=multi_part,
        registered_channels=registered_channels,
        retention_days=retention_days,
    )
    given = settings.given or ("" if wait is None else "--wait")
    seconds = _DEFAULT_WAIT if wait is None else _WAIT.parse("--wait", wait)
    creator = PartitionCreator(cluster, target, settings, seconds)
    done, made = run_async(
        _create(cluster, target, given, creator),
        lambda: creator.progress(time.monotonic()) or f"asking {cluster.servers}",
    )
    if json:
        for one in done:
            result = "existed" if one.existed else "created"
            print_result(one.server, target, result, topic_existed=one.topic_existed)
        for each in made:
            more = {"topic_existed": creator.topic_existed, "partition": each.number}
            print_result(each.leader, target, "existed" if each.existed else "created", **more)
    elif made:
        _print_partitions(target, creator, made)
    else:
        _print_created(target, done)
    if creator.note:
        print_err(creator.note)
    return report_errors(cluster, all_failed=not (done or made))


async def _create(
    cluster: CliCluster, target: TopicOrChannel, given: str, creator: PartitionCreator
) -> tuple[list[CreateResult], list[CreatedPartition]]:
    if await _is_partitioned(cluster, target, given):
        return [], await creator.create()
    return await target.create(cluster), []


async def _is_partitioned(cluster: CliCluster, target: TopicOrChannel, given: str) -> bool:
    """Return whether it is for the redesigned NSQ; raise if ``given``, an option, is not."""
    if not cluster.lookupds:
        if given:
            raise needs_lookupd(cluster.servers, given)
        await cluster.stats(target.topic)  # raises if one is of the redesigned NSQ
        return False
    redesigned = await cluster.lookupds_of(Dialect.REDESIGNED)
    if not redesigned and given:
        text = f"{given} is for the redesigned NSQ, and {cluster.servers} is of the classic one"
        raise CommandError(text, "leave it out", USAGE_ERROR)
    if not redesigned or await cluster.partitioned_topic(target.topic):
        return bool(redesigned)
    if (await cluster.lookup([target.topic]))[target.topic].dialect is Dialect.CLASSIC:
        if given:
            text = f"{given} is for the redesigned NSQ, and topic {target.topic} is a classic one"
            raise CommandError(text, "leave it out", USAGE_ERROR)
        return False
    if not given and await cluster.lookupds_of(Dialect.CLASSIC):
        text = f"some of {cluster.servers} are of the classic NSQ, others of the redesigned one"
        raise CommandError(text, "name those of one by --lookupd", USAGE_ERROR)
    return True


def _print_created(target: TopicOrChannel, done: Iterable[CreateResult]) -> None:
    """Print a line for each result: all created, only the channel, nothing."""
    lines: dict[str, list[str]] = {}
    for one in done:
        if one.existed:
            text = f"{target} already exists on"
        elif target.channel and not one.topic_existed:
            text = f"created topic {target.topic} with channel {target.channel} on"
        else:
            text = f"created {target} on"
        lines.setdefault(text, []).append(one.server)
    for text, servers in lines.items():
        print(f"{text} {show_servers(servers)}")


def _print_partitions(
    target: TopicOrChannel, creator: PartitionCreator, made: list[CreatedPartition]
) -> None:
    if target.channel is None or not creator.topic_existed:
        leaders = show_servers([*dict.fromkeys(each.leader for each in made if each.leader)])
        verb = f"topic {target.topic} already exists" if creator.topic_existed else ""
        where = f", led by {leaders}" if leaders else ""
        print(f"{verb or f'created topic {target.topic}'}: {creator.description}{where}")
    if target.channel is None:
        return
    for existed in (False, True):
        numbers = show_numbers(each.number for each in made if each.existed == existed)
        if numbers:
            text = f"{target} already exists in" if existed else f"created {target} in"
            print(f"{text} {numbers}")
