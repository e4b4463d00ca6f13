"""The rows of an Arrow batch, checked before the first of them is published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nsqflow.errors import ConfigError, LocalProtocolError
from nsqflow.protocol import check_topic
from nsqflow.spark.sink.arrays import int_scalar, offsets_of, rows_of, text_scalar

if TYPE_CHECKING:
    from nsqflow.spark.sink.columns import ColumnIndexes

_MAX_DELAY = 3_600_000  # milliseconds: nsqd's default maximum
_MAX_ERROR = 300  # characters of an error about a topic, which may be any text


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """Rows of a batch whose bodies, topics and delays are valid."""

    batch: pa.RecordBatch
    """All of their columns."""
    first: int
    """The number of the batch's first row in its partition of the DataFrame."""
    bodies: pa.Array
    topics: pa.Array | None
    """Dictionary-encoded; None if all rows have the topic of the option."""
    delays: pa.Array | None
    """Milliseconds; None if no row has a delay."""
    positions: pa.Array | None = None
    """The rows' indexes in their batch; None: these are all of its rows."""

    def __len__(self) -> int:
        return len(self.bodies)

    def column(self, index: int | None) -> pa.Array | None:
        """Return another column; None if there is none, or all of it is null."""
        if index is None:
            return None
        column = self.batch.column(index)
        if self.positions is not None:
            column = column.take(self.positions)
        return None if column.null_count == len(column) else column

    def select(self, mask: pa.Array) -> CheckedRows:
        """Return the rows that a mask selects."""
        positions = pc.indices_nonzero(mask)
        if self.positions is not None:
            positions = self.positions.take(positions)
        bodies, topics, delays = (
            rows_of(column, mask) for column in (self.bodies, self.topics, self.delays)
        )
        return CheckedRows(self.batch, self.first, bodies, topics, delays, positions)

    def error(self, mask: pa.Array, what: str) -> LocalProtocolError:
        """Return the error that names the first row of a mask."""
        return self.error_at(mask.to_pylist().index(True), what)

    def error_at(self, index: int, what: str) -> LocalProtocolError:
        """Return the error that names one row."""
        position = index if self.positions is None else self.positions[index].as_py()
        return LocalProtocolError(
            f"row {self.first + position} of its partition (the first is 0): {what}"
        )


class RowChecker:
    """Checks the batches of one task."""

    def __init__(self, columns: ColumnIndexes, topic: str | None) -> None:
        self._columns = columns
        self._topic = topic
        self.rows = 0
        self.bytes = 0
        """Bytes of all bodies."""

    def check(self, batch: pa.RecordBatch) -> CheckedRows:
        """Return the rows of a batch, which must not be empty.

        ``LocalProtocolError`` names a row that can't be published to any topic.
        """
        bodies = batch.column(self._columns.body)
        rows = CheckedRows(batch, self.rows, bodies, None, None)
        _check_bodies(rows)
        delays = self._delays(rows)
        rows = CheckedRows(batch, self.rows, bodies, self._topics(rows), delays)
        offsets = offsets_of(bodies)
        self.rows += len(bodies)
        self.bytes += offsets[-1] - offsets[0]
        return rows

    def _delays(self, rows: CheckedRows) -> pa.Array | None:
        if self._columns.delay_ms is None:
            return None
        delays = rows.batch.column(self._columns.delay_ms).cast(pa.int64())
        delays = pc.fill_null(delays, int_scalar(0))
        extremes = pc.min_max(delays)
        if extremes["min"].as_py() < 0 or extremes["max"].as_py() > _MAX_DELAY:
            outside = pc.or_(
                pc.less(delays, int_scalar(0)), pc.greater(delays, int_scalar(_MAX_DELAY))
            )
            value = delays.filter(outside)[0].as_py()
            raise rows.error(outside, f"delay_ms={value} is invalid: must be 0 to {_MAX_DELAY}")
        return delays if extremes["max"].as_py() else None

    def _topics(self, rows: CheckedRows) -> pa.Array | None:
        if self._columns.topic is None:
            return None
        topics = rows.batch.column(self._columns.topic)
        if topics.null_count:
            if self._topic is None:
                missing = pc.is_null(topics)
                raise rows.error(missing, "topic is null, and there is no option topic")
            topics = pc.fill_null(topics, text_scalar(self._topic, topics.type))
        topics = topics.dictionary_encode()
        for number, topic in enumerate(topics.dictionary.to_pylist()):
            try:
                check_topic(topic)
            except ConfigError as error:
                invalid = pc.equal(topics.indices, int_scalar(number, topics.indices.type))
                raise rows.error(invalid, str(error)[:_MAX_ERROR]) from None
        return topics


def _check_bodies(rows: CheckedRows) -> None:
    bodies = rows.bodies
    if bodies.null_count:
        raise rows.error(pc.is_null(bodies), "body is null")
    if not pc.min(pc.binary_length(bodies)).as_py():
        empty = pc.invert(pc.binary_length(bodies).cast(pa.bool_()))
        raise rows.error(empty, "body is empty")
