"""Writes the messages of an ordered partition into slots, in the order of their offsets.

nsqd has one message of an ordered channel in flight at a time, and delivers the next one when it is
finished. To store each before its FIN would take one object for each message. So messages are
finished at once, and stored when some have come together. If the task dies in between, the channel
is beyond what is stored: before it subscribes, the next task moves it back (``LeaderConnector``).
Offsets show it: each message must begin where the one before it ends.

After a channel was moved, one message that nsqd had read before may come first. It is kept until
those before it have come.

A channel that others read too is never moved: there a ``SlotWriter`` stores each message before its
FIN.

Two tasks that read a partition at the same time take messages from each other. Each finds some
missing then, and waits for a random time: the one that goes on first stores a slot, and the other
one reads that.
"""

from __future__ import annotations

from random import uniform
from time import monotonic

from nsqflow.errors import DataLossError, NetworkError, NotLeaderError, NotWritableError
from nsqflow.spark.source.data_loss import report_loss
from nsqflow.spark.source.offsets import describe_place
from nsqflow.spark.source.pull import MAX_CHUNK, Chunk, PullSubscription
from nsqflow.spark.source.slot_writer import SlotWriter
from nsqflow.spark.spool.coverage import RangeSet
from nsqflow.spark.spool.dedup import split_ids
from nsqflow.spark.spool.slot_format import PartitionTotals

_MAX_MESSAGES = 1000  # in a slot
_MAX_DELAY = 0.25  # seconds from a message's arrival until it is stored
_MAX_GAPS = 4  # times that messages are missing at the same place, until they count as lost
_GAP_DELAY = 0.5  # seconds until they are read again, at most; twice as long with each time
_POLL_INTERVAL = 0.02


