"""Arrow batches of messages for the encoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from nsqflow.protocol import Dpub
from nsqflow.spark.sink.columns import ColumnIndexes
from nsqflow.spark.sink.encoder import MpubEncoder, PackedMpub
from nsqflow.spark.sink.rows import RowChecker

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


class BatchEncoder:
    """Checks and encodes whole batches, as a task does."""

    def __init__(self, columns: ColumnIndexes, topic: str | None, most: int) -> None:
        self.checker = RowChecker(columns, topic)
        self._encoder = MpubEncoder(topic, most)

    def commands(self, batch: pa.RecordBatch) -> Iterator[PackedMpub | Dpub]:
        """The commands for a batch."""
        return self._encoder.commands(self.checker.check(batch))
