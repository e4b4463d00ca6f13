"""Reads a range of a partition of the redesigned NSQ in a task, without the user's channel.

It reads a channel of its own, which nsqd deletes with the connection: each connection makes one,
and moves it to where the task goes on, as a moved channel may be lost with its leader. Offsets show
that nothing is missing: each message begins where the one before it ends.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import accumulate
from time import monotonic, sleep
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from nsqflow.client.position import Position
from nsqflow.errors import NetworkError, NsqError
from nsqflow.protocol.commands import SubscribeMode
from nsqflow.protocol.names import EPHEMERAL
from nsqflow.spark.connection import LeaderEndpoint
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.data_loss import report_loss
from nsqflow.spark.source.leader import connect_leader, is_passing, locate_leader, partition_api
from nsqflow.spark.source.offsets import describe_place, split_key
from nsqflow.spark.source.pull import MAX_CHUNK, Chunk, PullSubscription
from nsqflow.spark.source.range_plan import MessageRange, RangeInputPartition
from nsqflow.spark.source.rows import RowConverter, pick, stored_batch, values_of
from nsqflow.transport.sync_connection import SyncConnection

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_TIMEOUT = 60.0  # seconds without progress until the task fails: to elect a leader takes half
_RETRY_INTERVAL = 0.2
_SILENCE = 2.0  # seconds without a message until the task connects again
_MAX_ORDERED = 1000  # messages of an ordered partition in a chunk
_MAX_STRAYS = 10  # messages beyond the range: more show that the channel was not moved
_GAP_TIME = 5.0  # seconds for which messages are missing at the same place, until they are lost


def read_range(
    partition: RangeInputPartition, options: SourceOptions, *, positions: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, in the order of their offsets."""
    converter = RowConverter(
        partition.range.key,
        options.channel or None,
        metadata=options.include_metadata,
        positions=positions,
    )
    reader = RangeReader(partition.range, options)
    for rows in reader.chunks():
        yield from converter.convert(rows, reader.leader)


class _Selection(NamedTuple):
    """What of a chunk comes next."""

    rows: pa.RecordBatch | None
    """The messages, but for those that their time leaves out; None if there are none."""
    taken: int
    """How many there are with those."""
    end: int
    """The offset at which the last one ends."""
    gap: int | None
    """The offset of what comes after messages that are missing."""
    beyond: int
    """How many messages lie after the range."""


