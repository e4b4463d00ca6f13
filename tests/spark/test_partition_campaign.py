"""Two redesigned topics into Parquet while leaders move, one is killed, and the driver is killed.

Every message has a number; those whose publish was uncertain may be there or not, and all others
are there once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import nsqflow
from nsqflow.admin import RedesignedCluster
from nsqflow.broker import BackgroundBroker
from nsqflow.errors import AdminError, ConfigError, DiscoveryError, NsqError, PublishUncertain
from tests.fixtures.spark import Driver

pytestmark = pytest.mark.timeout(900)

ORDINARY, ORDERED = "ordinary", "ordered"
PARTITIONS = 4
MESSAGES = {ORDINARY: 200_000, ORDERED: 20_000}
KEYS = 50

_MOVE_INTERVAL = 2.0  # seconds between two moves of a leader

# Reads both topics; each batch goes to a folder of its own, which a repeated batch writes again.
SCRIPT = """
import json, sys, time
from pathlib import Path
from tests.fixtures.spark import start_spark

folder, options, now = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3] == "now"
spark = start_spark("local[4,4]")

def start(topic):
    def write(frame, batch):
        path = str(folder / topic / f"batch={batch:06d}")
        frame.drop("headers").write.mode("overwrite").parquet(path)
        sys.stdout.write(f"{topic} batch {batch}\\n")  # whole: two queries print at once
        sys.stdout.flush()

    frame = spark.readStream.format("nsq").options(
        **options[topic], topic=topic, spoolLocation=str(folder / f"{topic}-spool")
    ).load()
    writer = frame.writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(folder / f"{topic}-checkpoint"))
    query = (writer.trigger(availableNow=True) if now else writer).start()
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(0.05)  # Spark confuses two that start at once: docs/spark-production.md
    return query

for query in [start(topic) for topic in ("ordinary", "ordered")]:
    query.awaitTermination()
