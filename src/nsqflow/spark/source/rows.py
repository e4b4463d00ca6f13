"""Converts received columns to Arrow batches for the spool, and those to rows for Spark.

Nothing here runs once for each message, but for the headers of extended topics: offsets are
interleaved by copies with a stride, bodies are gathered by Arrow, and columns with the same value
in every row are built once and sliced. Arrays are built from buffers, because Arrow's higher-level
functions may import pandas.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from sys import byteorder
from typing import Literal

import pyarrow as pa

from nsqflow.protocol import Columns
from nsqflow.protocol.columns import numbers
from nsqflow.protocol.messages import JSON_HEADERS
from nsqflow.spark.source.offsets import partition_of, split_key
from nsqflow.spark.spool.coverage import RangeSet
from nsqflow.spark.spool.slot_format import STORED, STORED_POSITIONS, PartitionTotals

_ID_SIZE = 16

_NANOSECONDS = pa.timestamp("ns", tz="UTC")
_MICROSECONDS = pa.timestamp("us", tz="UTC")

METADATA = pa.schema(
    [
        ("id", pa.binary()),
        ("attempts", pa.int32()),
        ("timestamp", _MICROSECONDS),
        ("timestamp_ns", pa.int64()),
        ("topic", pa.string()),
        ("channel", pa.string()),
        ("nsqd", pa.string()),
    ]
)
POSITIONS = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("size", pa.int32()),
        ("internal_id", pa.int64()),
        ("trace_id", pa.decimal128(20, 0)),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("tag", pa.string()),
    ]
)
"""The columns of the redesigned NSQ."""


def stored_batch(columns: Sequence[Columns]) -> pa.RecordBatch:
    """Return one batch with the messages of several reads."""
    size = sum(map(len, columns))
    ids = pa.py_buffer(b"".join([part.ids for part in columns]))
    attempts = _numbers(pa.uint16(), b"".join([part.attempts for part in columns]))
    arrays = [
        _bodies(columns),
        pa.Array.from_buffers(pa.binary(), size, [None, _id_offsets(size + 1), ids]),
        attempts.cast(pa.int32()),
        _numbers(pa.int64(), b"".join([part.timestamps for part in columns])),
    ]
    if not columns or columns[0].offsets is None:
        return pa.RecordBatch.from_arrays(arrays, schema=STORED)
    offsets = b"".join([part.offsets or b"" for part in columns])
    sizes = b"".join([part.sizes or b"" for part in columns])
    arrays += [_numbers(pa.int64(), offsets), _numbers(pa.int32(), sizes), _exts(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=STORED_POSITIONS)


def body_bytes(stored: pa.RecordBatch) -> int:
    """Return the number of bytes of all bodies."""
    bodies = stored.column("body")
    if not len(bodies):
        return 0
    offsets = memoryview(bodies.buffers()[1]).cast("i")
    return int(offsets[bodies.offset + len(bodies)] - offsets[bodies.offset])


def row_totals(stored: pa.RecordBatch) -> PartitionTotals:
    """Return what these rows add to the totals of a partition."""
    timestamps = values_of(stored, "timestamp_ns")
    ids, offsets = _covered(stored)
    return PartitionTotals(
        rows=len(stored),
        bodies=body_bytes(stored),
        oldest=min(timestamps, default=0),
        newest=max(timestamps, default=0),
        ids=ids,
        offsets=offsets,
    )


def position_totals(stored: pa.RecordBatch) -> PartitionTotals:
    """Return what the positions of messages add to totals; nothing without positions."""
    ids, offsets = _covered(stored)
    newest = max(values_of(stored, "timestamp_ns"), default=0) if ids else 0
    return PartitionTotals(newest=newest, ids=ids, offsets=offsets)


def values_of(stored: pa.RecordBatch, name: str, code: Literal["i", "q"] = "q") -> memoryview[int]:
    """Return the numbers of a column; ``code`` is their type, as of ``array``."""
    column = stored.column(name)
    values = memoryview(column.buffers()[1]).cast(code)
    return values[column.offset : column.offset + len(column)]


def internal_ids(stored: pa.RecordBatch) -> array[int]:
    """Return the internal ids of stored rows: the first half of each id."""
    return numbers("Q", _id_bytes(stored), _ID_SIZE, 0)


def pick(stored: pa.RecordBatch, indexes: Sequence[int]) -> pa.RecordBatch:
    """Return the rows at these indexes, in this order."""
    return stored.take(_numbers(pa.int32(), array("i", indexes)))


class RowConverter:
    """Converts the slots of one key to the rows that Spark gets.

    ``positions`` says whether the rows have the columns of the redesigned NSQ; for messages of the
    classic NSQ these are null. ``channel`` is None where no channel was read.
    """

    def __init__(self, key: str, channel: str | None, *, metadata: bool, positions: bool) -> None:
        topic, place = split_key(key)
        self._metadata = metadata
        self._positions = positions
        self._topic, self._channel = ConstantColumn(topic), ConstantColumn(channel)
        self._partition = partition_of(key)
        self._nsqd = "" if self._partition is not None else place
        self._nsqds: dict[str, ConstantColumn] = {}
        fields = [STORED.field("body"), *(METADATA if metadata else ())]
        self.schema = pa.schema([*fields, *(POSITIONS if metadata and positions else ())])

    def convert(self, stored: pa.RecordBatch, leader: str = "") -> Iterator[pa.RecordBatch]:
        """Yield messages as rows of ``schema``; ``leader`` is the nsqd they came from.

        They are one batch, unless bodies that their publisher has compressed unpack to too much.
        """
        if "ext" not in stored.schema.names or stored.column("ext").null_count == len(stored):
            yield self._rows(stored, leader)
            return
        from nsqflow.spark.source.headers import unpacked_parts

        for part in unpacked_parts(stored):
            yield self._rows(part, leader)

    # Private methods

    def _rows(self, stored: pa.RecordBatch, leader: str) -> pa.RecordBatch:
        if not self._metadata:
            return stored.select(["body"])
        size = len(stored)
        nanoseconds = stored.column("timestamp_ns")
        columns = [
            stored.column("body"),
            stored.column("id"),
            stored.column("attempts"),
            nanoseconds.view(_NANOSECONDS).cast(_MICROSECONDS, safe=False),
            nanoseconds,
            self._topic.column(size),
            self._channel.column(size),
            self._nsqd_column(leader or self._nsqd).column(size),
        ]
        if self._positions:
            columns += self._position_columns(stored)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _nsqd_column(self, nsqd: str) -> ConstantColumn:
        if nsqd not in self._nsqds:
            self._nsqds[nsqd] = ConstantColumn(nsqd)
        return self._nsqds[nsqd]

    def _position_columns(self, stored: pa.RecordBatch) -> list[pa.Array]:
        size = len(stored)
        if self._partition is None:
            return [pa.nulls(size, field.type) for field in POSITIONS]
        if stored.column("ext").null_count == size:
            headers, tags = (
                pa.nulls(size, POSITIONS.field(each).type) for each in ("headers", "tag")
            )
        else:
            from nsqflow.spark.source.headers import header_columns

            headers, tags = header_columns(stored.column("ext"))
        return [
            _numbers(pa.int32(), array("i", [self._partition]) * size),
            stored.column("offset"),
            stored.column("size"),
            _numbers(pa.int64(), internal_ids(stored)),  # far below 2**63
            _trace_ids(_id_bytes(stored)),
            headers,
            tags,
        ]


class ConstantColumn:
    """A column with the same text in each row, or null; caches the longest so far."""

    def __init__(self, text: str | None) -> None:
        self._text = None if text is None else text.encode()
        self._column = self._make(0)

    def column(self, size: int) -> pa.Array:
        """Return a column of this size."""
        if len(self._column) < size:
            self._column = self._make(size)
        return self._column.slice(0, size)

    def _make(self, size: int) -> pa.Array:
        if self._text is None:
            return pa.nulls(size, pa.string())
        step = len(self._text)
        offsets = range(0, step * size + 1, step) if step else [0] * (size + 1)
        return pa.Array.from_buffers(
            pa.string(),
            size,
            [None, pa.py_buffer(array("i", offsets)), pa.py_buffer(self._text * size)],
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


def _exts(columns: Sequence[Columns]) -> pa.Array:
    """Return the headers as JSON; null for a message without."""
    size = sum(map(len, columns))
    if all(part.exts is None for part in columns):
        return pa.nulls(size, pa.binary())
    exts: list[bytes | None] = []
    for part in columns:
        versions = part.ext_versions or b""
        exts += [
            ext if version == JSON_HEADERS else None
            for ext, version in zip(part.exts or (), versions, strict=True)
        ]
    return pa.array(exts, pa.binary())


def _covered(stored: pa.RecordBatch) -> tuple[RangeSet, RangeSet]:
    """Return the internal ids of messages, and the bytes they take up in their partition."""
    if "offset" not in stored.schema.names or not len(stored):
        return RangeSet(), RangeSet()
    offsets, sizes = values_of(stored, "offset"), values_of(stored, "size", "i")
    ids = RangeSet.of_numbers(internal_ids(stored))
    first, last = min(offsets), offsets[-1]
    end = last + sizes[-1]
    # Nearly always they follow each other. One that is there twice may hide that another is not.
    if len(ids) == len(stored) and max(offsets) == last and end - first == sum(sizes):
        return ids, RangeSet(((first, end),))
    places = zip(offsets, sizes, strict=True)
    return ids, RangeSet.of((offset, offset + size) for offset, size in places)


def _trace_ids(ids: bytes) -> pa.Array:
    """Return the second half of each id as a decimal."""
    size = len(ids) // _ID_SIZE
    data = bytearray(_ID_SIZE * size)
    for place in range(8):  # big-endian numbers of 8 bytes become numbers of 16 bytes
        data[(place if byteorder == "little" else 15 - place) :: _ID_SIZE] = ids[15 - place :: 16]
    return pa.Array.from_buffers(pa.decimal128(20, 0), size, [None, pa.py_buffer(data)])


def _id_bytes(stored: pa.RecordBatch) -> bytes:
    column = stored.column("id")
    data = memoryview(column.buffers()[2])
    return bytes(data[_ID_SIZE * column.offset :][: _ID_SIZE * len(column)])


def _numbers(type: pa.DataType, data: bytes | array[int]) -> pa.Array:
    buffer = pa.py_buffer(data)
    return pa.Array.from_buffers(type, buffer.size * 8 // type.bit_width, [None, buffer])
