"""Writing: from an nsqd into the slots of a share, on a thread of its own.

For each chunk: pull, drop what was seen before, write the slot, ask for the next, finish. What
is in the spool is finished at once, so that nothing waits in flight for a slow reader: the
thread runs ahead of it as far as the share's budget, and what it can't keep in memory is read
again from the spool.
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

from nsqflow.errors import NetworkError
from nsqflow.spark.link import Link
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.pull import MAX_CHUNK, Chunk, Pull
from nsqflow.spark.rows import packed_ids
from nsqflow.spark.seen import Seen, split_ids
from nsqflow.spark.share import Share
from nsqflow.spark.slots import Confirmation, Footer, Slot, Slots, SpoolError, Totals
from nsqflow.spark.sorting import Sorting

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_AHEAD = 4  # slots that are kept in memory for the reader
_PATIENCE = 10.0  # seconds in which an nsqd that is planned for must be reachable
_MOST_BREAKS = 5  # connections in a row that break before they have brought a slot
_TASTE = 10  # messages of which a mean size is made
_OUTPUT_BUFFER_TIMEOUT = 0.05  # seconds after which nsqd sends what does not fill its buffer


class Writing(threading.Thread):
    """Writes slots until the share is complete, another task is faster, or it is told to stop."""

    def __init__(
        self,
        share: Share,
        options: SourceOptions,
        slots: Slots,
        seen: Seen,
        number: int,
        totals: Totals,
    ) -> None:
        super().__init__(name=f"nsqflow-spark-{share.name.key}", daemon=True)
        self.written: SimpleQueue[Slot | int | BaseException | None] = SimpleQueue()
        """What the reader takes: slots, by their number those that it is to read from the spool;
        then an error if there was one; then None."""
        self._share = share
        self._options = options
        self._slots = slots
        self._sorting = Sorting(share, options, seen)
        self._number = number
        self._totals = totals
        self._stopping = threading.Event()  # (a Thread has a method of the shorter name)
        self._done = False
        self._breaks = 0
        self._begin()

    def stop(self) -> None:
        """End soon: what is not in the spool goes back to nsqd."""
        self._stopping.set()

    def run(self) -> None:
        """Write until it is done; the thread's own."""
        try:
            while not self._done and not self._stopping.is_set():
                self._write_by_one_connection()
        except BaseException as error:
            self.written.put(error)
        finally:
            self.written.put(None)

    # Private methods

    def _begin(self) -> None:
        """Be a new writer: one for each connection, for its FINs are confirmed together."""
        self._writer = uuid4().hex
        self._wrote: list[int] = []
        self._settled: set[bytes] = set()
        self._requeued = 0

    def _write_by_one_connection(self) -> None:
        self._begin()
        link = self._open()
        if link is None:
            if not self._stopping.is_set():
                self._end_without_nsqd()
            return
        with closing(link):
            self._sorting.begin()
            pull = Pull(link, self._stopping)
            try:
                self._write_slots(pull, link.reply.max_rdy_count)
                self._requeued += pull.barrier()
                self._confirm(pull)
            except NetworkError as error:
                # What was pulled and not written comes again; what was written is in doubt.
                self._breaks = 0 if self._wrote else self._breaks + 1
                if self._breaks >= _MOST_BREAKS:
                    raise
                logger.warning("%s; %s", error, "was at its end" if self._done else "going on")

    def _open(self) -> Link | None:
        """Connect; None if that can't be done and the query shall go on without."""
        share, options = self._share, self._options
        deadline = monotonic() + _PATIENCE
        while True:
            try:
                return Link.open(
                    share.nsqd,
                    options.access,
                    topic=share.topic,
                    channel=options.channel,
                    msg_timeout=options.msg_timeout,
                    output_buffer_timeout=_OUTPUT_BUFFER_TIMEOUT,
                )
            except NetworkError as error:
                if self._stopping.wait(0.2):
                    return None
                if monotonic() < deadline:
                    continue
                if not options.fail_on_data_loss:
                    logger.warning("%s; going on without what was planned from it", error)
                    return None
                left = share.budget - self._totals.rows
                raise NetworkError(
                    f"{error}: {left} messages of topic {share.topic!r} were planned from there. "
                    "Bring that nsqd back, or start once with failOnDataLoss=false to go on without"
                ) from error

    def _write_slots(self, pull: Pull, max_rdy: int) -> None:
        want = self._want(max_rdy)
        pull.ask(want)
        while not self._done and not self._stopping.is_set():
            age = self._options.msg_timeout / 3
            chunk = pull.chunk(want, self._options.idle_timeout, age)
            if self._stopping.is_set():
                pull.ask(0)  # or nsqd would push again what it gets back
                self._give_back(pull, split_ids(chunk.ids()))
                return
            want = self._write_slot(pull, chunk, max_rdy)

    def _write_slot(self, pull: Pull, chunk: Chunk, max_rdy: int) -> int:
        """Put a chunk into the spool and answer it; return how many to wait for next."""
        found = self._sorting.sort(chunk, self._totals)
        totals = self._totals + found.gained
        if monotonic() - chunk.began > self._options.msg_timeout / 3:
            pull.touch(split_ids(chunk.ids()))
        complete = found.full or totals.rows >= self._share.budget
        try:
            published = self._publish(found.rows, totals, last=chunk.idle or complete)
        except SpoolError:
            pull.put_back(split_ids(chunk.ids()))
            raise
        ids = b"" if found.rows is None else packed_ids(found.rows)
        if not published:
            self._done = True
            ids, excess = b"", [*found.excess, *split_ids(ids)]
        else:
            excess = found.excess
        want = 0 if self._done else self._want(max_rdy)
        pull.ask(want)  # before the FINs, which make room for more
        pull.finish(b"".join([ids, *found.finished]))
        self._settled |= found.settled
        self._give_back(pull, excess)
        return want

    def _publish(self, rows: pa.RecordBatch | None, totals: Totals, last: bool) -> bool:
        """Create the next slot; False if another task did before us."""
        if rows is None and not last:
            self._totals = totals
            return True  # all of the chunk was dropped
        totals += Totals(requeued=self._requeued)
        footer = Footer(writer=self._writer, last=last, totals=totals)
        written = self._slots.create(self._number, rows, footer)
        if written is None:
            return False
        self._requeued, self._totals = 0, written.totals
        self._done = last
        self._wrote.append(self._number)
        ahead = self.written.qsize() >= _AHEAD
        self.written.put(self._number if ahead else Slot(written, rows))
        self._number += 1
        return True

    def _give_back(self, pull: Pull, ids: Sequence[bytes]) -> None:
        if ids:
            pull.requeue(ids)
            self._requeued += len(ids)

    def _confirm(self, pull: Pull) -> None:
        if pull.clear:
            confirmation = Confirmation(
                slots=self._wrote,
                failed=b"".join(sorted(pull.failed)),
                settled=b"".join(sorted(self._settled - pull.failed)),
                requeued=self._requeued,
            )
            self._slots.confirm(self._writer, confirmation)

    def _end_without_nsqd(self) -> None:
        self._publish(None, self._totals, last=True)
        self._done = True  # be it that another task was faster: it wrote what is to be read

    def _want(self, max_rdy: int) -> int:
        """Return how many messages may come at once: what fits into memory, and into the share.

        What comes and does not fit is given back, which counts as one more attempt. So where
        bytes are counted it asks for half of what should fit, and at first for few: nsqd's mean
        is that of the topic's whole life.
        """
        share, totals = self._share, self._totals
        mean = max(1, totals.bodies // totals.rows if totals.rows else share.mean_size)
        most = min(share.budget - totals.rows, max_rdy, MAX_CHUNK // mean)
        if share.max_bytes is not None:
            fitting = (share.max_bytes - totals.bodies) // (2 * mean)
            most = min(most, fitting if totals.rows else min(fitting, _TASTE))
        return max(1, most)
