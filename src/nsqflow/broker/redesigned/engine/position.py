"""Positions in a log: where a channel is to go on, and which message is looked for.

virtual_queue:OFFSET    msgcount:NUMBER    timestamp:SECONDS    special:-1
"""

from __future__ import annotations

import re

from nsqflow.broker.redesigned.engine.log import LogMessage, PartitionLog

_KINDS = ("timestamp", "special", "virtual_queue", "msgcount")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_SECOND = 10**9


class InvalidPosition(Exception):
    """A text that names no position, in nsqd's words."""


class NoSuchPosition(Exception):
    """A position that this log does not have, in nsqd's words."""


def parse_position(text: str) -> tuple[str, int]:
    """Return kind and value of a position; raise ``InvalidPosition``."""
    kind, colon, value = text.partition(":")
    if not colon or kind not in _KINDS or ":" in value:
        raise InvalidPosition(f"invalid consume offset:{text}")
    if not _INTEGER.fullmatch(value):
        raise InvalidPosition(f'strconv.ParseInt: parsing "{value}": invalid syntax')
    return kind, int(value)


def find_position(log: PartitionLog, kind: str, value: int) -> int:
    """Return the index at which a channel goes on; raise ``NoSuchPosition``.

    What lies before the oldest message is that message, what lies after the last one the end.
    """
    if kind == "special":
        if value != -1:
            raise NoSuchPosition("not supported offset type")
        return log.end
    if kind == "timestamp" and value < 0:
        raise NoSuchPosition(f"Invalid timestamp {value}")
    if not log.end:
        raise NoSuchPosition("commit log end of file")
    if kind == "timestamp":
        return log.at_time(value * _SECOND)
    return log.at_offset(value) if kind == "virtual_queue" else log.at_count(value)


def find_message(log: PartitionLog, mode: str, value: int) -> LogMessage | None:
    """Return the message that ``/message/get`` finds; None where nsqd has an internal error."""
    if not log.frames:
        raise NoSuchPosition("commit log end of file")
    if mode == "id":
        return log.read(log.batch_of(value))
    index = log.at_count(value) if mode == "count" else log.at_offset(value)
    return log.read(index) if index < log.end else None
