"""Slots: written once, and the same for every reader."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from nsqflow.spark.options import parse_stream
from nsqflow.spark.source.offsets import PartitionId, make_key
from nsqflow.spark.source.partition_reader import read_partition
from nsqflow.spark.source.reader import NsqInputPartition
from nsqflow.spark.spool.layout import planned_marker
from nsqflow.spark.spool.local_store import LocalStore
from tests.fixtures.servers import Nsqd
from tests.fixtures.spark import published
from tests.spark.queries import await_answers, post

if TYPE_CHECKING:
    import pyarrow as pa


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "spool"))


# --- races --------------------------------------------------------------------------------------


def test_readers_of_one_partition_see_the_same_rows_and_leave_the_others_in_the_channel(
    store: LocalStore, nsqd: Nsqd
) -> None:
    topic = f"t{uuid4().hex[:16]}"
    options = parse_stream(
        {
            "topic": topic,
            "channel": "spark",
            "nsqd": nsqd.tcp_address,
            "nsqdHttp": nsqd.http_address,
            "spoolLocation": store.location,
            "msgTimeout": "5s",
        }
    )
    post(nsqd, "/topic/create", topic)
    post(nsqd, "/channel/create", topic)
    bodies = published(nsqd, topic, 6000)

    def read(seq: int, into: list[list[bytes]]) -> None:
        share = NsqInputPartition(
            PartitionId("gen", seq, make_key(topic, nsqd.tcp_address), 0), 6000
        )
        batches: list[pa.RecordBatch] = [*read_partition(share, options)]
        into.append([body for batch in batches for body in batch.column("body").to_pylist()])

    saw: list[list[bytes]] = []
    store.write(planned_marker("gen", 1), b"{}")
    readers = [threading.Thread(target=read, args=(1, saw)) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(saw) == 3
    assert saw[0] == saw[1] == saw[2] != []
    # Each held messages that the others waited for, so the share may have ended without some;
    # and nsqd may push one behind its answer to CLS, which is away until its time is over.
    await_answers(nsqd, topic)
    rest: list[list[bytes]] = []
    store.write(planned_marker("gen", 2), b"{}")
    read(2, rest)
    assert sorted(saw[0] + rest[0]) == bodies
