"""A redesigned cluster in one process: nodes, nsqlookupd, and the engine that they share."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nsqflow.broker.nsqd.fault_injection import FaultInjector
from nsqflow.broker.nsqd.message_pump import Clock, DeliveryPump
from nsqflow.broker.nsqd.server import NsqdServer
from nsqflow.broker.options import LookupdOptions, NsqdOptions
from nsqflow.broker.redesigned.engine.cluster import ClusterRefusal, ReplicatedCluster
from nsqflow.broker.redesigned.engine.leadership import ClusterObserver, LookupdElection
from nsqflow.broker.redesigned.engine.partition import Partition, Writes
from nsqflow.broker.redesigned.engine.subscriber import DeliverySettings, PartitionSubscriber
from nsqflow.broker.redesigned.lookupd import ClusterLookupd
from nsqflow.broker.redesigned.nsqd import PartitionedConnection, PartitionedNsqd
from nsqflow.broker.redesigned.options import ClusterOptions
from nsqflow.broker.version import REDESIGNED_VERSION
from nsqflow.errors import ConfigError, LocalProtocolError
from nsqflow.protocol import TopicMeta

LOOKUPDS = 2
_ANY_PORT = "127.0.0.1:0"
_TIMEOUT = 60.0  # seconds for a topic to become writable, or a leader to move


class PartitionedCluster(ClusterObserver):
    """The nodes and nsqlookupd of a redesigned cluster."""

    def __init__(
        self,
        nsqd_options: Sequence[NsqdOptions],
        options: ClusterOptions,
        faults: FaultInjector,
        lookupd_addresses: Sequence[str] = (_ANY_PORT,) * LOOKUPDS,
    ) -> None:
        self.options = options
        self._clock = Clock()
        first = nsqd_options[0]
        self.engine = ReplicatedCluster(
            len(nsqd_options),
            times=options.times(),
            hazards=options.hazards(),
            settings=DeliverySettings(
                max_msg_timeout=round(first.max_msg_timeout * 1e9),
                max_req_timeout=round(first.max_req_timeout * 1e9),
                random_percent=lambda: random.randrange(100),
                shuffle=random.shuffle,
            ),
            max_memory=first.max_memory,
        )
        self.engine.leadership.observer = self
        self.election = LookupdElection(
            LOOKUPDS, self.engine.timers, round(options.lookupd_election_delay * 1e9)
        )
        self._pump = DeliveryPump(self.engine, self._clock)
        self._faults = faults
        self._nsqd_options = [*nsqd_options]
        self._nodes: dict[int, PartitionedNsqd] = {}  # those that run
        self._lookupds: dict[int, ClusterLookupd] = {}  # those that run
        self._lookupd_addresses = [*lookupd_addresses]
        self._leaving: dict[int, asyncio.Event] = {}  # nodes that are stopping
        self._settling: set[asyncio.Event] = set()  # of tasks that wait for a partition
        self._lock = asyncio.Lock()  # one node or nsqlookupd starts or stops at a time

    # What a Broker needs

    @property
    def running(self) -> bool:
        """Whether any part of it runs."""
        return bool(self._nodes or self._lookupds)

    @property
    def nsqd_addresses(self) -> list[str]:
        """The TCP addresses of all nodes, after the start."""
        return [each.tcp_address for each in self._nsqd_options if self._started(each.tcp_address)]

    @property
    def nsqd_http_addresses(self) -> list[str]:
        """The HTTP addresses of all nodes."""
        return [
            each.http_address for each in self._nsqd_options if self._started(each.http_address)
        ]

    @property
    def lookupd_addresses(self) -> list[str]:
        """The HTTP addresses of all nsqlookupd."""
        return [each for each in self._lookupd_addresses if self._started(each)]

    def servers(self) -> list[NsqdServer]:
        """Return the nodes that run."""
        return [*self._nodes.values()]

    async def start(self) -> None:
        """Start all that does not run."""
        self._pump = DeliveryPump(self.engine, self._clock)
        for number in range(LOOKUPDS):
            await self.start_lookupd(number)
        for number in range(len(self._nsqd_options)):
            await self.start_node(number)

    async def stop(self) -> None:
        """Stop all that runs; the messages stay in the engine."""
        await self._stop_running()
        for event in (*self._leaving.values(), *self._settling):
            event.set()  # nothing settles any more
        async with self._lock:  # another task may have been stopping a node, or starting one
            await self._stop_running()

    async def start_node(self, number: int) -> None:
        """Start a node, which joins its partitions again."""
        async with self._lock:
            if number in self._nodes:
                raise ConfigError(f"node {number} is running")
            nsqd = PartitionedNsqd(
                self._nsqd_options[number],
                self._clock,
                number,
                self,
                self._pump,
            )
            nsqd.faults = self._faults
            await nsqd.start()
            self._nodes[number] = nsqd
            self._nsqd_options[number] = replace(
                self._nsqd_options[number],
                tcp_address=nsqd.tcp_address,
                http_address=nsqd.http_address,
            )
            if not self.engine.leadership.alive[number]:
                self.engine.leadership.start_node(number, self._clock.now())
            self._pump.start()

    async def stop_node(self, number: int) -> None:
        """Stop a node as SIGTERM does: others lead its partitions first."""
        async with self._lock:
            nsqd = self._running_node(number)
            left = self._leaving[number] = asyncio.Event()
            self.engine.leadership.stop_node(number, self._clock.now())
            self._pump.start()
            try:
                await left.wait()
            finally:
                del self._leaving[number]
            if self._nodes.pop(number, None) is not None:  # else all have been stopped
                await nsqd.stop()

    async def kill_node(self, number: int) -> None:
        """End a node as ``kill -9`` does: the others notice later."""
        async with self._lock:
            nsqd = self._running_node(number)
            del self._nodes[number]
            self.engine.leadership.kill_node(number, self._clock.now())
            self._pump.start()
            await nsqd.kill()

    async def start_lookupd(self, number: int) -> None:
        """Start an nsqlookupd, on the same port as before."""
        async with self._lock:
            if number in self._lookupds:
                raise ConfigError(f"nsqlookupd {number} is running")
            options = LookupdOptions(
                tcp_address=_ANY_PORT,
                http_address=self._lookupd_addresses[number],
                allowed_host=self._nsqd_options[0].allowed_host,
            )
            lookupd = ClusterLookupd(options, number, self)
            await lookupd.start()
            self._lookupds[number] = lookupd
            self._lookupd_addresses[number] = lookupd.http_address
            self.election.started(number)

    async def stop_lookupd(self, number: int) -> None:
        """Stop an nsqlookupd; if it leads, another does after a while."""
        async with self._lock:
            if number not in self._lookupds:
                raise ConfigError(f"nsqlookupd {number} is not running")
            lookupd = self._lookupds.pop(number)
            self.election.stopped(number, self._clock.now())
            self._pump.start()
            await lookupd.stop()

    async def new_topic(self, name: str, meta: TopicMeta) -> None:
        """Create a topic; return when all of its partitions are writable."""
        try:
            self.create_topic(name, meta)
        except ClusterRefusal as refusal:
            raise ConfigError(f"topic {name!r} can't be created: {refusal}") from None
        for partition in self.engine.topics[name].partitions:
            if partition.writes is not Writes.OPEN:
                await self._settled(partition)

    def new_channel(self, topic: str, channel: str) -> None:
        """Create a channel in every partition of a topic."""
        found = self.engine.topics.get(topic)
        if found is None:
            raise ConfigError(f"topic {topic!r} does not exist")
        if found.meta.disable_channel_auto_create:
            self.engine.register_channel(found, channel)
        for partition in found.partitions:
            partition.channel(channel)

    def find_partition(self, topic: str, number: int) -> Partition:
        """Return a partition; raise ``ConfigError`` if there is none."""
        found = self.engine.topics.get(topic)
        if found is None:
            raise ConfigError(f"topic {topic!r} does not exist")
        if number not in range(len(found.partitions)):
            raise ConfigError(
                f"partition={number!r} is invalid: must be an integer from 0 to "
                f"{len(found.partitions) - 1}"
            )
        return found.partitions[number]

    async def move_leader(self, partition: Partition, node: int) -> None:
        """Let another node lead a partition; return when it does."""
        self.engine.leadership.move_leader(partition, node, self._clock.now())
        self._pump.start()
        await self._settled(partition)

    # What nodes and nsqlookupd need

    @property
    def stable(self) -> bool:
        """Whether all nodes run and no partition is changing."""
        return len(self._nodes) == len(self._nsqd_options) and all(
            each.writes is Writes.OPEN for each in self.engine.partitions()
        )

    def running_nodes(self) -> list[int]:
        """Return the numbers of the nodes that run."""
        return sorted(self._nodes)

    def create_topic(self, name: str, meta: TopicMeta) -> None:
        """Create a topic; raise ``ClusterRefusal``."""
        self.engine.create_topic(name, meta, self._clock.now())
        self._pump.start()

    def delete_topic(self, name: str) -> None:
        """Delete a topic; raise ``ClusterRefusal``."""
        self.engine.delete_topic(name, self._clock.now())
        self._pump.start()

    def node_info(self, number: int, lookupd: int) -> dict[str, Any]:
        """Return what an nsqlookupd says of a node."""
        options = self._nsqd_options[number]
        host = options.broadcast_address
        # Each real nsqlookupd sees another port of the node; only the host is true here.
        remote = f"{host}:{40000 + 100 * lookupd + number}"
        return {
            "id": remote,
            "remote_address": remote,
            "hostname": socket.gethostname(),
            "broadcast_address": host,
            "tcp_port": _port(options.tcp_address),
            "http_port": _port(options.http_address),
            "version": REDESIGNED_VERSION,
            "distributed_id": self.distributed_id(number),
        }

    def distributed_id(self, number: int) -> str:
        """Return the name of a node within the cluster."""
        options = self._nsqd_options[number]
        # Real servers have the port of their RPC where the port of HTTP is here.
        ports = f"{_port(options.http_address)}:{_port(options.tcp_address)}"
        return f"{options.broadcast_address}:{ports}:{options.node_id}"

    def lookupd_host_and_port(self, number: int) -> tuple[str, int]:
        """Return where an nsqlookupd listens for HTTP."""
        host = self._nsqd_options[0].broadcast_address
        return host, _port(self._lookupd_addresses[number])

    # Notifications of the engine

    def closed(self, subscribers: Sequence[tuple[PartitionSubscriber, bytes]]) -> None:
        """Close the connections of subscribers whose partition is led elsewhere, or deleted."""
        for subscriber, frames in subscribers:
            client: PartitionedConnection | None = subscriber.owner
            if client is None:
                continue
            if frames:
                client.output.send_frames(frames, more=False)
            client.close()

    def left(self, node: int) -> None:
        """Note that a node that is stopping leads nothing any more."""
        if node in self._leaving:
            self._leaving[node].set()
        elif node in self._nodes:  # the task that was stopping it is cancelled
            self.engine.leadership.start_node(node, self._clock.now())

    # Private methods

    @staticmethod
    def _started(address: str) -> bool:
        return not address.endswith(":0")

    async def _stop_running(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._pump.stop)
            for lookupd in self._lookupds.values():
                stack.push_async_callback(lookupd.stop)
            for nsqd in self._nodes.values():
                stack.push_async_callback(nsqd.stop)
            for number in self._lookupds:
                self.election.stopped(number, self._clock.now())
            self._lookupds, self._nodes = {}, {}

    def _running_node(self, number: int) -> PartitionedNsqd:
        if number not in self._nodes:
            raise ConfigError(f"node {number} is not running")
        return self._nodes[number]

    async def _settled(self, partition: Partition) -> None:
        settled = asyncio.Event()
        partition.settled.append(settled.set)
        self._settling.add(settled)
        try:
            async with asyncio.timeout(_TIMEOUT):
                await settled.wait()
        finally:
            self._settling.discard(settled)
        if not self.running:
            raise LocalProtocolError(f"the broker was stopped while {partition} was changing")


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
