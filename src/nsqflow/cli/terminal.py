"""Output: tables, JSON, progress; plain in a pipe, escaped, without colour if NO_COLOR is set."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from nsqflow.protocol.names import is_valid_name

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Cell = str | int | float | None
Rows = Sequence[Sequence[Cell]]

# Characters that control a terminal or the text around them: control characters of
# ASCII and Latin-1 (C1), line separators, bidirectional controls, lone surrogates.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SILENT_SECONDS = 2.0  # seconds before the line appears
_UPDATE_INTERVAL = 1.0


def on_terminal(stream: TextIO | None = None) -> bool:
    """Return whether a stream, by default stdout, is a terminal that can move its cursor."""
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def console(*, stderr: bool = False) -> Console:
    """Return a rich console, which respects NO_COLOR."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def print_err(text: str) -> None:
    """Print a line on stderr."""
    print(f"nsqflow: {escape(text)}", file=sys.stderr, flush=True)


def escape(text: str) -> str:
    """Escape control characters: text from servers must not control the terminal."""
    return _UNSAFE.sub(lambda match: _escape_code(ord(match[0])), text)


def show_name(name: str) -> str:
    """Return the name of a topic or channel for display; quoted, in ASCII, if it is invalid.

    So no name from a server can be mistaken for another.
    """
    return name if is_valid_name(name) else ascii(name)


def escape_lines(text: str) -> str:
    """Escape control characters except line breaks."""
    return "\n".join(map(escape, text.split("\n")))


def quote_lines(text: str) -> str:
    """Escape control characters and prefix each line, so that none looks like our own."""
    return "\n".join(f"| {escape(line)}" for line in text.rstrip("\n").split("\n"))


def to_json(value: Any, indent: int | None = None) -> str:
    """Format a value as JSON that is safe to print; one line, unless it is indented.

    In JSON, only strings can contain control characters, and escapes are equivalent there.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    escaped = (
        _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", line) for line in text.split("\n")
    )
    return "\n".join(escaped)


def print_json(value: dict[str, Any]) -> None:
    """Print an object as a line of JSON."""
    print(to_json(value))


def count(number: int, thing: str) -> str:
    """Format a number of things, as in ``1 message`` and ``1,200 messages``; nsqd has no plural."""
    plural = "" if number == 1 or thing.startswith("nsq") else "s"
    return f"{number:,} {thing}{plural}"


def show_table(heads: Sequence[str], rows: Rows) -> None:
    """Print a table."""
    if on_terminal():
        console().print(rich_table(heads, rows))
    else:
        print(plain_table(heads, rows), flush=True)


def plain_table(heads: Sequence[str], rows: Rows) -> str:
    """Format a table in aligned columns, numbers to the right."""
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


def rich_table(heads: Sequence[str], rows: Rows, *, wrap: bool = True) -> Table:
    """Return the table for a rich console; without ``wrap``, long cells are cut."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head, on_right in zip(heads, _numeric(heads, rows), strict=True):
        # If it does not fit, names are cut, never numbers.
        table.add_column(
            head,
            justify="right" if on_right else "left",
            no_wrap=on_right,
            overflow="ellipsis",
        )
    for row in rows:
        no_wrap = None if wrap else True  # (None: as the column says)
        table.add_row(*(Text(_text(cell), no_wrap=no_wrap, overflow="ellipsis") for cell in row))
    return table


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show a spinner on a terminal while the block runs."""
    if not on_terminal(sys.stderr):
        yield
        return
    with console(stderr=True).status(text, spinner="line"):
        yield


class ProgressLine:
    """A line on the terminal about something slow, which is removed at the end.

    Call ``tick`` often; it shows ``text()`` at most once a second.
    """

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._due = time.monotonic() + _SILENT_SECONDS
        self._shown = False

    def tick(self) -> None:
        """Update the line if it is due."""
        now = time.monotonic()
        if now >= self._due and on_terminal(sys.stderr):
            self._due = now + _UPDATE_INTERVAL
            self._shown = True
            print(f"\r\x1b[K{escape(self._text())}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            self._shown = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _escape_code(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _numeric(heads: Sequence[str], rows: Rows) -> list[bool]:
    # Unknown values are aligned like the rest of the column.
    return [not any(isinstance(row[i], str) for row in rows) for i in range(len(heads))]


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else escape(cell)
