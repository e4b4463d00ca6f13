"""Positions in the partitions of the redesigned NSQ, as users write them and as servers read them.

    "earliest"  "latest"  "count:5"  "offset:330"  "timestamp:1700000000"  "2026-11-18T07:00:00Z"

A time may be a ``datetime`` too, with its time zone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple, TypeAlias

from nsqflow.errors import ConfigError

_NUMBERED = re.compile(r"(count|offset|timestamp):([0-9]{1,18})", re.ASCII)
_FORMS = "'earliest', 'latest', 'count:N', 'offset:N', 'timestamp:SECONDS'"
_TEXTS = f"{_FORMS} or an ISO time with its zone"
_VALUES = f"{_FORMS}, an ISO time with its zone or a datetime with its zone"
_MILLISECONDS = 10**11  # seconds would be the year 5138

PositionLike: TypeAlias = str | datetime


class Position(NamedTuple):
    """A position: the word and the number that nsqd reads."""

    kind: str
    value: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}"


EARLIEST = Position("virtual_queue", 0)
LATEST = Position("special", -1)


def parse_position(name: str, value: object, now: float) -> Position:
    """Return the position; raise ``ConfigError`` if the value is not one, or is in the future.

    ``name`` is the user's name of the argument, ``now`` the time in seconds since 1970. nsqd would
    silently read a time in the future, or one in milliseconds, as the end.
    """
    if isinstance(value, datetime):
        return _at(name, value, value, now)
    if not isinstance(value, str):
        raise _invalid(name, value)
    if value in ("earliest", "latest"):
        return EARLIEST if value == "earliest" else LATEST
    if match := _NUMBERED.fullmatch(value):
        kind, number = match[1], int(match[2])
        if kind == "timestamp":
            return _timestamp(name, value, number, now)
        return Position("msgcount" if kind == "count" else "virtual_queue", number)
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise _invalid(name, value) from None
    return _at(name, value, time, now)


def parse_positions(
    name: str, value: PositionLike | Mapping[int, PositionLike], now: float
) -> dict[int, Position] | Position:
    """Return one position for all partitions, or one for each partition of a mapping."""
    if not isinstance(value, Mapping):
        return parse_position(name, value, now)
    for partition in value:
        if type(partition) is not int or partition < 0:
            raise ConfigError(
                f"{name} has partition {partition!r}, which is invalid: must be an integer >= 0"
            )
    return {number: parse_position(name, each, now) for number, each in value.items()}


def _at(name: str, value: object, time: datetime, now: float) -> Position:
    if time.tzinfo is None:
        raise ConfigError(f"{name}={value!r} is invalid: must have a time zone, such as +00:00")
    return _timestamp(name, value, int(time.timestamp()), now)


def _timestamp(name: str, value: object, seconds: int, now: float) -> Position:
    if seconds >= _MILLISECONDS:
        raise ConfigError(f"{name}={value!r} is invalid: must be in seconds, not milliseconds")
    if seconds < 0 or seconds > now:
        raise ConfigError(f"{name}={value!r} is invalid: must be between 1970 and now")
    return Position("timestamp", seconds)


def _invalid(name: str, value: object) -> ConfigError:
    forms = _TEXTS if isinstance(value, str) else _VALUES
    return ConfigError(f"{name}={value!r} is invalid: must be {forms}")
