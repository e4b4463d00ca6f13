"""Kinds of option values: choices, flags, texts, paths and lists; numbers are in ``numbers``.

A kind parses text, checks Python values, and as text (``str(kind)``) describes what it allows.
An invalid value is a ``ConfigError`` of one form, wherever it comes from: ``max_in_flight=0 is
invalid: must be an integer >= 1``. The methods ``from_go``, ``to_go`` and ``show_go`` are for the
flags, config files and JSON of the daemons, which are written as Go writes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nsqflow.errors import ConfigError

_GO_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_GO_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))


def invalid(name: str, value: object, allowed: object, *, secret: bool = False) -> ConfigError:
    """Return the error for an invalid value; a secret is not shown."""
    shown = "" if secret else f"={value!r}"
    return ConfigError(f"{name}{shown} is invalid: must be {allowed}")


class Kind:
    """The kind of an option's value."""

    label = "value"
    """Its name in a daemon's usage text."""
    is_bool = False
    """A daemon's flag may be given without a value, which means true."""
    is_list = False
    """A daemon's flag may be repeated."""

    def parse(self, name: str, text: str) -> Any:
        """Return the value that ``text`` stands for; raise ``ConfigError`` if it is invalid."""
        return text

    def check(self, name: str, value: Any) -> Any:
        """Return a Python value in its canonical type; raise ``ConfigError`` if it is invalid."""
        return value

    def load(self, name: str, value: Any) -> Any:
        """Return the value from a config file or a variable; raise ``ConfigError`` if invalid."""
        return self.parse(name, value) if isinstance(value, str) else self.check(name, value)

    def show(self, value: Any) -> str:
        """Return a value as text that ``parse`` reads."""
        return str(value)

    def from_go(self, name: str, value: Any) -> Any:
        """Return the value from a daemon's flag (text) or config file (TOML).

        Raise ``ConfigError`` if it can't be read. The range is left to ``check``.
        """
        if not isinstance(value, str):
            raise invalid(name, value, "a string")
        return value

    def to_go(self, value: Any) -> Any:
        """Return the value for Go's JSON."""
        return value

    def show_go(self, value: Any) -> str:
        """Return a default for the usage text; empty for Go's zero value."""
        return f'"{value}"' if isinstance(value, str) and value else ""


class Choice(Kind):
    """One of several words; case is ignored in text."""

    def __init__(self, *words: str, go: Sequence[int | str] = (), optional: bool = False) -> None:
        """``go`` has the value in Go's JSON for each word."""
        self.words = words
        self._go = dict(zip(words, go or words, strict=True))
        self._optional = optional

    def parse(self, name: str, text: str) -> str:
        """Parse the word."""
        if text.lower() not in self.words:
            raise invalid(name, text, self)
        return text.lower()

    def check(self, name: str, value: Any) -> Any:
        """Check that it is one of the words, in lower case."""
        if value is None and self._optional:
            return None
        if not isinstance(value, str) or value not in self.words:
            raise invalid(name, value, self)
        return value

    def from_go(self, name: str, value: Any) -> str:
        """Parse the word."""
        return self.parse(name, super().from_go(name, value))

    def to_go(self, value: Any) -> Any:
        """Return Go's value for the word."""
        return self._go[value]

    def __str__(self) -> str:
        words = [word or "''" for word in self.words]
        words += ["None"] if self._optional else []
        return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


