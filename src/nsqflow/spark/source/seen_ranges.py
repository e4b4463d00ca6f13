"""Finds messages of a partition of the redesigned NSQ that were read before.

Attempts do not say so: they are 1 again after a change of leaders and after a disconnect. So the
internal id of every message is compared with the ranges of ids that were read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nsqflow.spark.source.data_loss import report_loss
from nsqflow.spark.source.rows import internal_ids, values_of
from nsqflow.spark.spool.coverage import Coverage, RangeSet
from nsqflow.spark.spool.slot_format import PartitionTotals

if TYPE_CHECKING:
    import pyarrow as pa


class SeenRanges:
    """What was read of a partition, in earlier batches and in this one."""

    def __init__(self, coverage: Coverage, place: str, *, dedupe: bool, fail: bool) -> None:
        """``place`` names the partition for an error; ``fail`` is ``failOnDataLoss``."""
        self._coverage = coverage
        self._place = place
        self._dedupe = dedupe
        self._fail = fail

    def find(
        self, rows: pa.RecordBatch, ids: RangeSet, so_far: PartitionTotals
    ) -> tuple[set[int], set[int]]:
        """Return the indexes of messages before the query's start, and of those read before.

        ``ids`` are those of the rows. Raises ``DataLossError`` if the topic was created again.
        """
        first, since = self._coverage.first, self._coverage.since
        skipped = _lower(values_of(rows, "offset"), first) if first else set()
        if since:
            skipped |= _lower(values_of(rows, "timestamp_ns"), since)
        seen = self._coverage.ids | so_far.ids
        is_new = len(ids) == len(rows) and ids.first > seen.last  # nearly always
        if is_new or not self._dedupe:
            return skipped, set()
        return skipped, self._find_repeated(rows, seen, so_far) - skipped

    def _find_repeated(
        self, rows: pa.RecordBatch, seen: RangeSet, so_far: PartitionTotals
    ) -> set[int]:
        ids = internal_ids(rows)
        repeated, fresh = set[int](), set[int]()
        for index, id in enumerate(ids):
            if id in seen or id in fresh:
                repeated.add(index)
            fresh.add(id)
        newest = max(self._coverage.newest, so_far.newest)
        created_again = self._of_new_topic(rows, (i for i in repeated if ids[i] in seen), newest)
        return repeated - created_again

    def _of_new_topic(self, rows: pa.RecordBatch, repeated: Iterable[int], newest: int) -> set[int]:
        """Return the messages of a topic that was created again: its ids start over.

        They are newer than what was read; a message that is delivered again is not.
        """
        timestamps = values_of(rows, "timestamp_ns")
        new = {index for index in repeated if newest and timestamps[index] > newest}
        if new:
            report_loss(
                f"the topic of {self._place} was created again, and its ids start over: what it "
                "had before and was not read is lost",
                fail=self._fail,
            )
        return new


def _lower(numbers: memoryview[int], limit: int) -> set[int]:
    """Return the indexes of the numbers below a limit; nearly always there are none."""
    if min(numbers, default=limit) >= limit:
        return set()
    return {index for index, number in enumerate(numbers) if number < limit}
