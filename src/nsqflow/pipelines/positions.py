"""Where in a TOML text each key stands: tomllib, which reads the values, does not tell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

Path = tuple[str | int, ...]
"""How to get to a value: names of keys, and places in arrays of tables, which begin at 0."""

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
"""Its kind, its text and its line."""


def find_lines(text: str) -> dict[Path, int]:
    """Give the line of every key and every table header, the first being 1.

    The text is TOML that tomllib has taken. What stands inside an inline table or an array has
    the line of the key that it belongs to, and no entry of its own.
    """
    lines: dict[Path, int] = {}
    table: Path = ()
    last: dict[Path, int] = {}  # of each array of tables, the place of the table that is open
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
    """Cut the text into table headers and pairs of key and value, over as many lines as those."""
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
    """Give the path of a table, and count it if it is one of an array."""
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
