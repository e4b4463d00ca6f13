"""Finds the line of each key in TOML: tomllib does not report it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

Path = tuple[str | int, ...]
"""The path to a value: key names, and indexes into arrays of tables."""

_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r]+|\#[^\n]*)
    | (?P<line>\n)
    | (?P<quoted>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')
    | (?P<open>[\[{])
    | (?P<close>[\]}])
    | (?P<mark>[=.,])
    | (?P<bare>[^\s\[\]{}=.,"'\#]+)
    """,
    re.VERBOSE | re.DOTALL,
)

Token = tuple[str, str, int]
"""A token: kind, text and line."""


def find_lines(text: str) -> dict[Path, int]:
    """Return the line of every key and table header; the first line is 1.

    The text is valid TOML. The content of inline tables and arrays has no entries: it has the line
    of the key that it belongs to.
    """
    lines: dict[Path, int] = {}
    table: Path = ()
    last: dict[Path, int] = {}  # the current index in each array of tables
    for statement in _statements(text):
        _, first, number = statement[0]
        if first == "[":
            table = _header(statement, last)
            lines[table] = number
        else:
            key = (*table, *_names(statement))
            for size in range(len(table) + 1, len(key) + 1):
                lines.setdefault(key[:size], number)
    return lines


def _statements(text: str) -> Iterator[list[Token]]:
    """Split the text into table headers and key/value pairs, which may span lines."""
    statement: list[Token] = []
    depth, number = 0, 1
    for match in _TOKEN.finditer(text):
        kind, token = str(match.lastgroup), match[0]
        if kind == "line" and not depth and statement:
            yield statement
            statement = []
        if kind not in ("space", "line"):
            statement.append((kind, token, number))
        depth += (kind == "open") - (kind == "close")
        number += token.count("\n")
    if statement:
        yield statement


def _header(statement: list[Token], last: dict[Path, int]) -> Path:
    """Return the path of a table, with its index if it is in an array."""
    *outer, name = _names(statement)
    path: Path = ()
    for part in outer:
        path += (part,)
        if path in last:
            path += (last[path],)
    path += (name,)
    if statement[1][1] == "[":
        last[path] = last.get(path, -1) + 1
    return (*path, last[path]) if path in last else path


def _names(statement: list[Token]) -> list[str]:
    names = []
    for kind, token, _ in statement:
        if token == "=" and kind == "mark":
            break
        if kind == "bare":
            names.append(token)
        elif kind == "quoted":
            names.append(tomllib.loads(f"key = {token}")["key"])
    return names
