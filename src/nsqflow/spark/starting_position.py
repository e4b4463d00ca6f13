"""The option ``startingPosition``: where a new query begins.

    existing                             with the messages that wait in the channel
    latest                               with what is published from now on
    earliest                             with the oldest message that the server keeps
    timestamp:1700000000                 with the first message at or after this time
    2026-11-18T07:00:00Z                 the same
    {"orders": {"0": 330, "1": "latest"}}   offsets by topic and partition

All but the first two are for topics of the redesigned NSQ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from time import time
from typing import Any

from nsqflow.client.position import EARLIEST, LATEST, Position, parse_position
from nsqflow.config.kinds import Text
from nsqflow.errors import ConfigError
from nsqflow.protocol.names import check_topic

EXISTING = "existing"
_WORDS = (EXISTING, "latest", "earliest")
_TIME = re.compile(r"timestamp:[0-9]{1,18}", re.ASCII)
_MAX_OFFSET = 2**62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _check(text: str) -> str:
    """Validate a position; return words in lower case."""
    if text.lower() in _WORDS:
        return text.lower()
    if _is_json(text):
        _parse_offsets(text)
    else:
        _parse_time(text)
    return text


def _check_time(text: str) -> str:
    _parse_time(text)
    return text


def _check_new(text: str) -> str:
    if (position := _check(text)) == EXISTING:
        raise ValueError
    return position


_NEW_POSITIONS = (
    "latest, earliest, timestamp:SECONDS, an ISO time with its zone, or "
    '{"topic": {"partition": offset}}'
)
STARTING_POSITION = Text(f"existing, {_NEW_POSITIONS}", _check)
NEW_POSITION = Text(_NEW_POSITIONS, _check_new)  # one that moves the channel
ENDING_TIMESTAMP = Text("timestamp:SECONDS or an ISO time with its zone", _check_time)


def position_of(text: str, topic: str, partition: int) -> Position | None:
    """Return where a partition begins; None with the messages that wait in the channel."""
    if text in _WORDS:
        return {"latest": LATEST, "earliest": EARLIEST}.get(text)
    return (
        _parse_time(text) if is_time(text) else _parse_offsets(text).get(topic, {}).get(partition)
    )


def is_time(text: str) -> bool:
    """Return whether a valid position is a time."""
    return text not in _WORDS and not _is_json(text)


def check_named(text: str, partitions: Mapping[str, int]) -> None:
    """Raise ``ConfigError`` if an offset is given for a partition that is not read.

    ``partitions`` has the number of partitions of each topic that is; 0 if it is unknown.
    """
    if not _is_json(text):
        return
    for topic, numbers in _parse_offsets(text).items():
        if topic not in partitions:
            raise ConfigError(f"startingPosition names topic {topic!r}, which is not read")
        count = partitions[topic]
        if count and numbers and max(numbers) >= count:
            raise ConfigError(
                f"startingPosition names partition {max(numbers)} of {topic!r}, which is invalid: "
                f"must be from 0 to {count - 1}"
            )


def time_of(text: str) -> int:
    """Return a time in nanoseconds since 1970; that of a position has whole seconds only."""
    if _TIME.fullmatch(text):
        return _parse_time(text).value * 10**9
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1) * 1000


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _parse_time(text: str) -> Position:
    """Return the position; raise ``ValueError`` for what is not a time."""
    if not _TIME.fullmatch(text):
        datetime.fromisoformat(text)
    return parse_position("time", text, time())


def _parse_offsets(text: str) -> dict[str, dict[int, Position]]:
    """Return the positions by topic and partition; raise ``ConfigError``."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from None
    if not all(isinstance(each, dict) for each in values.values()):
        raise ConfigError('must be like {"topic": {"0": 330, "1": "earliest"}}')
    return {
        check_topic(topic): {_partition(number): _offset(value) for number, value in each.items()}
        for topic, each in values.items()
    }


def _partition(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 3):
        raise ConfigError(f"partition {text!r} is invalid: must be an integer from 0 to 999")
    return int(text)


def _offset(value: Any) -> Position:
    if value in ("earliest", "latest"):
        return EARLIEST if value == "earliest" else LATEST
    if type(value) is not int or not 0 <= value <= _MAX_OFFSET:
        raise ConfigError(
            f"offset {value!r} is invalid: must be an integer >= 0, earliest or latest"
        )
    return Position("virtual_queue", value)
