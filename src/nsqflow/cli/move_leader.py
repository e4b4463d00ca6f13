"""``nsqflow move-leader``: lets another nsqd lead a partition of the redesigned NSQ."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from nsqflow.admin import AdminError, PartitionStats, RedesignedCluster
from nsqflow.admin.leading_lookupd import UnansweredChangeError
from nsqflow.cli.cluster import CliCluster, needs_lookupd, unknown_topic
from nsqflow.cli.completion import TopicArgument, complete_node, complete_partition
from nsqflow.cli.coroutines import run_async
from nsqflow.cli.errors import USAGE_ERROR, CommandError
from nsqflow.cli.lists import JsonOption
from nsqflow.cli.partition_table import no_leader
from nsqflow.cli.partitions import partition_range
from nsqflow.cli.terminal import print_err, print_json
from nsqflow.config.numbers import Duration
from nsqflow.errors import ConfigError, DiscoveryError, NetworkError, RequestTimeout
from nsqflow.protocol.names import check_topic

_WAIT = Duration(0, 3600, above=True)
_RETRY_INTERVAL = 0.2  # seconds until nsqlookupd is asked again
_UNSTABLE = "the cluster is unstable"
_UNSTABLE_HINT = (
    "leaders move only while all nsqd run and no partition is changing; a real cluster is stable "
    "again 90 s after an nsqd came back: 'nsqflow doctor' says when"
)


def move_leader(
    cluster: CliCluster,
    topic: TopicArgument,
    partition: Annotated[
        int,
        typer.Argument(
            metavar="PARTITION",
            min=0,
            help="The partition, from 0.",
            autocompletion=complete_partition,
        ),
    ],
    node: Annotated[
        str,
        typer.Argument(
            metavar="NODE",
            help="An nsqd with a copy, by its TCP address, HOST:PORT.",
            autocompletion=complete_node,
        ),
    ],
    wait: Annotated[
        str,
        typer.Option(
            "--wait",
            metavar="DURATION",
            help="How long to wait until the new leader takes messages.",
        ),
    ] = "30s",
    json: JsonOption = False,
) -> int:
    """Let another nsqd lead a partition of a topic of the redesigned NSQ.

    It must have a copy: 'nsqflow stat TOPIC --partitions' shows which do. Prints the new leader
    once it takes messages; of more than two copies, nsqlookupd may choose another one than NODE.
    In an ordered topic, a channel that never finished a message may not get its unread ones.

    Example:
      $ nsqflow move-leader payments 0 127.0.0.1:4152
    """
    check_topic(topic)
    if not cluster.lookupds:
        raise needs_lookupd(cluster.servers, "move-leader")
    seconds = _WAIT.parse("--wait", wait)
    waiting = f"moving the leader of partition {partition} of {topic}"
    before, after, ordered = run_async(_move(cluster, topic, partition, node, seconds), waiting)
    if json:
        about = {"topic": topic, "partition": partition, "leader": after, "former": before}
        print_json(about | {"result": "kept" if before == after else "moved"})
    elif before == after:
        print(f"{after} leads partition {partition} of {topic} already")
    else:
        print(f"{after} leads partition {partition} of {topic} now; before, {before} did")
    if after != node:
        print_err(f"nsqlookupd has chosen {after} instead of {node}, as it also has a copy")
    if ordered and before != after:
        print_err(
            f"topic {topic} is ordered: a channel that never finished a message may not get its "
            f"unread ones; 'nsqflow seek {topic} CHANNEL' can move it back"
        )
    return 0


async def _move(
    cluster: CliCluster, topic: str, partition: int, node: str, wait: float
) -> tuple[str, str, bool]:
    """Return the former leader, the new one, and whether the topic is ordered."""
    found = await cluster.partitioned_topic(topic)
    if found is None:
        raise await _refusal(cluster, topic)
    redesigned = cluster.redesigned()
    if partition >= found.meta.partition_num:
        raise CommandError(
            f"PARTITION {partition} is invalid: {topic!r} has {partition_range(found)}",
            code=USAGE_ERROR,
        )
    leader = found.leaders.get(partition)
    if leader is None:
        raise no_leader(topic, [partition])
    before = leader.address
    if before == node:
        return before, before, found.meta.ordered
    if not await redesigned.is_stable():
        raise _unstable(topic, partition)
    try:
        await redesigned.move_leader(topic, partition, node)
    except AdminError as error:
        if error.message != _UNSTABLE:
            raise
        raise _unstable(topic, partition) from error
    except ConfigError as error:
        text = str(error)
        if not text.startswith("nsqd="):
            raise
        node_error = text.replace("nsqd=", "NODE ", 1)
        raise CommandError(node_error, code=USAGE_ERROR) from error
    except UnansweredChangeError:
        pass  # nsqlookupd answers once the leader has moved
    after = await _await_leader(redesigned, topic, partition, before, wait)
    return before, after, found.meta.ordered


def _unstable(topic: str, partition: int) -> CommandError:
    text = f"partition {partition} of {topic} can't be moved: {_UNSTABLE}"
    return CommandError(text, _UNSTABLE_HINT)


async def _refusal(cluster: CliCluster, topic: str) -> CommandError:
    """Return why a topic has no partitions."""
    topics = await cluster.topics()
    if topic not in topics:
        return unknown_topic(topic, topics)
    return CommandError(
        f"move-leader is for the redesigned NSQ, and topic {topic} is of the classic one",
        "it has no partitions",
        USAGE_ERROR,
    )


async def _await_leader(
    cluster: RedesignedCluster, topic: str, partition: int, before: str, wait: float
) -> str:
    limit = asyncio.timeout(wait)
    try:
        async with limit:
            while True:
                if leader := await _new_leader(cluster, topic, partition, before):
                    return leader
                await asyncio.sleep(_RETRY_INTERVAL)
    except TimeoutError:
        if not limit.expired():
            raise
        raise CommandError(
            f"partition {partition} of {topic} has no new leader that takes messages after "
            f"{wait:g} s",
            f"'nsqflow stat {topic} --partitions' shows its leader; --wait sets the time",
        ) from None


async def _new_leader(
    cluster: RedesignedCluster, topic: str, partition: int, before: str
) -> str | None:
    try:
        node = (await cluster.topic(topic)).leaders.get(partition)
        if node is None or node.address == before:
            return None
        stats = await cluster.stats(topic, partitions=[partition])
        return node.address if _is_writable(stats, partition) else None
    except (AdminError, ConfigError, DiscoveryError, NetworkError, RequestTimeout):
        return None


def _is_writable(stats: list[PartitionStats], partition: int) -> bool:
    return any(each.partition == partition and each.writable for each in stats)
