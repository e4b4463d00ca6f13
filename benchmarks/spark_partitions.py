"""Reads from our own brokers: a topic on two classic nsqd, or with two partitions.

Each broker is a process of its own, with two nodes; a topic is filled before its run.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory

from benchmarks.clients.worker import CHANNEL
from benchmarks.spark_cpu import SparkSample
from benchmarks.spark_reads import Reads
from benchmarks.spark_stand_ins import BODY_SIZE
from nsqflow.admin import Nsqd, RedesignedCluster
from nsqflow.blocking import Producer
from nsqflow.broker import BackgroundBroker

NODES = 2
FILL_SIZE = 10_000  # messages in one publish

_NUMBERS = count(1)


@dataclass(frozen=True)
class BrokerReads:
    """Runs of the source on one broker."""

    reads: Reads
    addresses: dict[str, list[str]]
    process: int
    redesigned: bool
    ordered: bool = False
    shared: bool = False
    """The channel is one that others may read too."""

    def __call__(self) -> SparkSample:
        """Fill a topic and read it."""
        topic = f"bench-{next(_NUMBERS)}"
        asyncio.run(self._create(topic))
        self._fill(topic)
        with TemporaryDirectory(dir=self.reads.folder) as spool:
            options = {
                "topic": topic,
                "channel": CHANNEL,
                "lookupd": ",".join(self._lookupd),
                "spoolLocation": spool,
                "allowSharedChannel": str(self.shared).lower(),
            }
            sample = self.reads.read_all(options, [self.process])
        asyncio.run(self._delete(topic))
        return sample

    @property
    def _lookupd(self) -> list[str]:
        return self.addresses["lookupd"]

    @property
    def _nsqd(self) -> list[Nsqd]:
        return [Nsqd(address) for address in self.addresses["nsqd_http"]]

    def _fill(self, topic: str) -> None:
        nsqd = () if self.redesigned else self.addresses["nsqd"]
        with Producer(nsqd, lookupd=self._lookupd if self.redesigned else ()) as producer:
            share = self.reads.rows // NODES if self.ordered else self.reads.rows
            for partition in range(NODES) if self.ordered else [None]:
                for start in range(0, share, FILL_SIZE):
                    size = min(FILL_SIZE, share - start)
                    bodies = [bytes(BODY_SIZE)] * size
                    producer.publish_many(topic, bodies, partition=partition)

    async def _create(self, topic: str) -> None:
        if self.redesigned:
            cluster = RedesignedCluster(lookupd=self._lookupd)
            await cluster.create_topic(topic, partitions=NODES, ordered=self.ordered, wait=10)
            await cluster.create_channel(topic, CHANNEL)
            return
        for nsqd in self._nsqd:
            async with nsqd:
                await nsqd.create_topic(topic)
                await nsqd.create_channel(topic, CHANNEL)

    async def _delete(self, topic: str) -> None:
        if self.redesigned:
            await RedesignedCluster(lookupd=self._lookupd).delete_topic(topic)
            return
        for nsqd in self._nsqd:
            async with nsqd:
                await nsqd.delete_topic(topic)


@contextmanager
def broker_reads(reads: Reads, dialect: str) -> Iterator[BrokerReads]:
    """Start a broker; yield runs on it."""
    command = [sys.executable, "-m", "benchmarks.spark_partitions", dialect]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        addresses = json.loads(process.stdout.readline())
        yield BrokerReads(reads, addresses, process.pid, redesigned=dialect == "redesigned")


def serve(dialect: str) -> None:
    """Run a broker until the input ends; print its addresses."""
    with BackgroundBroker(dialect, nodes=NODES) as broker:
        addresses = {
            "nsqd": broker.nsqd_addresses,
            "nsqd_http": broker.nsqd_http_addresses,
            "lookupd": broker.lookupd_addresses,
        }
        print(json.dumps(addresses), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    serve(sys.argv[1])
