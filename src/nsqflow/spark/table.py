"""The table of options: how an option is declared, and how those that are given are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, TypeVar

from nsqflow.errors import ConfigError
from nsqflow.spark.values import Kind

T = TypeVar("T")

STREAM, BATCH, SINK = "stream", "batch", "sink"
SOURCE = (STREAM, BATCH)
ANYWHERE = (STREAM, BATCH, SINK)

_CALLS = {STREAM: "readStream", BATCH: "read", SINK: "write and writeStream"}

# What Spark hands on to a sink of what was said to writeStream.
_OF_SPARK = ("checkpointlocation", "queryname")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of the table."""

    name: str
    """As it is documented; Spark does not tell ``topicPattern`` from ``topicpattern``."""
    where: tuple[str, ...]
    kind: Kind
    default: str
    """As a user would write it; empty if there is none."""
    meaning: str

    def read(self, text: str) -> object:
        """Give the value; raise ``ConfigError`` if it is not allowed."""
        if not text:
            raise ConfigError(f"{self.name} is empty; allowed is {self.kind}")
        return self.kind.read(self.name, text)


def option(
    name: str,
    where: tuple[str, ...],
    kind: Kind,
    meaning: str,
    *,
    default: str = "",
    absent: object = None,
    secret: bool = False,
) -> Any:
    """Declare a field that is an option; ``absent`` is its value if there is no default."""
    row = Option(name=name, where=where, kind=kind, default=default, meaning=meaning)
    value = row.read(default) if default else absent
    return field(default=value, repr=not secret, metadata={"option": row})


def make(cls: type[T], given: Mapping[str, Any], **others: Any) -> T:
    """Make a ``cls`` of those of the given fields that are its own, and of ``others``."""
    names = {one.name for one in fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in given.items() if name in names}, **others)


class Table:
    """The options that the fields of some dataclasses declare."""

    def __init__(self, *classes: Any) -> None:
        self._rows: list[tuple[str, Option]] = [
            (one.name, one.metadata["option"])
            for declaring in classes
            for one in fields(declaring)
            if "option" in one.metadata
        ]

    def __iter__(self) -> Iterator[Option]:
        return (row for _, row in self._rows)

    def read(self, options: Mapping[str, str], where: str) -> dict[str, Any]:
        """The fields that are given, with their values."""
        here = {row.name.lower(): (name, row) for name, row in self._rows if where in row.where}
        given = {}
        for key, text in options.items():
            if key.lower() in here:
                name, row = here[key.lower()]
                given[name] = row.read(text)
            elif where != SINK or key.lower() not in _OF_SPARK:
                raise self._unknown(key, where)
        return given

    def _unknown(self, key: str, where: str) -> ConfigError:
        """Say what is wrong with a name; its value may be a misspelt secret, and is not shown."""
        known = {row.name.lower(): row for row in self}
        if key.lower() in ("path", "paths"):
            return ConfigError(f"{key}: load, save and start take no path here; see option topic")
        if key.lower() in _OF_SPARK:
            return ConfigError(f"{key} is an option of writeStream, not of {_CALLS[where]}")
        if key.lower() in known:
            row = known[key.lower()]
            calls = " and ".join(_CALLS[place] for place in row.where)
            return ConfigError(f"{row.name} is an option of {calls}, not of {_CALLS[where]}")
        names = {row.name.lower(): row.name for row in self if where in row.where}
        near = get_close_matches(key.lower(), names, 1)
        hint = f"did you mean {names[near[0]]}? " if near else ""
        listed = ", ".join(sorted(names.values()))
        return ConfigError(f"unknown option {key!r}; {hint}allowed are {listed}")
