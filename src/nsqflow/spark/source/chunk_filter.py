"""Decides which messages of a chunk become rows: drops duplicates and dead-letters exhausted ones.

Nearly always every message is a row; then no message is looked at individually.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.dead_letters import publish_dead_letters
from nsqflow.spark.source.pull import Chunk
from nsqflow.spark.source.rows import pick, position_totals, row_totals, stored_batch
from nsqflow.spark.source.seen_ranges import SeenRanges
from nsqflow.spark.spool.dedup import SeenIds, split_ids
from nsqflow.spark.spool.slot_format import PartitionTotals

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqflow.spark.source.reader import NsqInputPartition


@dataclass(slots=True)
class FilteredChunk:
    """What becomes of the messages of a chunk."""

    rows: pa.RecordBatch | None = None
    """The new messages; None if there are none."""
    finished: set[bytes] = field(default_factory=set)
    """Ids to finish although they are not rows: duplicates and dead letters."""
    settled: set[bytes] = field(default_factory=set)
    """Ids of duplicates: once finished they can't be delivered again."""
    excess: list[bytes] = field(default_factory=list)
    """Ids beyond the partition's budget."""
    totals: PartitionTotals = field(default_factory=PartitionTotals)
    """What the chunk adds to the partition's totals."""
    full: bool = False
    """The partition has reached its maximum number of bytes."""


class ChunkFilter:
    """Filters the chunks of one partition."""

    def __init__(
        self, partition: NsqInputPartition, options: SourceOptions, seen: SeenIds | SeenRanges
    ) -> None:
        self._partition = partition
        self._options = options
        self._seen = seen

    def connected(self) -> None:
        """Read the ids in the spool if every message is compared with them."""
        if self._options.dedupe == "always" and isinstance(self._seen, SeenIds):
            self._seen.refresh()

    def filter(self, chunk: Chunk, so_far: PartitionTotals) -> FilteredChunk:
        """Filter a chunk for a partition whose totals are ``so_far``."""
        if not chunk.count:
            return FilteredChunk()
        rows = stored_batch(chunk.columns)
        totals = row_totals(rows)
        if isinstance(self._seen, SeenRanges):
            skipped, repeated = self._seen.find(rows, totals.ids, so_far)
        else:
            skipped, repeated = set(), self._repeated(chunk)
        dead = self._dead_letter(chunk, repeated | skipped)
        left = self._partition.budget - so_far.rows
        unlimited = chunk.count <= left and self._partition.max_bytes is None
        if not repeated and not dead and not skipped and unlimited:
            return FilteredChunk(rows, totals=totals)
        dropped = repeated | dead | skipped
        kept = [index for index in range(chunk.count) if index not in dropped][:left]
        fitting = self._fitting(chunk, kept, so_far)
        result = self._dropped(chunk, kept[:fitting], repeated, dead | skipped)
        result.totals += PartitionTotals(dead_lettered=len(dead))
        if gone := dead | skipped:  # nothing may read them again
            result.totals += position_totals(pick(rows, sorted(gone)))
        if fitting:
            result.rows = pick(rows, kept[:fitting])
            result.totals += row_totals(result.rows)
        result.full = fitting < len(kept) or self._is_full(so_far + result.totals)
        return result

    # Private methods

    def _repeated(self, chunk: Chunk) -> set[int]:
        """Return the indexes of messages that are in the spool or occur earlier in the chunk."""
        assert isinstance(self._seen, SeenIds)
        dedupe = self._options.dedupe
        if dedupe == "off" or (dedupe == "redelivered" and chunk.max_attempts < 2):
            return set()
        if chunk.max_attempts > 1:
            self._seen.refresh()
        return self._seen.find_repeated(chunk.ids())

    def _dead_letter(self, chunk: Chunk, repeated: set[int]) -> set[int]:
        """Publish messages beyond ``maxAttempts`` as dead letters; return their indexes."""
        max_attempts, topic = self._options.max_attempts, self._options.dead_letter_topic
        if max_attempts is None or topic is None or chunk.max_attempts <= max_attempts:
            return set()
        attempts = [number for columns in chunk.columns for number in columns.attempts]
        dead = [
            index
            for index, number in enumerate(attempts)
            if number > max_attempts and index not in repeated
        ]
        publish_dead_letters(self._partition, self._options, topic, chunk.columns, dead)
        return set(dead)

    def _fitting(self, chunk: Chunk, kept: list[int], so_far: PartitionTotals) -> int:
        """Return how many of ``kept`` fit by their bytes; at least one for an empty partition."""
        if self._partition.max_bytes is None:
            return len(kept)
        left = self._partition.max_bytes - so_far.bodies
        sizes: list[int] = []
        for columns in chunk.columns:
            ends = columns.bounds[1:]
            sizes += [end - start for start, end in zip(columns.body_starts(), ends, strict=True)]
        for number, index in enumerate(kept):
            left -= sizes[index]
            if left < 0:
                return max(number, 0 if so_far.rows else 1)
        return len(kept)

    def _is_full(self, totals: PartitionTotals) -> bool:
        max_bytes = self._partition.max_bytes
        return max_bytes is not None and totals.bodies >= max_bytes

    def _dropped(
        self, chunk: Chunk, kept: list[int], repeated: set[int], others: set[int]
    ) -> FilteredChunk:
        """Return what becomes of the messages that are not rows."""
        ids = split_ids(chunk.ids())
        known = {*kept, *repeated, *others}
        excess = [id for index, id in enumerate(ids) if index not in known]
        # The first occurrence of an id decides: it is a row, or it is requeued.
        decided = {ids[index] for index in kept}.union(excess)
        return FilteredChunk(
            finished={ids[index] for index in repeated | others} - decided,
            settled={ids[index] for index in repeated} - decided,
            excess=excess,
            totals=PartitionTotals(duplicates=len(repeated)),
        )
