"""The source as a table: a channel's messages at one moment.

Spark asks for the partitions once for each ``load()`` and keeps them. Their generation names the
rows in the spool: the DataFrame has the same rows however often it is evaluated. With ``readId``
the generation has that name, and its marker has the plan: the same read in another process, or
after a failure, has the same rows too, until it is released.

What ``mode=range`` reads of the redesigned NSQ, and ``mode=peek``, has a module of its own.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import DataSourceReader, InputPartition

from nsqflow.errors import ConfigError, SpoolError
from nsqflow.spark.internals import hide_traceback
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.batch_plan import BatchPlan
from nsqflow.spark.source.offsets import Offset, partition_of
from nsqflow.spark.source.progress import ReadProgress
from nsqflow.spark.source.reader import NsqInputPartition, split_budget
from nsqflow.spark.spool.coverage import Coverage
from nsqflow.spark.spool.generation import (
    BATCH_PREFIX,
    MAX_READ_AGE,
    NAMED_PREFIX,
    GenerationMarker,
    remove_generation,
)
from nsqflow.spark.spool.layout import MAX_BATCH, generation_marker

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqflow.spark.source.allocation import ChannelBacklog
    from nsqflow.spark.spool.store import ObjectStore

logger = logging.getLogger(__name__)

PEEK = 10_000  # messages per nsqd and topic that mode=peek reads by default


class NsqBatchReader(DataSourceReader):
    """Reads a channel's current messages; with ``mode=peek``, leaves them there.

    With ``mode=range`` it reads a part of a topic of the redesigned NSQ.
    """

    def __init__(self, options: SourceOptions, *, positions: bool = False) -> None:
        """``positions`` says whether the rows have the columns of the redesigned NSQ."""
        self._options = options
        self._positions = positions
        self._peek = options.mode == "peek"

    # In the driver

    @hide_traceback()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions; if there are none, Spark itself makes one that is None."""
        if self._peek:
            return self._plan_peek()
        if self._options.mode == "range":
            from nsqflow.spark.source.range_plan import plan_ranges

            return plan_ranges(self._options)
        store = self._open_store()
        if self._options.read_id is not None:
            return self._plan_named(store, f"{NAMED_PREFIX}{self._options.read_id}")
        logger.warning(
            "mode=consume without readId: messages are finished as they are read, and a job that "
            "fails afterwards has lost them; set readId=NAME to be able to read them again, or "
            "use readStream with trigger(availableNow=True)"
        )
        plan, means = self._plan(store, f"{BATCH_PREFIX}{uuid4().hex}", seq=1)
        if plan.end.plan:
            store.write(generation_marker(plan.end.generation), self._marker().encode())
            plan.mark(store)
        return plan.partitions(means)

    # In a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        from nsqflow.spark.source.partition_reader import read_partition
        from nsqflow.spark.source.peek import peek_partition

        if not isinstance(partition, NsqInputPartition):
            return self._read_range(partition)
        read = peek_partition if self._peek else read_partition
        return read(partition, self._options, positions=self._positions)

    # Private methods

    def _read_range(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # Imported late: tasks of classic topics need no event loop.
        from nsqflow.spark.source.range_plan import RangeInputPartition
        from nsqflow.spark.source.range_reader import read_range

        if isinstance(partition, RangeInputPartition):
            return read_range(partition, self._options, positions=self._positions)
        return iter(())

    def _plan_peek(self) -> list[InputPartition]:
        from nsqflow.spark.source.backlog_monitor import BacklogMonitor
        from nsqflow.spark.source.range_plan import plan_peek

        most = self._options.max_messages_per_partition or PEEK
        with closing(BacklogMonitor(self._options)) as monitor:
            backlogs = monitor.poll_existing()
            partitions = [each for each in backlogs if each.partition is not None]
            # Reading a partition disturbs no consumer, so that what they hold is read too.
            waiting = {each.key: each.available for each in backlogs}
            waiting |= {each.key: each.depth for each in partitions}
            budgets = self._limit({key: min(count, most) for key, count in waiting.items()})
            ranges = plan_peek(monitor, self._options, partitions, budgets)
            https = {each.key: monitor.http_of(each.key) for each in backlogs}
        classic = {key: [n] for key, n in budgets.items() if partition_of(key) is None}
        plan = BatchPlan(Offset().next("peek", classic), https)
        return ranges + plan.partitions(_mean_sizes(backlogs))

    def _plan_named(self, store: ObjectStore, generation: str) -> list[InputPartition]:
        """Return the partitions of a named read: as they were planned before, if they were."""
        found = self._find(store, generation)
        if found is None:
            # A number of its own: after a release, late tasks of the read before must not find it.
            seq = 1 + secrets.randbelow(MAX_BATCH)
            plan, means = self._plan(store, generation, seq)
            content = self._marker().encode(plan.encode() | {"writer": uuid4().hex})
            if store.create(generation_marker(generation), [content]):
                plan.mark(store)
                return plan.partitions(means)
            found = self._find(store, generation)  # another process was faster
        if found is None:
            raise SpoolError(f"readId={self._options.read_id!r} was released just now: try again")
        found.mark(store)
        return found.partitions({})

    def _plan(
        self, store: ObjectStore, generation: str, seq: int
    ) -> tuple[BatchPlan, dict[str, int]]:
        """Return a plan, and for each key the mean size of a message."""
        from nsqflow.spark.source.backlog_monitor import BacklogMonitor
        from nsqflow.spark.source.batch_guard import check_planned_reads
        from nsqflow.spark.source.ownership import check_exclusive

        options = self._options
        check_planned_reads(store, generation, options)
        with closing(BacklogMonitor(options)) as monitor:
            monitor.create()
            backlogs = monitor.poll()
            check_exclusive(monitor, [each.key for each in backlogs], options, generation)
            https = {each.key: monitor.http_of(each.key) for each in backlogs}
            progress = ReadProgress()
            for each in backlogs:
                if each.partition is not None:
                    ordered = monitor.partitions.is_ordered(each.topic)
                    progress.begin(each.key, Coverage(base=each.cursor), ordered=ordered)
        budgets = self._limit({each.key: each.available for each in backlogs})
        plan = {key: split_budget(key, budget, options) for key, budget in budgets.items()}
        end = Offset(generation, seq - 1).next(generation, plan)
        return BatchPlan(end, https, progress), _mean_sizes(backlogs)

    def _limit(self, available: Mapping[str, int]) -> dict[str, int]:
        from nsqflow.spark.source.allocation import divide

        return divide(available, self._options.max_messages)

    def _marker(self) -> GenerationMarker:
        from nsqflow.spark.source.generation import new_marker

        return new_marker(self._options)

    def _open_store(self) -> ObjectStore:
        from nsqflow.spark.spool.store import open_store

        assert self._options.spool is not None
        store = open_store(self._options.spool, self._options.spool_permissions)
        store.probe()
        _remove_old_reads(store)
        return store

    def _find(self, store: ObjectStore, generation: str) -> BatchPlan | None:
        """Return the plan of a named read; None if there is none."""
        name = generation_marker(generation)
        try:
            content = store.read(name)
        except FileNotFoundError:
            return None
        try:
            marker = GenerationMarker.decode(content)
            plan = BatchPlan.decode(json.loads(content)["plan"])
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            raise SpoolError(
                f"readId={self._options.read_id!r}: {store.location}/{name} is damaged: {error}. "
                "Put the file back, or give another readId"
            ) from None
        self._check_same(marker, plan.end)
        return plan

    def _check_same(self, marker: GenerationMarker, end: Offset) -> None:
        """Check that a named read was one of the same channel and topics."""
        options, wanted = self._options, self._marker()
        if (marker.channel, {*marker.topics}, marker.pattern) != (
            wanted.channel,
            {*wanted.topics},
            wanted.pattern,
        ):
            read = ", ".join(marker.topics) or marker.pattern
            raise ConfigError(
                f"readId={options.read_id!r} is invalid: it names a read of channel "
                f"{marker.channel!r} of {read}; must be a new name, or release that read with "
                f"nsqflow spool release {options.spool} {options.read_id}"
            )
        if options.max_messages is not None and end.planned > options.max_messages:
            logger.warning(
                "maxMessages=%d has no effect: readId=%r has %d messages already",
                options.max_messages,
                options.read_id,
                end.planned,
            )


def _mean_sizes(backlogs: Sequence[ChannelBacklog]) -> dict[str, int]:
    return {backlog.key: backlog.mean_size for backlog in backlogs}


def _remove_old_reads(store: ObjectStore) -> None:
    """Remove the rows of old reads without a name: Spark does not say when they are done."""
    for name in store.names(""):
        if name.startswith(BATCH_PREFIX):
            try:
                _remove_if_old(store, name)
            except ConfigError as error:  # it belongs to another user of a shared folder
                logger.debug("%s stays in the spool: %s", name, error)


def _remove_if_old(store: ObjectStore, generation: str) -> None:
    age = store.age(generation_marker(generation))
    # Without its marker, its removal was interrupted.
    if age is None or age > MAX_READ_AGE:
        logger.info("removing %s from the spool", generation)
        remove_generation(store, generation)
