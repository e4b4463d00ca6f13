"""``nsqflow stat``: every topic and channel of the cluster, live."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from nsqflow.cli.channel_stats import (
    ChannelTotals,
    Rates,
    compute_rates,
    count_partitions,
    list_clients,
    sum_partitions,
    sum_stats,
)
from nsqflow.cli.cluster import CliCluster, needs_lookupd, no_nsqd, unknown_topic
from nsqflow.cli.completion import complete_topic
from nsqflow.cli.coroutines import run_async
from nsqflow.cli.errors import FAILED, OK, USAGE_ERROR, CommandError, error_message, one_line
from nsqflow.cli.partition_table import find_partitions, read_ages
from nsqflow.cli.stat_tables import RowKey, Snapshot, make_objects, make_table
from nsqflow.cli.stat_view import Sort, StatView
from nsqflow.cli.terminal import (
    console,
    count,
    escape,
    on_terminal,
    print_err,
    print_json,
    rich_table,
    show_table,
)
from nsqflow.config.numbers import Duration
from nsqflow.errors import NsqError
from nsqflow.protocol.names import check_topic

if TYPE_CHECKING:
    from rich.console import RenderableType

_INTERVAL = Duration(0.1, 3600)
_MARGIN = 4  # lines of a terminal that are not rows
_LIVE_MARGIN = 3  # the same for the live view: two header lines, one line of hints
_HINTS = "q quit  s sort  r reverse  c clients"


def stat(
    cluster: CliCluster,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...",
            help="Topics; all if omitted.",
            autocompletion=complete_topic,
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        str, typer.Option("--interval", metavar="DURATION", help="Between two samples.")
    ] = "2s",
    once: Annotated[
        bool, typer.Option("--once", help="Print once and exit; without rates.")
    ] = False,
    clients: Annotated[
        bool,
        typer.Option("--clients", help="Show the clients of each channel, and why one is starved."),
    ] = False,
    partitions: Annotated[
        bool,
        typer.Option(
            "--partitions", help="Redesigned topics: a row for each partition, with its leader."
        ),
    ] = False,
    sort: Annotated[
        Sort, typer.Option("--sort", metavar="COLUMN", help=f"One of {', '.join(Sort)}.")
    ] = Sort.NAME,
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per row and sample.")
    ] = False,
) -> int:
    """Show depth, messages in flight and deferred, rates and clients of every channel.

    The counts are sums over all nsqd. A row without a channel is the topic itself: its depth
    counts messages that no channel has yet. Topics of the redesigned NSQ also have the age of the
    backlog, and with --partitions a row per partition: its leader, replicas and counts. Runs
    until q or Ctrl-C. On a terminal, s sorts by the next column (d, f, i, n: depth, in flight,
    in/s, name), r reverses, c shows clients, p partitions, and the arrows scroll.

    Example:
      $ nsqflow stat --once
      $ nsqflow stat orders --once --json
      $ nsqflow stat --once --clients --sort in-flight
      $ nsqflow stat orders --once --partitions
    """
    names = [check_topic(topic) for topic in topics or ()]
    if clients and partitions:
        raise CommandError("both --clients and --partitions are given: give one", "", USAGE_ERROR)
    if partitions and not cluster.lookupds:
        raise needs_lookupd(cluster.servers, "--partitions")
    view = StatView(sort=sort, reverse=reverse, clients=clients, partitions=partitions)
    watcher = StatWatcher(cluster, names, _INTERVAL.parse("--interval", interval))
    watcher.with_clients = clients
    snapshot, notes = run_async(watcher.first_snapshot(), f"asking {cluster.servers}")
    for note in notes:
        print_err(one_line(note))
    if partitions and snapshot.counts and not snapshot.partitions:
        text = "--partitions is for topics of the redesigned NSQ"
        raise CommandError(text, f"{cluster.servers} has classic ones only", USAGE_ERROR)
    write = _write_json if json else _write_plain
    if once:
        write(snapshot, view)
        return FAILED if snapshot.errors or (names and notes) else OK
    if on_terminal() and not json:
        _run_live(watcher, snapshot, view)
    else:
        run_async(watcher.follow(snapshot, lambda snapshot: write(snapshot, view)))
    return OK


class StatWatcher:
    """Polls the statistics of a cluster."""

    def __init__(self, cluster: CliCluster, topics: list[str], interval: float) -> None:
        self.cluster = cluster
        self.with_clients = False
        """Whether to request clients, which can make nsqd's answer much longer."""
        self._topics = topics
        self._interval = interval
        self._refresh = asyncio.Event()
        self._counts: dict[RowKey, ChannelTotals] = {}
        self._rates: dict[RowKey, Rates] = {}
        self._at = 0.0

    async def first_snapshot(self) -> tuple[Snapshot, list[CommandError]]:
        """Take the first sample; add errors about missing topics."""
        snapshot = await self.sample()
        missing = [name for name in self._topics if (name, None) not in snapshot.counts]
        if snapshot.counts and not missing:
            return snapshot, []
        if not await self.cluster.nodes():
            return snapshot, [no_nsqd(self.cluster.servers)]
        known = await self.cluster.topics()
        if not known:
            return snapshot, [CommandError("there is no topic yet")]
        return snapshot, [_missing_topic(name, known) for name in missing]

    async def sample(self) -> Snapshot:
        """Return the current statistics; raise if no server is reachable."""
        self.cluster.errors.clear()
        only = self._topics[0] if len(self._topics) == 1 else None
        cluster, clients = self.cluster, self.with_clients
        nodes = await cluster.nodes()
        table = await find_partitions(cluster, nodes, self._topics, include_clients=clients)
        answers = await cluster.stats(only, include_clients=clients, nodes=nodes)
        if nodes and not answers and not table.copies and cluster.errors:
            raise cluster.no_answer()
        partitions, at = await read_ages(cluster, table.partitions), time.time()
        classic = sum_stats((stats for _, stats in answers), self._topics)
        counts = classic | sum_partitions(partitions, at)
        partition_counts = count_partitions(partitions, at)
        every: list[tuple[RowKey, ChannelTotals]] = [*counts.items(), *partition_counts.items()]
        self._update_rates(dict(every), time.monotonic())
        named = ((node.address, stats) for node, stats in answers)
        return Snapshot(
            at,
            str(cluster.servers),
            counts,
            self._rates,
            list_clients(named, self._topics, partitions) if clients else None,
            [*dict.fromkeys(map(error_message, cluster.errors))],
            {(each.topic.name, each.number): each for each in partitions},
            partition_counts,
        )

    async def follow(self, snapshot: Snapshot, show: Callable[[Snapshot], None]) -> None:
        """Show a snapshot, then a new one at each interval, until cancelled."""
        while True:
            show(snapshot)
            await self._pause()
            try:
                snapshot = await self.sample()
            except NsqError as error:
                errors = [error_message(error), *map(error_message, self.cluster.errors)]
                snapshot = Snapshot(time.time(), snapshot.servers, {}, {}, [], errors)

    def refresh_now(self) -> None:
        """Take the next sample now."""
        self._refresh.set()

    def _update_rates(self, counts: dict[RowKey, ChannelTotals], now: float) -> None:
        """Compute the rates since the previous sample; an early sample keeps the last rates."""
        seconds = now - self._at
        if self._counts and seconds < self._interval / 2:
            return
        self._rates = compute_rates(counts, self._counts, seconds)
        self._counts, self._at = counts, now

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._refresh.wait(), self._interval)
        self._refresh.clear()


