"""The source as a table: a channel's messages at one moment.

Spark asks for the partitions once for each ``load()`` and keeps them. Their generation names the
rows in the spool: the DataFrame has the same rows however often it is evaluated. With ``readId``
the generation has that name, and the plan stays in the spool: the same read in another process,
or after a failure, has the same rows too, until it is released.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import DataSourceReader, InputPartition

from nsqflow.errors import ConfigError, SpoolError
from nsqflow.spark.internals import hide_traceback
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.offsets import Offset
from nsqflow.spark.source.reader import NsqInputPartition
from nsqflow.spark.spool.generation import (
    BATCH_PREFIX,
    MAX_READ_AGE,
    NAMED_PREFIX,
    GenerationMarker,
    remove_generation,
)
from nsqflow.spark.spool.layout import generation_marker, planned_marker

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqflow.spark.source.allocation import ChannelBacklog
    from nsqflow.spark.spool.store import ObjectStore

logger = logging.getLogger(__name__)

PEEK = 10_000  # messages per nsqd and topic that mode=peek reads by default


class NsqBatchReader(DataSourceReader):
    """Reads a channel's current messages; with ``mode=peek``, requeues them."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._peek = options.mode == "peek"

    # In the driver

    @hide_traceback()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions; if there are none, Spark itself makes one that is None."""
        if self._peek:
            return self._plan_peek()
        name = self._options.read_id
        if name is None:
            logger.warning(
                "mode=consume without readId: messages are finished as they are read, and a job "
                "that fails afterwards has lost them; set readId=NAME to be able to read them "
                "again, or use readStream with trigger(availableNow=True)"
            )
        store = self._open_store()
        generation = f"{BATCH_PREFIX}{uuid4().hex}" if name is None else f"{NAMED_PREFIX}{name}"
        if name is not None and (end := self._find(store, generation)) is not None:
            logger.info("readId=%r: %d messages that were planned before", name, end.planned)
            return _partitions(end)
        return self._plan_consume(store, generation)

    # In a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        from nsqflow.spark.source.partition_reader import read_partition
        from nsqflow.spark.source.peek import peek_partition

        if not isinstance(partition, NsqInputPartition):
            return iter(())
        read = peek_partition if self._peek else read_partition
        return read(partition, self._options)

    # Private methods

    def _plan_peek(self) -> list[InputPartition]:
        from nsqflow.spark.source.backlog_monitor import BacklogMonitor

        with closing(BacklogMonitor(self._options)) as monitor:
            backlogs = monitor.poll_existing()
            https = {backlog.key: monitor.http_of(backlog.nsqd) for backlog in backlogs}
        most = self._options.max_messages_per_partition or PEEK
        budgets = self._limit({each.key: min(each.available, most) for each in backlogs})
        end = Offset().next("peek", {key: [budget] for key, budget in budgets.items()})
        return _partitions(end, backlogs, https)

    def _plan_consume(self, store: ObjectStore, generation: str) -> list[InputPartition]:
        from nsqflow.spark.source.allocation import split
        from nsqflow.spark.source.backlog_monitor import BacklogMonitor
        from nsqflow.spark.source.ownership import check_exclusive

        options = self._options
        with closing(BacklogMonitor(options)) as monitor:
            monitor.create()
            backlogs = monitor.poll()
            check_exclusive(monitor, [each.key for each in backlogs], options, generation)
        parts, most = options.partitions_per_nsqd, options.max_messages_per_partition
        budgets = self._limit({each.key: each.available for each in backlogs})
        plan = {key: split(budget, parts, most) for key, budget in budgets.items()}
        end = self._record(store, Offset().next(generation, plan)) if plan else Offset()
        return _partitions(end, backlogs)

    def _limit(self, available: Mapping[str, int]) -> dict[str, int]:
        from nsqflow.spark.source.allocation import divide

        return divide(available, self._options.max_messages)

    def _open_store(self) -> ObjectStore:
        from nsqflow.spark.spool.store import open_store

        assert self._options.spool is not None
        store = open_store(self._options.spool, self._options.spool_permissions)
        store.probe()
        _remove_old_reads(store)
        return store

    def _find(self, store: ObjectStore, generation: str) -> Offset | None:
        """Return the end of a named read that was planned before."""
        name = planned_marker(generation, 1)
        try:
            self._check_same(GenerationMarker.decode(store.read(generation_marker(generation))))
            return Offset.decode(json.loads(store.read(name)))
        except FileNotFoundError:
            return None
        except ConfigError:
            raise
        except (ValueError, AttributeError) as error:
            raise SpoolError(
                f"readId={self._options.read_id!r}: {store.location}/{generation} is damaged: "
                f"{error}. Put its files back, or give another readId"
            ) from None

    def _check_same(self, marker: GenerationMarker) -> None:
        """Check that a named read was one of the same channel and topics."""
        from nsqflow.spark.source.generation import new_marker

        wanted = new_marker(self._options)
        if marker != wanted:
            read = ", ".join(marker.topics) or marker.pattern
            raise ConfigError(
                f"readId={self._options.read_id!r} is invalid: it names a read of channel "
                f"{marker.channel!r} of {read}; must be a new name, or release that read with "
                f"nsqflow spool release {self._options.spool} {self._options.read_id}"
            )

    def _record(self, store: ObjectStore, end: Offset) -> Offset:
        """Write the plan to the spool; return the one that another process was faster with."""
        from nsqflow.spark.source.generation import new_marker

        generation = end.generation
        store.write(generation_marker(generation), new_marker(self._options).encode())
        plan = json.dumps(end.encode() | {"writer": uuid4().hex}).encode()
        if store.create(planned_marker(generation, end.seq), [plan]):
            return end
        return self._find(store, generation) or end


def _partitions(
    end: Offset, backlogs: Sequence[ChannelBacklog] = (), https: Mapping[str, str] | None = None
) -> list[InputPartition]:
    means = {backlog.key: backlog.mean_size for backlog in backlogs}
    return [
        NsqInputPartition(
            id,
            end.plan[id.key][id.number],
            mean_size=means.get(id.key, 0),
            http=(https or {}).get(id.key, ""),
        )
        for id in end.partition_ids()
    ]


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
