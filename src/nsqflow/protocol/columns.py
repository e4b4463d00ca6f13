"""Messages as columns, without an object for each message.

Headers have a fixed size, so byte N of a field is read for all messages by one copy with a stride.
A constant is added to a whole column by one addition of two very long integers. So Python runs a
loop per column, not per message.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from sys import byteorder

_ID_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Many messages, with a column for each field, as for a DataFrame.

    Arrays are in the machine's byte order, ready for the buffer protocol. Bodies are not
    copied: each is in ``data``, from its value in ``body_starts()`` to the next bound.
    """

    data: bytes = field(repr=False)
    bounds: array[int]
    """Where each message's frame begins in ``data``, and finally where the last one ends."""
    body_offset: int
    """Where a body begins, relative to its frame and without the size of ``exts``."""
    timestamps: array[int]
    attempts: array[int]
    ids: bytes = field(repr=False)
    """16 bytes for each message, concatenated."""
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

    def one(self, index: int) -> Columns:
        """Return one message alone."""
        here = slice(index, index + 1)
        return Columns(
            data=self.data,
            bounds=self.bounds[index : index + 2],
            body_offset=self.body_offset,
            timestamps=self.timestamps[here],
            attempts=self.attempts[here],
            ids=self.ids[_ID_SIZE * index : _ID_SIZE * (index + 1)],
            offsets=None if self.offsets is None else self.offsets[here],
            sizes=None if self.sizes is None else self.sizes[here],
            exts=None if self.exts is None else self.exts[here],
            ext_versions=None if self.ext_versions is None else self.ext_versions[here],
        )

    def bodies(self) -> list[bytes]:
        """Copy the bodies out of ``data``."""
        data = self.data
        places = zip(self.body_starts(), self.bounds[1:], strict=True)
        return [data[start:end] for start, end in places]


def gather(rows: bytes, row_size: int, at: int, width: int) -> bytes:
    """Return the bytes ``at`` to ``at + width`` of each row.

    One copy with a stride for each byte takes a few nanoseconds per row; a slice of each row would
    take a hundred.
    """
    column = bytearray(len(rows) // row_size * width)
    for i in range(width):
        column[i::width] = rows[at + i :: row_size]
    return bytes(column)


def numbers(typecode: str, rows: bytes, row_size: int, at: int) -> array[int]:
    """Return the big-endian number at this position of each row."""
    column: array[int] = array(typecode)
    column.frombytes(gather(rows, row_size, at, column.itemsize))
    if byteorder == "little":  # pragma: no branch
        column.byteswap()
    return column


def _add(column: array[int], amount: int) -> array[int]:
    """Add ``amount`` to each number.

    Both columns are added as very long integers. No number overflows into the next one, because
    offsets in a buffer are below 2**31.
    """
    amounts = array(column.typecode, [amount]) * len(column)
    total = int.from_bytes(column.tobytes(), byteorder) + int.from_bytes(amounts, byteorder)
    sums: array[int] = array(column.typecode)
    sums.frombytes(total.to_bytes(len(column) * column.itemsize, byteorder))
    return sums
