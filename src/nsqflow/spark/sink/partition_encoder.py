"""Groups rows for a topic of the redesigned NSQ by their partitions, as batches of a producer.

Rows of a partition keep their order. A key's partition is found once for each different key of an
Arrow batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from nsqflow.client.producer.message_options import encode_headers
from nsqflow.client.producer.partitioner import make_partitioner
from nsqflow.client.producer.publish_batch import PublishBatch, TopicPartition
from nsqflow.errors import ConfigError
from nsqflow.protocol.publish import Bodies
from nsqflow.spark.options import SinkOptions
from nsqflow.spark.sink.arrays import int_array, int_scalar, offsets_of, ranges_by_size
from nsqflow.spark.sink.columns import CAN_NOT_DELAY, HAS_NO_HEADERS, ColumnIndexes
from nsqflow.spark.sink.encoder import SLICE
from nsqflow.spark.sink.rows import CheckedRows
from nsqflow.spark.sink.topics import TargetTopic
from nsqflow.trace import MAX_TRACE_ID

T = TypeVar("T")

_ANY = -1  # stands for any partition
_COUNT_SIZE = 4  # MPUB counts its messages in four bytes
_LENGTH_SIZE = 4  # before each message
_HEADERS_SIZE = 2  # bytes of the length of headers
_TRACE_SIZE = 8


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """Rows that their topic can take."""

    rows: CheckedRows
    partitions: pa.Array | None
    """The partition of each row, or ``_ANY``; None: any partition for all."""
    headers: Sequence[bytes] | None
    """JSON, or empty."""
    traces: Sequence[int] | None
    """The trace ids of rows without headers; 0: none."""


class PartitionEncoder:
    """Encodes rows for one topic."""

    def __init__(self, topic: TargetTopic, columns: ColumnIndexes, options: SinkOptions) -> None:
        assert topic.meta is not None
        self._name = topic.name
        self._meta = topic.meta
        self._columns = columns
        self._partition_of = make_partitioner(options.partitioner or "murmur3")
        self._max_batch_bytes = options.max_batch_bytes

    def check(self, rows: CheckedRows) -> PartitionRows:
        """Return the rows with their partitions and headers.

        ``LocalProtocolError`` names a row that the topic can't take.
        """
        if rows.delays is not None:
            delayed = pc.greater(rows.delays, int_scalar(0))
            if len(late := rows.delays.filter(delayed)):
                text = f"delay_ms={late[0].as_py()} is invalid: topic {self._name!r}"
                raise rows.error(delayed, f"{text} {CAN_NOT_DELAY}")
        partitions, traces = self._partitions(rows), self._traces(rows)
        headers = self._headers(rows, traces)
        if headers is not None or traces is None:  # the headers have them
            return PartitionRows(rows, partitions, headers, None)
        return PartitionRows(rows, partitions, None, [each or 0 for each in traces])

    def batches(self, checked: PartitionRows) -> Iterator[PublishBatch]:
        """Yield the batches that publish the rows, in order; the deadline is not set."""
        for start, end in ranges_by_size(offsets_of(checked.rows.bodies), SLICE):
            bodies = checked.rows.bodies.slice(start, end - start).cast(pa.binary()).to_pylist()
            headers = checked.headers and checked.headers[start:end]
            traces = checked.traces and checked.traces[start:end]
            for number, indexes in _groups(checked.partitions, start, end):
                for batch in self._split(
                    _chosen(bodies, indexes),
                    headers and _chosen(headers, indexes),
                    traces and _chosen(traces, indexes),
                ):
                    if number != _ANY:
                        batch.destination = TopicPartition(self._name, number)
                    yield batch

    # Private methods: the partitions

    def _partitions(self, rows: CheckedRows) -> pa.Array | None:
        given, of_keys = self._given_partitions(rows), self._partitions_of_keys(rows)
        if given is not None and of_keys is not None:
            both = pc.and_(pc.is_valid(given), pc.is_valid(of_keys))
            if pc.any(both).as_py():
                raise rows.error(both, "key and partition are both set: one of them must be null")
        numbers = [each for each in (given, of_keys) if each is not None]
        merged = pc.coalesce(*numbers) if numbers else None
        if merged is not None and not merged.null_count:
            return merged
        if self._meta.ordered:
            text = f"topic {self._name!r} is ordered, and neither key nor partition is set"
            raise rows.error_at(0, text) if merged is None else rows.error(pc.is_null(merged), text)
        return None if merged is None else pc.fill_null(merged, int_scalar(_ANY))

    def _given_partitions(self, rows: CheckedRows) -> pa.Array | None:
        numbers = rows.column(self._columns.partition)
        if numbers is None:
            return None
        numbers = numbers.cast(pa.int64())
        extremes = pc.min_max(numbers)
        last = self._meta.partition_num - 1
        if extremes["min"].as_py() < 0 or extremes["max"].as_py() > last:
            outside = pc.or_(pc.less(numbers, int_scalar(0)), pc.greater(numbers, int_scalar(last)))
            value = numbers.filter(outside)[0].as_py()
            must = f"must be 0 to {last}" if last else "must be 0"
            raise rows.error(
                outside, f"partition={value} is invalid for topic {self._name!r}: {must}"
            )
        return numbers

    def _partitions_of_keys(self, rows: CheckedRows) -> pa.Array | None:
        keys = rows.column(self._columns.key)
        if keys is None:
            return None
        keys = keys.cast(pa.binary()).dictionary_encode()
        numbers = []
        for index, key in enumerate(keys.dictionary.to_pylist()):
            try:
                if not key:
                    raise ConfigError("key is empty")
                numbers.append(self._partition_of(key, self._meta.partition_num))
            except ConfigError as error:
                here = pc.equal(keys.indices, int_scalar(index, keys.indices.type))
                raise rows.error(here, f"{error} (topic {self._name!r})") from None
        return int_array(numbers).take(keys.indices)

    # Private methods: headers and trace ids

    def _headers(
        self, rows: CheckedRows, traces: Sequence[int | None] | None
    ) -> list[bytes] | None:
        maps, tags = rows.column(self._columns.headers), rows.column(self._columns.tag)
        for name, column in (("headers", maps), ("tag", tags)):
            if column is not None and not self._meta.extend_support:
                text = f"{name} is invalid: topic {self._name!r} {HAS_NO_HEADERS}"
                raise rows.error(pc.is_valid(column), text)
        if maps is None and tags is None:
            return None
        nothing = [None] * len(rows)
        encoded = []
        for index, (pairs, tag, trace) in enumerate(
            zip(
                nothing if maps is None else maps.to_pylist(),
                nothing if tags is None else tags.to_pylist(),
                traces or nothing,
                strict=True,
            )
        ):
            headers = None if pairs is None and trace is None else dict(pairs or ())
            try:
                encoded.append(encode_headers(headers, tag=tag, trace=trace) or b"")
            except ConfigError as error:
                raise rows.error_at(index, f"{error} (topic {self._name!r})") from None
        return encoded

    def _traces(self, rows: CheckedRows) -> list[int | None] | None:
        column = rows.column(self._columns.trace_id)
        if column is None:
            return None
        traces = [None if each is None else int(each) for each in column.to_pylist()]
        for index, each in enumerate(traces):
            if each is not None and not 0 <= each <= MAX_TRACE_ID:
                text = f"trace_id={each} is invalid: must be 0 to {MAX_TRACE_ID}"
                raise rows.error_at(index, text)
        return traces

    # Private methods: the batches

    def _split(
        self, bodies: Sequence[bytes], headers: Sequence[bytes] | None, traces: Sequence[int] | None
    ) -> Iterator[PublishBatch]:
        """Yield the rows of one partition in batches that are not too large."""
        sizes = [_LENGTH_SIZE + len(body) for body in bodies]
        if headers is not None:
            sizes = [s + _HEADERS_SIZE + len(h) for s, h in zip(sizes, headers, strict=True)]
        elif traces is not None:
            sizes = [size + _TRACE_SIZE for size in sizes]
        ends = [0, *accumulate(sizes)]
        for start, end in ranges_by_size(ends, self._max_batch_bytes - _COUNT_SIZE):
            batch = PublishBatch(self._name, 0.0, Bodies(bodies[start:end]))
            if headers is not None and any(headers[start:end]):
                batch.headers = [*headers[start:end]]
            elif traces is not None and any(traces[start:end]):
                batch.traces = [*traces[start:end]]
            batch.size = ends[end] - ends[start]
            yield batch


def _groups(
    partitions: pa.Array | None, start: int, end: int
) -> Iterator[tuple[int, Sequence[int] | None]]:
    """Yield each partition of some rows, with their indexes; None: all of them."""
    if partitions is None:
        yield _ANY, None
        return
    numbers = partitions.slice(start, end - start)
    order = pc.sort_indices(numbers)  # a stable sort
    indexes = order.to_pylist()
    first = 0
    for count in pc.value_counts(numbers.take(order)):
        size = count["counts"].as_py()
        yield (
            count["values"].as_py(),
            None if size == len(numbers) else indexes[first : first + size],
        )
        first += size


def _chosen(values: Sequence[T], indexes: Sequence[int] | None) -> Sequence[T]:
    return values if indexes is None else [values[index] for index in indexes]
