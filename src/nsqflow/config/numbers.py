"""Kinds of option values that are numbers: numbers, integers, durations and sizes.

Durations are seconds in Python, text with a unit (``500ms``) in Spark's options, and text such as
``1m30s`` in the flags of the daemons.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import inf
from typing import Any

from nsqflow.config.kinds import Kind, invalid

MAX_INTEGER = 2**63 - 1
_MAX_SECONDS = 9_223_372_036  # what Go counts in 64 bits of nanoseconds

_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_NANOSECONDS = {
    "h": 3600 * 10**9,
    "m": 60 * 10**9,
    "s": 10**9,
    "ms": 10**6,
    "us": 10**3,
    "µs": 10**3,  # the micro sign
    "μs": 10**3,  # the Greek letter
    "ns": 1,
}

# Up to 15 digits: more than any range needs, and still exact as a float.
_INTEGER = re.compile(r"[0-9]{1,15}")
_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(ms|s|m|h|)", re.IGNORECASE)
_SIZE = re.compile(r"([0-9]{1,15})(k|m|g|)", re.IGNORECASE)
_GO_UNIT = "|".join(sorted(_NANOSECONDS, key=len, reverse=True))  # "ms" before "m"
_GO_DURATION = re.compile(rf"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:{_GO_UNIT}))+")
_GO_PART = re.compile(rf"([0-9.]+)({_GO_UNIT})")


@dataclass(frozen=True)
class Number(Kind):
    """A number in a range."""

    noun = "a number"

    low: float = 0
    high: float | None = None
    above: bool = field(default=False, kw_only=True)
    """Whether ``low`` itself is not allowed."""
    disabled: bool = field(default=False, kw_only=True)
    """Whether -1 is allowed, which disables what the option controls."""
    optional: bool = field(default=False, kw_only=True)

    def parse(self, name: str, text: str) -> Any:
        """Parse a decimal number."""
        try:
            number = float(text)
        except ValueError:
            raise invalid(name, text, self) from None
        if not self._contains(number):
            raise invalid(name, text, self)
        return number

    def check(self, name: str, value: Any) -> Any:
        """Check the type and the range."""
        if value is None and self.optional:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not self._contains(value):
            raise invalid(name, value, self._describe())
        return value

    def _contains(self, value: float) -> bool:
        if self.disabled and value == -1:
            return True
        # (Not isfinite: an integer may be too large for a float.)
        if not self.low <= value < inf or (self.above and value == self.low):
            return False
        return self.high is None or value <= self.high

    def __str__(self) -> str:
        return self._describe()

    def _describe(self) -> str:
        text = f"{self.noun} {_range(self.low, self.high, above=self.above)}"
        text += ", or -1 (disabled)" if self.disabled else ""
        return text + (", or None (the server's default)" if self.optional else "")


class Integer(Number):
    """An integer in a range."""

    label = "int"
    noun = "an integer"

    def parse(self, name: str, text: str) -> int:
        """Parse decimal digits."""
        if not _INTEGER.fullmatch(text) or not self._contains(int(text)):
            raise invalid(name, text, self)
        return int(text)

    def check(self, name: str, value: Any) -> Any:
        """Check the type and the range."""
        if isinstance(value, float):
            raise invalid(name, value, self)
        return super().check(name, value)

    def from_go(self, name: str, value: Any) -> int:
        """Return an integer; in text it may have Go's prefixes 0x, 0o and 0b."""
        if type(value) is int:
            return value
        try:
            return int(str(value), 0)
        except ValueError:
            raise invalid(name, value, self) from None

    def show_go(self, value: Any) -> str:
        """Return its digits unless it is 0."""
        return str(value) if value else ""


def in_digits(value: float) -> str:
    """Return a number without an exponent."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def _range(low: float, high: float | None, *, above: bool, show: Any = in_digits) -> str:
    if high is None or high == MAX_INTEGER:
        return f"{'>' if above else '>='} {show(low)}"
    return f"> {show(low)} and <= {show(high)}" if above else f"from {show(low)} to {show(high)}"


@dataclass(frozen=True)
class Duration(Number):
    """A number of seconds; as text it has a unit, in Go's JSON it is in nanoseconds."""

    label = "duration"
    noun = "a number of seconds"

    high: float | None = _MAX_SECONDS

    def parse(self, name: str, text: str) -> float:
        """Parse a number, with or without a unit."""
        match = _DURATION.fullmatch(text)
        seconds = float(match[1]) * _SECONDS[match[2].lower()] if match else -1.0
        if not self._contains(seconds):
            units = "(units: ms, s, m, h; a number without a unit is seconds)"
            raise invalid(name, text, f"{self} {units}")
        return seconds

    def from_go(self, name: str, value: Any) -> float:
        """Parse text such as 1m30s; an integer in a config file is milliseconds."""
        if type(value) is int:
            return value / 1000
        try:
            return _parse_go(str(value))
        except ValueError as error:
            raise invalid(name, value, error) from None

    def to_go(self, value: float) -> int:
        """Return nanoseconds."""
        return round(value * 10**9)

    def show(self, value: Any) -> str:
        """Return it in its largest whole units."""
        return format_duration(value)

    show_go = show

    def __str__(self) -> str:
        def show(seconds: float) -> str:
            return format_duration(seconds) or "0s"

        return f"a duration {_range(self.low, self.high, above=self.above, show=show)}"


@dataclass(frozen=True)
class Size(Kind):
    """A number of bytes; the bounds are written as users write them, such as 64k."""

    low: str
    high: str

    def parse(self, name: str, text: str) -> int:
        """Parse an integer, with or without a unit."""
        if not _SIZE.fullmatch(text) or not _bytes(self.low) <= _bytes(text) <= _bytes(self.high):
            raise invalid(name, text, f"{self} (units: k, m, g for 1024, 1024**2, 1024**3)")
        return _bytes(text)

    def __str__(self) -> str:
        return f"a number of bytes from {self.low} to {self.high}"


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text)
    assert match is not None
    return int(match[1]) * _BYTES[match[2].lower()]


def _parse_go(text: str) -> float:
    if text in ("0", "+0", "-0"):
        return 0.0
    if not _GO_DURATION.fullmatch(text):
        raise ValueError("a number with a unit (ns, us, ms, s, m, h), such as 1m30s")
    parts = _GO_PART.findall(text)
    total = sum(float(number) * _NANOSECONDS[unit] for number, unit in parts)
    return (-total if text.startswith("-") else total) / 10**9


def format_duration(seconds: float) -> str:
    """Return a duration in its largest whole units, as Go writes it; empty if it is 0."""
    left, text = round(seconds * 10**9), ""
    for unit in ("h", "m", "s", "ms", "us", "ns"):
        count, left = divmod(left, _NANOSECONDS[unit])
        text += f"{count}{unit}" if count else ""
    return text


# Arguments of methods; delays, timeouts and intervals are in seconds.
DELAY = Number(0, 10**9)
PUBLISH_TIMEOUT = Number(0, above=True)
TOUCH_INTERVAL = Number(0, above=True)
BATCH_SIZE = Integer(1)
MAX_WAIT = Number(0)
DRAIN_TIMEOUT_RANGE = Number(0)
CONCURRENCY = Integer(1)
