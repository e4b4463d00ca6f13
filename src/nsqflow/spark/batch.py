"""The batch source: a table of what waits in a channel now.

Spark asks for the partitions once for each ``load()`` and keeps them, so their generation names
the spool's rows: whatever is done with the DataFrame, it has the same rows each time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import DataSourceReader, InputPartition

from nsqflow.spark.offsets import Offset, ShareName, gen_mark, planned_mark
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.share import Share

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqflow.spark.store import Store

logger = logging.getLogger(__name__)

PEEK = 10_000  # messages of each nsqd and topic that are looked at, unless it is said how many
MAX_AGE = 24 * 3600.0  # seconds for which the spool keeps what a batch read

_PREFIX = "batch-"


class NsqBatchReader(DataSourceReader):
    """Takes what waits in the channel, or looks at it and puts it back."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._peek = options.mode == "peek"

    # In the driver

    def partitions(self) -> Sequence[InputPartition]:
        """Share out what waits; without anything, Spark makes one partition of None itself."""
        from nsqflow.spark.survey import Survey

        with closing(Survey(self._options)) as survey:
            survey.create()
            backlogs = survey.look()
        plan = self._plan({backlog.key: backlog.available for backlog in backlogs})
        means = {backlog.key: backlog.mean_size for backlog in backlogs}
        end = Offset().next(f"{_PREFIX}{uuid4().hex}", plan)
        if not self._peek:
            self._write_down(end)
        return [
            Share(ShareName(end.gen, end.seq, key, index), budget, mean_size=means[key])
            for key, budgets in end.plan.items()
            for index, budget in enumerate(budgets)
        ]

    # In a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a share."""
        from nsqflow.spark.peek import peek_share
        from nsqflow.spark.reading import read_share

        if not isinstance(partition, Share):
            return iter(())
        read = peek_share if self._peek else read_share
        return read(partition, self._options)

    # Private methods

    def _plan(self, ready: dict[str, int]) -> dict[str, list[int]]:
        from nsqflow.spark.budget import split

        options = self._options
        if self._peek:
            most = options.max_messages_per_partition or PEEK
            return {key: [min(count, most)] for key, count in ready.items() if count}
        parts, most_each = options.partitions_per_nsqd, options.max_messages_per_partition
        return {key: split(count, parts, most_each) for key, count in ready.items() if count}

    def _write_down(self, end: Offset) -> None:
        from nsqflow.spark.planning import describe
        from nsqflow.spark.store import open_store

        assert self._options.spool is not None
        store = open_store(self._options.spool)
        store.probe()
        _sweep(store)
        store.write(gen_mark(end.gen), describe(self._options))
        store.write(planned_mark(end.gen, end.seq), json.dumps(end.encode()).encode())


def _sweep(store: Store) -> None:
    """Remove what batch reads left behind long ago: Spark does not tell when they are done."""
    for name in store.names(""):
        # Without its mark it was being removed when that was interrupted.
        age = store.age(gen_mark(name))
        if name.startswith(_PREFIX) and (age is None or age > MAX_AGE):
            logger.info("removing %s from the spool", name)
            for mark in store.names(f"{name}/batches"):
                store.remove(planned_mark(name, int(mark)))
            store.remove(name)
