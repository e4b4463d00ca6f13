"""A node of a redesigned cluster: an nsqd whose partitions all nodes share."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from nsqflow.broker.nsqd.command_handler import CommandHandler
from nsqflow.broker.nsqd.connection import ClientConnection
from nsqflow.broker.nsqd.message_pump import Clock, DeliveryPump
from nsqflow.broker.nsqd.server import NsqdServer
from nsqflow.broker.options import NsqdOptions
from nsqflow.broker.redesigned.command_handler import PartitionCommandHandler
from nsqflow.broker.redesigned.nsqd_http import PartitionedNsqdApi
from nsqflow.protocol import Dialect

if TYPE_CHECKING:
    from nsqflow.broker.redesigned.cluster import PartitionedCluster
    from nsqflow.broker.redesigned.engine.partition import Partition

_BUFFER_SIZE = 100  # bytes that nsqd buffers for a client that does not set it
_log = logging.getLogger("nsqflow.broker.nsqd")


@dataclass(slots=True)
class PublishStats:
    """What a client has published to a partition."""

    count: int = 0
    errors: int = 0
    last: int = 0
    """Seconds since 1970."""


class PartitionedConnection(ClientConnection):
    """A client's connection to a redesigned nsqd."""

    dialect: ClassVar[Dialect] = Dialect.REDESIGNED
    max_silence: ClassVar[int] = 3

    def __init__(self, nsqd: PartitionedNsqd) -> None:
        super().__init__(nsqd)
        self.publish_stats: dict[Partition, PublishStats] = {}
        self.settings = replace(self.settings, output_buffer_size=_BUFFER_SIZE)
        self.output.settings = self.settings

    def send(self, messages: Any) -> None:
        """Send what the engine delivers, here frames."""
        assert self.subscriber is not None
        self.output.send_frames(messages, more=self.subscriber.capacity > 0)

    def count_publish(self, partition: Partition, count: int, errors: int, now: int) -> None:
        """Count what was published, and what was refused."""
        stats = self.publish_stats.get(partition)
        if stats is None:
            stats = self.publish_stats[partition] = PublishStats()
        stats.count += count
        stats.errors += errors
        stats.last = now // 10**9


class PartitionedNsqd(NsqdServer):
    """A node. ``number`` is its number in the cluster."""

    def __init__(
        self,
        options: NsqdOptions,
        clock: Clock,
        number: int,
        members: PartitionedCluster,
        pump: DeliveryPump,
    ) -> None:
        super().__init__(options, clock)
        if self.tls is not None and options.tls_min_version != "tls1.3":
            self.tls.maximum_version = ssl.TLSVersion.TLSv1_2  # as the Go of real servers has it
        self.number = number
        self.cluster = members.engine
        self.members = members
        self._pump = pump
        self._client_ids = count(1)

    def next_client_id(self) -> int:
        """Return a number that no other client of this node has."""
        return next(self._client_ids)

    def partition_clients(self) -> list[PartitionedConnection]:
        """Return the connected clients."""
        return [each for each in self.clients if isinstance(each, PartitionedConnection)]

    def pump(self) -> None:
        """Schedule a run of the cluster's pump, because the engine has changed."""
        self._pump.start()

    def command_handler(self, client: ClientConnection) -> CommandHandler:
        """Return what executes the commands of a client."""
        assert isinstance(client, PartitionedConnection)
        return PartitionCommandHandler(client, self)

    async def start(self) -> None:
        """Start listening."""
        try:
            await self._open_listeners(
                lambda: PartitionedConnection(self), lambda: PartitionedNsqdApi(self)
            )
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close listeners and connections."""
        await self._end(ClientConnection.close)
        _log.info("NSQ: bye")

    async def kill(self) -> None:
        """End as ``kill -9`` does, without sending anything."""
        await self._end(ClientConnection.abort)

    async def _end(self, end: Callable[[ClientConnection], None]) -> None:
        self._close_listeners()
        await self._close_clients(end)
