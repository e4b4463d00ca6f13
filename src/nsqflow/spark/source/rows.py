"""Converts received columns to Arrow batches for the spool, and those to rows for Spark.

Nothing here runs once for each message: offsets are interleaved by copies with a stride, bodies
are gathered by Arrow, and columns with the same value in every row are built once and sliced.
Arrays are built from buffers, because Arrow's higher-level functions may import pandas.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pyarrow as pa

from nsqflow.protocol import Columns
from nsqflow.spark.spool.slot_format import STORED, PartitionTotals

_ID_SIZE = 16

_NANOSECONDS = pa.timestamp("ns", tz="UTC")
_MICROSECONDS = pa.timestamp("us", tz="UTC")


def stored_batch(columns: Sequence[Columns]) -> pa.RecordBatch:
    """Return one batch with the messages of several reads."""
    size = sum(map(len, columns))
    ids = pa.py_buffer(b"".join([part.ids for part in columns]))
    attempts = _numbers(pa.uint16(), b"".join([part.attempts for part in columns]))
    return pa.RecordBatch.from_arrays(
        [
            _bodies(columns),
            pa.Array.from_buffers(pa.binary(), size, [None, _id_offsets(size + 1), ids]),
            attempts.cast(pa.int32()),
            _numbers(pa.int64(), b"".join([part.timestamps for part in columns])),
        ],
        schema=STORED,
    )


def body_bytes(stored: pa.RecordBatch) -> int:
    """Return the number of bytes of all bodies."""
    bodies = stored.column("body")
    if not len(bodies):
        return 0
    offsets = memoryview(bodies.buffers()[1]).cast("i")
    return int(offsets[bodies.offset + len(bodies)] - offsets[bodies.offset])


def row_totals(stored: pa.RecordBatch) -> PartitionTotals:
    """Return what these rows add to the totals of a partition."""
    column = stored.column("timestamp_ns")
    values = memoryview(column.buffers()[1]).cast("q")[column.offset :][: len(column)]
    return PartitionTotals(
        rows=len(stored),
        bodies=body_bytes(stored),
        oldest=min(values, default=0),
        newest=max(values, default=0),
    )


def pick(stored: pa.RecordBatch, indexes: Sequence[int]) -> pa.RecordBatch:
    """Return the rows at these indexes, in this order."""
    return stored.take(_numbers(pa.int32(), array("i", indexes)))


class RowConverter:
    """Converts stored batches to the rows that Spark gets."""

    def __init__(self, topic: str, channel: str, nsqd: str, include_metadata: bool) -> None:
        self.schema = pa.schema([STORED.field("body")])
        self._include_metadata = include_metadata
        self._constants = [_Constant(text) for text in (topic, channel, nsqd)]
        if include_metadata:
            self.schema = pa.schema(
                [
                    STORED.field("body"),
                    STORED.field("id"),
                    STORED.field("attempts"),
                    ("timestamp", _MICROSECONDS),
                    STORED.field("timestamp_ns"),
                    ("topic", pa.string()),
                    ("channel", pa.string()),
                    ("nsqd", pa.string()),
                ]
            )

    def convert(self, stored: pa.RecordBatch) -> pa.RecordBatch:
        """Return the messages as rows of ``schema``."""
        if not self._include_metadata:
            return stored.select(["body"])
        body, id, attempts, nanoseconds = stored.columns
        timestamp = nanoseconds.view(_NANOSECONDS).cast(_MICROSECONDS, safe=False)
        constants = [constant.column(len(body)) for constant in self._constants]
        return pa.RecordBatch.from_arrays(
            [body, id, attempts, timestamp, nanoseconds, *constants], schema=self.schema
        )


class _Constant:
    """A column with the same text in each row; caches the longest so far."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self._column = self._make(0)

    def column(self, size: int) -> pa.Array:
        if len(self._column) < size:
            self._column = self._make(size)
        return self._column.slice(0, size)

    def _make(self, size: int) -> pa.Array:
        step = len(self._text)
        offsets = pa.py_buffer(array("i", range(0, step * (size + 1), step)))
        return pa.Array.from_buffers(
            pa.string(), size, [None, offsets, pa.py_buffer(self._text * size)]
        )


class _Progression:
    """An arithmetic progression as a buffer; caches the longest so far."""

    def __init__(self, first: int, step: int) -> None:
        self._first = first
        self._step = step
        self._numbers = pa.py_buffer(b"")

    def __call__(self, size: int) -> pa.Buffer:
        """Return a buffer of at least ``size`` numbers."""
        if self._numbers.size < 4 * size:
            first, step = self._first, self._step
            self._numbers = pa.py_buffer(array("i", range(first, first + step * size, step)))
        return self._numbers


_id_offsets = _Progression(0, _ID_SIZE)
_odd = _Progression(1, 2)
_NONE = pa.Array.from_buffers(pa.binary(), 0, [None, _id_offsets(1), pa.py_buffer(b"")])


def _bodies(columns: Sequence[Columns]) -> pa.Array:
    if len(columns) == 1:
        return _gathered(columns[0])
    return pa.concat_arrays([_NONE, *map(_gathered, columns)])


def _gathered(columns: Columns) -> pa.Array:
    """Copy the bodies out of the received bytes."""
    # The start of a body lies between two bounds of frames: so every second value of this array
    # is a body, and the values between them are the headers of frames.
    size = len(columns)
    offsets = array("i", bytes(4 * (2 * size + 1)))
    offsets[::2] = columns.bounds
    offsets[1::2] = columns.body_starts()
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * size, [None, pa.py_buffer(offsets), pa.py_buffer(columns.data)]
    )
    return pieces.take(pa.Array.from_buffers(pa.int32(), size, [None, _odd(size)]))


def _numbers(type: pa.DataType, data: bytes | array[int]) -> pa.Array:
    buffer = pa.py_buffer(data)
    return pa.Array.from_buffers(type, buffer.size * 8 // type.bit_width, [None, buffer])
