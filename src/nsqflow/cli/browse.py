"""``nsqflow browse``: shows messages of a topic without consuming them, and without a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Self

import typer

from nsqflow.admin import BrowsedMessage
from nsqflow.cli.cluster import CliCluster
from nsqflow.cli.completion import TopicArgument
from nsqflow.cli.coroutines import run_async, show_progress
from nsqflow.cli.errors import USAGE_ERROR, CommandError
from nsqflow.cli.message_format import Formatter, make_formatter
from nsqflow.cli.partitions import (
    FromOption,
    PartitionsOption,
    check_leaders,
    check_position,
    choose_partitions,
    find_partitioned,
    partition_range,
)
from nsqflow.cli.terminal import ProgressLine, count, print_err
from nsqflow.client.partition_message import TAG_HEADER
from nsqflow.protocol.names import check_topic

_ON_CLASSIC = "classic NSQ keeps no finished messages; 'nsqflow tail' shows those that come"


def browse(
    cluster: CliCluster,
    topic: TopicArgument,
    partition: PartitionsOption = None,
    start: FromOption = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", metavar="N", min=0, help="The same as --from offset:N."),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option(
            "-n", "--max-messages", metavar="COUNT", min=1, help="Exit after COUNT messages."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print each message as a JSON object on a line.")
    ] = False,
    pretty: Annotated[
        bool | None,
        typer.Option("--pretty/--raw", help="Indent JSON bodies, the default on a terminal."),
    ] = None,
) -> None:
    """Show the messages that a topic of the redesigned NSQ keeps, finished or not.

    Nothing is consumed, and no channel is needed or moved. It begins with the oldest message, or
    at --from, reads one partition after the other, and exits at the end. In a pipe only the bodies
    are printed, one per line.

    Example:
      $ nsqflow browse orders -n 1
      $ nsqflow browse orders --partition 0 --from earliest --json
    """
    check_topic(topic)
    if start is not None and offset is not None:
        raise CommandError("--from and --offset are both given: give one", code=USAGE_ERROR)
    where = start or "earliest"
    if offset is not None:
        where = f"offset:{offset}"
    check_position("--from", where)
    browser = TopicBrowser(cluster, topic, make_formatter(as_json=json, pretty=pretty), n)
    run_async(browser.run(partition or [], where, is_offset=offset is not None))
    if browser.damaged:
        print_err(
            f"{count(browser.damaged, 'message')} may be damaged: nsqd returns text here, and "
            "replaces what is not UTF-8"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnconsumedMessage:
    """A message that was browsed, as one that was delivered."""

    topic: str
    id: bytes
    timestamp: int
    body: bytes
    partition: int
    offset: int
    internal_id: int
    trace_id: int
    headers: Mapping[str, Any] | None
    tag: str | None
    channel: None = None
    nsqd: None = None
    attempts: None = None
    size: None = None

    @classmethod
    def of(cls, topic: str, browsed: BrowsedMessage) -> Self:
        """Return a message of a topic."""
        ids = (browsed.internal_id, browsed.trace_id)
        tag = (browsed.headers or {}).get(TAG_HEADER)
        return cls(
            topic=topic,
            id=b"".join(each.to_bytes(8, "big") for each in ids),
            timestamp=browsed.timestamp,
            body=browsed.body.encode("utf-8", "surrogatepass"),
            partition=browsed.partition,
            offset=browsed.offset,
            internal_id=browsed.internal_id,
            trace_id=browsed.trace_id,
            headers=browsed.headers,
            tag=tag if isinstance(tag, str) else None,
        )


class TopicBrowser:
    """Prints what a topic keeps: ``limit`` messages, or all."""

    def __init__(
        self, cluster: CliCluster, topic: str, formatter: Formatter, limit: int | None
    ) -> None:
        self.damaged = 0
        """Messages whose bodies may not be what was published."""
        self._cluster = cluster
        self._topic = topic
        self._format = formatter
        self._left = limit
        self._searching = ExitStack()  # while there is a progress line

    async def run(self, partitions: Sequence[int], start: str, *, is_offset: bool) -> None:
        """Print the messages of some partitions, all if none is named, from a position on."""
        text = f"looking for messages of {self._topic} ..."
        with self._searching:
            self._searching.enter_context(show_progress(ProgressLine(lambda: text)))
            await self._run(partitions, start, is_offset=is_offset)

    async def _run(self, partitions: Sequence[int], start: str, *, is_offset: bool) -> None:
        topic = await find_partitioned(self._cluster, self._topic, "browse", _ON_CLASSIC)
        wanted = choose_partitions(topic, partitions)
        if is_offset and len(wanted) > 1:
            raise CommandError(
                f"--offset is a place in one partition, and {self._topic!r} has "
                f"{partition_range(topic)}",
                "name it by --partition",
                USAGE_ERROR,
            )
        check_leaders(topic, wanted)
        for number in wanted:
            if self._left == 0:
                return
            await self._show(number, start)

    async def _show(self, partition: int, start: str) -> None:
        messages = self._cluster.redesigned().browse(self._topic, partition, start)
        async with aclosing(messages):
            async for message in messages:
                self._searching.close()
                self._format([UnconsumedMessage.of(self._topic, message)])
                self.damaged += message.damaged
                if self._left is not None:
                    self._left -= 1
                    if not self._left:
                        return
