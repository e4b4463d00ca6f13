"""Sorting: which messages of a chunk become rows, and what becomes of the others.

Nearly always all of them are rows, and nobody looks at any of them.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqflow.spark.dead_letters import DeadLetters
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.pull import Chunk
from nsqflow.spark.rows import body_bytes, pick, stored_batch
from nsqflow.spark.seen import Seen, split_ids
from nsqflow.spark.share import Share
from nsqflow.spark.slots import Totals

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class Sorted:
    """A chunk, sorted."""

    rows: pa.RecordBatch | None = None
    """What is new; None if nothing is."""
    finished: set[bytes] = field(default_factory=set)
    """Ids to be finished though they are no rows: duplicates and dead letters."""
    settled: set[bytes] = field(default_factory=set)
    """Ids of duplicates: once finished they can't come again."""
    excess: list[bytes] = field(default_factory=list)
    """Ids that the share has no room for."""
    gained: Totals = field(default_factory=Totals)
    full: bool = False
    """The share has all the bytes it may have."""


class Sorting:
    """Sorts the chunks of one share."""

    def __init__(self, share: Share, options: SourceOptions, seen: Seen) -> None:
        self._share = share
        self._options = options
        self._seen = seen

    def begin(self) -> None:
        """Look at what is in the spool, if every message is to be compared with that."""
        if self._options.dedupe == "always":
            self._seen.refresh()

    def sort(self, chunk: Chunk, so_far: Totals) -> Sorted:
        """Sort a chunk, for a share that has come to ``so_far``."""
        if not chunk.count:
            return Sorted()
        rows = stored_batch(chunk.columns)
        repeated = self._repeated(chunk)
        dead = self._bury(chunk, repeated)
        room = self._share.budget - so_far.rows
        if not repeated and not dead and chunk.count <= room and self._share.max_bytes is None:
            return Sorted(rows, gained=Totals(rows=chunk.count, bodies=body_bytes(rows)))
        dropped = repeated | dead
        kept = [place for place in range(chunk.count) if place not in dropped][:room]
        fitting = self._fitting(chunk, kept, so_far)
        result = self._apart(chunk, kept[:fitting], repeated, dead)
        if fitting:
            result.rows = pick(rows, kept[:fitting])
            result.gained += Totals(rows=fitting, bodies=body_bytes(result.rows))
        result.full = fitting < len(kept) or self._is_full(so_far + result.gained)
        return result

    # Private methods

    def _repeated(self, chunk: Chunk) -> set[int]:
        """Return the places of messages that are in the spool, or stood in the chunk before."""
        dedupe = self._options.dedupe
        if dedupe == "off" or (dedupe == "redelivered" and chunk.most_attempts < 2):
            return set()
        if chunk.most_attempts > 1:
            self._seen.refresh()
        return self._seen.among(chunk.ids())

    def _bury(self, chunk: Chunk, repeated: set[int]) -> set[int]:
        """Publish what was delivered too often to the topic of the dead; return the places."""
        most, topic = self._options.max_attempts, self._options.dead_letter_topic
        if most is None or topic is None or chunk.most_attempts <= most:
            return set()
        attempts = [number for columns in chunk.columns for number in columns.attempts]
        dead = [at for at, number in enumerate(attempts) if number > most and at not in repeated]
        bodies = [body for columns in chunk.columns for body in columns.bodies()]
        with closing(DeadLetters(self._share.nsqd, self._options.access, topic)) as letters:
            letters.publish([bodies[place] for place in dead])
        return set(dead)

    def _fitting(self, chunk: Chunk, kept: list[int], so_far: Totals) -> int:
        """Return how many of them fit by their bytes; a share gets one at least."""
        if self._share.max_bytes is None:
            return len(kept)
        room = self._share.max_bytes - so_far.bodies
        sizes: list[int] = []
        for columns in chunk.columns:
            ends = columns.bounds[1:]
            sizes += [end - start for start, end in zip(columns.body_starts(), ends, strict=True)]
        for number, place in enumerate(kept):
            room -= sizes[place]
            if room < 0:
                return max(number, 0 if so_far.rows else 1)
        return len(kept)

    def _is_full(self, totals: Totals) -> bool:
        return self._share.max_bytes is not None and totals.bodies >= self._share.max_bytes

    def _apart(self, chunk: Chunk, kept: list[int], repeated: set[int], dead: set[int]) -> Sorted:
        """Say by their ids what becomes of those that are no rows."""
        ids = split_ids(chunk.ids())
        known = {*kept, *repeated, *dead}
        excess = [id for place, id in enumerate(ids) if place not in known]
        # Of one that stands there twice, the first decides: its row, or the lack of room for it.
        decided = {ids[place] for place in kept}.union(excess)
        return Sorted(
            finished={ids[place] for place in repeated | dead} - decided,
            settled={ids[place] for place in repeated} - decided,
            excess=excess,
            gained=Totals(duplicates=len(repeated), dead_lettered=len(dead)),
        )