def _missing_topic(topic: str, known: list[str]) -> CommandError:
    if topic in known:
        hint = "it is only registered with nsqlookupd"
        return CommandError(f"no nsqd has topic {topic} yet", hint)
    return unknown_topic(topic, known)


class LiveStat:
    """The live view on a terminal that takes keys."""

    def __init__(self, watcher: StatWatcher, snapshot: Snapshot, view: StatView) -> None:
        self._watcher = watcher
        self._snapshot = snapshot
        self._view = view
        self._over = asyncio.Event()

    async def run(self, refresh: Callable[[], None]) -> None:
        """Poll and redraw until a key ends it."""

        def show(snapshot: Snapshot) -> None:
            self._snapshot = snapshot
            refresh()

        following = asyncio.create_task(self._watcher.follow(self._snapshot, show))
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait((following, over), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            following.cancel()
            over.cancel()
            await asyncio.gather(following, over, return_exceptions=True)

    def press(self, key: str) -> None:
        """Handle a key."""
        if key == "p" and not self._snapshot.partitions:
            return  # the topics are all classic
        self._view.press(key)
        if self._view.is_over:
            self._over.set()
        if self._view.clients and not self._watcher.with_clients:
            self._watcher.refresh_now()
        self._watcher.with_clients = self._view.clients

    def draw(self, width: int, height: int) -> RenderableType:
        """Draw a full screen: the rows that fit, and a line about the keys."""
        from rich.console import Group
        from rich.text import Text

        body, shown = _render_rows(self._snapshot, self._view, width, height - _LIVE_MARGIN)
        empty = (Text() for _ in range(self._view.height - len(shown)))
        last = "p partitions" if self._snapshot.partitions else "arrows scroll"
        hints = Text(f"{self._position(shown)}  {_HINTS}  {last}", style="dim", no_wrap=True)
        return Group(*body, *empty, *_render_errors(self._snapshot), hints)

    def last(self, width: int, height: int) -> RenderableType:
        """Draw what stays on the terminal: the rows that fit, and the number of others."""
        from rich.console import Group
        from rich.text import Text

        body, shown = _render_rows(self._snapshot, self._view, width, height - _MARGIN)
        hidden = self._view.rows - len(shown)
        more = [Text(f"and {count(hidden, 'row')} more", style="dim")] if hidden else []
        return Group(*body, *more, *_render_errors(self._snapshot))

    def _position(self, shown: range) -> str:
        view = self._view
        if view.clients and self._snapshot.channel_clients is None:
            return "asking for clients ..."
        part = f"{shown.start + 1}-{shown.stop} of " if len(shown) < view.rows else ""
        order = f"{view.sort.value}{', reversed' if view.reverse else ''}"
        return f"{part}{count(view.rows, 'row')} by {order}"


def _run_live(watcher: StatWatcher, snapshot: Snapshot, view: StatView) -> None:
    """Run the live view; its last state remains on the terminal."""
    from nsqflow.cli.live_screen import LiveScreen

    session, terminal = LiveStat(watcher, snapshot, view), console()
    screen = LiveScreen(terminal, session.draw, session.press)

    async def run() -> None:
        with screen.attached():
            await session.run(screen.refresh)

    try:
        with screen:
            run_async(run())
    finally:
        terminal.print(session.last(*terminal.size))


def _render_rows(
    snapshot: Snapshot, view: StatView, width: int, height: int
) -> tuple[list[RenderableType], range]:
    """Draw the head and the rows that fit below the errors; return which rows those are."""
    heads, rows = make_table(snapshot, view, width)
    shown = view.window(len(rows), height - len(snapshot.errors))
    return [
        _render_head(snapshot),
        rich_table(heads, [rows[number] for number in shown], wrap=False),
    ], shown


def _render_head(snapshot: Snapshot) -> RenderableType:
    from rich.text import Text

    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    return Text(f"{snapshot.servers}  {clock}", style="dim", no_wrap=True)


def _render_errors(snapshot: Snapshot) -> list[RenderableType]:
    from rich.text import Text

    return [Text(escape(error), style="red", no_wrap=True) for error in snapshot.errors]


def _write_plain(snapshot: Snapshot, view: StatView) -> None:
    heads, rows = make_table(snapshot, view, console().width if on_terminal() else None)
    if rows:
        show_table(heads, rows)
    for error in snapshot.errors:
        print_err(error)


def _write_json(snapshot: Snapshot, view: StatView) -> None:
    for row in make_objects(snapshot, view):
        print_json(row)
    sys.stdout.flush()
    for error in snapshot.errors:
        print_err(error)
