"""The values of options: each kind reads its own text, and as text says what it allows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from nsqflow.client.address import TcpAddress, parse_address
from nsqflow.errors import ConfigError
from nsqflow.protocol.names import check_channel, check_topic, is_ephemeral

_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}

# More digits than any range has, and few enough to be exact wherever they go.
_WHOLE = re.compile(r"[0-9]{1,15}")
_TIME = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(ms|s|m|h|)", re.IGNORECASE)
_SIZE = re.compile(r"([0-9]{1,15})(k|m|g|)", re.IGNORECASE)
_HOST = re.compile(r"[0-9a-zA-Z.:%_-]+")


class Kind(Protocol):
    """What an option takes."""

    def read(self, name: str, text: str) -> object:
        """Give the value of the option ``name``; raise ``ConfigError`` if it is not allowed."""


def refusal(name: str, text: str, allowed: object) -> ConfigError:
    """The error for a value: the option, the value, and what would do."""
    return ConfigError(f"{name} {text!r}; allowed is {allowed}")


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number."""

    low: int
    high: int

    def read(self, name: str, text: str) -> int:
        """Read decimal digits."""
        if not _WHOLE.fullmatch(text) or not self.low <= int(text) <= self.high:
            raise refusal(name, text, self)
        return int(text)

    def __str__(self) -> str:
        return f"a whole number of {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes; its bounds are written as users write it."""

    low: str
    high: str

    def read(self, name: str, text: str) -> int:
        """Read a whole number, perhaps with a unit."""
        if not _SIZE.fullmatch(text) or not _bytes(self.low) <= _bytes(text) <= _bytes(self.high):
            raise refusal(name, text, f"{self} (k, m, g: 1024, 1024**2, 1024**3)")
        return _bytes(text)

    def __str__(self) -> str:
        return f"a size of {self.low} to {self.high} bytes"


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text)
    assert match is not None
    return int(match[1]) * _BYTES[match[2].lower()]


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds; its bounds are written as users write it."""

    low: str
    high: str

    def read(self, name: str, text: str) -> float:
        """Read a number, perhaps with a unit."""
        if not _TIME.fullmatch(text) or not (
            _seconds(self.low) <= _seconds(text) <= _seconds(self.high)
        ):
            raise refusal(name, text, f"{self} (units: ms, s, m, h; a bare number is seconds)")
        return _seconds(text)

    def __str__(self) -> str:
        return f"a time of {self.low} to {self.high}"


def _seconds(text: str) -> float:
    match = _TIME.fullmatch(text)
    assert match is not None
    return float(match[1]) * _SECONDS[match[2].lower()]


class Choice:
    """One word out of a few; in any case, as all of Spark's options are."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def read(self, name: str, text: str) -> str:
        """Read the word."""
        if text.lower() not in self._words:
            raise refusal(name, text, self)
        return text.lower()

    def __str__(self) -> str:
        return f"{', '.join(self._words[:-1])} or {self._words[-1]}"


class Flag:
    """Yes or no, as Spark writes it."""

    def read(self, name: str, text: str) -> bool:
        """Read the word."""
        if text.lower() not in ("true", "false"):
            raise refusal(name, text, self)
        return text.lower() == "true"

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True)
class Text:
    """What a function of its own checks; it raises ``ConfigError``."""

    allowed: str
    check: Callable[[str], str] = str

    def read(self, name: str, text: str) -> str:
        """Check it."""
        try:
            return self.check(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None

    def __str__(self) -> str:
        return self.allowed


@dataclass(frozen=True, slots=True)
class Several:
    """Texts with commas between them, each of which a function checks."""

    allowed: str
    check: Callable[[str], str]

    def read(self, name: str, text: str) -> tuple[str, ...]:
        """Check each; none may be there twice."""
        one = Text(self.allowed, self.check)
        values = tuple(one.read(name, part.strip()) for part in text.split(","))
        for position, value in enumerate(values):
            if value in values[:position]:
                raise ConfigError(f"{name}: entry {position + 1} is there already; once is enough")
        return values

    def __str__(self) -> str:
        return f"{self.allowed}; several with commas between"


class Location:
    """Where the spool is to be; the store knows which places will do."""

    def read(self, name: str, text: str) -> str:
        """Check it, and write it as the store does."""
        from nsqflow.spark.store import check_location

        return check_location(text)

    def __str__(self) -> str:
        return "an absolute path, a file:// URL or s3://bucket/prefix"


def topic_pattern(text: str) -> str:
    """Check a regular expression."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"{text!r} is no regular expression: {error}") from None
    return text


def lasting_channel(text: str) -> str:
    """Check a channel's name; one that does not last would lose messages."""
    if is_ephemeral(check_channel(text)):
        raise ConfigError(
            f"{text!r} would lose messages: nsqd deletes an ephemeral channel when its last "
            "client leaves, as between two batches, and drops what its memory does not hold"
        )
    return text


def target_topic(text: str) -> str:
    """Check the one topic that a sink takes."""
    if "," in text:
        raise ConfigError(f"{text!r} names several; allowed is one, or a column topic in the rows")
    return check_topic(text)


def file_path(text: str) -> str:
    """Check what no file can be called; whether there is one is asked where it is used."""
    if "\0" in text:
        raise ConfigError(f"{text!r}; allowed is a path without the character 0")
    return text


def nsqd_address(text: str) -> str:
    """Check where an nsqd listens, as other machines reach it too."""
    try:
        address = parse_address(text)
    except ConfigError:
        address = None
    if not isinstance(address, TcpAddress) or not _HOST.fullmatch(address.host):
        raise ConfigError(f"{text!r}; allowed is host:port, [IPv6]:port, with a port of 1 to 65535")
    return str(address)


def http_address(text: str) -> str:
    """Check where an HTTP API is."""
    from nsqflow.http.client import parse_http_address  # brings asyncio and ssl with it

    parse_http_address(text)
    return text


TOPIC = Text("a topic's name", check_topic)
TARGET = Text("a topic's name", target_topic)
TOPICS = Several("a topic's name", check_topic)
CHANNEL = Text("a channel's name, without #ephemeral", lasting_channel)
PATTERN = Text("a regular expression", topic_pattern)
NSQD = Several("host:port", nsqd_address)
HTTP = Several("host:port or a URL", http_address)
