"""The source as Spark calls it for a stream.

Spark creates two stream readers. One lives in a process of the driver for the whole query and is
asked for offsets and partitions; the other is pickled for the tasks, where ``read`` runs. They
share nothing, so creating one does nothing.
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
from nsqflow.spark.internals import hide_traceback
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.allocation import share_bytes, split
from nsqflow.spark.source.offsets import Offset, PartitionId, partition_of, split_key
from nsqflow.spark.spool.coverage import Coverage

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqflow.spark.source.planner import BatchPlanner
    from nsqflow.spark.spool.cleaner import SpoolCleaner


class NsqInputPartition(InputPartition):
    """What one task may pull from one nsqd; with the options, everything that the task needs."""

    def __init__(
        self,
        id: PartitionId,
        budget: int,
        max_bytes: int | None = None,
        mean_size: int = 0,
        http: str = "",
        lease: int = 0,
        coverage: Coverage | None = None,
        ordered: bool = False,
    ) -> None:
        super().__init__(id)
        self.id = id
        self.budget = budget
        """The maximum number of messages."""
        self.max_bytes = max_bytes
        self.mean_size = mean_size
        """Bytes of a message, by nsqd's counters; 0 if unknown."""
        self.http = http
        """The address of the nsqd's HTTP API, for mode=peek."""
        self.lease = lease
        """The number of the query's lease; 0 for a table, which has none."""
        self.coverage = coverage
        """What was read of a partition of the redesigned NSQ before; None for a classic nsqd."""
        self.ordered = ordered
        """The partition is read in order."""
        self.topic, self.nsqd = split_key(id.key)


def split_budget(key: str, budget: int, options: SourceOptions) -> list[int]:
    """Return how many messages of a key each task may pull.

    One task alone reads a partition of the redesigned NSQ: it checks where the channel is.
    """
    most = options.max_messages_per_partition
    if partition_of(key) is None:
        return split(budget, options.partitions_per_nsqd, most)
    return [budget if most is None else min(budget, most)]


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics of NSQ; every replay of a batch has the same rows."""

    def __init__(self, options: SourceOptions, *, positions: bool = False) -> None:
        """``positions`` says whether the rows have the columns of the redesigned NSQ."""
        self._options = options
        self._positions = positions
        self._planned_here: set[int] = set()

    # In the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset before all batches; it has no generation, as Spark does not log it."""
        return Offset().encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum number of messages in a batch."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read only what is available at the start."""
        self._planner.available_now()

    @hide_traceback()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch; ``start`` if there is nothing to read."""
        before = Offset.decode(start)
        end = self._planner.next(before, _max_rows(limit))
        if end is before:
            return start
        self._planned_here.add(end.seq)
        return end.encode()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the backlog on the servers, for the query's progress."""
        forgotten = self._cleaner.forgotten if "_cleaner" in vars(self) else 0
        return self._planner.report() | {"forgotten": forgotten}

    @hide_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch, from its end alone, which has the plan."""
        if start == end:
            return []
        offset = Offset.decode(end)
        self._planner.claim(offset.generation)
        if offset.seq not in self._planned_here:
            self._planner.check_replay(offset)
        return self._partitions(offset)

    def commit(self, end: dict[str, Any]) -> None:
        """Release a batch and all before it; Spark waits for this."""
        offset = Offset.decode(end)
        self._planned_here = {seq for seq in self._planned_here if seq > offset.seq}
        self._cleaner.committed(offset.generation, offset.seq)

    def stop(self) -> None:
        """End the query; Spark seldom calls this, and ends the process anyway."""
        if "_cleaner" in vars(self):
            self._cleaner.finish(5.0)
        if "_planner" in vars(self):
            self._planner.close()

    # In a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; several tasks may do so, repeatedly and at once."""
        from nsqflow.spark.source.partition_reader import read_partition

        assert isinstance(partition, NsqInputPartition)
        return read_partition(partition, self._options, positions=self._positions)

    # Private methods

    @cached_property
    def _planner(self) -> BatchPlanner:
        from nsqflow.spark.source.planner import BatchPlanner

        return BatchPlanner(self._options)

    @cached_property
    def _cleaner(self) -> SpoolCleaner:
        from nsqflow.spark.spool.cleaner import SpoolCleaner

        cleaner = SpoolCleaner(
            self._planner.store,
            retain=self._options.spool_retention_batches,
            everything=self._options.dedupe == "always",
        )
        cleaner.start()
        return cleaner

    def _partitions(self, offset: Offset) -> list[InputPartition]:
        means = self._planner.mean_sizes()
        progress = self._planner.progress_of(offset)
        bytes_of: Mapping[str, list[int]] | None = None
        if self._options.max_bytes_per_trigger is not None:
            bytes_of = share_bytes(self._options.max_bytes_per_trigger, offset.plan)
        return [
            NsqInputPartition(
                id,
                offset.plan[id.key][id.number],
                None if bytes_of is None else bytes_of[id.key][id.number],
                means.get(id.key, 0),
                lease=self._planner.lease,
                coverage=progress.coverage(id.key),
                ordered=progress.is_ordered(id.key),
            )
            for id in offset.partition_ids()
        ]


class InvalidOptionsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands in for a reader with invalid options: the first call of Spark raises the error.

    Which call that is depends on the trigger, and on whether there is a checkpoint.
    """

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    @hide_traceback()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raise the error."""
        raise self._error

    @hide_traceback()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Raise the error."""
        raise self._error

    @hide_traceback()
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Raise the error."""
        raise self._error

    @hide_traceback()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Raise the error."""
        raise self._error

    @hide_traceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self._error


def _max_rows(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    if isinstance(limit, ReadAllAvailable):
        return None
    raise ConfigError(f"limit {limit!r} is not supported: must be ReadMaxRows or ReadAllAvailable")
