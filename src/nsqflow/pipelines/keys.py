"""The keys of a pipeline file: kinds of values, and reading a table into a dataclass.

A key is declared with ``config.options.option``. The kinds of ``nsqflow.config`` are for single
values, where numbers and booleans may be in quotes; those of this module are for lists and tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, time
from typing import Any, TypeVar

from nsqflow.config.kinds import Kind, Text, invalid
from nsqflow.config.options import declared_options, did_you_mean
from nsqflow.errors import ConfigError
from nsqflow.pipelines.document import Document, with_same_source
from nsqflow.pipelines.toml_lines import Path

T = TypeVar("T")

_INTERVAL = re.compile(r"[0-9]{1,9} (milliseconds?|seconds?|minutes?|hours?|days?)")


class FileKind(Kind):
    """A kind that only pipeline files have; ``load`` reads its TOML value."""


@dataclass(frozen=True)
class StringList(FileKind):
    """Several texts: a list, or one text separated by commas."""

    item: Text

    def load(self, name: str, value: object) -> tuple[str, ...]:
        """Return the texts."""
        if isinstance(value, str):
            value = [with_same_source(value, part.strip()) for part in value.split(",")]
        if not isinstance(value, list) or not value:
            raise ConfigError(f"{name} is {_type_of(value)}: must be {self}")
        texts = [_text(name, one, self) for one in value]
        for text in texts:
            self.item.parse(name, text)
        return tuple(texts)

    def __str__(self) -> str:
        return f"{self.item}; several as a list or separated by commas"


class StringTable(FileKind):
    """A table of names and single values, such as options of Spark."""

    def load(self, name: str, value: object) -> dict[str, str]:
        """Return the values as texts."""
        if not isinstance(value, dict):
            raise ConfigError(f"{name} is {_type_of(value)}: must be {self}")
        return {key: _text(f"{name}.{key}", v, "a single value", "") for key, v in value.items()}

    def __str__(self) -> str:
        return "a table of names and single values"


class Arguments(FileKind):
    """A table of names and values of any kind."""

    def load(self, name: str, value: object) -> dict[str, Any]:
        """Return the table."""
        if not isinstance(value, dict):
            raise ConfigError(f"{name} is {_type_of(value)}: must be {self}")
        return value

    def __str__(self) -> str:
        return "a table of names and values"


class Interval(Kind):
    """A duration as in Spark SQL, or one of some words."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def parse(self, name: str, text: str) -> str:
        """Check the text."""
        if text not in self._words and not _INTERVAL.fullmatch(text):
            raise invalid(name, text, self)
        return text

    def __str__(self) -> str:
        example = "a duration such as 500 milliseconds, 10 seconds, 5 minutes"
        return " or ".join([*self._words, example])


def load_value(kind: Kind, name: str, value: object) -> Any:
    """Return the value of a key; raise ``ConfigError`` if it is invalid."""
    if isinstance(kind, FileKind):
        return kind.load(name, value)
    text = _text(name, value, kind)
    loaded = kind.parse(name, text)
    # Text from the environment is not shown, nor is anything derived from it.
    return with_same_source(text, loaded) if isinstance(loaded, str) else loaded


@dataclass(frozen=True, slots=True)
class TableRef:
    """A reference to a table of a document, for errors."""

    document: Document
    path: Path

    def error(self, name: str, problem: str) -> ConfigError:
        """Return the error for one of its keys, or for the table if ``name`` is empty."""
        return self.document.error((*self.path, name) if name else self.path, problem)

    def inner(self, name: str | int) -> TableRef:
        """Return the table at one of its keys."""
        return TableRef(self.document, (*self.path, name))


def read_table(cls: type[T], ref: TableRef, value: object) -> T:
    """Read a table into ``cls``, a dataclass with a field ``ref``."""
    if not isinstance(value, dict):
        raise ref.error("", f" is {_type_of(value)}: must be a table")
    known = {one.name: one for one in declared_options(cls)}
    for name in value:
        if name not in known:
            raise unknown_key(ref, name, known)
    given: dict[str, Any] = {}
    for one in known.values():
        if one.name in value:
            try:
                given[one.name] = load_value(one.kind, "", value[one.name])
            except ConfigError as error:
                raise ref.error(one.name, str(error)) from None
        elif one.required:
            raise ref.error("", f" has no {one.name}: must be {one.kind}")
    make: Any = cls
    made: T = make(ref=ref, **given)
    return made


def unknown_key(ref: TableRef, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown key; its value is not shown, as it may be a secret."""
    hints = filter(None, (did_you_mean(name, known), f"known: {', '.join(known)}"))
    return ref.error(name, f" is not a key; {' '.join(hints)}")


def _text(name: str, value: object, allowed: object, empty: str | None = None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | date | time):
        return str(value)
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {_type_of(value)}: must be {allowed}")
    if not value.strip() and empty is None:
        raise ConfigError(f"{name} is empty: must be {allowed}")
    return value


def _type_of(value: object) -> str:
    if value == []:
        return "empty"
    names: dict[type, str] = {dict: "a table", list: "a list"}
    return names.get(type(value), "a single value")
