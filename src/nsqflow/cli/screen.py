"""What is shown: readable on a terminal, plain in a pipe, without colour where NO_COLOR says so."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Cell = str | int | float | None
Rows = Sequence[Sequence[Cell]]

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
_QUIET = 2.0  # seconds that anybody waits for without being told why
_TICK = 1.0


def on_terminal(stream: TextIO | None = None) -> bool:
    """Tell whether it is a terminal that can do more than print; stdout unless another is given."""
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def console(*, stderr: bool = False) -> Console:
    """Make a console of rich, which heeds NO_COLOR."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Say something on stderr, in one line."""
    print(f"nsqflow: {clean(text)}", file=sys.stderr, flush=True)


def clean(text: str) -> str:
    """Escape control characters: what servers say must not talk to the terminal."""
    return text.translate(_ESCAPES)


def emit(value: dict[str, Any]) -> None:
    """Print an object as a line of JSON."""
    print(json.dumps(value, ensure_ascii=False))


def count(number: int, thing: str) -> str:
    """Write so many things, as in ``1 message`` and ``1,200 messages``; no plural of nsqd."""
    plural = "" if number == 1 or thing.startswith("nsq") else "s"
    return f"{number:,} {thing}{plural}"


def show_table(heads: Sequence[str], rows: Rows) -> None:
    """Print a table."""
    if on_terminal():
        console().print(rich_table(heads, rows))
    else:
        print(plain_table(heads, rows), flush=True)


def plain_table(heads: Sequence[str], rows: Rows) -> str:
    """Write a table in aligned columns; numbers are to the right."""
    texts = [[head.upper() for head in heads], *([_text(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right = _numeric(heads, rows)
    return "\n".join(
        "  ".join(
            text.rjust(width) if on_right else text.ljust(width)
            for text, width, on_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in texts
    )


def rich_table(heads: Sequence[str], rows: Rows) -> Table:
    """Make the same table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head, on_right in zip(heads, _numeric(heads, rows), strict=True):
        # Where it does not fit, names are cut, never numbers.
        table.add_column(
            head,
            justify="right" if on_right else "left",
            no_wrap=on_right,
            overflow="ellipsis",
        )
    for row in rows:
        table.add_row(*(Text(_text(cell)) for cell in row))
    return table


@contextmanager
def busy(text: str) -> Iterator[None]:
    """Show a line that moves while a block runs, on a terminal."""
    if not on_terminal(sys.stderr):
        yield
        return
    with console(stderr=True).status(text, spinner="line"):
        yield


class Progress:
    """A line on the terminal while something takes its time; gone when it is done.

    ``tick`` is called again and again; it shows what ``text`` gives, at most once a second.
    """

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._due = time.monotonic() + _QUIET
        self._shown = False

    def tick(self) -> None:
        """Show how things are, if it is time to."""
        now = time.monotonic()
        if now >= self._due and on_terminal(sys.stderr):
            self._due = now + _TICK
            self._shown = True
            print(f"\r\x1b[K{clean(self._text())}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._shown = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _numeric(heads: Sequence[str], rows: Rows) -> list[bool]:
    # What is not known yet keeps its side of the column.
    return [not any(isinstance(row[i], str) for row in rows) for i in range(len(heads))]


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else clean(cell)
