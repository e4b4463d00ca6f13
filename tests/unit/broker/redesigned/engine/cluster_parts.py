"""A cluster with a clock, and what it reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nsqflow.broker.redesigned.engine.cluster import ReplicatedCluster
from nsqflow.broker.redesigned.engine.leadership import ClusterObserver, ClusterTimes
from nsqflow.broker.redesigned.engine.partition import (
    Hazards,
    Partition,
    Publication,
    Refused,
)
from nsqflow.broker.redesigned.engine.subscriber import PartitionSubscriber
from nsqflow.protocol import Layout, Receipt, TopicMeta
from tests.unit.broker.redesigned.engine.parts import NOW, SECOND, TIMEOUT, decode

TIMES = ClusterTimes(
    election_delay=21 * SECOND,
    follower_timeout=12 * SECOND,
    move_delay=SECOND,
    rejoin_delay=2 * SECOND,
    resubscribe_delay=80 * SECOND,
)


class Observed(ClusterObserver):
    """Keeps what the cluster reports."""

    def __init__(self) -> None:
        self.gone: list[PartitionSubscriber] = []
        self.sent: list[bytes] = []
        self.nodes_left: list[int] = []

    def closed(self, subscribers: Sequence[tuple[PartitionSubscriber, bytes]]) -> None:
        self.gone += [each for each, _ in subscribers]
        self.sent += [data for _, data in subscribers if data]

    def left(self, node: int) -> None:
        self.nodes_left.append(node)


class Lab:
    """A cluster under test."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        times: ClusterTimes = TIMES,
        hazards: Hazards | None = None,
        **options: Any,
    ) -> None:
        self.now = NOW
        self.cluster = ReplicatedCluster(nodes, times=times, hazards=hazards, **options)
        self.leadership = self.cluster.leadership
        self.observer = self.leadership.observer = Observed()
        self.results: list[str] = []

    def create(self, name: str = "t", **meta: Any) -> Partition:
        """Create a topic; return its first partition."""
        meta = {"partition_num": 1, "replica": 1} | meta
        return self.cluster.create_topic(name, TopicMeta(**meta), self.now).partitions[0]

    def wait(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)
        self.cluster.tick(self.now)

    def publish(
        self,
        partition: Partition,
        *bodies: bytes,
        node: int | None = None,
        batch: bool = False,
    ) -> str:
        """Publish; return OK, nsqd's code, or that it waits."""

        def done(result: Receipt | Refused) -> None:
            self.results.append(result.code if isinstance(result, Refused) else "OK")

        publication = Publication(bodies or (b"x",), batch=batch, done=done)
        node = partition.leader if node is None else node
        node = -1 if node is None else node
        try:
            receipt = self.cluster.publish(node, partition, publication, self.now)
        except Refused as refused:
            return refused.code
        return "OK" if receipt else "waits"

    def subscribe(
        self, partition: Partition, channel: str = "c", rdy: int = 100, **options: Any
    ) -> PartitionSubscriber:
        subscriber = PartitionSubscriber(None, TIMEOUT, **options)
        subscriber.rdy = rdy
        partition.channel(channel).add(subscriber)
        return subscriber

    def attempts(self, partition: Partition) -> list[tuple[bytes, int]]:
        got = []
        while self.cluster.has_work:
            for subscriber, data in self.cluster.deliver(self.now):
                layout = Layout(partition.log.extended, subscriber.positioned)
                got += [(each.body, each.attempts) for each in decode(data, layout)]
        return got

    def finish(self, partition: Partition, subscriber: PartitionSubscriber) -> None:
        """Finish everything that is in flight."""
        ids = [
            (partition.log.base_id + index).to_bytes(8, "big") + bytes(8)
            for index in subscriber.in_flight
        ]
        for channel in partition.channels.values():
            if subscriber in channel.subscribers:
                assert channel.finish(subscriber, ids) == []
