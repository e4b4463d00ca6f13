"""NSQ in your process: nsqd and nsqlookupd, on free ports of the loopback interface.

    async with Broker() as broker:
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            ...

It is for one machine: first steps, development, tests, small jobs. In production, run
the real nsqd.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from nsqflow.address import TcpAddress, parse_listen_address
from nsqflow.broker.classic_cluster import ClassicCluster
from nsqflow.broker.nsqd.fault_injection import FaultInjector
from nsqflow.broker.options import NsqdOptions
from nsqflow.broker.redesigned.cluster import LOOKUPDS, PartitionedCluster
from nsqflow.broker.redesigned.options import NSQD_DEFAULTS, ClusterOptions
from nsqflow.config.options import did_you_mean
from nsqflow.errors import ConfigError, LocalProtocolError
from nsqflow.protocol import TopicMeta, check_channel, check_topic

_ANY_PORT = "127.0.0.1:0"
_LISTENERS = ("tcp_address", "http_address", "https_address")
_DIALECTS = ("classic", "redesigned")


class Broker:
    """One nsqlookupd and one or several nsqd; or a cluster of the redesigned NSQ.

    ``nsqd_options`` are nsqd's options, named like its flags (``msg_timeout=2``); times are in
    seconds. Without ``data_path`` all messages are in memory and lost with the broker; with it,
    every publish is on disk before it is acknowledged, and the next broker continues with it.

    With ``dialect="redesigned"`` topics have partitions, which nodes lead and replicate, and there
    are two nsqlookupd. It is always in memory. Options say how long changes of leaders take, and
    which hazards of the real servers there are (``docs/redesigned.md``).
    """

    def __init__(
        self,
        dialect: str = "classic",
        nodes: int = 1,
        data_path: str | Path | None = None,
        **nsqd_options: Any,
    ) -> None:
        if dialect not in _DIALECTS:
            raise ConfigError(
                f"dialect={dialect!r} is invalid: must be {' or '.join(map(repr, _DIALECTS))}"
            )
        if nodes not in range(1, 101):
            raise ConfigError(f"nodes={nodes!r} is invalid: must be an integer from 1 to 100")
        self._nodes = nodes
        self._faults = FaultInjector()
        self._classic: ClassicCluster | None = None
        self._redesigned: PartitionedCluster | None = None
        self._cluster: ClassicCluster | PartitionedCluster
        if dialect == "classic":
            options = [_nsqd_options(i, data_path, nsqd_options) for i in range(nodes)]
            self._cluster = self._classic = ClassicCluster(options, self._faults)
        else:
            self._cluster = self._redesigned = _redesigned_cluster(
                nodes, data_path, nsqd_options, self._faults
            )

    # Addresses

    @property
    def nsqd_addresses(self) -> list[str]:
        """The TCP addresses of all nsqd after the start, including stopped nodes."""
        return self._cluster.nsqd_addresses

    @property
    def nsqd_http_addresses(self) -> list[str]:
        """The HTTP addresses of all nsqd."""
        return self._cluster.nsqd_http_addresses

    @property
    def lookupd_addresses(self) -> list[str]:
        """The HTTP addresses of all nsqlookupd."""
        return self._cluster.lookupd_addresses

    # Starting and stopping

    async def start(self) -> None:
        """Start all nodes; return when they are registered with nsqlookupd.

        A broker that was stopped can be started again and continues with the messages it kept.
        """
        if self._cluster.running:
            raise LocalProtocolError("the broker is running already")
        try:
            await self._cluster.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop everything; do nothing if it is stopped already."""
        await self._cluster.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int = 1,
        ordered: bool = False,
        extended: bool = False,
    ) -> None:
        """Create a topic on all running nodes (classic NSQ also creates it on first use).

        The arguments are the redesigned NSQ's, where the topic is writable when this returns.
        """
        check_topic(name)
        if self._classic is None:
            meta = TopicMeta(
                partition_num=partitions,
                replica=replicas,
                ordered=ordered,
                extend_support=extended,
                # Without it, each partition of an ordinary topic is on another node.
                multi_part=not ordered and partitions * replicas > self._nodes,
            )
            await self._partitioned("topics with partitions").new_topic(name, meta)
            return
        if (partitions, replicas, ordered, extended) != (1, 1, False, False):
            raise ConfigError(
                f"topic {name!r} with partitions={partitions}, replicas={replicas}, "
                f"ordered={ordered}, extended={extended}: classic NSQ supports none of these"
            )
        await self._classic.new_topic(name)

    async def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel on all nodes, so that it gets what is published from now on."""
        check_topic(topic)
        check_channel(channel)
        if self._classic is not None:
            await self._classic.new_channel(topic, channel)
        else:
            self._partitioned("channels").new_channel(topic, channel)

    async def start_node(self, node: int) -> None:
        """Start a node that was stopped or killed, on the same ports."""
        if not self._cluster.running:
            raise LocalProtocolError("the broker is not running: call start() first")
        await self._cluster.start_node(self._checked(node))

    async def stop_node(self, node: int) -> None:
        """Stop a node as SIGTERM does: it keeps its messages, even those in memory.

        In a redesigned cluster other nodes lead its partitions first, if they have a copy.
        """
        await self._cluster.stop_node(self._checked(node))

    async def kill_node(self, node: int) -> None:
        """End a node as ``kill -9`` does.

        On classic NSQ messages in memory are lost, topics and channels stay. In a redesigned
        cluster other nodes lead its partitions after ``election_delay``, if they have a copy.
        """
        await self._cluster.kill_node(self._checked(node))

    async def move_leader(self, topic: str, partition: int, node: int) -> None:
        """Let another node lead a partition, of which it gets a copy if it has none."""
        cluster = self._partitioned("leaders")
        found = cluster.find_partition(topic, partition)
        if self._checked(node) not in cluster.running_nodes():
            raise ConfigError(f"node {node} is not running")
        await cluster.move_leader(found, node)

    async def stop_lookupd(self, number: int) -> None:
        """Stop one of the nsqlookupd of a redesigned cluster."""
        await self._partitioned("several nsqlookupd").stop_lookupd(_checked_lookupd(number))

    async def start_lookupd(self, number: int) -> None:
        """Start an nsqlookupd that was stopped, on the same port."""
        await self._partitioned("several nsqlookupd").start_lookupd(_checked_lookupd(number))

    # Fault injection, for tests

    def fail_next(self, command: str, code: str) -> None:
        """Respond to the next command of this name, on any node, with an error.

        ``fail_next("PUB", "E_PUB_FAILED")``: the command has no effect; where nsqd closes the
        connection after such an error, so does the broker.
        """
        self._faults.fail_next(command, code)

    def drop_connections(self) -> None:
        """Abort all client connections."""
        for nsqd in self._cluster.servers():
            for client in [*nsqd.clients]:
                client.abort()

    def slow(self, seconds: float) -> None:
        """Delay everything sent to clients by ``seconds``; 0 ends the delay."""
        self._faults.slow(seconds)

    # Private methods

    def _checked(self, node: int) -> int:
        if node not in range(self._nodes):
            raise ConfigError(
                f"node={node!r} is invalid: must be an integer from 0 to {self._nodes - 1}"
            )
        return node

    def _partitioned(self, what: str) -> PartitionedCluster:
        if self._redesigned is None:
            raise ConfigError(f"classic NSQ has no {what}: use Broker(dialect='redesigned')")
        return self._redesigned


def _redesigned_cluster(
    nodes: int, data_path: str | Path | None, given: dict[str, Any], faults: FaultInjector
) -> PartitionedCluster:
    if data_path is not None:
        raise ConfigError(
            f"data_path={str(data_path)!r} is invalid: a redesigned Broker is always in memory"
        )
    own = {each.name for each in fields(ClusterOptions)}
    options = ClusterOptions(**{name: given[name] for name in given if name in own})
    shared = NSQD_DEFAULTS | {name: given[name] for name in given if name not in own}
    nsqd_options = [_nsqd_options(i, None, shared, sorted(own)) for i in range(nodes)]
    return PartitionedCluster(nsqd_options, options, faults)


def _nsqd_options(
    node: int,
    data_path: str | Path | None,
    given: dict[str, Any],
    also_known: list[str] | None = None,
) -> NsqdOptions:
    values: dict[str, Any] = dict.fromkeys(_LISTENERS, _ANY_PORT) | {"node_id": node} | given
    if data_path is not None:
        folder = Path(data_path) / f"nsqd-{node}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"data_path={str(data_path)!r} is invalid: {error}") from None
        values["data_path"] = str(folder)
    if given.get("lookupd_tcp_address"):
        raise ConfigError("lookupd_tcp_address is not allowed: a Broker has its own nsqlookupd")
    for listener in ("tcp_address", "http_address"):
        # nsqlookupd refuses an nsqd without both ports.
        if not isinstance(parse_listen_address(listener, values[listener]), TcpAddress):
            raise ConfigError(
                f"{listener}={values[listener]!r} is invalid: must be host:port in a Broker"
            )
    known = [field.name for field in fields(NsqdOptions) if field.init]
    for name in given:
        if name not in known:
            names = ["dialect", "nodes", "data_path", *known, *(also_known or ())]
            hint = did_you_mean(name, names)
            raise ConfigError(f"Broker has no option {name!r}" + (f"; {hint}" if hint else ""))
    return NsqdOptions(**values)


def _checked_lookupd(number: int) -> int:
    if number not in range(LOOKUPDS):
        raise ConfigError(f"number={number!r} is invalid: must be an integer from 0 to 1")
    return number
