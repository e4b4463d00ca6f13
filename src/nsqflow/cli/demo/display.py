"""The demo's progress: a live screen on a terminal, lines in a pipe, nothing with --json."""

from __future__ import annotations

import io
import re
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqflow.cli.demo.workload import PageSummary, Workload
from nsqflow.cli.terminal import console, count, on_terminal, rich_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from nsqflow.pipelines.runner import BatchProgress


_LONG = 5.0  # seconds over which a rate is computed
_SAMPLE = 0.5  # seconds between two values of the curve


class DemoProgress:
    """The number of messages published and read by each query, and the rates."""

    def __init__(self, workload: Workload, sinks: Sequence[str]) -> None:
        self.workload = workload
        self.sinks = sinks
        self.batches: dict[str, list[BatchProgress]] = {name: [] for name in sinks}
        self.read = dict.fromkeys(sinks, 0)
        self._marks: deque[tuple[float, int, dict[str, int]]] = deque()
        self.curve: list[float] = []

    def add(self, batch: BatchProgress) -> None:
        """Add a batch that has ended."""
        self.batches[batch.sink].append(batch)
        self.read[batch.sink] += batch.messages

    def is_done(self) -> bool:
        """Return whether every sink has read everything."""
        return self.workload.is_over and all(
            n >= self.workload.published for n in self.read.values()
        )

    def is_settled(self) -> bool:
        """Return whether NSQ is empty and the summaries include every view."""
        summed = sum(one.views for one in self.workload.sums.values())
        return not self.workload.left and summed >= self.workload.page_views.good

    @property
    def passed(self) -> float:
        """Seconds since the first message, at most the duration of publishing."""
        workload = self.workload
        return min(workload.seconds, time.time() - workload.begun) if workload.begun else 0.0

    def mark(self, now: float) -> None:
        """Record the current counts, for the rates."""
        if self._marks and now - self._marks[-1][0] < _SAMPLE:
            return
        if self._marks:
            before, published, _ = self._marks[-1]
            self.curve.append((self.workload.published - published) / (now - before))
        self._marks.append((now, self.workload.published, dict(self.read)))
        while now - self._marks[0][0] > _LONG:
            self._marks.popleft()

    def rate(self, sink: str | None = None) -> float:
        """Return messages per second, published or read by a sink."""
        if len(self._marks) < 2:
            return 0.0
        (start, published, read), (end, published_now, read_now) = self._marks[0], self._marks[-1]
        done = published_now - published if sink is None else read_now[sink] - read[sink]
        return done / (end - start)

    def waiting(self, sink: str) -> int:
        """Return the number of messages that a sink has not read."""
        return max(0, self.workload.published - self.read[sink])

    def slowest(self) -> list[PageSummary]:
        """Return the slowest pages in the latest window."""
        sums = self.workload.sums.values()
        last = max((one.since for one in sums), default="")
        pages = [one for one in sums if one.since == last]
        return sorted(pages, key=lambda one: -one.p95)


_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_BARS = " ▁▂▃▄▅▆▇█"
_LINE = 2.0  # seconds between two lines where there is no terminal
_SLOWEST = 6
_BAR = 40
_COLUMNS, _LINES = 60, 14  # that the screen needs


class Display:
    """Shows the demo's progress; this one shows nothing."""

    def say(self, text: str) -> None:
        """Show a line of text."""

    def show(self, progress: DemoProgress) -> None:
        """Show the current state."""


class LineDisplay(Display):
    """A line every two seconds."""

    def __init__(self) -> None:
        self._due = 0.0
        self._shown = 0  # notes

    def say(self, text: str) -> None:
        """Show a line of text."""
        print(text, flush=True)

    def show(self, progress: DemoProgress) -> None:
        """Update the line if it is due."""
        notes = progress.workload.notes
        for note in notes[self._shown :]:
            print(note, flush=True)
        self._shown = len(notes)
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _LINE
        last = [batches[-1].seconds for batches in progress.batches.values() if batches]
        words = [
            f"{count(progress.workload.published, 'message')} published",
            "read by " + ", ".join(f"{name} {n:,}" for name, n in progress.read.items()),
            *([f"last batches {max(last):.1f} s"] if last else []),
            *(f"slowest {one.page} {one.p95} ms" for one in progress.slowest()[:1]),
        ]
        print(", ".join(words), flush=True)


class ScreenDisplay(Display):
    """A screen that is updated in place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def say(self, text: str) -> None:
        """Show a line of text."""
        from rich.spinner import Spinner

        self._live.update(Spinner("line", text))

    def show(self, progress: DemoProgress) -> None:
        """Show the current state."""
        self._live.update(render(progress))


def render(progress: DemoProgress) -> RenderableType:
    """Draw the screen."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    workload, passed = progress.workload, progress.passed
    done = round(_BAR * passed / workload.seconds)
    head = Text.assemble(
        ("nsqflow demo  ", "bold"),
        ("━" * done, "green"),
        ("━" * (_BAR - done), "dim"),
        f"  {passed:.0f} of {workload.seconds:g} s"
        if not workload.is_over
        else "   reading the rest",
    )
    published = Text.assemble(
        f"{workload.published:,} published, {progress.rate():,.0f} a second  ",
        (sparkline(progress.curve[-_BAR:]), "cyan"),
    )
    sinks = rich_table(
        ("query", "read", "per second", "waiting", "last batch"),
        [
            (
                name,
                progress.read[name],
                round(progress.rate(name)),
                progress.waiting(name),
                f"{batches[-1].seconds:.1f} s" if (batches := progress.batches[name]) else None,
            )
            for name in progress.sinks
        ],
    )
    pages = rich_table(
        ("page", "views", "95% within"),
        [(one.page, one.views, f"{one.p95:,} ms") for one in progress.slowest()[:_SLOWEST]],
    )
    panels = [
        Panel(sinks, title="Spark", border_style="dim", height=_SLOWEST + 3),
        Panel(
            pages,
            title="slowest pages, from NSQ",
            border_style="dim",
            width=38,
            height=_SLOWEST + 3,
        ),
    ]
    if not workload.partitions:
        return Group(head, published, Columns(panels))
    notes = [Text(note, style="yellow") for note in workload.notes]
    return Group(head, published, *notes, _render_partitions(workload), Columns(panels))


def _render_partitions(workload: Workload) -> RenderableType:
    from rich.panel import Panel

    partitions = rich_table(
        ("partition", "led by nsqd", "messages", "waiting"),
        [
            (state.number, state.leader or "none now", state.messages, state.waiting)
            for state in workload.partitions
        ],
    )
    return Panel(partitions, title="NSQ", border_style="dim", expand=False)


def sparkline(values: list[float]) -> str:
    """Draw numbers as bars, one character each."""
    highest = max(values, default=0.0) or 1.0
    return "".join(_BARS[round(max(0.0, value) / highest * (len(_BARS) - 1))] for value in values)


def draw(progress: DemoProgress) -> str:
    """Draw the screen as SVG."""
    from rich.console import Console

    recording = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    recording.print(render(progress))
    # Without web fonts.
    return _FONTS.sub("", recording.export_svg(title="nsqflow demo"))


def fits_screen() -> bool:
    """Return whether stdout is a UTF-8 terminal that is large enough."""
    if not on_terminal():
        return False
    terminal = console()
    known = terminal.encoding.lower().replace("-", "") == "utf8"
    return known and terminal.width >= _COLUMNS and terminal.height >= _LINES
