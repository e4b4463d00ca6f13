"""Arguments for topics and channels, and their shell completion, which asks the servers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Annotated, Any

import typer

from nsqflow.cli.cluster import CliCluster
from nsqflow.cli.servers import SERVER_OPTIONS, CliServers
from nsqflow.errors import NsqError
from nsqflow.protocol.names import is_valid_name

_TIMEOUT = 2.0  # seconds that a user waits after Tab
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*:[0-9]+", re.ASCII)  # safe on a command line


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that start with ``incomplete``; none if no server is reachable."""
    return _names(ctx, None, incomplete)


def complete_channel(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the channels of the topic, or of the first, that start with ``incomplete``."""
    # Arguments before an option that has no value yet are not parsed.
    topics = [ctx.params.get("topic"), *(ctx.params.get("topics") or ()), *ctx.args]
    topic = next(filter(None, topics), None)
    return [] if topic is None else _names(ctx, topic, incomplete)


def complete_partition(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the numbers of the topic's partitions that start with ``incomplete``."""

    async def ask(cluster: CliCluster) -> list[str]:
        topic = await cluster.partitioned_topic(ctx.params.get("topic") or "")
        return [str(number) for number in range(topic.meta.partition_num if topic else 0)]

    return [number for number in _ask(ctx, ask) if number.startswith(incomplete)]


def complete_node(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the addresses of the nsqd that start with ``incomplete``."""

    async def ask(cluster: CliCluster) -> list[str]:
        return [node.address for node in await cluster.nodes()]

    return [
        each for each in _ask(ctx, ask) if each.startswith(incomplete) and _ADDRESS.fullmatch(each)
    ]


def _names(ctx: typer.Context, topic: str | None, incomplete: str) -> list[str]:
    async def ask(cluster: CliCluster) -> list[str]:
        return await (cluster.topics() if topic is None else cluster.channels(topic))

    names = _ask(ctx, ask)
    return [name for name in names if name.startswith(incomplete) and _is_safe(name)]


def _ask(
    ctx: typer.Context, call: Callable[[CliCluster], Coroutine[Any, Any, list[str]]]
) -> list[str]:
    options = (ctx.params.get(name) for name in SERVER_OPTIONS)
    with suppress(NsqError, OSError):  # which includes TimeoutError
        asking = call(CliCluster(CliServers.of(*options)))
        return asyncio.run(asyncio.wait_for(asking, _TIMEOUT))
    return []


def _is_safe(name: str) -> bool:
    """Return whether a name from a server is safe on a command line.

    A shell expands what it completes: ``orders$(...)`` would be run by Enter. A valid name has
    nothing that a shell expands, but it may begin with ``-``, and then it would be an option, such
    as ``--yes``.
    """
    return is_valid_name(name) and not name.startswith("-")


TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topic)
]
TopicsArgument = Annotated[
    list[str], typer.Argument(metavar="TOPIC...", help="Topics.", autocompletion=complete_topic)
]
ChannelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[CHANNEL]",
        help="A channel of the topic; without it, the topic itself.",
        autocompletion=complete_channel,
        show_default=False,
    ),
]
NamedChannelArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHANNEL", help="A channel of the topic.", autocompletion=complete_channel
    ),
]
