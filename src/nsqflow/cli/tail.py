"""``nsqflow tail``: shows the messages of topics as they arrive."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated

import typer

from nsqflow.cli.cluster import CliCluster
from nsqflow.cli.completion import TopicsArgument, complete_channel
from nsqflow.cli.connect_check import check_reachable
from nsqflow.cli.coroutines import run_async
from nsqflow.cli.errors import USAGE_ERROR, CommandError
from nsqflow.cli.existence import find_holders, find_partitions
from nsqflow.cli.message_format import Formatter, make_formatter
from nsqflow.cli.partitions import (
    FromOption,
    PartitionsOption,
    check_lookupd,
    check_position,
    choose_partitions,
    find_partitioned,
)
from nsqflow.cli.servers import CliServers
from nsqflow.cli.terminal import on_terminal, print_err
from nsqflow.client.consumer.consumer import Consumer
from nsqflow.client.options import ConsumerOptions
from nsqflow.errors import NsqError
from nsqflow.protocol.names import EPHEMERAL, check_channel, check_topic, is_ephemeral

_MAX_IN_FLIGHT = 200
_BATCH_SIZE = 100
_NOTICE_AFTER = 2.0  # seconds without a message until that is shown on a terminal


def tail(
    servers: CliServers,
    topics: TopicsArgument,
    n: Annotated[
        int | None,
        typer.Option("-n", "--n", metavar="COUNT", min=1, help="Exit after COUNT messages."),
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option(
            "--channel",
            metavar="CHANNEL",
            autocompletion=complete_channel,
            help="Consume the messages of this channel. By default a temporary channel gets a "
            "copy of each message, and other consumers miss none.",
        ),
    ] = None,
    create: Annotated[
        bool,
        typer.Option(
            "--create",
            help="Subscribe even if a topic or the channel does not exist: with --nsqd it is "
            "created, with --lookupd it is waited for. Not with --from, nor with --partition "
            "unless --channel is given.",
        ),
    ] = False,
    start: FromOption = None,
    partition: PartitionsOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print each message as a JSON object on a line.")
    ] = False,
    pretty: Annotated[
        bool | None,
        typer.Option("--pretty/--raw", help="Indent JSON bodies, the default on a terminal."),
    ] = None,
) -> None:
    """Show the messages of one or more topics as they arrive, until Ctrl-C.

    It is an error if a topic, or the channel given by --channel, does not exist.

    In a pipe only the bodies are printed, one per line, with the topic and a tab before each if
    there are several topics.

    Example:
      $ nsqflow tail orders -n 1
      $ nsqflow tail orders returns -n 2 --json
      $ nsqflow tail orders -n 1 --from earliest --partition 0
    """
    names = [check_topic(topic) for topic in dict.fromkeys(topics)]
    selection = Selection.of(channel, start, partition or ())
    if create and selection.option is not None and selection.is_own:
        raise CommandError(
            f"--create and {selection.option} are both given: {selection.option} is for topics "
            "that exist",
            "'nsqflow create' creates one",
            USAGE_ERROR,
        )
    formatter = make_formatter(as_json=json, pretty=pretty, several=len(names) > 1)
    run_async(TailPrinter(formatter, n, selection).follow(servers, names, create=create))


@dataclass(frozen=True, slots=True)
class Selection:
    """What is read: a channel, from a position on, of some partitions."""

    channel: str
    is_own: bool
    """Whether the channel is a temporary one of this command."""
    start: str | None
    """A position; None: where the channel is."""
    partitions: tuple[int, ...]
    """Empty: all."""

    @classmethod
    def of(cls, channel: str | None, start: str | None, partitions: Sequence[int]) -> Selection:
        """Check the options."""
        if start is not None:
            check_position("--from", start)
            if channel is not None:
                raise CommandError(
                    f"--from with --channel would move channel {channel!r} for all its consumers",
                    "'nsqflow seek' does that",
                    USAGE_ERROR,
                )
        own = f"tail-{os.urandom(6).hex()}{EPHEMERAL}"
        name = own if channel is None else check_channel(channel)
        return cls(name, channel is None, start, tuple(partitions))

    @property
    def option(self) -> str | None:
        """The option for topics of the redesigned NSQ, if one is given."""
        return "--from" if self.start is not None else "--partition" if self.partitions else None


@dataclass(frozen=True, slots=True)
class TailedTopic:
    """A topic, and how it is consumed."""

    nsqd: tuple[str, ...]
    """Empty: those that nsqlookupd names."""
    connections: int
    options: ConsumerOptions


class TailPrinter:
    """Prints messages: ``limit`` of them, or all that arrive."""

    def __init__(self, formatter: Formatter, limit: int | None, selection: Selection) -> None:
        self._format = formatter
        self._left = limit
        self._selection = selection
        self._waiting: asyncio.TimerHandle | None = None

    async def follow(self, servers: CliServers, topics: list[str], *, create: bool) -> None:
        """Print messages until the limit is reached."""
        if self._selection.option is not None:
            check_lookupd(servers, self._selection.option)
        nsqds = await check_reachable(servers)
        sources = await self._find(CliCluster(servers), topics, nsqds, create=create)
        try:
            await self._follow(servers, sources)
        except NsqError as error:
            explained = servers.explain(error)
            if explained is error:
                raise
            raise explained from error

    async def _find(
        self, cluster: CliCluster, topics: list[str], nsqds: int, *, create: bool
    ) -> dict[str, TailedTopic]:
        """Return how to read each topic; raise if one, or the channel, does not exist."""
        chosen, servers = self._selection, cluster.servers
        if chosen.option is not None:
            for topic in topics:
                await find_partitioned(
                    cluster, topic, chosen.option, f"'nsqflow tail {topic}' shows what comes"
                )
        partitioned = await cluster.partitioned_topics(topics)
        classic = [topic for topic in topics if topic not in partitioned]
        # An ephemeral channel is deleted with its last reader.
        named = None if is_ephemeral(chosen.channel) else chosen.channel
        holders = dict.fromkeys(classic, servers.nsqd)
        if not create and classic:
            holders = await find_holders(servers, classic, named)
        sources = {topic: TailedTopic(nsqd, nsqds, {}) for topic, nsqd in holders.items()}
        for topic, found in partitioned.items():
            numbers = choose_partitions(found, chosen.partitions)
            if not create:
                numbers = await find_partitions(
                    cluster, found, numbers, named, is_own=chosen.is_own
                )
            options = ConsumerOptions(partitions=numbers, start_from=chosen.start)
            if chosen.is_own and not found.meta.ordered and chosen.start is None:
                # Messages then have their offset, and are not missed when a leader moves.
                options["start_from"] = "latest"
            sources[topic] = TailedTopic((), len(numbers), options)
        return {topic: sources[topic] for topic in topics}

    async def _follow(self, servers: CliServers, sources: dict[str, TailedTopic]) -> None:
        if on_terminal() and on_terminal(sys.stderr):
            text = f"waiting for messages of {', '.join(sources)}; press Ctrl-C to stop"
            self._waiting = asyncio.get_running_loop().call_later(_NOTICE_AFTER, print_err, text)
        async with AsyncExitStack() as stack:
            stack.callback(self._stop_waiting)
            consumers = [
                self._consumer(servers, topic, source) for topic, source in sources.items()
            ]
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

    def _consumer(self, servers: CliServers, topic: str, source: TailedTopic) -> Consumer:
        # Take no more messages than are shown from a shared channel, but at least one from each
        # connection: with fewer, the consumer would rotate between them.
        limit, connections = _MAX_IN_FLIGHT, source.connections
        if self._left is not None:
            limit = min(self._left * connections, _MAX_IN_FLIGHT)
        options = servers.client_options() | source.options
        return Consumer(
            topic,
            self._selection.channel,
            nsqd=source.nsqd,
            lookupd=() if source.nsqd else servers.lookupd,
            max_in_flight=max(limit, connections),
            max_attempts=0,
            **options,
        )

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    async def _show(self, consumer: Consumer) -> None:
        async for batch in consumer.batches(_BATCH_SIZE, max_wait=0):
            self._stop_waiting()
            shown = batch if self._left is None else batch[: self._left]
            try:
                self._format(shown)
            except BaseException:  # for example when stdout is closed
                batch.requeue(0, backoff=False)
                raise
            for message in batch[len(shown) :]:
                message.requeue(0, backoff=False)
            batch.finish()
            if self._left is not None:
                self._left -= len(shown)
                if not self._left:
                    return
