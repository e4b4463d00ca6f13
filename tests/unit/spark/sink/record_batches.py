"""Arrow batches of messages for the encoder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

Row = tuple[bytes, str | None, int | None]
"""Body, topic and delay."""


def batch_of(rows: Iterable[Row], body: Any = None, topic: Any = None) -> pa.RecordBatch:
    bodies, topics, delays = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(topics, topic or pa.string()),
            pa.array(bodies, body or pa.binary()),
            pa.array(delays, pa.int32()),
        ],
        names=["topic", "body", "delay_ms"],
    )
