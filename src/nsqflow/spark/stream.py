"""The streaming source: Spark's calls, handed on to planning, reading and cleaning.

Spark makes two of these. One lives in a process of the driver for the whole query and is asked
for offsets and partitions; the other is made to be copied to the tasks, where ``read`` runs.
They share nothing, so making one does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from nsqflow.errors import ConfigError
from nsqflow.spark.offsets import Offset, ShareName
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.share import Share

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqflow.spark.cleaning import Cleaning
    from nsqflow.spark.planning import Planning


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics of NSQ, each batch exactly as often as Spark asks for it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planned_here: set[int] = set()

    # In the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The offset before all batches; it names no generation, as Spark does not keep it."""
        return Offset().encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How many messages a batch has at most."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on only what is there at the start is read."""
        self._planning.available_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; ``start`` if there is nothing to read."""
        before = Offset.decode(start)
        end = self._planning.next(before, _rows(limit))
        if end is before:
            return start
        self._planned_here.add(end.seq)
        return end.encode()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """What waits on the servers, for the query's progress."""
        forgotten = self._cleaning.forgotten if "_cleaning" in vars(self) else 0
        return self._planning.report() | {"forgotten": forgotten}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The shares of a batch, by its end alone: the plan is in there."""
        if start == end:
            return []
        offset = Offset.decode(end)
        if offset.seq not in self._planned_here:
            self._planning.check_replay(offset)
        return self._shares(offset)

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done with, and all before it; Spark waits for this."""
        offset = Offset.decode(end)
        self._planned_here = {seq for seq in self._planned_here if seq > offset.seq}
        self._cleaning.committed(offset.gen, offset.seq)

    def stop(self) -> None:
        """The query is over; Spark seldom calls this, and ends the process anyway."""
        if "_cleaning" in vars(self):
            self._cleaning.finish(5.0)
        if "_planning" in vars(self):
            self._planning.close()

    # In a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a share; to be read again and again, by several at once."""
        from nsqflow.spark.reading import read_share

        assert isinstance(partition, Share)
        return read_share(partition, self._options)

    # Private methods

    @cached_property
    def _planning(self) -> Planning:
        from nsqflow.spark.planning import Planning

        return Planning(self._options)

    @cached_property
    def _cleaning(self) -> Cleaning:
        from nsqflow.spark.cleaning import Cleaning

        cleaning = Cleaning(
            self._planning.store,
            retain=self._options.spool_retention_batches,
            everything=self._options.dedupe == "always",
        )
        cleaning.start()
        return cleaning

    def _shares(self, offset: Offset) -> list[InputPartition]:
        from nsqflow.spark.budget import share_bytes

        means = self._planning.mean_sizes()
        bytes_of: Mapping[str, list[int]] | None = None
        if self._options.max_bytes_per_trigger is not None:
            bytes_of = share_bytes(self._options.max_bytes_per_trigger, offset.plan)
        return [
            Share(
                ShareName(offset.gen, offset.seq, key, index),
                budget,
                None if bytes_of is None else bytes_of[key][index],
                means.get(key, 0),
            )
            for key, budgets in offset.plan.items()
            for index, budget in enumerate(budgets)
        ]


def _rows(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    if isinstance(limit, ReadAllAvailable):
        return None
    raise ConfigError(f"limit {limit!r}; allowed are a number of rows, and none")
