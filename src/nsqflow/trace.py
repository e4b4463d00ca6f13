"""Tracing: follows messages of the redesigned NSQ from publish to finish.

    nsqflow.trace.set_tracing("orders", True)

From then on every publish to the topic gets a trace id, and every publish, receipt, finish and
requeue in this process is one line of JSON in the logger ``nsqflow.trace`` (level INFO). A
publish with ``trace=`` is traced in any case.
"""

from __future__ import annotations

import json
import logging
import random
import time
from typing import Any

from nsqflow.errors import ConfigError
from nsqflow.protocol.names import check_topic

logger = logging.getLogger("nsqflow.trace")
_warnings = logging.getLogger("nsqflow")  # the lines of the other one are JSON

TRACED_TOPICS: set[str] = set()
"""The topics that are traced now; change it by ``set_tracing``."""

MAX_TRACE_ID = 2**64 - 1
_random = random.SystemRandom()
_warned: set[str] = set()  # classic topics, since their tracing was switched on


def set_tracing(topic: str, on: bool) -> None:
    """Switch the tracing of a topic on or off, for all producers and consumers of this process.

    On a topic of the classic NSQ it has no effect but a warning.
    """
    check_topic(topic)
    if on:
        TRACED_TOPICS.add(topic)
    else:
        TRACED_TOPICS.discard(topic)
        _warned.discard(topic)


def warn_of_classic(topic: str) -> None:
    """Log, once, that a topic of the classic NSQ is not traced, if its tracing is switched on."""
    if topic in TRACED_TOPICS and topic not in _warned:
        _warned.add(topic)
        _warnings.warning("%r is a topic of the classic NSQ: it is not traced", topic)


def is_traced(topic: str) -> bool:
    """Return whether the tracing of a topic is switched on."""
    return topic in TRACED_TOPICS


def new_trace_id() -> int:
    """Return a random trace id; 0 would mean that the message is not traced."""
    return _random.randrange(1, MAX_TRACE_ID + 1)


def check_trace_id(value: object) -> int:
    """Return a trace id that fits into eight bytes; raise ``ConfigError`` for any other."""
    if type(value) is not int or not 0 <= value <= MAX_TRACE_ID:
        raise ConfigError(
            f"trace={value!r} is invalid: must be an integer from 0 to {MAX_TRACE_ID}"
        )
    return value


def write_line(event: str, topic: str, **values: Any) -> None:
    """Log one line of JSON; ids are decimal strings, as many readers of JSON lose digits."""
    for name in ("internal_id", "trace_id"):
        if values.get(name) is not None:
            values[name] = str(values[name])
    line = {"event": event, "at": time.time_ns(), "topic": topic} | {
        name: values.get(name) for name in _FIELDS
    }
    logger.info("%s", json.dumps(line, separators=(",", ":")))


_FIELDS = (
    "channel",
    "partition",
    "internal_id",
    "trace_id",
    "offset",
    "size",
    "timestamp",
    "attempts",
    "client",
    "nsqd",
    "outcome",
)
