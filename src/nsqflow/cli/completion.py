"""Names on the command line, which a shell can complete: it asks the servers which there are."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated

import typer

from nsqflow.cli.cluster import Cluster
from nsqflow.cli.servers import Servers
from nsqflow.errors import NsqError

_PATIENCE = 2.0  # seconds: who presses Tab does not wait for longer


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give the topics that begin so; none where nobody answers."""
    return _names(ctx, None, incomplete)


def complete_channel(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give the channels of the topic that begin so; none where nobody answers."""
    return _names(ctx, ctx.params.get("topic"), incomplete)


def _names(ctx: typer.Context, topic: str | None, incomplete: str) -> list[str]:
    options = (ctx.params.get(name) for name in ("lookupd", "nsqd", "nsqd_http", "config"))
    with suppress(NsqError, OSError):  # of which TimeoutError is a kind
        cluster = Cluster(Servers.of(*options))
        asking = cluster.topics() if topic is None else cluster.channels(topic)
        names = asyncio.run(asyncio.wait_for(asking, _PATIENCE))
        return [name for name in names if name.startswith(incomplete)]
    return []


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
        help="A channel of it; without one, the topic itself is meant.",
        autocompletion=complete_channel,
        show_default=False,
    ),
]
