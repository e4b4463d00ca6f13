"""Clusters of the redesigned NSQ that the verbs are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nsqflow import blocking
from nsqflow.admin import PartitionChannelStats
from nsqflow.broker import BackgroundBroker

CHANNEL = PartitionChannelStats(
    name="billing",
    depth=10,
    depth_bytes=360,
    depth_timestamp=0,
    in_flight_count=4,
    deferred_count=1,
    delayed_count=2,
    delayed_until=0,
    requeue_count=0,
    timeout_count=0,
    client_count=1,
    paused=False,
)
"""The statistics of a channel, for tests without servers."""


@dataclass(frozen=True)
class PartitionedCluster:
    """A redesigned cluster of three nsqd and two nsqlookupd."""

    broker: BackgroundBroker

    @property
    def nsqd(self) -> list[str]:
        """The TCP addresses of its nsqd."""
        return self.broker.nsqd_addresses

    @property
    def lookupd(self) -> list[str]:
        """The HTTP addresses of its nsqlookupd."""
        return self.broker.lookupd_addresses

    @property
    def through_lookupd(self) -> list[str]:
        """The options that name its nsqlookupd."""
        return ["--lookupd", ",".join(self.lookupd)]

    @property
    def directly(self) -> list[str]:
        """The options that name its nsqd."""
        http = self.broker.nsqd_http_addresses
        return ["--nsqd", ",".join(self.nsqd), "--nsqd-http", ",".join(http)]

    def publish(self, topic: str, partition: int, *bodies: bytes) -> None:
        """Publish to a partition."""
        with blocking.Producer(lookupd=self.lookupd) as producer:
            producer.publish_many(topic, [*bodies], partition=partition)


@contextmanager
def partitioned_cluster(**options: Any) -> Iterator[PartitionedCluster]:
    """Start one, on a thread of this process."""
    with BackgroundBroker("redesigned", nodes=3, **options) as broker:
        yield PartitionedCluster(broker)
