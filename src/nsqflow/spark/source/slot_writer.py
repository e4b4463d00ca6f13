"""Writes what an nsqd delivers into the slots of a partition, on a thread.

For each chunk: pull, drop duplicates, write the slot, ask for the next chunk, finish. What is in
the spool is finished at once, so that nothing stays in flight for a slow reader: the thread runs
ahead of it up to the partition's budget, and the reader gets slots beyond ``_MAX_AHEAD`` from the
spool.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import closing
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING
from uuid import uuid4

from nsqflow.errors import (
    NetworkError,
    NotLeaderError,
    NotWritableError,
    SourceInUseError,
    SpoolError,
)
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.chunk_filter import ChunkFilter
from nsqflow.spark.source.nsqd_connector import Connector, NsqdConnector
from nsqflow.spark.source.presence import client_id, task_id
from nsqflow.spark.source.pull import MAX_CHUNK, Chunk, PullSubscription
from nsqflow.spark.source.seen_ranges import SeenRanges
from nsqflow.spark.spool.coverage import Coverage
from nsqflow.spark.spool.dedup import SeenIds, split_ids
from nsqflow.spark.spool.lease import ReadGuard
from nsqflow.spark.spool.slot_format import (
    FinConfirmation,
    PartitionTotals,
    Slot,
    SlotFooter,
    packed_ids,
)
from nsqflow.spark.spool.slots import Slots

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqflow.spark.source.reader import NsqInputPartition

logger = logging.getLogger(__name__)

_MAX_AHEAD = 4  # slots kept in memory for the reader, at most
_MAX_FAILURES = 5  # consecutive connections that fail before a slot is written
_SAMPLE_SIZE = 10  # messages from which a mean size is computed


class SlotWriter(threading.Thread):
    """Writes slots until the partition is complete, another task is faster, or ``stop()``."""

    def __init__(
        self,
        partition: NsqInputPartition,
        options: SourceOptions,
        slots: Slots,
        seen: SeenIds | SeenRanges,
        guard: ReadGuard,
        number: int,
        totals: PartitionTotals,
    ) -> None:
        super().__init__(name=f"nsqflow-spark-{partition.id.key}", daemon=True)
        self.written: SimpleQueue[Slot | int | BaseException | None] = SimpleQueue()
        """Slots for the reader, or their numbers where it must read them from the spool; then an
        error if there was one; then None."""
        self._partition = partition
        self._options = options
        self._slots = slots
        self._filter = ChunkFilter(partition, options, seen)
        self._guard = guard
        self._number = number
        self._totals = totals
        self._stopping = threading.Event()  # (threading.Thread has a private method _stop)
        self._done = False
        self._failures = 0
        self._must_seek = False  # the next connection moves the channel, wherever it is
        self._connector = _make_connector(partition, options, self._stopping)
        name = task_id if partition.lease else client_id
        self._client_id = name(partition.id.generation)
        self._start_writer()

    @property
    def number(self) -> int:
        """The slot to be written next: all before it exist."""
        return self._number

    def stop(self) -> None:
        """End soon; what is not in the spool is requeued."""
        self._stopping.set()

    def run(self) -> None:
        """Write slots; runs on the thread."""
        try:
            while not self._done and not self._stopping.is_set():
                self._write_by_one_connection()
        except BaseException as error:
            self.written.put(error)
        finally:
            self.written.put(None)

    # Private methods

    def _start_writer(self) -> None:
        """Take a new writer id: one for each connection, whose FINs are confirmed together."""
        self._writer = uuid4().hex
        self._wrote: list[int] = []
        self._settled: set[bytes] = set()
        self._requeued = 0

    def _write_by_one_connection(self) -> None:
        self._start_writer()
        left = self._partition.budget - self._totals.rows
        resume = self._resume()
        link = self._connector.open(self._client_id, left, resume, must_seek=self._must_seek)
        if link is None:
            if not self._stopping.is_set():
                self._end_without_nsqd()
            return
        self._must_seek = False
        with closing(link):
            self._guard.connected()
            self._filter.connected()
            pull = PullSubscription(link, self._stopping)
            try:
                self._write_slots(pull, link.reply.max_rdy_count)
                self._requeued += pull.barrier()
                self._confirm(pull)
            except (NetworkError, NotLeaderError, NotWritableError) as error:
                # Pulled and not written: delivered again. Written: its FINs are unconfirmed.
                self._failures = 0 if self._wrote else self._failures + 1
                if self._failures >= _MAX_FAILURES:
                    raise
                logger.warning("%s; %s", error, "was at its end" if self._done else "reconnecting")

    def _resume(self) -> int | None:
        """Return the offset that the channel must not be beyond; None if others read it too."""
        coverage = self._partition.coverage
        if coverage is None or self._options.allow_shared_channel:
            return None
        return (coverage | Coverage(offsets=self._totals.offsets)).resume

    def _write_slots(self, pull: PullSubscription, max_rdy: int) -> None:
        want = self._want(max_rdy)
        pull.set_rdy(want)
        while not self._done and not self._stopping.is_set():
            max_age = self._options.msg_timeout / 3
            chunk = pull.next_chunk(want, self._options.idle_timeout, max_age)
            if self._stopping.is_set():
                pull.set_rdy(0)  # or nsqd would push the requeued messages again
                self._requeue(pull, split_ids(chunk.ids()))
                return
            want = self._write_slot(pull, chunk, max_rdy)

    def _write_slot(self, pull: PullSubscription, chunk: Chunk, max_rdy: int) -> int:
        """Write a chunk to the spool and answer it; return the size of the next chunk."""
        found = self._filter.filter(chunk, self._totals)
        totals = self._totals + found.totals
        if monotonic() - chunk.started_at > self._options.msg_timeout / 3:
            pull.touch(split_ids(chunk.ids()))
        complete = found.full or totals.rows >= self._partition.budget
        try:
            self._guard.check()
            created = self._create_slot(found.rows, totals, last=chunk.idle or complete)
            self._guard.check()
        except (SpoolError, SourceInUseError):
            pull.requeue_all(split_ids(chunk.ids()))
            raise
        ids = b"" if found.rows is None else packed_ids(found.rows)
        if not created:
            self._done = True
            ids, excess = b"", [*found.excess, *split_ids(ids)]
        else:
            excess = found.excess
        want = 0 if self._done else self._want(max_rdy)
        pull.set_rdy(want)  # before the FINs, after which nsqd pushes more
        pull.finish(b"".join([ids, *found.finished]))
        self._settled |= found.settled
        self._requeue(pull, excess)
        return want

    def _create_slot(
        self, rows: pa.RecordBatch | None, totals: PartitionTotals, last: bool
    ) -> bool:
        """Create the next slot; False if another task was faster."""
        if rows is None and not last:
            # The whole chunk was dropped and is finished now, some of it for earlier slots.
            self._slots.mark_count(self._number, totals.rows)
            self._totals = totals
            return True
        totals += PartitionTotals(requeued=self._requeued)
        leader = self._connector.leader
        footer = SlotFooter(writer=self._writer, last=last, totals=totals, leader=leader)
        written = self._slots.create(self._number, rows, footer)
        if written is None:
            return False
        self._requeued, self._totals = 0, written.totals
        self._done = last
        self._wrote.append(self._number)
        is_ahead = self.written.qsize() >= _MAX_AHEAD
        self.written.put(self._number if is_ahead else Slot(written, rows))
        self._number += 1
        return True

    def _requeue(self, pull: PullSubscription, ids: Sequence[bytes]) -> None:
        if ids:
            pull.requeue(ids)
            self._requeued += len(ids)

    def _confirm(self, pull: PullSubscription) -> None:
        if pull.all_failures_identified:
            confirmation = FinConfirmation(
                slots=self._wrote,
                failed=b"".join(sorted(pull.failed)),
                settled=b"".join(sorted(self._settled - pull.failed)),
                requeued=self._requeued,
            )
            self._slots.confirm(self._writer, confirmation)

    def _end_without_nsqd(self) -> None:
        self._guard.check()
        self._create_slot(None, self._totals, last=True)
        self._done = True  # even if another task was faster: its slots are read

    def _want(self, max_rdy: int) -> int:
        """Return how many messages to pull next: what fits into memory and the partition.

        What does not fit is requeued, which counts as one more attempt. So where bytes are limited
        this asks for half of what should fit, and at first for ``_SAMPLE_SIZE``, because nsqd's
        mean size is that of the topic's whole life. A channel of the redesigned NSQ that has never
        finished a message may skip some when its leader changes: there the first is pulled alone.
        An ordered channel has no more than one message in flight.
        """
        partition, totals = self._partition, self._totals
        if partition.ordered:
            return 1
        if partition.coverage is not None and not (partition.coverage.ids or totals.ids):
            return 1
        mean = max(1, totals.bodies // totals.rows if totals.rows else partition.mean_size)
        want = min(partition.budget - totals.rows, max_rdy, MAX_CHUNK // mean)
        if partition.max_bytes is not None:
            fitting = (partition.max_bytes - totals.bodies) // (2 * mean)
            want = min(want, fitting if totals.rows else min(fitting, _SAMPLE_SIZE))
        return max(1, want)


def _make_connector(
    partition: NsqInputPartition, options: SourceOptions, stopping: threading.Event
) -> Connector:
    if partition.coverage is None:
        return NsqdConnector(partition, options, stopping)
    # Imported late: tasks of classic topics need no event loop.
    from nsqflow.spark.source.leader import LeaderConnector

    return LeaderConnector(partition.id.key, options.channel, options, stopping)
