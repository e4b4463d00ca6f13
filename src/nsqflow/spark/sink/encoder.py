"""Encodes Arrow batches as MPUB commands, without handling single rows.

Arrow joins the bodies of a batch, each with its size before it, in one call; any range of rows is
then the content of an MPUB. Only a row with a delay is a command of its own, because nsqd has no
MPUB with delays.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from sys import byteorder
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nsqflow.errors import ConfigError, LocalProtocolError
from nsqflow.protocol import Dpub, Publish, check_topic

_MAX_DELAY = 3_600_000  # milliseconds: nsqd's default maximum
_SLICE = 8 * 1024 * 1024  # bytes of bodies that are joined, and so copied, at a time
_MAX_ERROR = 300  # characters of an error about a topic, which may be any text

_SIZE_AND_COUNT = Struct(">ii")
_SIZE = Struct(">i")


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


class ColumnIndexes(NamedTuple):
    """The indexes of the columns in a batch."""

    body: int
    topic: int | None = None
    delay_ms: int | None = None


class MpubEncoder:
    """Encodes the batches of one task."""

    def __init__(self, columns: ColumnIndexes, topic: str | None, max_batch_bytes: int) -> None:
        self._columns = columns
        self._topic = topic
        self._max_batch_bytes = max_batch_bytes
        self.rows = 0
        self.bytes = 0
        """Bytes of all bodies."""

    def commands(self, batch: pa.RecordBatch) -> Iterator[PackedMpub | Dpub]:
        """Yield the commands that publish the rows of a batch, which must not be empty.

        All rows are checked before the first command: ``LocalProtocolError`` names a row that
        can't be published.
        """
        bodies = self._bodies(batch)
        delays = self._delays(batch)
        topics = self._topics(batch)
        offsets = _offsets(bodies)
        self.rows += len(bodies)
        self.bytes += offsets[-1] - offsets[0]
        for start, end in _cuts(offsets, _SLICE):
            yield from self._slice(
                *(_part(column, start, end) for column in (bodies, topics, delays))
            )

    # Private methods: the columns, checked

    def _bodies(self, batch: pa.RecordBatch) -> pa.Array:
        bodies = batch.column(self._columns.body)
        if bodies.null_count:
            raise self._bad(pc.is_null(bodies), "body is null")
        if not pc.min(pc.binary_length(bodies)).as_py():
            raise self._bad(pc.invert(pc.binary_length(bodies).cast(pa.bool_())), "body is empty")
        return bodies

    def _delays(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return the delays; None if no row has a delay."""
        if self._columns.delay_ms is None:
            return None
        delays = pc.fill_null(batch.column(self._columns.delay_ms).cast(pa.int64()), _number(0))
        extremes = pc.min_max(delays)
        if extremes["min"].as_py() < 0 or extremes["max"].as_py() > _MAX_DELAY:
            outside = pc.or_(pc.less(delays, _number(0)), pc.greater(delays, _number(_MAX_DELAY)))
            value = delays.filter(outside)[0].as_py()
            raise self._bad(outside, f"delay_ms={value} is invalid: must be 0 to {_MAX_DELAY}")
        return delays if extremes["max"].as_py() else None

    def _topics(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return the topics, dictionary-encoded; None if all rows have that of the option."""
        if self._columns.topic is None:
            return None
        topics = batch.column(self._columns.topic)
        if topics.null_count:
            if self._topic is None:
                missing = pc.is_null(topics)
                raise self._bad(missing, "topic is null, and there is no option topic")
            topics = pc.fill_null(topics, _text(self._topic, topics.type))
        topics = topics.dictionary_encode()
        for number, topic in enumerate(topics.dictionary.to_pylist()):
            try:
                check_topic(topic)
            except ConfigError as error:
                rows = pc.equal(topics.indices, _number(number, topics.indices.type))
                raise self._bad(rows, str(error)[:_MAX_ERROR]) from None
        return topics

    def _bad(self, rows: pa.Array, what: str) -> LocalProtocolError:
        """Return the error that names the first row of a mask."""
        number = self.rows + rows.to_pylist().index(True)
        return LocalProtocolError(f"row {number} of its partition (the first is 0): {what}")

    # Private methods: the commands

    def _slice(
        self, bodies: pa.Array, topics: pa.Array | None, delays: pa.Array | None
    ) -> Iterator[PackedMpub | Dpub]:
        if delays is not None:
            delayed = pc.greater(delays, _number(0))
            later = (_filter(column, delayed) for column in (bodies, topics, delays))
            yield from self._dpubs(*later)
            bodies, topics = (_filter(column, pc.invert(delayed)) for column in (bodies, topics))
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
        offsets = _offsets(packed)
        data = memoryview(packed.buffers()[2])
        for start, end in _cuts(offsets, self._max_batch_bytes - _SIZE.size):
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


def _cuts(offsets: Sequence[int], max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of up to ``max_bytes`` bytes, or of one row."""
    start, stop = 0, len(offsets) - 1
    while start < stop:
        end = bisect_right(offsets, offsets[start] + max_bytes, start + 1) - 1
        end = max(end, start + 1)
        yield start, end
        start = end


def _offsets(column: pa.Array) -> Sequence[int]:
    """Return the start of each value, and the end of the last one."""
    large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    offsets = memoryview(column.buffers()[1]).cast("q" if large else "i")
    part: Sequence[int] = offsets[column.offset : column.offset + len(column) + 1]
    return part


def _part(column: pa.Array | None, start: int, end: int) -> pa.Array | None:
    return None if column is None else column.slice(start, end - start)


def _filter(column: pa.Array | None, mask: pa.Array) -> pa.Array | None:
    return None if column is None else column.filter(mask)


# As pa.scalar, which would import pandas.


def _number(value: int, type: Any = None) -> pa.Scalar:
    one = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(array("q", [value]))])
    return one.cast(type or pa.int64())[0]


def _text(value: str, type: Any) -> pa.Scalar:
    data = value.encode()
    offsets = pa.py_buffer(array("i", [0, len(data)]))
    one = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)])
    return one.cast(type)[0]


_NOTHING = _text("", pa.binary())
