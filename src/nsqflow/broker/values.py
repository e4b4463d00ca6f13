"""What the value of an option may be, and how Go writes it.

There it is text on a command line, a value of a TOML file, or JSON over HTTP. Here a time is
a number of seconds, and a list is a tuple.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from nsqflow.broker.address import check_peer_address, parse_listen_address
from nsqflow.broker.duration import format_duration, parse_duration
from nsqflow.errors import ConfigError

_LONGEST = 9_223_372_036  # seconds: what Go counts in 64 bits of nanoseconds
_LARGEST = 2**63 - 1

_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))


class Kind:
    """One kind of value."""

    label = "value"
    """How the usage text names it."""
    is_bool = False
    """Its flag may stand alone, and then means true."""
    is_list = False
    """Its flag may be given several times."""

    def clean(self, value: Any) -> Any:
        """Give it the type that it has here, if callers may write it in another."""
        return value

    def check(self, option: str, value: Any) -> None:
        """Raise ``ConfigError`` for a value that is not allowed."""

    def parse(self, text: str) -> Any:
        """Read it from a command line; raise ``ValueError`` that says what is allowed."""
        return text

    def from_toml(self, value: Any) -> Any:
        """Read it from a config file; raise ``ValueError`` that says what is allowed."""
        if not isinstance(value, str):
            raise ValueError("a string")
        return self.parse(value)

    def to_go(self, value: Any) -> Any:
        """Give what Go's JSON has in its place."""
        return value

    def show(self, value: Any) -> str:
        """Write it for the usage text; empty for one that is not worth a word."""
        return f'"{value}"' if isinstance(value, str) and value else ""


class Text(Kind):
    """Any text."""

    label = "string"

    def check(self, option: str, value: Any) -> None:
        """Raise unless it is text."""
        if not isinstance(value, str) or "\0" in value:
            raise ConfigError(f"{option} {value!r}; allowed is text, without zero bytes")


class Folder(Text):
    """The path of a folder, or None."""

    def clean(self, value: Any) -> Any:
        """Make text of a path object."""
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    def check(self, option: str, value: Any) -> None:
        """Raise unless it is a path or None."""
        if value is not None:
            super().check(option, value)

    def parse(self, text: str) -> str | None:
        """Read it; an empty one is none."""
        return text or None


@dataclass(frozen=True, slots=True)
class Listen(Kind):
    """An address to listen on."""

    label = "string"

    optional: bool = False
    """Empty means not to listen."""

    def check(self, option: str, value: Any) -> None:
        """Raise unless one can listen there."""
        if value != "" or not self.optional:
            parse_listen_address(option, value)


class Peers(Kind):
    """Several addresses to connect to."""

    is_list = True

    def clean(self, value: Any) -> Any:
        """Make a tuple of a list, and of one address."""
        if isinstance(value, str):
            return (value,)
        return tuple(value) if isinstance(value, list) else value

    def check(self, option: str, value: Any) -> None:
        """Raise unless one can connect to each."""
        if not isinstance(value, tuple):
            raise ConfigError(f"{option} {value!r}; allowed are addresses, in a tuple or a list")
        for address in value:
            self.check_one(option, address)

    def check_one(self, option: str, address: Any) -> None:
        """Raise unless one can connect to it."""
        check_peer_address(option, address)

    def parse(self, text: str) -> Any:
        """Read one address."""
        return (text,)

    def from_toml(self, value: Any) -> Any:
        """Read an array of strings, or one string with commas."""
        texts = value.split(",") if isinstance(value, str) else value
        if not isinstance(texts, list):
            raise ValueError("an array of strings")
        return tuple(texts)

    def to_go(self, value: Any) -> Any:
        """Give a list."""
        return list(value)


class AuthServers(Peers):
    """Several addresses or URLs of HTTP servers."""

    def check_one(self, option: str, address: Any) -> None:
        """Raise unless one can ask it."""
        from nsqflow.http.client import parse_http_address  # most do without

        try:
            parse_http_address(address)
        except ConfigError as error:
            raise ConfigError(f"{option}: {error}") from None


