"""Arguments for topics and channels, and their shell completion, which asks the servers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

import typer

from nsqflow.cli.cluster import CliCluster
from nsqflow.cli.servers import SERVER_OPTIONS, CliServers
from nsqflow.errors import NsqError
from nsqflow.protocol.names import is_valid_name

_TIMEOUT = 2.0  # seconds that a user waits after Tab


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that start with ``incomplete``; none if no server is reachable."""
    return _names(ctx, None, incomplete)


def complete_channel(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the channels of the topic, or of the first, that start with ``incomplete``."""
    # Arguments before an option that has no value yet are not parsed.
    topics = [ctx.params.get("topic"), *(ctx.params.get("topics") or ()), *ctx.args]
    topic = next(filter(None, topics), None)
    return [] if topic is None else _names(ctx, topic, incomplete)


def _names(ctx: typer.Context, topic: str | None, incomplete: str) -> list[str]:
    options = (ctx.params.get(name) for name in SERVER_OPTIONS)
    with suppress(NsqError, OSError):  # which includes TimeoutError
        cluster = CliCluster(CliServers.of(*options))
        asking = cluster.topics() if topic is None else cluster.channels(topic)
        names = asyncio.run(asyncio.wait_for(asking, _TIMEOUT))
        return [name for name in names if name.startswith(incomplete) and _is_safe(name)]
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
