"""Reads messages and requeues them: ``mode=peek``.

All of them stay in flight to the end, so that none is delivered twice, on as many connections as
RDY's maximum requires. While Spark is slow, they are touched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from nsqflow.spark.connection import connect
from nsqflow.spark.internals import hide_traceback
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.server_options import ServerOptions
from nsqflow.spark.source.pull import MAX_CHUNK, Chunk, PullSubscription
from nsqflow.spark.source.rows import RowConverter, pick, stored_batch
from nsqflow.spark.spool.dedup import split_ids
from nsqflow.transport.sync_connection import SyncConnection

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqflow.spark.source.reader import NsqInputPartition

_OUTPUT_BUFFER_TIMEOUT = 0.05


def peek_partition(
    partition: NsqInputPartition, options: SourceOptions, *, positions: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows and requeue the messages, which adds one to their attempts."""
    with hide_traceback():
        _check_known(partition, options)
    converter = RowConverter(
        partition.id.key,
        options.channel,
        metadata=options.include_metadata,
        positions=positions,
    )
    peek = Peek(partition, options)
    with closing(peek):
        while (rows := peek.next()) is not None:
            yield from converter.convert(rows)


def _check_known(partition: NsqInputPartition, options: SourceOptions) -> None:
    """Raise ``ConfigError`` if nsqd has lost the topic or the channel: SUB would create them.

    Spark asks for partitions once, and may read them much later and several times.
    """
    from nsqflow.spark.source.backlog_monitor import BacklogMonitor

    servers = ServerOptions(nsqd=(partition.nsqd,), nsqd_http=(partition.http,))
    here = replace(options, servers=servers, topics=(partition.topic,), topic_pattern=None)
    with closing(BacklogMonitor(here)) as monitor:
        monitor.poll_existing()


class Peek:
    """The messages of one partition that are in flight."""

    def __init__(self, partition: NsqInputPartition, options: SourceOptions) -> None:
        self._partition = partition
        self._options = options
        self._left = partition.budget
        self._held: list[tuple[SyncConnection, PullSubscription, list[bytes]]] = []
        self._known: set[bytes] = set()
        self._touched = monotonic()

    def next(self) -> pa.RecordBatch | None:
        """Return the next rows; None if there are no more."""
        while self._left > 0:
            self._touch()
            chunk = self._take()
            ids = split_ids(chunk.ids())
            new = [index for index, id in enumerate(ids) if id not in self._known]
            self._known.update(ids)
            self._left = 0 if chunk.idle else self._left - len(new)
            if new:
                return pick(stored_batch(chunk.columns), new)
        return None

    def close(self) -> None:
        """Requeue everything; where that fails, nsqd requeues by timeout."""
        for link, pull, ids in self._held:
            with closing(link):
                pull.requeue_all(ids)

    def _take(self) -> Chunk:
        partition, options = self._partition, self._options
        link = connect(
            partition.nsqd,
            options.access,
            topic=partition.topic,
            channel=options.channel,
            msg_timeout=options.msg_timeout,
            output_buffer_timeout=_OUTPUT_BUFFER_TIMEOUT,
        )
        pull, ids = PullSubscription(link, threading.Event()), list[bytes]()
        self._held.append((link, pull, ids))
        most = max(1, MAX_CHUNK // max(1, partition.mean_size))
        want = min(self._left, link.reply.max_rdy_count, most)
        pull.set_rdy(want)
        chunk = pull.next_chunk(want, options.idle_timeout, options.msg_timeout / 3)
        ids += split_ids(chunk.ids())
        return chunk

    def _touch(self) -> None:
        """Keep messages from timing out while Spark is slow."""
        if monotonic() - self._touched > self._options.msg_timeout / 3:
            for _, pull, ids in self._held:
                pull.touch(ids)
            self._touched = monotonic()