class Switch(Kind):
    """True or false."""

    label = ""
    is_bool = True

    def check(self, option: str, value: Any) -> None:
        """Raise unless it is one of the two."""
        if not isinstance(value, bool):
            raise ConfigError(f"{option} {value!r}; allowed is True or False")

    def parse(self, text: str) -> bool:
        """Read it in any of the ways that Go knows."""
        if text not in _TRUE | _FALSE:
            raise ValueError("true or false")
        return text in _TRUE

    def from_toml(self, value: Any) -> bool:
        """Read a boolean, or what would be one on a command line."""
        return value if isinstance(value, bool) else self.parse(str(value))

    def show(self, value: Any) -> str:
        """Write it if it is true."""
        return "true" if value else ""


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of a few words, each with the number or word that Go has for it."""

    words: dict[str, int | str]

    def check(self, option: str, value: Any) -> None:
        """Raise unless it is one of them."""
        if not isinstance(value, str) or value not in self.words:
            raise ConfigError(f"{option} {value!r}; allowed is {self}")

    def parse(self, text: str) -> str:
        """Read it, in capitals or not."""
        if text.lower() not in self.words:
            raise ValueError(str(self))
        return text.lower()

    def to_go(self, value: Any) -> Any:
        """Give the number."""
        return self.words[value]

    def __str__(self) -> str:
        *words, last = (repr(word) for word in self.words)
        return f"{', '.join(words)} or {last}"


class TlsRequired(Choice):
    """Whether clients must use TLS: a switch with a third position."""

    is_bool = True

    def parse(self, text: str) -> str:
        """Read it in any of the ways that Go knows."""
        if text.lower() == "tcp-https":
            return "tcp-https"
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError("true, false or tcp-https")
        return "true" if text.lower() in _TRUE else ""

    def from_toml(self, value: Any) -> str:
        """Read a boolean or a string."""
        return self.parse(str(value))


class TlsVersion(Choice):
    """The lowest version of TLS; an empty one is the default."""

    def parse(self, text: str) -> str:
        """Read it, in capitals or not."""
        return super().parse(text or next(iter(self.words)))


@dataclass(frozen=True, slots=True)
class Whole(Kind):
    """A whole number."""

    label = "int"

    low: int = 0
    high: int = _LARGEST

    def check(self, option: str, value: Any) -> None:
        """Raise unless it is in the range."""
        if type(value) is not int or not self.low <= value <= self.high:
            raise ConfigError(f"{option} {value!r}; allowed is {self}")

    def parse(self, text: str) -> int:
        """Read it, with Go's prefixes 0x, 0o and 0b."""
        try:
            return int(text, 0)
        except ValueError:
            raise ValueError(str(self)) from None

    def from_toml(self, value: Any) -> int:
        """Read an integer, or a string with one in it."""
        return value if type(value) is int else self.parse(str(value))

    def show(self, value: Any) -> str:
        """Write it unless it is 0."""
        return str(value) if value else ""

    def __str__(self) -> str:
        most = " or more" if self.high == _LARGEST else f" to {self.high}"
        return f"a whole number of {self.low}{most}"


@dataclass(frozen=True, slots=True)
class Duration(Kind):
    """A time in seconds; text such as 1m30s to Go, and nanoseconds in its JSON."""

    label = "duration"

    zero: bool = False
    """None at all is allowed."""

    def check(self, option: str, value: Any) -> None:
        """Raise unless it is in the range."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= _LONGEST or (value == 0 and not self.zero):
            low = "0" if self.zero else "above 0"
            raise ConfigError(f"{option} {value!r}; allowed are seconds, {low} to {_LONGEST}")

    def parse(self, text: str) -> float:
        """Read a number with a unit, or several."""
        return parse_duration(text)

    def from_toml(self, value: Any) -> float:
        """Read a string; a bare number is milliseconds, as nsqd has it."""
        return value / 1000 if type(value) is int else self.parse(str(value))

    def to_go(self, value: float) -> int:
        """Give nanoseconds."""
        return round(value * 10**9)

    def show(self, value: Any) -> str:
        """Write it in its largest whole units."""
        return format_duration(value)
