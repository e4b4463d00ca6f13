"""The verb tail: shows the messages of topics as they come."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, suppress
from difflib import get_close_matches
from typing import Annotated

import typer

from nsqflow.cli.cluster import Cluster
from nsqflow.cli.completion import TopicsArgument
from nsqflow.cli.contact import reach
from nsqflow.cli.rendering import Rendering, make_rendering
from nsqflow.cli.screen import note
from nsqflow.cli.servers import ConfigOption, LookupdOption, NsqdHttpOption, NsqdOption, Servers
from nsqflow.cli.signals import run
from nsqflow.client.consumer import Consumer
from nsqflow.errors import NsqError
from nsqflow.protocol.names import EPHEMERAL, check_channel, check_topic

_IN_FLIGHT = 200
_BATCH = 100
_PATIENCE = 1.0  # seconds for a remark that nobody has asked for


def tail(
    topics: TopicsArgument,
    n: Annotated[
        int | None,
        typer.Option("-n", "--n", metavar="COUNT", min=1, help="End after so many messages."),
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option(
            "--channel",
            metavar="CHANNEL",
            help="Take the messages from this channel. Without it, a channel of its own that "
            "vanishes at the end gets a copy of each, and nobody misses any.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print each message as a JSON object on a line.")
    ] = False,
    pretty: Annotated[
        bool | None,
        typer.Option("--pretty/--raw", help="Indent bodies that are JSON; as a terminal has them."),
    ] = None,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the messages of one or several topics as they come, until Ctrl-C.

    In a pipe there are the bodies alone, a line each, with the topic and a tab before them where
    there are several topics.

    Example:
      $ nsqflow tail orders -n 1
      $ nsqflow tail orders returns -n 2 --json
    """
    names = [check_topic(topic) for topic in dict.fromkeys(topics)]
    channel = check_channel(channel or f"tail-{os.urandom(6).hex()}{EPHEMERAL}")
    servers = Servers.of(lookupd, nsqd, nsqd_http, config)
    rendering = make_rendering(as_json=json, pretty=pretty, several=len(names) > 1)
    run(Feed(rendering, n).follow(servers, names, channel))


class Feed:
    """Messages on their way to stdout: ``most`` of them, or all that come."""

    def __init__(self, rendering: Rendering, most: int | None) -> None:
        self._rendering = rendering
        self._left = most

    async def follow(self, servers: Servers, topics: list[str], channel: str) -> None:
        """Show what comes until there was enough of it."""
        nsqds = await reach(servers)
        await _remark(servers, topics)
        async with AsyncExitStack() as stack:
            consumers = [self._consumer(servers, topic, channel, nsqds) for topic in topics]
            for consumer in consumers:
                await stack.enter_async_context(consumer)
            tasks = [asyncio.create_task(self._show(consumer)) for consumer in consumers]
            try:
                ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _consumer(self, servers: Servers, topic: str, channel: str, nsqds: int) -> Consumer:
        # No more than can be shown, of a channel that is shared; but from each nsqd one at least,
        # or they would have to take turns.
        most = _IN_FLIGHT if self._left is None else min(self._left * nsqds, _IN_FLIGHT)
        return Consumer(
            topic,
            channel,
            nsqd=servers.nsqd,
            lookupd=servers.lookupd,
            max_in_flight=max(most, nsqds),
            max_attempts=0,
            **servers.client_options(),
        )

    async def _show(self, consumer: Consumer) -> None:
        async for batch in consumer.batches(_BATCH, max_wait=0):
            shown = batch if self._left is None else batch[: self._left]
            try:
                self._rendering(shown)
            except BaseException:  # nobody reads it any more
                batch.requeue(0, backoff=False)
                raise
            for message in batch[len(shown) :]:
                message.requeue(0, backoff=False)
            batch.finish()
            if self._left is not None:
                self._left -= len(shown)
                if not self._left:
                    return


async def _remark(servers: Servers, topics: list[str]) -> None:
    """Tell a person which of the topics are not there: a name may be mistyped."""
    with suppress(NsqError, TimeoutError):
        known = await asyncio.wait_for(Cluster(servers).topics(), _PATIENCE)
        for topic in topics:
            if topic not in known:
                near = get_close_matches(topic, known, 1)
                note(f"there is no topic {topic!r} yet" + (f"; {near[0]!r} is" if near else ""))