class Boolean(Kind):
    """True or false."""

    label = ""
    is_bool = True

    def parse(self, name: str, text: str) -> bool:
        """Parse true or false, in any case."""
        if text.lower() not in ("true", "false"):
            raise invalid(name, text, self)
        return text.lower() == "true"

    def check(self, name: str, value: Any) -> bool:
        """Check that it is a bool."""
        if not isinstance(value, bool):
            raise invalid(name, value, "True or False")
        return value

    def load(self, name: str, value: Any) -> bool:
        """Return a bool; 1 and 0 are accepted as text too."""
        if isinstance(value, bool):
            return value
        if not isinstance(value, str):
            raise invalid(name, value, self)
        return value == "1" if value in ("1", "0") else self.parse(name, value)

    def from_go(self, name: str, value: Any) -> bool:
        """Return a bool; as text in any of Go's spellings."""
        if isinstance(value, bool):
            return value
        if str(value) not in _GO_TRUE | _GO_FALSE:
            raise invalid(name, value, self)
        return str(value) in _GO_TRUE

    def show(self, value: Any) -> str:
        """Return true or false."""
        return str(value).lower()

    def show_go(self, value: Any) -> str:
        """Return true; nothing for false."""
        return "true" if value else ""

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Text(Kind):
    """Text that a function validates.

    The function returns the text in its canonical form. It raises ``ValueError`` if the text
    breaks the rule ``allowed``, or a ``ConfigError`` with a message of its own.
    """

    label = "string"

    allowed: str = "text"
    validate: Callable[[str], str] = str
    optional: bool = field(default=False, kw_only=True)

    def parse(self, name: str, text: str) -> str:
        """Validate the text."""
        try:
            return self.validate(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
        except ValueError:
            raise invalid(name, text, self) from None

    def check(self, name: str, value: Any) -> Any:
        """Check the type, and validate the text."""
        if value is None and self.optional:
            return None
        if not isinstance(value, str):
            raise invalid(name, value, self)
        return self.parse(name, value)

    def load(self, name: str, value: Any) -> str:
        """Return text that is not empty."""
        if not isinstance(value, str) or not value:
            raise invalid(name, value, self)
        return self.parse(name, value)

    def __str__(self) -> str:
        return self.allowed + (", or None" if self.optional else "")


def matching(pattern: str) -> Callable[[str], str]:
    """Return a validator for texts that match a whole regular expression."""
    compiled = re.compile(pattern)

    def validate(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(text)
        return text

    return validate


without_null = matching(r"[^\0]*")


class Path(Text):
    """The path of a file or a folder."""

    def __init__(self, allowed: str, *, optional: bool = False) -> None:
        """``allowed`` describes what the path leads to."""
        super().__init__(allowed, without_null, optional=optional)

    def check(self, name: str, value: Any) -> Any:
        """Return the path as text."""
        return super().check(name, os.fspath(value) if isinstance(value, os.PathLike) else value)

    def from_go(self, name: str, value: Any) -> Any:
        """Return the path; None if it is empty."""
        return super().from_go(name, value) or None


class List(Kind):
    """Several values of one kind, as a tuple."""

    is_list = True

    def __init__(self, item: Kind, *, secret: bool = False) -> None:
        """``secret``: a value may contain a password, and is not shown."""
        self._item = item
        self._secret = secret

    def parse(self, name: str, text: str) -> tuple[Any, ...]:
        """Parse values separated by commas; raise if one occurs twice."""
        values = tuple(self._item.parse(name, part.strip()) for part in text.split(","))
        for position, value in enumerate(values):
            if value in values[:position]:
                raise ConfigError(f"{name}: entry {position + 1} is a duplicate")
        return values

    def check(self, name: str, value: Any) -> tuple[Any, ...]:
        """Check a tuple, a list or a single value as text."""
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, tuple | list):
            raise invalid(name, value, self, secret=self._secret)
        return tuple(self._item.check(name, one) for one in values)

    def load(self, name: str, value: Any) -> tuple[str, ...]:
        """Return a list of texts, or one text with commas; empty ones are left out."""
        texts = value.split(",") if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
            raise invalid(name, value, self, secret=self._secret)
        if not (values := tuple(text.strip() for text in texts if text.strip())):
            raise invalid(name, value, self, secret=self._secret)
        return values

    def from_go(self, name: str, value: Any) -> tuple[Any, ...]:
        """Return an array of strings, or one string with commas."""
        texts = value.split(",") if isinstance(value, str) else value
        if not isinstance(texts, list):
            raise invalid(name, value, "an array of strings")
        return tuple(texts)

    def to_go(self, value: Any) -> Any:
        """Return a list."""
        return list(value)

    def __str__(self) -> str:
        return f"{self._item}, or several separated by commas"


@dataclass(frozen=True)
class Instance(Kind):
    """A Python object that a function accepts."""

    allowed: str
    accepts: Callable[[Any], bool]
    secret: bool = field(default=False, kw_only=True)

    def check(self, name: str, value: Any) -> Any:
        """Check that the function accepts it."""
        if not self.accepts(value):
            raise invalid(name, value, self, secret=self.secret)
        return value

    def __str__(self) -> str:
        return self.allowed


CALLBACK = Instance("a function, or None", lambda value: value is None or callable(value))
