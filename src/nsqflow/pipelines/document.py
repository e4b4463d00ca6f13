"""Reads a pipeline file: TOML, with values from ``--set`` and environment variables.

``${NAME}`` in a string is replaced by an environment variable. Its value may be a secret, so
messages show the string as it is written in the file.
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
from nsqflow.pipelines.toml_lines import Path, find_lines

_LARGEST = 1 << 20  # bytes
_SHORTEST_SECRET = 4  # characters; hiding a shorter value would hide other text

_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)

# Tables with keys of other systems, which may contain dots.
_FREE = ("options", "conf", "arguments")


class Interpolated(str):
    """A string with variables filled in; its repr shows the string as written in the file."""

    written: str

    def __repr__(self) -> str:
        return repr(self.written)


def with_same_source(whole: str, text: str) -> str:
    """Return ``text``, which was derived from ``whole``, with the repr of ``whole``."""
    if not isinstance(whole, Interpolated):
        return text
    filled = Interpolated(text)
    filled.written = whole.written
    return filled


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a file, and the line of each key."""

    path: FilePath
    data: dict[str, Any] = field(repr=False)
    lines: Mapping[Path, int] = field(repr=False)
    settings: frozenset[Path]
    """The keys that --set has changed."""
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    """The values taken from the environment."""
    reads: dict[str, list[Path]] = field(default_factory=dict, repr=False)
    """The variables that the file names, and the keys that use them."""
    unset: set[str] = field(default_factory=set, repr=False)
    """Those that are not set."""
    missing: dict[str, Path] = field(default_factory=dict, repr=False)
    """Those that are not set and have no default, and the first key that uses each."""

    def note_variable(self, path: Path, name: str, environment: Mapping[str, str]) -> None:
        """Record that a key uses a variable."""
        paths = self.reads.setdefault(name, [])
        if path not in paths:
            paths.append(path)
        if name not in environment:
            self.unset.add(name)

    def variables_read(self) -> list[dict[str, Any]]:
        """Return the variables that the file names, whether they are set, and for which keys."""
        return [
            {
                "name": name,
                "set": name not in self.unset,
                "keys": [name_of(self.data, path) for path in paths],
            }
            for name, paths in sorted(self.reads.items())
        ]

    def location(self, path: Path) -> str:
        """Return where a key is set: ``views.toml:12``, or ``--set``."""
        for size in range(len(path), -1, -1):
            if path[:size] in self.settings:
                return "--set"
            if path[:size] in self.lines:
                return f"{self.path}:{self.lines[path[:size]]}"
        return str(self.path)

    def error(self, path: Path, problem: str) -> ConfigError:
        """Return the error for a key; ``problem`` follows the key's name."""
        return ConfigError(f"{self.location(path)}: {name_of(self.data, path)}{self.hide(problem)}")

    def hide(self, text: str) -> str:
        """Replace the values of variables with their names."""
        for name, value in sorted(self.variables.items(), key=lambda item: -len(item[1])):
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, f"${{{name}}}")
        return text


def name_of(data: object, path: Path) -> str:
    """Format a path as in ``--set``: ``sink.archive.format``."""
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
    """Read a file, apply ``settings`` (``key=value`` each), and fill in variables."""
    text = _read(path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax(path, text, str(error)) from None
    except RecursionError:
        raise ConfigError(f"{path}: lists or tables are nested too deeply") from None
    paths = frozenset([_set(data, setting) for setting in settings])
    document = Document(path, data, find_lines(text), paths)
    for key, value in data.items():
        data[key] = _fill(document, (key,), value, environment)
    _check_missing(document)
    return document


def _read(path: FilePath) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if len(content) > _LARGEST:
        raise ConfigError(f"{path}: the file has more than {_LARGEST} bytes")
    try:
        return content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: the file is not UTF-8") from None


def _syntax(path: FilePath, text: str, problem: str) -> ConfigError:
    position = _POSITION.search(problem)
    if position is None:
        return ConfigError(f"{path}: {problem}")
    line = position[1] or text.count("\n") + 1
    column = f", at column {position[2]}" if position[2] else ""
    return ConfigError(f"{path}:{line}: {problem[: position.start()]}{column}")


# --- --set --------------------------------------------------------------------------------------


def _set(data: dict[str, Any], setting: str) -> Path:
    """Set one value and return its path."""
    name, sign, value = setting.partition("=")
    parts = name.strip().split(".")
    if not sign or not all(parts):
        raise ConfigError(
            f"--set {name!r} is invalid: must be key=value, as in --set run.trigger='10 seconds'"
        )
    path: Path = ()
    table: Any = data
    while len(parts) > 1 and not (path and path[-1] in _FREE):
        key = parts.pop(0)
        path, table = (*path, key), table.setdefault(key, {})
        if isinstance(table, list) and len(parts) > 1:
            index = _find(data, path, parts.pop(0))
            path, table = (*path, index), table[index]
        if not isinstance(table, dict):
            raise ConfigError(f"--set {name}: {name_of(data, path)} is not a table")
    key = ".".join(parts)
    table[key] = _as_toml(value) if path and path[-1] == "arguments" else value
    return (*path, key)


def _as_toml(text: str) -> object:
    """Parse an argument as TOML; return it as text if it is not TOML."""
    try:
        read = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return read["value"] if read.keys() == {"value"} else text


def _find(data: dict[str, Any], path: Path, wanted: str) -> int:
    """Return the index of a table in an array, by its name or number."""
    (key,) = path
    names = [name_of(data, (key, index)).partition(".")[2] for index in range(len(data[str(key)]))]
    numbers = [str(index + 1) for index in range(len(names))]
    for labels in (names, numbers):
        if wanted in labels:
            return labels.index(wanted)
    raise ConfigError(f"--set {key}.{wanted} does not exist; there are {', '.join(names)}")


# --- variables ----------------------------------------------------------------------------------


def _check_missing(document: Document) -> None:
    """Raise ``ConfigError`` if variables are missing."""
    if not document.missing:
        return
    (name, path), *others = document.missing.items()
    more = f"; neither is {', '.join(other for other, _ in others)}" if others else ""
    if given := sorted(document.reads.keys() - document.missing.keys()):
        more += f"; the file also reads {', '.join(given)}"
    problem = f": {name} is not in the environment; ${{{name}:-...}} sets a default{more}"
    raise document.error(path, problem)


def _fill(document: Document, path: Path, value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(document, (*path, key), v, environment) for key, v in value.items()}
    if isinstance(value, list):
        return [_fill(document, (*path, n), v, environment) for n, v in enumerate(value)]
    if isinstance(value, str) and "${" in value:
        return _fill_text(document, path, value, environment)
    return value


def _fill_text(
    document: Document, path: Path, text: str, environment: Mapping[str, str]
) -> Interpolated:
    def value_of(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        found = _NAME.fullmatch(match[1])
        if found is None or not match[2]:
            problem = f": {match[0]!r} is not a variable; write $${{ for a literal ${{"
            raise document.error(path, problem)
        name, default = found.groups()
        document.note_variable(path, name, environment)
        if name in environment:
            return document.variables.setdefault(name, environment[name])
        if default is None:
            document.missing.setdefault(name, path)
            return match[0]
        return str(default)

    filled = Interpolated(_VARIABLE.sub(value_of, text))
    filled.written = text
    return filled
