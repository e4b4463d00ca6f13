"""The verb stat: every topic and channel of the cluster, live."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import Annotated, Any

import typer

from nsqflow.cli.cluster import Cluster, no_nsqd, unknown_topic
from nsqflow.cli.completion import complete_topic
from nsqflow.cli.counts import Counts, Key, Rates, rates, sum_up
from nsqflow.cli.errors import FAILED, OK, Failure, line, words
from nsqflow.cli.screen import (
    Cell,
    clean,
    console,
    count,
    emit,
    note,
    on_terminal,
    rich_table,
    show_table,
)
from nsqflow.cli.servers import ConfigOption, LookupdOption, NsqdHttpOption, NsqdOption, Servers
from nsqflow.cli.signals import run
from nsqflow.errors import NsqError
from nsqflow.protocol.names import check_topic

_COLUMNS = (
    *("topic", "channel", "depth", "in flight", "deferred", "in/s", "out/s"),
    *("requeued", "timed out", "clients", "nsqd"),
)
_WIDE = ("requeued", "timed out", "nsqd")
_WIDTH = 110  # columns of a terminal that has room for all of ours
_MARGIN = 4  # lines of a terminal that are not for rows


def stat(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...",
            help="Topics; without any, all of them.",
            autocompletion=complete_topic,
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="SECONDS", min=0.1, max=3600, help="Between two looks."),
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look once; then there are no rates.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per row, on a line, at each look.")
    ] = False,
    lookupd: LookupdOption = None,
    nsqd: NsqdOption = None,
    nsqd_http: NsqdHttpOption = None,
    config: ConfigOption = None,
) -> int:
    """Show depth, messages in flight and deferred, rates and clients of every channel.

    The counts are those of all nsqd together. A row without a channel is the topic itself: its
    depth is what no channel has yet. Runs until Ctrl-C.

    Example:
      $ nsqflow stat --once
      $ nsqflow stat orders --once --json
    """
    names = [check_topic(topic) for topic in topics or ()]
    watch = Watch(Cluster(Servers.of(lookupd, nsqd, nsqd_http, config)), names)
    look, remarks = run(watch.begin(), f"asking {watch.cluster.servers}")
    for remark in remarks:
        note(line(remark))
    if once:
        (_write_json if json else _write_plain)(look)
        return FAILED if look.troubles or (names and remarks) else OK
    with _showing(as_json=json) as show:
        run(watch.follow(look, interval, show))
    return OK


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one moment."""

    at: float
    """Seconds since 1970."""
    servers: str
    counts: dict[Key, Counts]
    rates: dict[Key, Rates]
    troubles: list[str]
    """Who could not be asked, and why."""


class Watch:
    """Looks at the cluster again and again."""

    def __init__(self, cluster: Cluster, topics: list[str]) -> None:
        self.cluster = cluster
        self._topics = topics
        self._counts: dict[Key, Counts] = {}
        self._at = 0.0

    async def begin(self) -> tuple[Look, list[Failure]]:
        """Look once; tells also what is not to be seen, and why."""
        look = await self.look()
        missing = [name for name in self._topics if (name, None) not in look.counts]
        if look.counts and not missing:
            return look, []
        if not await self.cluster.places():
            return look, [no_nsqd(self.cluster.servers)]
        known = await self.cluster.topics()
        if not known:
            return look, [Failure("there is no topic yet")]
        return look, [_not_there(name, known) for name in missing]

    async def look(self) -> Look:
        """Look once; raises if nobody answers."""
        self.cluster.troubles.clear()
        only = self._topics[0] if len(self._topics) == 1 else None
        answers = await self.cluster.stats(only)
        before, self._counts = self._counts, sum_up((stats for _, stats in answers), self._topics)
        since, self._at = self._at, time.monotonic()
        return Look(
            time.time(),
            str(self.cluster.servers),
            self._counts,
            rates(self._counts, before, self._at - since),
            [words(trouble) for trouble in self.cluster.troubles],
        )

    async def follow(self, look: Look, interval: float, show: Callable[[Look], None]) -> None:
        """Show a look, and another one every ``interval`` seconds, for ever."""
        while True:
            show(look)
            await asyncio.sleep(interval)
            try:
                look = await self.look()
            except NsqError as error:
                troubles = [words(error), *map(words, self.cluster.troubles)]
                look = Look(time.time(), look.servers, {}, {}, troubles)


def _not_there(topic: str, known: list[str]) -> Failure:
    if topic in known:
        return Failure(f"no nsqd has topic {topic} yet", "nsqlookupd alone knows of it")
    return unknown_topic(topic, known)


@contextmanager
def _showing(*, as_json: bool) -> Iterator[Callable[[Look], None]]:
    """Give what shows a look: anew in the same place of a terminal, else one below the other."""
    if as_json or not on_terminal():
        yield _write_json if as_json else _write_plain
        return
    from rich.live import Live

    screen = console()

    def show(look: Look) -> None:
        height = max(screen.height - _MARGIN - len(look.troubles), 1)
        live.update(_picture(look, screen.width, height), refresh=True)

    with Live(console=screen, auto_refresh=False) as live:
        yield show


def _picture(look: Look, width: int, height: int) -> Any:
    from rich.console import Group
    from rich.text import Text

    heads, rows = _table(look, width)
    clock = time.strftime("%H:%M:%S", time.localtime(look.at))
    more = [f"and {count(len(rows) - height, 'row')} more"] if len(rows) > height else []
    return Group(
        Text(f"{look.servers}  {clock}", style="dim", no_wrap=True),
        rich_table(heads, rows[:height]),
        *(Text(line, style="dim") for line in more),
        *(Text(clean(trouble), style="red", no_wrap=True) for trouble in look.troubles),
    )


def _write_plain(look: Look) -> None:
    if look.counts:
        show_table(*_table(look, console().width if on_terminal() else None))
    for trouble in look.troubles:
        note(trouble)


def _write_json(look: Look) -> None:
    for (topic, channel), counts in look.counts.items():
        rate = look.rates.get((topic, channel))
        emit(
            {
                "at": look.at,
                "topic": topic,
                "channel": channel,
                "depth": counts.depth,
                "in_flight": counts.in_flight,
                "deferred": counts.deferred,
                "messages": counts.messages,
                "in_rate": rate and rate.come,
                "out_rate": rate and rate.gone,
                "requeued": counts.requeued,
                "timed_out": counts.timed_out,
                "clients": counts.clients,
                "nsqd": counts.nsqds,
                "paused": counts.paused,
            }
        )
    sys.stdout.flush()
    for trouble in look.troubles:
        note(trouble)


def _table(look: Look, width: int | None) -> tuple[list[str], list[list[Cell]]]:
    """Make a table; one that has to be narrow lacks what is looked at last."""
    rows = [_row(*key, counts, look.rates.get(key)) for key, counts in look.counts.items()]
    wanted = [head not in _WIDE or width is None or width >= _WIDTH for head in _COLUMNS]
    return [*compress(_COLUMNS, wanted)], [[*compress(row, wanted)] for row in rows]


def _row(topic: str, channel: str | None, counts: Counts, rate: Rates | None) -> list[Cell]:
    paused = " (paused)" if counts.paused else ""
    come, gone = (rate.come, rate.gone) if rate else (None, None)
    if channel is None:
        # What only a channel has is left open.
        return [
            *(topic + paused, "-", counts.depth, None, None, come, gone),
            *(None, None, None, counts.nsqds),
        ]
    return [
        *(topic, channel + paused, counts.depth, counts.in_flight, counts.deferred, come, gone),
        *(counts.requeued, counts.timed_out, counts.clients, counts.nsqds),
    ]
