"""The keys of a pipeline file: how a key is declared, and how a table of the file is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import date, time
from difflib import get_close_matches
from typing import Any, Protocol, TypeVar

from nsqflow.errors import ConfigError
from nsqflow.pipelines.file import Document, filled_like
from nsqflow.pipelines.positions import Path
from nsqflow.spark.values import Kind

T = TypeVar("T")

_INTERVAL = re.compile(r"[0-9]{1,9} (milliseconds?|seconds?|minutes?|hours?|days?)")


class Value(Protocol):
    """What a key takes; as text it says what is allowed."""

    def take(self, name: str, value: object) -> object:
        """Give the value as the program wants it; raise ``ConfigError`` if it is not allowed."""


class One:
    """A single value, of a kind that options have too. Numbers and flags may be in quotes."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def take(self, name: str, value: object) -> object:
        """Read it."""
        text = _text(name, value, self)
        taken = self._kind.read(name, text)
        # What came from the environment stays hidden when it is shown.
        return filled_like(text, taken) if isinstance(taken, str) else taken

    def __str__(self) -> str:
        return str(self._kind)


@dataclass(frozen=True, slots=True)
class Words:
    """Texts: a list, or one text with commas between them."""

    one: str
    """What each of them is."""
    check: Callable[[str], str] = str
    """Raises ``ConfigError`` for one that is not allowed."""

    def take(self, name: str, value: object) -> tuple[str, ...]:
        """Read them."""
        if isinstance(value, str):
            value = [filled_like(value, part.strip()) for part in value.split(",")]
        if not isinstance(value, list) or not value:
            raise ConfigError(f"{name} is {_what(value)}; allowed is {self}")
        texts = [_text(name, one, self) for one in value]
        for text in texts:
            try:
                self.check(text)
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None
        return tuple(texts)

    def __str__(self) -> str:
        return f"{self.one}; several as a list, or with commas between"


class Options:
    """A table of names and single values, which others than us understand."""

    def take(self, name: str, value: object) -> dict[str, str]:
        """Read them, as texts."""
        if not isinstance(value, dict):
            raise ConfigError(f"{name} is {_what(value)}; allowed is {self}")
        return {key: _text(f"{name}.{key}", v, "a single value", "") for key, v in value.items()}

    def __str__(self) -> str:
        return "a table of names and single values"


class Arguments:
    """A table of names and any values."""

    def take(self, name: str, value: object) -> dict[str, Any]:
        """Read it."""
        if not isinstance(value, dict):
            raise ConfigError(f"{name} is {_what(value)}; allowed is {self}")
        return value

    def __str__(self) -> str:
        return "a table of names and values"


class Interval:
    """A time as Spark's SQL writes it, perhaps among some words."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def take(self, name: str, value: object) -> str:
        """Read it."""
        text = _text(name, value, self)
        if text not in self._words and not _INTERVAL.fullmatch(text):
            raise ConfigError(f"{name} {text!r}; allowed is {self}")
        return text

    def __str__(self) -> str:
        return ", ".join([*self._words, "a time such as 500 milliseconds, 10 seconds, 5 minutes"])


@dataclass(frozen=True, slots=True)
class Key:
    """One row of the reference."""

    name: str
    value: Value
    default: str
    """As a user would write it, or in words."""
    meaning: str
    required: bool


def key(
    value: Value, meaning: str, *, default: str = "", absent: object = None, required: bool = False
) -> Any:
    """Declare a field that is a key; ``absent`` is its value if it is not given."""
    declared = {"value": value, "meaning": meaning, "default": default, "required": required}
    if isinstance(value, Options | Arguments):
        return field(default_factory=dict, metadata={"key": declared})
    return field(default=absent, metadata={"key": declared})


def keys_of(cls: Any) -> Iterator[Key]:
    """The keys that a dataclass declares."""
    for one in fields(cls):
        if "key" in one.metadata:
            yield Key(name=one.name, **one.metadata["key"])


@dataclass(frozen=True, slots=True)
class Place:
    """A table of a document."""

    document: Document
    path: Path

    def wrong(self, name: str, problem: str) -> ConfigError:
        """Make the error for one of its keys, or for the table where ``name`` is empty."""
        return self.document.wrong((*self.path, name) if name else self.path, problem)

    def inner(self, name: str | int) -> Place:
        """Give the table at one of its keys."""
        return Place(self.document, (*self.path, name))


def read_table(cls: type[T], place: Place, value: object) -> T:
    """Make a ``cls`` of a table; it has a field ``place``."""
    if not isinstance(value, dict):
        raise place.wrong("", f" is {_what(value)}; allowed is a table")
    known = {one.name: one for one in keys_of(cls)}
    for name in value:
        if name not in known:
            raise unknown_key(place, name, known)
    given: dict[str, Any] = {}
    for one in known.values():
        if one.name in value:
            try:
                given[one.name] = one.value.take("", value[one.name])
            except ConfigError as error:
                raise place.wrong(one.name, str(error)) from None
        elif one.required:
            raise place.wrong("", f" has no {one.name}; it takes {one.value}")
    make: Any = cls
    made: T = make(place=place, **given)
    return made


def unknown_key(place: Place, name: str, known: Mapping[str, object]) -> ConfigError:
    """Make the error for a key that nobody knows; its value may be a misspelt secret."""
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return place.wrong(name, f" is no key; {hint}allowed are {', '.join(known)}")


def _text(name: str, value: object, allowed: object, empty: str | None = None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | date | time):
        return str(value)
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {_what(value)}; allowed is {allowed}")
    if not value.strip() and empty is None:
        raise ConfigError(f"{name} is empty; allowed is {allowed}")
    return value


def _what(value: object) -> str:
    if value == []:
        return "empty"
    names: dict[type, str] = {dict: "a table", list: "a list"}
    return names.get(type(value), "a single value")