class OrderedSlotWriter(SlotWriter):
    """Writes slots in which each message follows the one before it."""

    _gap: tuple[int, int] = (-1, 0)  # where messages were missing, and how often
    _early: Chunk | None = None  # a message that came before those that precede it

    def _write_by_one_connection(self) -> None:
        if self._must_seek and self._await_other():
            self._done = True  # the slots of that task are read
        else:
            super()._write_by_one_connection()

    def _await_other(self) -> bool:
        """Return whether another task stores the next slot within a random time."""
        deadline = monotonic() + uniform(0, _GAP_DELAY * 2 ** (self._gap[1] - 1))
        while not self._slots.has(self._number):
            if monotonic() >= deadline or self._stopping.wait(_POLL_INTERVAL):
                return False
        return True

    def _write_slots(self, pull: PullSubscription, max_rdy: int) -> None:
        resume = self._coverage_end()
        self._early = None
        chunk = Chunk(monotonic())
        pull.set_rdy(1)
        try:
            while not self._done and not self._stopping.is_set():
                wait = self._wait(chunk)
                # It may have more than one: a new leader sends what the old one sent, too.
                received = pull.next_chunk(1, wait, self._options.msg_timeout / 3)
                for one in received.messages():
                    resume = self._take(pull, one, chunk, resume)
                if self._is_due(received, chunk):
                    idle = not received.count and wait >= self._options.idle_timeout
                    if self._store(chunk, idle=idle):
                        pull.set_rdy(1)  # it may be 0, if some were no rows
                    chunk = Chunk(monotonic())
        except (NetworkError, NotLeaderError, NotWritableError, DataLossError):
            self._store_rest(chunk)
            raise
        self._store_rest(chunk)

    def _store_rest(self, chunk: Chunk) -> None:
        """Store what was finished, so that it need not be read again."""
        if chunk.count and not self._done:
            self._store(chunk, idle=False)

    def _take(self, pull: PullSubscription, one: Chunk, chunk: Chunk, resume: int) -> int:
        """Finish a message that has arrived, and add it to the chunk if it is the next one.

        Return where the next one begins. Raises ``NetworkError`` if messages before it are missing.
        """
        offset, end = _extent(one)
        if offset > resume:
            if self._early is not None:
                resume = self._accept_gap(pull, one, chunk, resume)
            if offset > resume:  # others may be missing after the early one as well
                self._early = one
                pull.finish(one.ids())
                return resume
        if chunk.count + 1 >= self._partition.budget - self._totals.rows:
            pull.set_rdy(0)  # or nsqd would deliver one more than was planned
        pull.finish(one.ids())
        if offset < resume:
            return resume  # delivered again
        _append(chunk, one)
        return self._add_early(chunk, end)

    def _add_early(self, chunk: Chunk, resume: int) -> int:
        """Add the message that came early if it is the next one; return where that ends."""
        if self._early is None or _extent(self._early)[0] > resume:
            return resume
        offset, end = _extent(self._early)
        if offset == resume:
            _append(chunk, self._early)
        self._early = None
        return max(end, resume)

    def _accept_gap(self, pull: PullSubscription, one: Chunk, chunk: Chunk, resume: int) -> int:
        """Accept that messages are missing, if it did not help to read them again.

        Raises ``NetworkError`` if that was not tried often enough, or ``DataLossError``.
        """
        assert self._early is not None
        begin = min(_extent(self._early)[0], _extent(one)[0])
        place, count = self._gap
        self._gap = resume, count + 1 if place == resume else 1
        name = f"{describe_place(self._partition.id.key)} of {self._partition.topic!r}"
        if self._gap[1] <= _MAX_GAPS:
            self._must_seek = True
            pull.requeue_all(split_ids(one.ids()))
            raise NetworkError(
                f"{name}: offset {begin} came after {resume}: reading again from there"
            )
        report_loss(
            f"{name} has nothing between offset {resume} and {begin}",
            fail=self._options.fail_on_data_loss,
        )
        self._totals += PartitionTotals(offsets=RangeSet(((resume, begin),)))  # for later batches
        return self._add_early(chunk, begin)

    def _is_due(self, received: Chunk, chunk: Chunk) -> bool:
        """Return whether to store what was read, or to end the partition."""
        if not received.count:
            return received.idle  # else this is to stop
        partition, totals = self._partition, self._totals
        room = MAX_CHUNK if partition.max_bytes is None else partition.max_bytes - totals.bodies
        if chunk.size >= min(room, MAX_CHUNK):
            return True
        late = monotonic() - chunk.started_at >= _MAX_DELAY
        return late or chunk.count >= min(partition.budget - totals.rows, _MAX_MESSAGES)

    def _store(self, chunk: Chunk, *, idle: bool) -> bool:
        """Write a slot, of messages that are finished; return whether more may follow."""
        found = self._filter.filter(chunk, self._totals)
        totals = self._totals + found.totals
        self._guard.check()
        last = idle or found.full or totals.rows >= self._partition.budget
        if not self._create_slot(found.rows, totals, last=last):
            self._done = True  # another task was faster: what this one finished is read again
        return not self._done

    def _wait(self, chunk: Chunk) -> float:
        """Return how long to wait for the next message."""
        idle = self._options.idle_timeout
        if not chunk.count:
            return idle
        return min(idle, max(0.01, chunk.started_at + _MAX_DELAY - monotonic()))

    def _coverage_end(self) -> int:
        resume = self._resume()
        assert resume is not None
        return resume


def _extent(one: Chunk) -> tuple[int, int]:
    """Return where a message begins and ends in its partition."""
    (columns,) = one.columns
    assert columns.offsets is not None
    assert columns.sizes is not None
    return columns.offsets[0], columns.offsets[0] + columns.sizes[0]


def _append(chunk: Chunk, one: Chunk) -> None:
    """Add a message to a chunk."""
    if not chunk.count:
        chunk.started_at = one.started_at
    chunk.columns += one.columns
    chunk.count += 1
    chunk.size += one.size
    chunk.max_attempts = max(chunk.max_attempts, one.max_attempts)
