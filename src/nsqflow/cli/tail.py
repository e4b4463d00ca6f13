"""``nsqflow tail``: shows the messages of topics as they arrive."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsqflow.cli.completion import TopicsArgument, complete_channel
from nsqflow.cli.connect_check import check_reachable
from nsqflow.cli.coroutines import run_async
from nsqflow.cli.existence import Holders, find_holders
from nsqflow.cli.servers import CliServers
from nsqflow.cli.terminal import console, escape, escape_lines, on_terminal, print_err, to_json
from nsqflow.client.consumer.consumer import Consumer
from nsqflow.client.message import Message
from nsqflow.errors import NsqError
from nsqflow.protocol.names import EPHEMERAL, check_channel, check_topic, is_ephemeral

if TYPE_CHECKING:
    from nsqflow.spark.spool.recovery import SpooledMessage

Formatter = Callable[[Iterable[Message]], None]
"""Writes a batch of messages to stdout."""


def make_formatter(*, as_json: bool, pretty: bool | None, several: bool) -> Formatter:
    """Choose how messages are shown; with ``several`` topics each line names its topic."""
    if as_json:
        return _print_objects
    if sys.stdout.isatty():  # a dumb terminal needs escaping, too
        return partial(_print_readable, console(), pretty=pretty is not False)
    return partial(_print_bodies, pretty=bool(pretty), several=several)


def _print_objects(messages: Iterable[Message]) -> None:
    _write(f"{to_json(describe_message(message))}\n".encode() for message in messages)


def describe_message(message: Message | SpooledMessage) -> dict[str, Any]:
    """Return a message as an object of JSON, with its body as text if it is UTF-8."""
    described: dict[str, Any] = {
        "topic": message.topic,
        "channel": message.channel,
        "nsqd": message.nsqd,
        "id": message.id.decode("ascii", "backslashreplace"),
        "timestamp": message.timestamp,
        "attempts": message.attempts,
    }
    try:
        described["body"] = message.body.decode()
    except UnicodeDecodeError:
        described["body_base64"] = base64.b64encode(message.body).decode()
    return described


def _print_bodies(messages: Iterable[Message], *, pretty: bool, several: bool) -> None:
    def line(message: Message) -> bytes:
        topic = f"{message.topic}\t".encode() if several else b""
        indented = _indented(message.body) if pretty else None
        return topic + (message.body if indented is None else indented.encode()) + b"\n"

    _write(map(line, messages))


def _print_readable(screen: Any, messages: Iterable[Message], *, pretty: bool) -> None:
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    for message in messages:
        at = datetime.fromtimestamp(message.timestamp / 1e9).strftime("%H:%M:%S.%f")[:-3]
        again = f" attempt {message.attempts}" if message.attempts > 1 else ""
        screen.print(Text(escape(f"{at} {message.topic} {message.nsqd}{again}"), style="dim"))
        indented = _indented(message.body) if pretty else None
        if indented is None:
            screen.print(Text(_readable(message.body)))
        else:
            screen.print(JSONHighlighter()(Text(indented)))


def _indented(body: bytes) -> str | None:
    """Indent a body that is JSON; return None for any other body."""
    try:
        return to_json(json.loads(body), indent=2)
    except (ValueError, RecursionError):
        return None


def _readable(body: bytes) -> str:
    """Decode any bytes; escape control characters except line breaks."""
    return escape_lines(body.decode("utf-8", "backslashreplace"))


def _write(pieces: Iterable[bytes]) -> None:
    sys.stdout.buffer.write(b"".join(pieces))
    sys.stdout.buffer.flush()


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
            "created, with --lookupd it is waited for.",
        ),
    ] = False,
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
    """
    names = [check_topic(topic) for topic in dict.fromkeys(topics)]
    channel = check_channel(channel or f"tail-{os.urandom(6).hex()}{EPHEMERAL}")
    formatter = make_formatter(as_json=json, pretty=pretty, several=len(names) > 1)
    run_async(TailPrinter(formatter, n).follow(servers, names, channel, create=create))


class TailPrinter:
    """Prints messages: ``limit`` of them, or all that arrive."""

    def __init__(self, formatter: Formatter, limit: int | None) -> None:
        self._format = formatter
        self._left = limit
        self._waiting: asyncio.TimerHandle | None = None

    async def follow(
        self, servers: CliServers, topics: list[str], channel: str, *, create: bool
    ) -> None:
        """Print messages until the limit is reached."""
        nsqds = await check_reachable(servers)
        if create:
            holders = dict.fromkeys(topics, servers.nsqd)
        else:
            # An ephemeral channel is deleted with its last reader.
            named = None if is_ephemeral(channel) else channel
            holders = await find_holders(servers, topics, named)
        try:
            await self._follow(servers, holders, channel, nsqds)
        except NsqError as error:
            explained = servers.explain(error)
            if explained is error:
                raise
            raise explained from error

    async def _follow(
        self, servers: CliServers, holders: Holders, channel: str, nsqds: int
    ) -> None:
        if on_terminal() and on_terminal(sys.stderr):
            text = f"waiting for messages of {', '.join(holders)}; press Ctrl-C to stop"
            self._waiting = asyncio.get_running_loop().call_later(_NOTICE_AFTER, print_err, text)
        async with AsyncExitStack() as stack:
            stack.callback(self._stop_waiting)
            consumers = [
                self._consumer(servers, topic, nsqd, channel, nsqds)
                for topic, nsqd in holders.items()
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

    def _consumer(
        self, servers: CliServers, topic: str, nsqd: tuple[str, ...], channel: str, nsqds: int
    ) -> Consumer:
        # Take no more messages than are shown from a shared channel, but at least one from each
        # nsqd: with fewer, the consumer would rotate between them.
        limit = _MAX_IN_FLIGHT if self._left is None else min(self._left * nsqds, _MAX_IN_FLIGHT)
        return Consumer(
            topic,
            channel,
            nsqd=nsqd,
            lookupd=() if nsqd else servers.lookupd,
            max_in_flight=max(limit, nsqds),
            max_attempts=0,
            **servers.client_options(),
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