"""


class Publishing:
    """Publishes both topics, and keeps account of what became of each message."""

    def __init__(self, lookupd: list[str]) -> None:
        self._lookupd = lookupd
        self.stored: dict[str, set[int]] = {ORDINARY: set(), ORDERED: set()}
        self.uncertain: dict[str, set[int]] = {ORDINARY: set(), ORDERED: set()}

    async def run(self) -> None:
        """Publish until the wanted number of each topic is stored."""
        async with nsqflow.Producer(lookupd=self._lookupd) as producer:
            await asyncio.gather(self._ordinary(producer), self._ordered(producer))

    async def _ordinary(self, producer: nsqflow.Producer) -> None:
        number, stored = 0, self.stored[ORDINARY]
        while len(stored) < MESSAGES[ORDINARY]:
            batch = range(number, number + 500)
            number = batch.stop
            try:
                await producer.publish_many(ORDINARY, [b"%d" % each for each in batch])
            except NsqError as error:
                if error.ranges is None:
                    raise
                for found in error.ranges.uncertain:
                    self.uncertain[ORDINARY].update(batch[found.start : found.stop])
                for found in error.ranges.accepted:
                    stored.update(batch[found.start : found.stop])
            else:
                stored.update(batch)

    async def _ordered(self, producer: nsqflow.Producer) -> None:
        async def one(key: int) -> None:
            number = key
            while len(self.stored[ORDERED]) < MESSAGES[ORDERED]:
                try:
                    await producer.publish(ORDERED, b"%d" % number, key=b"key %d" % key)
                except PublishUncertain:
                    self.uncertain[ORDERED].add(number)
                else:
                    self.stored[ORDERED].add(number)
                number += KEYS

        await asyncio.gather(*(one(key) for key in range(KEYS)))


class Disturbance(threading.Thread):
    """Moves a leader every two seconds, and kills one node on request."""

    def __init__(self, broker: BackgroundBroker) -> None:
        super().__init__(name="disturbance", daemon=True)
        self._broker = broker
        self._cluster = RedesignedCluster(lookupd=broker.lookupd_addresses)
        self._random = random.Random(7)
        self._stopping = threading.Event()
        self.moves = self.kills = 0

    def run(self) -> None:
        while not self._stopping.wait(_MOVE_INTERVAL):
            with contextlib.suppress(AdminError, ConfigError, DiscoveryError):  # a node is down
                self._move()

    def kill_a_leader(self) -> None:
        """Kill the node that leads the first ordered partition; start it when another one does."""
        before = self._leader(ORDERED, 0)
        assert before is not None
        self._broker.kill_node(before)
        while self._leader(ORDERED, 0) in (before, None):
            assert not self._stopping.wait(0.05)
        self._broker.start_node(before)
        self.kills += 1

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _move(self) -> None:
        topic = self._random.choice((ORDINARY, ORDERED))
        partition = self._random.randrange(PARTITIONS)
        now = self._leader(topic, partition)
        if now is not None:
            self._broker.move_leader(topic, partition, (now + self._random.choice((1, 2))) % 3)
            self.moves += 1

    def _leader(self, topic: str, partition: int) -> int | None:
        found = asyncio.run(self._cluster.topic(topic)).leaders.get(partition)
        return None if found is None else self._broker.nsqd_addresses.index(found.address)


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker("redesigned", nodes=3, repeat_messages=True) as broker:
        for topic in (ORDINARY, ORDERED):
            broker.create_topic(topic, PARTITIONS, replicas=3, ordered=topic == ORDERED)
        yield broker


def batches(folder: Path, topic: str) -> list[list[tuple[int, int, int]]]:
    """Return partition, offset and number of the rows of each batch, in their order."""
    found = []
    for batch in sorted((folder / topic).glob("batch=*")):
        rows: list[tuple[int, int, int]] = []
        for file in sorted(batch.glob("*.parquet")):
            table = pq.read_table(file, columns=["partition", "offset", "body"], partitioning=None)
            columns = (table.column(name).to_pylist() for name in table.column_names)
            rows += [
                (where, offset, int(body)) for where, offset, body in zip(*columns, strict=True)
            ]
        found.append(rows)
    return found


def test_both_topics_are_in_parquet_once_and_the_ordered_one_in_order(
    broker: BackgroundBroker, tmp_path: Path
) -> None:
    common = {"channel": "spark", "lookupd": ",".join(broker.lookupd_addresses), "msgTimeout": "5s"}
    limits = {ORDINARY: "20000", ORDERED: "2000"}
    options = json.dumps(
        {topic: common | {"maxMessagesPerTrigger": limits[topic]} for topic in limits}
    )
    publishing, disturbance = Publishing(broker.lookupd_addresses), Disturbance(broker)
    published = threading.Thread(target=lambda: asyncio.run(publishing.run()), daemon=True)
    with Driver(tmp_path, SCRIPT, str(tmp_path), options, "on") as driver:
        for topic in (ORDINARY, ORDERED):
            driver.await_line(f"{topic} batch 0")
        published.start()
        disturbance.start()
        driver.await_line(f"{ORDERED} batch 1")
        disturbance.kill_a_leader()
        driver.await_line(f"{ORDERED} batch 3")
        driver.kill()
    with Driver(tmp_path, SCRIPT, str(tmp_path), options, "on") as driver:
        driver.await_line(f"{ORDERED} batch 6")
        published.join()
    disturbance.stop()
    assert all(len(publishing.stored[topic]) >= count for topic, count in MESSAGES.items())
    with Driver(tmp_path, SCRIPT, str(tmp_path), options, "now") as driver:
        driver.await_end()
    assert disturbance.moves >= 3
    assert disturbance.kills == 1
    for topic in (ORDINARY, ORDERED):
        count = Counter(number for rows in batches(tmp_path, topic) for _, _, number in rows)
        stored, uncertain = publishing.stored[topic], publishing.uncertain[topic]
        assert not stored - count.keys(), "lost"
        assert not [number for number, times in count.items() if times > 1], "repeated"
        assert count.keys() <= stored | uncertain
    last = dict.fromkeys(range(PARTITIONS), -1)
    for rows in batches(tmp_path, ORDERED):
        for partition, offset, _ in rows:
            assert offset > last[partition], "out of order"
            last[partition] = offset
