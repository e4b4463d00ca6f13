"""Arrow arrays of the sink: their parts, and values made without pandas.

``pa.array`` and ``pa.scalar`` of Python's own values would import pandas, where it is installed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa


def offsets_of(column: pa.Array) -> Sequence[int]:
    """Return the start of each value of a column of bytes or text, and the end of the last one."""
    large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    offsets = memoryview(column.buffers()[1]).cast("q" if large else "i")
    part: Sequence[int] = offsets[column.offset : column.offset + len(column) + 1]
    return part


def ranges_by_size(offsets: Sequence[int], max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of up to ``max_bytes`` bytes, or of one row."""
    start, stop = 0, len(offsets) - 1
    while start < stop:
        end = bisect_right(offsets, offsets[start] + max_bytes, start + 1) - 1
        end = max(end, start + 1)
        yield start, end
        start = end


def slice_of(column: pa.Array | None, start: int, end: int) -> pa.Array | None:
    """Return some rows of a column, if there is one."""
    return None if column is None else column.slice(start, end - start)


def rows_of(column: pa.Array | None, mask: pa.Array) -> pa.Array | None:
    """Return the rows of a column that a mask selects, if there is one."""
    return None if column is None else column.filter(mask)


def int_array(values: Sequence[int]) -> pa.Array:
    """Return integers as an array."""
    data = pa.py_buffer(array("q", values))
    return pa.Array.from_buffers(pa.int64(), len(values), [None, data])


def int_scalar(value: int, type: Any = None) -> pa.Scalar:
    """Return an integer, as a type of integers."""
    return int_array([value]).cast(type or pa.int64())[0]


def text_scalar(value: str, type: Any) -> pa.Scalar:
    """Return text, as a type of text or bytes."""
    data = value.encode()
    offsets = pa.py_buffer(array("i", [0, len(data)]))
    one = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)])
    return one.cast(type)[0]
