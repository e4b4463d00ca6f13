"""Batch reads of topics of the redesigned NSQ, without Spark: what the driver and tasks do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nsqflow import blocking
from nsqflow.admin import RedesignedCluster
from nsqflow.admin.partition import PartitionStats
from nsqflow.broker import BackgroundBroker
from nsqflow.spark.options import parse_batch
from nsqflow.spark.source.batch_reader import NsqBatchReader
from tests.fixtures.servers import PATIENCE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

TOPIC = "orders"


def publish(
    broker: BackgroundBroker, numbers: Sequence[int], topic: str = TOPIC, **more: Any
) -> None:
    """Publish a message with each number as its body; by default to all partitions in turn."""
    with blocking.Producer(lookupd=broker.lookupd_addresses) as producer:
        if more.keys() - {"partition"}:
            for number in numbers:
                producer.publish(topic, b"%d" % number, **more)
            return
        step = max(1, len(numbers) // 40)  # a batch goes to one partition
        for start in range(0, len(numbers), step):
            bodies = [b"%d" % number for number in numbers[start : start + step]]
            producer.publish_many(topic, bodies, **more)


def now() -> str:
    """The time for an option, later than that of all messages so far and not later than others."""
    moment = datetime.now(UTC)
    while datetime.now(UTC) == moment:  # a clock of microseconds
        pass
    return moment.isoformat()


class TableRead:
    """One ``load()``: its partitions are planned once, and read as often as is wanted."""

    def __init__(self, broker: BackgroundBroker, **options: str) -> None:
        given = {"lookupd": ",".join(broker.lookupd_addresses), "topic": TOPIC} | options
        self.reader = NsqBatchReader(parse_batch(given), positions=True)
        self.partitions = [*self.reader.partitions()]

    def batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        return self.reader.read(partition)

    def rows(self) -> list[dict[str, Any]]:
        """Read all of them, in order."""
        found: list[dict[str, Any]] = []
        for partition in self.partitions:
            for batch in self.batches(partition):
                found += batch.to_pylist()
        return found

    def numbers(self) -> list[int]:
        """The numbers in the bodies, sorted."""
        return numbers(self.rows())


def numbers(rows: Sequence[dict[str, Any]]) -> list[int]:
    """The numbers in the bodies, sorted."""
    return sorted(int(row["body"]) for row in rows)


def stats(broker: BackgroundBroker, topic: str = TOPIC) -> list[PartitionStats]:
    """What the leaders say of the partitions."""
    return asyncio.run(RedesignedCluster(lookupd=broker.lookupd_addresses).stats(topic))


def await_no_channel(broker: BackgroundBroker, topic: str = TOPIC, *kept: str) -> None:
    """Wait until there are no channels in any partition, but those that are kept."""
    deadline = time.monotonic() + PATIENCE
    while names := {c.name for each in stats(broker, topic) for c in each.channels} - {*kept}:
        assert time.monotonic() < deadline, names
        time.sleep(0.01)


@contextmanager
def moving_leaders(broker: BackgroundBroker, topic: str, partitions: int) -> Iterator[None]:
    """Move the leader of one partition after the other, as long as the block runs."""
    done = threading.Event()

    def move() -> None:
        turn = 0
        while not done.wait(0.1):
            broker.move_leader(topic, turn % partitions, turn % 3)
            turn += 1

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def check_order(rows: Sequence[dict[str, Any]]) -> None:
    """Check that each partition's rows follow each other without a gap."""
    ends: dict[int, int] = {}
    for row in rows:
        partition, offset = row["partition"], row["offset"]
        assert offset == ends.get(partition, offset)
        ends[partition] = offset + row["size"]
