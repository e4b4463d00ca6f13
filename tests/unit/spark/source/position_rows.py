"""Stored rows of a partition of the redesigned NSQ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from nsqflow.spark.spool.slot_format import STORED_POSITIONS


class Position(NamedTuple):
    """Where a message is; by default it has ten bytes and follows the one before it."""

    internal_id: int
    offset: int
    size: int = 10
    timestamp: int = 1


def message(number: int, **change: int) -> Position:
    """Return the message with this number."""
    return Position(number, number * 10, timestamp=1000 + number)._replace(**change)


def rows_at(messages: Iterable[Position]) -> pa.RecordBatch:
    """Return the messages as rows."""
    found = [*messages]
    ids = [each.internal_id.to_bytes(8, "big") + bytes(8) for each in found]
    return pa.RecordBatch.from_pydict(
        {
            "body": [b"" for _ in found],
            "id": ids,
            "attempts": [1 for _ in found],
            "timestamp_ns": [each.timestamp for each in found],
            "offset": [each.offset for each in found],
            "size": [each.size for each in found],
            "ext": [None for _ in found],
        },
        schema=STORED_POSITIONS,
    )


def rows_with_headers(
    messages: Iterable[tuple[bytes, Mapping[str, object] | None]], trace_id: int = 0
) -> pa.RecordBatch:
    """Return bodies with these headers as rows; a message has the size of ten bytes."""
    rows: list[dict[str, object]] = [
        {
            "body": body,
            "id": number.to_bytes(8, "big") + trace_id.to_bytes(8, "big"),
            "attempts": 1,
            "timestamp_ns": 1000 + number,
            "offset": 10 * number,
            "size": 10,
            "ext": None if headers is None else json.dumps(headers).encode(),
        }
        for number, (body, headers) in enumerate(messages)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=STORED_POSITIONS)
