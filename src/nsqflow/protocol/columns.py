"""Columns: many messages at once, without an object for each.

The bytes of a number stand 26 or 12 apart from those of the next message's, so they are
gathered by copies with a stride, one for each byte of the number, and numbers are added to
by adding very long ones: Python then runs a loop for each column, not for each message.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from sys import byteorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Many messages, a column for each value: what a DataFrame is made of.

    Arrays are in the machine's byte order, ready for the buffer protocol. Bodies are not
    copied: each lies in ``data`` from its place in ``body_starts()`` up to the next bound.
    """

    data: bytes = field(repr=False)
    bounds: array[int]
    """Where each message's frame begins in ``data``, and behind them where the last one ends."""
    body_offset: int
    """How far from there its body begins, not counting ``exts``."""
    timestamps: array[int]
    attempts: array[int]
    ids: bytes = field(repr=False)
    """16 bytes for each message, one behind the other."""
    offsets: array[int] | None = None
    sizes: array[int] | None = None
    exts: list[bytes | None] | None = field(default=None, repr=False)
    ext_versions: bytes | None = None
    """A byte for each message."""

    def __len__(self) -> int:
        return len(self.timestamps)

    def body_starts(self) -> array[int]:
        """Return where in ``data`` each body begins."""
        starts, offset = self.bounds[:-1], self.body_offset
        if self.exts is None:
            return _add(starts, offset)
        extra = [0 if ext is None else 2 + len(ext) for ext in self.exts]
        return array(
            "i", [start + offset + size for start, size in zip(starts, extra, strict=True)]
        )

    def bodies(self) -> list[bytes]:
        """Copy the bodies out of ``data``."""
        data = self.data
        places = zip(self.body_starts(), self.bounds[1:], strict=True)
        return [data[start:end] for start, end in places]


def gather(rows: bytes, row_size: int, at: int, width: int) -> bytes:
    """Take the bytes ``at`` to ``at + width`` out of each row.

    By a strided copy for each of them: a few nanoseconds a row, where a slice of each
    takes a hundred.
    """
    column = bytearray(len(rows) // row_size * width)
    for i in range(width):
        column[i::width] = rows[at + i :: row_size]
    return bytes(column)


def numbers(typecode: str, rows: bytes, row_size: int, at: int) -> array[int]:
    """Take a big-endian number out of each row."""
    column: array[int] = array(typecode)
    column.frombytes(gather(rows, row_size, at, column.itemsize))
    if byteorder == "little":  # pragma: no branch
        column.byteswap()
    return column


def _add(column: array[int], amount: int) -> array[int]:
    """Add the same to each number.

    By one addition of two very long ones, a lane of it for each: no lane overflows into its
    neighbour, as places in a buffer are below 2**31.
    """
    amounts = array(column.typecode, [amount]) * len(column)
    total = int.from_bytes(column.tobytes(), byteorder) + int.from_bytes(amounts, byteorder)
    sums: array[int] = array(column.typecode)
    sums.frombytes(total.to_bytes(len(column) * column.itemsize, byteorder))
    return sums
