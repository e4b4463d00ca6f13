"""What the demo shows while it runs: a screen on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import io
import re
import time
from typing import TYPE_CHECKING, Protocol

from nsqflow.cli.demo.progress import Progress
from nsqflow.cli.screen import console, count, on_terminal, rich_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_BARS = " ▁▂▃▄▅▆▇█"
_LINE = 2.0  # seconds between two lines where there is no terminal
_SLOWEST = 6
_BAR = 40
_COLUMNS, _LINES = 60, 14  # that the screen needs


class View(Protocol):
    """How the demo is followed."""

    def say(self, text: str) -> None:
        """Say what is going on."""

    def show(self, progress: Progress) -> None:
        """Show how things are, if it is time to."""


class Lines:
    """A line every two seconds."""

    def __init__(self) -> None:
        self._due = 0.0

    def say(self, text: str) -> None:
        """Say what is going on."""
        print(text, flush=True)

    def show(self, progress: Progress) -> None:
        """Show how things are, if it is time to."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _LINE
        last = [batches[-1].seconds for batches in progress.batches.values() if batches]
        words = [
            f"{count(progress.site.published, 'message')} published",
            "read by " + ", ".join(f"{name} {n:,}" for name, n in progress.read.items()),
            *([f"last batches {max(last):.1f} s"] if last else []),
            *(f"slowest {one.page} {one.p95} ms" for one in progress.slowest()[:1]),
        ]
        print(", ".join(words), flush=True)


class Quiet:
    """Nothing: the account alone is wanted."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def show(self, progress: Progress) -> None:
        """Show nothing."""


class Screen:
    """A picture that changes in its place."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def say(self, text: str) -> None:
        """Say what is going on."""
        from rich.spinner import Spinner

        self._live.update(Spinner("line", text))

    def show(self, progress: Progress) -> None:
        """Show how things are."""
        self._live.update(render(progress))


def render(progress: Progress) -> RenderableType:
    """Draw the screen."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    site, passed = progress.site, progress.passed
    done = round(_BAR * passed / site.seconds)
    head = Text.assemble(
        ("nsqflow demo  ", "bold"),
        ("━" * done, "green"),
        ("━" * (_BAR - done), "dim"),
        f"  {passed:.0f} of {site.seconds:g} s" if not site.is_over else "  the rest is read",
    )
    published = Text.assemble(
        f"{site.published:,} published, {progress.rate():,.0f} a second  ",
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
    return Group(
        head,
        published,
        Columns(
            [
                Panel(sinks, title="Spark", border_style="dim", height=_SLOWEST + 3),
                Panel(
                    pages,
                    title="slowest pages, from NSQ",
                    border_style="dim",
                    width=38,
                    height=_SLOWEST + 3,
                ),
            ]
        ),
    )


def sparkline(values: list[float]) -> str:
    """Draw numbers as bars of one character each."""
    highest = max(values, default=0.0) or 1.0
    return "".join(_BARS[round(max(0.0, value) / highest * (len(_BARS) - 1))] for value in values)


def draw(progress: Progress) -> str:
    """Draw the screen as SVG."""
    from rich.console import Console

    recording = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    recording.print(render(progress))
    # Without the fonts that it would load from elsewhere.
    return _FONTS.sub("", recording.export_svg(title="nsqflow demo"))


def can_draw() -> bool:
    """Whether there is a terminal with room for the screen, and it knows the characters."""
    if not on_terminal():
        return False
    terminal = console()
    known = terminal.encoding.lower().replace("-", "") == "utf8"
    return known and terminal.width >= _COLUMNS and terminal.height >= _LINES
