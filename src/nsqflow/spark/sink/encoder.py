"""Encodes rows for classic topics as MPUB commands, without handling single rows.

Arrow joins the bodies of a batch, each with its size before it, in one call; any range of rows is
then the content of an MPUB. Only a row with a delay is a command of its own, because nsqd has no
MPUB with delays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from sys import byteorder

import pyarrow as pa
import pyarrow.compute as pc

from nsqflow.protocol import Dpub, Publish
from nsqflow.spark.sink.arrays import (
    int_scalar,
    offsets_of,
    ranges_by_size,
    rows_of,
    slice_of,
    text_scalar,
)
from nsqflow.spark.sink.rows import CheckedRows

_SIZE_AND_COUNT = Struct(">ii")
_SIZE = Struct(">i")

SLICE = 8 * 1024 * 1024
"""Bytes of bodies that are joined, and so copied, at a time."""


@dataclass(frozen=True, slots=True)
class PackedMpub(Publish):
    """MPUB of bodies that are already joined, each with its size before it."""

    name = "MPUB"
    count: int
    bodies: memoryview = field(repr=False)

    def encode(self) -> bytes:
        """Return the bytes."""
        head = _SIZE_AND_COUNT.pack(_SIZE.size + len(self.bodies), self.count)
        return b"".join((self._line(), head, self.bodies))

    def largest(self) -> int:
        """Return the size of the largest body."""
        largest = at = 0
        while at < len(self.bodies):
            (size,) = _SIZE.unpack_from(self.bodies, at)
            largest = max(largest, size)
            at += _SIZE.size + size
        return largest


class MpubEncoder:
    """Encodes rows; those without a topic of their own go to ``topic``."""

    def __init__(self, topic: str | None, max_batch_bytes: int) -> None:
        self._topic = topic
        self._max_batch_bytes = max_batch_bytes

    def commands(self, rows: CheckedRows) -> Iterator[PackedMpub | Dpub]:
        """Yield the commands that publish the rows."""
        for start, end in ranges_by_size(offsets_of(rows.bodies), SLICE):
            columns = (rows.bodies, rows.topics, rows.delays)
            yield from self._slice(*(slice_of(column, start, end) for column in columns))

    # Private methods

    def _slice(
        self, bodies: pa.Array, topics: pa.Array | None, delays: pa.Array | None
    ) -> Iterator[PackedMpub | Dpub]:
        if delays is not None:
            delayed = pc.greater(delays, int_scalar(0))
            later = (rows_of(column, delayed) for column in (bodies, topics, delays))
            yield from self._dpubs(*later)
            bodies, topics = (rows_of(column, pc.invert(delayed)) for column in (bodies, topics))
        if not len(bodies):
            return
        for topic, some in self._by_topic(bodies, topics):
            yield from self._mpubs(topic, some)

    def _dpubs(self, bodies: pa.Array, topics: pa.Array | None, delays: pa.Array) -> Iterator[Dpub]:
        names = [self._topic] * len(bodies) if topics is None else topics.to_pylist()
        texts = bodies.cast(pa.binary()).to_pylist()
        for topic, delay, body in zip(names, delays.to_pylist(), texts, strict=True):
            yield Dpub(topic, delay, body)

    def _by_topic(
        self, bodies: pa.Array, topics: pa.Array | None
    ) -> Iterator[tuple[str, pa.Array]]:
        """Group the rows by topic; within each topic they keep their order."""
        if topics is None:
            assert self._topic is not None
            yield self._topic, bodies
            return
        names = topics.dictionary.to_pylist()
        order = pc.sort_indices(topics.indices)  # a stable sort
        bodies = bodies.take(order)
        start = 0
        for count in pc.value_counts(topics.indices.take(order)):
            size = count["counts"].as_py()
            yield names[count["values"].as_py()], bodies.slice(start, size)
            start += size

    def _mpubs(self, topic: str, bodies: pa.Array) -> Iterator[PackedMpub]:
        packed = _packed(bodies)
        offsets = offsets_of(packed)
        data = memoryview(packed.buffers()[2])
        for start, end in ranges_by_size(offsets, self._max_batch_bytes - _SIZE.size):
            yield PackedMpub(topic, end - start, data[offsets[start] : offsets[end]])


def _packed(bodies: pa.Array) -> pa.Array:
    """Return the bodies, each with its size before it."""
    bodies = bodies.cast(pa.binary())
    count = len(bodies)
    sizes: array[int] = array("i")
    sizes.frombytes(memoryview(pc.binary_length(bodies).buffers()[1])[: 4 * count])
    if byteorder == "little":  # pragma: no branch
        sizes.byteswap()
    prefixes = pa.Array.from_buffers(
        pa.binary(),
        count,
        [None, pa.py_buffer(array("i", range(0, 4 * count + 1, 4))), pa.py_buffer(sizes)],
    )
    return pc.binary_join_element_wise(prefixes, bodies, _NOTHING)


_NOTHING = text_scalar("", pa.binary())
