"""A chunk filter after a first batch."""

from __future__ import annotations

from pathlib import Path

from nsqflow.spark.options import SourceOptions, parse_stream
from nsqflow.spark.source.chunk_filter import ChunkFilter
from nsqflow.spark.source.offsets import PartitionId, make_key
from nsqflow.spark.source.reader import NsqInputPartition
from nsqflow.spark.spool.dedup import SeenIds
from nsqflow.spark.spool.local_store import LocalStore
from nsqflow.spark.spool.slots import Slots
from tests.unit.spark.spool_rows import write_slot


class Bench:
    """A share whose first batch has left messages 0 to 9 in the spool, unconfirmed."""

    def __init__(self, folder: Path, nsqd: str = "127.0.0.1:4150") -> None:
        self.nsqd = nsqd
        self._store = LocalStore(str(folder))
        self._key = make_key("orders", nsqd)
        write_slot(Slots(self._store, PartitionId("gen", 1, self._key, 0).folder), 0, range(10))

    def sorting(self, budget: int = 1000, max_bytes: int | None = None, **more: str) -> ChunkFilter:
        options = self.options(**more)
        share = NsqInputPartition(PartitionId("gen", 2, self._key, 0), budget, max_bytes)
        everything = options.dedupe == "always"
        sorting = ChunkFilter(
            share, options, SeenIds(self._store, "gen", self._key, everything=everything)
        )
        sorting.connected()
        return sorting

    def options(self, **more: str) -> SourceOptions:
        given = {"topic": "orders", "channel": "c", "nsqd": self.nsqd, "spoolLocation": "/spool"}
        return parse_stream(given | more)