class RangeReader:
    """Reads one range."""

    def __init__(self, range: MessageRange, options: SourceOptions) -> None:
        self.leader = ""
        """The nsqd that the last chunk came from."""
        self._range = range
        # Any order but that of the topic would only cost time: rows are in order anyway.
        self._options = replace(options, ordered=False)
        self._next = range.start  # the offset of the message that is read next
        self._left = range.count  # messages, unless some are lost
        self._gap = (-1, 0.0)  # where messages were missing, and since when
        self._ordered = False
        self._progress_at = monotonic()

    def chunks(self) -> Iterator[pa.RecordBatch]:
        """Yield the messages as they are stored."""
        while self._next < self._range.end:
            try:
                with closing(self._connect()) as link:
                    yield from self._read(link)
            except NsqError as error:
                if not is_passing(error) or monotonic() - self._progress_at > _TIMEOUT:
                    raise
                logger.info("%s; trying again", error)
                sleep(_RETRY_INTERVAL)

    # Private methods

    def _connect(self) -> SyncConnection:
        """Subscribe a new channel, and move it to the message that is read next."""
        key = self._range.key
        channel = f"nsqflow-range-{uuid4().hex}{EPHEMERAL}"
        endpoint = asyncio.run(locate_leader(key, self._options))
        self.leader = endpoint.nsqd
        self._ordered = endpoint.mode is SubscribeMode.ORDERED
        link = connect_leader(
            key, endpoint, self._options, channel=channel, msg_timeout=self._options.msg_timeout
        )
        try:
            asyncio.run(self._seek(endpoint, channel))
        except BaseException:
            link.close()
            raise
        return link

    async def _seek(self, endpoint: LeaderEndpoint, channel: str) -> None:
        topic, number = split_key(self._range.key)
        target = Position("virtual_queue", self._next)
        async with partition_api(endpoint.http, self._options) as api:
            found = [
                each for each in await api.partition_stats(topic) if each.partition == int(number)
            ]
            if not found:
                raise NetworkError(f"{self._name} has moved from {endpoint.nsqd}")
            self._check_extent(found[0].start, found[0].end)
            await api.set_offset(topic, int(number), channel, target)

    def _check_extent(self, start: int, end: int) -> None:
        """Check that the server still has what is to be read."""
        if end < self._range.end:
            why = f"ends at offset {end}, and was to be read up to {self._range.end}"
            self._missing(self._range.end, f"{why}: its topic was created again")
        elif start > self._next:
            self._missing(start, f"keeps nothing before offset {start}")

    def _read(self, link: SyncConnection) -> Iterator[pa.RecordBatch]:
        pull = PullSubscription(link, threading.Event())
        max_rdy = link.reply.max_rdy_count
        want, strays = self._want(max_rdy), 0
        pull.set_rdy(1 if self._ordered else want)
        while self._next < self._range.end:
            chunk = self._pull(pull, want)
            if not chunk.count:
                raise NetworkError(f"{self._name}: nothing comes at offset {self._next}")
            found = self._select(stored_batch(chunk.columns))
            want = self._want(max_rdy, found.taken)
            if found.end < self._range.end and not self._ordered:
                pull.set_rdy(want)  # before the FINs, after which nsqd pushes more
                pull.finish(chunk.ids())
            # Only now: if the connection is lost before, the chunk is read again.
            self._next, self._left = found.end, self._left - found.taken
            if found.rows is not None:
                yield found.rows
            if found.taken:
                self._progress_at = monotonic()
            strays += found.beyond
            if found.gap is not None:
                self._missing(found.gap, f"has nothing between offset {self._next} and {found.gap}")
            if strays > _MAX_STRAYS:
                raise NetworkError(f"{self._name}: the channel was not moved")

    def _want(self, max_rdy: int, more: int = 0) -> int:
        """Return how many messages to ask for after ``more`` of them: all that fit into memory."""
        most = _MAX_ORDERED if self._ordered else max_rdy
        mean = max(1, (self._range.end - self._range.start) // self._range.count)
        return max(1, min(self._left - more, most, MAX_CHUNK // mean))

    def _pull(self, pull: PullSubscription, want: int) -> Chunk:
        """Return the next messages; those of an ordered partition come one by one, and finished."""
        max_age = self._options.msg_timeout / 3
        if not self._ordered:
            return pull.next_chunk(want, _SILENCE, max_age)
        chunk = Chunk(monotonic())
        try:
            while chunk.count < want and chunk.size < MAX_CHUNK:
                one = pull.next_chunk(1, _SILENCE, max_age)
                if not one.count:
                    break
                chunk.columns += one.columns
                chunk.count += one.count
                chunk.size += one.size
                pull.finish(one.ids())
        except NsqError:
            # What has come is kept, as it took long; the next call fails again.
            if not chunk.count:
                raise
        return chunk

    def _select(self, stored: pa.RecordBatch) -> _Selection:
        """Return the rows that come next.

        Messages that were read before come again, for example after a timeout, and one that nsqd
        had read ahead comes first.
        """
        offsets, sizes = values_of(stored, "offset"), values_of(stored, "size", "i")
        ends = [*accumulate(sizes, initial=self._next)]
        if ends[-1] <= self._range.end and ends[:-1] == offsets.tolist():  # nearly always
            kept, gap, beyond = [*range(len(offsets))], None, 0
        else:
            kept, gap, beyond = self._pick_next(offsets, sizes)
        if not kept:
            return _Selection(None, 0, self._next, gap, beyond)
        timestamps = values_of(stored, "timestamp_ns")
        if self._next == self._range.start and timestamps[kept[0]] != self._range.first_timestamp:
            self._report(f"has another message at offset {self._next}: its topic was created again")
        wanted = self._in_time(timestamps, kept)
        whole = len(wanted) == len(offsets)
        rows = (stored if whole else pick(stored, wanted)) if wanted else None
        return _Selection(rows, len(kept), offsets[kept[-1]] + sizes[kept[-1]], gap, beyond)

    def _pick_next(
        self, offsets: memoryview[int], sizes: memoryview[int]
    ) -> tuple[list[int], int | None, int]:
        """Return the indexes of what follows; and the offset after a gap, if there is one."""
        kept, expected, beyond = list[int](), self._next, 0
        for index, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            if offset >= self._range.end:
                beyond += 1
            elif offset == expected:
                kept.append(index)
                expected += size
            elif offset > expected:
                return kept, offset, beyond
        return kept, None, beyond

    def _in_time(self, timestamps: memoryview[int], kept: list[int]) -> list[int]:
        """Leave out messages whose clock disagrees with their place."""
        since, until = self._range.since, self._range.until or 2**63
        if min(timestamps) >= since and max(timestamps) < until:
            return kept
        return [index for index in kept if since <= timestamps[index] < until]

    def _missing(self, offset: int, why: str) -> None:
        """Connect again before a gap; accept it if it is still there after a while."""
        place, since = self._gap
        if place != self._next:
            self._gap = self._next, monotonic()
        elif monotonic() - since > _GAP_TIME:
            self._report(why)
            self._next = min(offset, self._range.end)
        raise NetworkError(f"{self._name} {why}")

    def _report(self, why: str) -> None:
        report_loss(f"{self._name} {why}", fail=self._options.fail_on_data_loss)

    @property
    def _name(self) -> str:
        return f"{describe_place(self._range.key)} of {split_key(self._range.key)[0]!r}"
