"""A pipeline file as it is written: TOML, what the command line changes in it, and variables.

``${NAME}`` in a text stands for a variable of the environment. What comes from there may be a
secret, so it is shown as it is written in the file, wherever it is shown.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from nsqflow.errors import ConfigError
from nsqflow.pipelines.positions import Path, find_lines

_LARGEST = 1 << 20  # bytes of a file that somebody wrote by hand
_SHORTEST_SECRET = 4  # characters; what is shorter is found everywhere, and hides nothing

_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)

# Tables whose keys are not ours, and may have dots in them.
_FREE = ("options", "conf", "arguments")


class Filled(str):
    """A text in which variables were filled in; its repr is that of the text as it was written."""

    written: str

    def __repr__(self) -> str:
        return repr(self.written)


def filled_like(whole: str, text: str) -> str:
    """Make a text that was made of another as secret as that one."""
    if not isinstance(whole, Filled):
        return text
    filled = Filled(text)
    filled.written = whole.written
    return filled


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds, and where."""

    path: FilePath
    data: dict[str, Any] = field(repr=False)
    lines: Mapping[Path, int] = field(repr=False)
    settings: frozenset[Path]
    """The keys that the command line has set."""
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    """What was taken from the environment."""

    def place(self, path: Path) -> str:
        """Say where something stands: ``views.toml:12``, or ``--set``."""
        for size in range(len(path), -1, -1):
            if path[:size] in self.settings:
                return "--set"
            if path[:size] in self.lines:
                return f"{self.path}:{self.lines[path[:size]]}"
        return str(self.path)

    def wrong(self, path: Path, problem: str) -> ConfigError:
        """Make the error for what stands there; ``problem`` goes on after the key's name."""
        return ConfigError(f"{self.place(path)}: {name_of(self.data, path)}{self.hide(problem)}")

    def hide(self, text: str) -> str:
        """Write the names of variables in the place of their values."""
        for name, value in sorted(self.variables.items(), key=lambda item: -len(item[1])):
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, f"${{{name}}}")
        return text


def name_of(data: object, path: Path) -> str:
    """Write a path as ``--set`` takes it: ``sink.archive.format``."""
    words: list[str] = []
    for part in path:
        if isinstance(part, str):
            data = data.get(part) if isinstance(data, dict) else None
            words.append(part)
        else:
            data = data[part] if isinstance(data, list) and part < len(data) else None
            name = data.get("name") if isinstance(data, dict) else None
            words.append(name if isinstance(name, str) and name else str(part + 1))
    return ".".join(words)


def read_file(
    path: FilePath, settings: Sequence[str] = (), environment: Mapping[str, str] = os.environ
) -> Document:
    """Read a file, apply ``settings`` (``key=value`` each), and fill variables in."""
    text = _read(path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax(path, text, str(error)) from None
    except RecursionError:
        raise ConfigError(f"{path}: lists or tables inside of each other, too many") from None
    paths = frozenset([_set(data, setting) for setting in settings])
    document = Document(path, data, find_lines(text), paths)
    for key, value in data.items():
        data[key] = _fill(document, (key,), value, environment)
    return document


def _read(path: FilePath) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if len(content) > _LARGEST:
        raise ConfigError(f"{path}: more than {_LARGEST} bytes; allowed is a TOML file up to that")
    try:
        return content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8, as a TOML file is") from None


def _syntax(path: FilePath, text: str, problem: str) -> ConfigError:
    position = _POSITION.search(problem)
    if position is None:
        return ConfigError(f"{path}: {problem}")
    line = position[1] or text.count("\n") + 1
    column = f", at column {position[2]}" if position[2] else ""
    return ConfigError(f"{path}:{line}: {problem[: position.start()]}{column}")


# --- what the command line sets -----------------------------------------------------------------


def _set(data: dict[str, Any], setting: str) -> Path:
    """Set one value; gives its path."""
    name, sign, value = setting.partition("=")
    parts = name.strip().split(".")
    if not sign or not all(parts):
        raise ConfigError(
            f"--set {name!r}; allowed is key=value, as in --set run.trigger='10 seconds'"
        )
    path: Path = ()
    table: Any = data
    while len(parts) > 1 and not (path and path[-1] in _FREE):
        key = parts.pop(0)
        path, table = (*path, key), table.setdefault(key, {})
        if isinstance(table, list) and len(parts) > 1:
            place = _find(data, path, parts.pop(0))
            path, table = (*path, place), table[place]
        if not isinstance(table, dict):
            raise ConfigError(f"--set {name}: {name_of(data, path)} is no table")
    key = ".".join(parts)
    table[key] = _as_toml(value) if path and path[-1] == "arguments" else value
    return (*path, key)


def _as_toml(text: str) -> object:
    """Read an argument, which may be of any type; what is no TOML is a text."""
    try:
        read = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return read["value"] if read.keys() == {"value"} else text


def _find(data: dict[str, Any], path: Path, wanted: str) -> int:
    """Find one of an array of tables by its name or its number."""
    (key,) = path
    names = [name_of(data, (key, place)).partition(".")[2] for place in range(len(data[str(key)]))]
    numbers = [str(place + 1) for place in range(len(names))]
    for labels in (names, numbers):
        if wanted in labels:
            return labels.index(wanted)
    raise ConfigError(f"--set {key}.{wanted}: there is none; there are {', '.join(names)}")


# --- variables ----------------------------------------------------------------------------------


def _fill(document: Document, path: Path, value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(document, (*path, key), v, environment) for key, v in value.items()}
    if isinstance(value, list):
        return [_fill(document, (*path, n), v, environment) for n, v in enumerate(value)]
    if isinstance(value, str) and "${" in value:
        return _fill_text(document, path, value, environment)
    return value


def _fill_text(document: Document, path: Path, text: str, environment: Mapping[str, str]) -> Filled:
    def value_of(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        found = _NAME.fullmatch(match[1])
        if found is None or not match[2]:
            problem = f": {match[0]!r} names no variable; $${{ stands for ${{ itself"
            raise document.wrong(path, problem)
        name, default = found.groups()
        if name in environment:
            return document.variables.setdefault(name, environment[name])
        if default is None:
            problem = f": {name} is not in the environment; ${{{name}:-...}} gives a default"
            raise document.wrong(path, problem)
        return str(default)

    filled = Filled(_VARIABLE.sub(value_of, text))
    filled.written = text
    return filled
