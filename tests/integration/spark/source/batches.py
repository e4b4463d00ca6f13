"""Calls a stream's reader as Spark does, without Spark: batch by batch, with a checkpoint.

run = BatchRun(options)
assert bodies(run.batch()) == [...]
run.restart()
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from nsqflow.spark.options import parse_stream
from nsqflow.spark.source.reader import NsqInputPartition, NsqStreamReader
from tests.fixtures.servers import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

Row = dict[str, Any]


class BatchRun:
    """A query: it reads all partitions of a batch at once, and commits the batch."""

    def __init__(
        self, given: dict[str, str], *, positions: bool = True, available_now: bool = False
    ) -> None:
        self.given = given
        self._positions = positions
        self._available_now = available_now
        self._open()
        self.start: dict[str, Any] = self.reader.initialOffset()

    def plan(self, limit: int | None = None) -> dict[str, Any]:
        """Return the end of the next batch; the start if there is nothing to read."""
        return self.reader.latestOffset(
            self.start, ReadAllAvailable() if limit is None else ReadMaxRows(limit)
        )

    def begin(self) -> None:
        """Plan the first batch, which is empty: from now on the query has a generation."""
        self.start = self.plan()
        assert self.start["seq"] == 0, self.start

    def await_plan(self, limit: int | None = None) -> dict[str, Any]:
        """Return the end of the next batch, once there is something to read."""
        deadline = time.monotonic() + PATIENCE
        while (end := self.plan(limit)) == self.start or not end["plan"]:
            self.start = end
            assert time.monotonic() < deadline, "there is nothing to read"
        return end

    def partitions(self, end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of a batch."""
        return [*self.reader.partitions(self.start, end)]

    def read(self, end: dict[str, Any]) -> list[Row]:
        """Read all partitions of a batch at the same time; return their rows, one after another."""
        partitions = self.partitions(end)
        with ThreadPoolExecutor(max(1, len(partitions))) as pool:
            return [row for rows in pool.map(self.read_partition, partitions) for row in rows]

    def read_partition(self, partition: InputPartition) -> list[Row]:
        """Read a partition, as a task does, with a reader of its own."""
        return [*self.rows(partition)]

    def rows(self, partition: InputPartition) -> Iterator[Row]:
        """Yield the rows of a partition."""
        task = NsqStreamReader(self._options, positions=self._positions)
        for batch in task.read(partition):
            yield from batch.to_pylist()

    def commit(self, end: dict[str, Any]) -> None:
        """Commit a batch, as Spark does when it has logged the next one."""
        self.reader.commit(end)
        self.start = end

    def batch(self, limit: int | None = None) -> list[Row]:
        """Plan, read and commit the next batch."""
        end = self.await_plan(limit)
        rows = self.read(end)
        self.commit(end)
        return rows

    def await_none(self) -> None:
        """Read a batch in which there is nothing new."""
        end = self.await_plan()
        assert self.read(end) == []
        self.commit(end)

    def read_all(self, count: int, limit: int | None = None) -> list[Row]:
        """Read batches until there are ``count`` rows."""
        rows: list[Row] = []
        deadline = time.monotonic() + PATIENCE
        while len(rows) < count:
            assert time.monotonic() < deadline, f"{len(rows)} of {count} rows"
            rows += self.batch(limit)
        return rows

    def read_now(self, limit: int | None = None) -> list[Row]:
        """Read all that is available now, and no more."""
        rows: list[Row] = []
        while True:
            end = self.plan(limit)
            if end == self.start or not end["plan"]:
                self.start = end
                return rows
            rows += self.read(end)
            self.commit(end)

    def restart(self, **more: str) -> None:
        """Start the query again from its checkpoint, maybe with other options."""
        self.close()
        self.given = self.given | more
        self._open()

    def slots(self, partition: InputPartition) -> list[bytes]:
        """Return the contents of the slots of a partition."""
        return [path.read_bytes() for path in self.slot_paths(partition)]

    def slot_paths(self, partition: InputPartition) -> list[Path]:
        """Return the slots of a partition in the spool."""
        assert isinstance(partition, NsqInputPartition)
        folder = Path(self.given["spoolLocation"], partition.id.folder)
        return sorted(folder.glob("[0-9]" * 6))

    def settle(self) -> None:
        """Wait until the spool has only the batches that it retains."""
        self.reader._cleaner.finish(PATIENCE)

    def close(self) -> None:
        """Stop the query."""
        self.reader.stop()

    def _open(self) -> None:
        self._options = parse_stream(self.given)
        self.reader = NsqStreamReader(self._options, positions=self._positions)
        if self._available_now:
            self.reader.prepareForTriggerAvailableNow()


def numbers(rows: Iterable[Row]) -> list[int]:
    """Return the numbers in the bodies, in the order of the rows."""
    return [int(row["body"]) for row in rows]


def by_partition(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Return the rows of each partition, in their order."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["partition"], []).append(row)
    return found


def in_order(rows: Iterable[Row]) -> bool:
    """Return whether the rows of each partition are ascending by offset."""
    offsets = [[row["offset"] for row in each] for each in by_partition(rows).values()]
    return all(each == sorted(set(each)) for each in offsets)
