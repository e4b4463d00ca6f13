"""Peeking: messages are looked at and put back.

All of them stay in flight to the end, so that none is delivered twice: on as many connections as
that takes, for each may hold only so many. Those that Spark makes wait too long are touched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING

from nsqflow.spark.link import Link
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.pull import MAX_CHUNK, Chunk, Pull
from nsqflow.spark.rows import Outward, pick, stored_batch
from nsqflow.spark.seen import split_ids
from nsqflow.spark.share import Share

if TYPE_CHECKING:
    import pyarrow as pa

_OUTPUT_BUFFER_TIMEOUT = 0.05


def peek_share(share: Share, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield what is there and put it back; each message's attempts are one more afterwards."""
    outward = Outward(share.topic, options.channel, share.nsqd, options.include_metadata)
    peek = Peek(share, options)
    with closing(peek):
        while (rows := peek.next()) is not None:
            yield outward.rows(rows)


class Peek:
    """The messages of one share that are being looked at."""

    def __init__(self, share: Share, options: SourceOptions) -> None:
        self._share = share
        self._options = options
        self._left = share.budget
        self._held: list[tuple[Link, Pull, list[bytes]]] = []
        self._known: set[bytes] = set()
        self._touched = monotonic()

    def next(self) -> pa.RecordBatch | None:
        """Return some more of them; None if there are no more."""
        while self._left > 0:
            self._touch()
            chunk = self._take()
            ids = split_ids(chunk.ids())
            new = [place for place, id in enumerate(ids) if id not in self._known]
            self._known.update(ids)
            self._left = 0 if chunk.idle else self._left - len(new)
            if new:
                return pick(stored_batch(chunk.columns), new)
        return None

    def close(self) -> None:
        """Put everything back; what that does not reach comes back when its time is over."""
        for link, pull, ids in self._held:
            with closing(link):
                pull.put_back(ids)

    def _take(self) -> Chunk:
        share, options = self._share, self._options
        link = Link.open(
            share.nsqd,
            options.access,
            topic=share.topic,
            channel=options.channel,
            msg_timeout=options.msg_timeout,
            output_buffer_timeout=_OUTPUT_BUFFER_TIMEOUT,
        )
        pull, ids = Pull(link, threading.Event()), list[bytes]()
        self._held.append((link, pull, ids))
        most = max(1, MAX_CHUNK // max(1, share.mean_size))
        want = min(self._left, link.reply.max_rdy_count, most)
        pull.ask(want)
        chunk = pull.chunk(want, options.idle_timeout, options.msg_timeout / 3)
        ids += split_ids(chunk.ids())
        return chunk

    def _touch(self) -> None:
        """Keep what is held from coming again, be it that Spark took its time."""
        if monotonic() - self._touched > self._options.msg_timeout / 3:
            for _, pull, ids in self._held:
                pull.touch(ids)
            self._touched = monotonic()
