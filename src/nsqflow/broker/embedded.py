"""An NSQ in your process: nsqd and nsqlookupd, on free ports of the loopback interface.

    async with Broker() as broker:
        async with nsqflow.Producer(broker.nsqd_addresses) as producer:
            ...

It is for one machine: the first five minutes, development, tests, small jobs. In production,
run the real nsqd.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from nsqflow.broker.address import TcpAddress, parse_listen_address
from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.lookupd.daemon import Nsqlookupd
from nsqflow.broker.nsqd.daemon import Nsqd
from nsqflow.broker.nsqd.faults import Faults
from nsqflow.broker.options import LookupdOptions, NsqdOptions
from nsqflow.errors import ConfigError, LocalProtocolError, NetworkError
from nsqflow.protocol import check_topic

_PATIENCE = 30.0  # seconds for nsqlookupd, which is in the same loop, to hear of an nsqd
_ANY_PORT = "127.0.0.1:0"
_DOORS = ("tcp_address", "http_address", "https_address")


class Broker:
    """One nsqlookupd and one or several nsqd.

    ``nsqd_options`` are those of nsqd, by the names of its flags (``msg_timeout=2``); times are
    in seconds. Without ``data_path`` all is in memory, and gone with the broker; with it,
    every publish is on disk before it is answered, and there again the next time.
    """

    def __init__(
        self,
        dialect: str = "classic",
        nodes: int = 1,
        data_path: str | Path | None = None,
        **nsqd_options: Any,
    ) -> None:
        if dialect != "classic":
            raise ConfigError(f"dialect {dialect!r}; this version has 'classic' alone")
        if nodes not in range(1, 101):
            raise ConfigError(f"nodes {nodes!r}; 1 to 100 are allowed")
        self._faults = Faults()
        self._lookupd: Nsqlookupd | None = None  # while it runs
        self._options = [_options(i, data_path, nsqd_options) for i in range(nodes)]
        self._nodes: list[Nsqd | None] = [None] * nodes
        self._engines: list[Engine | None] = [None] * nodes  # of nodes that are stopped
        self._addresses = [("", "")] * nodes
        self._turns = [asyncio.Lock() for _ in range(nodes)]  # one thing at a time with each node

    # Where it is.

    @property
    def nsqd_addresses(self) -> list[str]:
        """Where clients connect to, once it has started; also of nodes that are stopped."""
        return [tcp for tcp, _ in self._addresses if tcp]

    @property
    def nsqd_http_addresses(self) -> list[str]:
        """Where the HTTP APIs of the nsqd are."""
        return [http for _, http in self._addresses if http]

    @property
    def lookupd_addresses(self) -> list[str]:
        """Where nsqlookupd is asked, over HTTP."""
        return [self._lookupd.http_address] if self._lookupd else []

    # Its life.

    async def start(self) -> None:
        """Start all nodes; returns when nsqlookupd knows them.

        A broker that was stopped can be started again, and goes on with what it has kept.
        """
        if self._lookupd is not None:
            raise LocalProtocolError("the broker is running already")
        self._lookupd = Nsqlookupd(LookupdOptions(tcp_address=_ANY_PORT, http_address=_ANY_PORT))
        try:
            await self._lookupd.start()
            for i in range(len(self._nodes)):
                await self.start_node(i)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all that runs; no matter if nothing does."""
        lookupd, self._lookupd = self._lookupd, None
        async with contextlib.AsyncExitStack() as stack:
            if lookupd is not None:
                stack.push_async_callback(lookupd.stop)
            for i in range(len(self._nodes)):
                stack.push_async_callback(self._stop_if_running, i)

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
        """Create a topic on all nodes that run (classic NSQ also makes it with the first use)."""
        if (partitions, replicas, ordered, extended) != (1, 1, False, False):
            raise ConfigError(
                f"topic {name!r} with partitions={partitions}, replicas={replicas}, "
                f"ordered={ordered}, extended={extended}; classic NSQ has none of them"
            )
        check_topic(name)
        for node in self._running():
            node.engine.topic(name, node.now())
            node.pump()
            await node.stored()

    async def start_node(self, node: int) -> None:
        """Start a node that was stopped or killed, on the ports that it had."""
        async with self._turn(node):
            if self._nodes[node] is not None:
                raise ConfigError(f"node {node} is running")
            await self._start(node)

    async def stop_node(self, node: int) -> None:
        """Stop a node as SIGTERM does: it keeps its messages, also those in memory."""
        async with self._turn(node):
            nsqd = self._running_node(node)
            self._engines[node] = None if nsqd.durable else nsqd.engine
            await nsqd.stop()
            self._nodes[node] = None

    async def kill_node(self, node: int) -> None:
        """End a node as ``kill -9`` does: what is not on disk is lost, but for the names."""
        async with self._turn(node):
            nsqd = self._running_node(node)
            self._engines[node] = None if nsqd.durable else nsqd.engine.without_messages()
            await nsqd.kill()
            self._nodes[node] = None

    # Faults, for tests.

    def fail_next(self, command: str, code: str) -> None:
        """Have the next command of this name, on whichever node, answered with an error.

        ``fail_next("PUB", "E_PUB_FAILED")``: the command has no effect; where nsqd closes the
        connection behind such an error, so does the broker.
        """
        self._faults.fail_next(command, code)

    def drop_connections(self) -> None:
        """Cut all connections of clients."""
        for node in self._running():
            for client in [*node.clients]:
                client.abort()

    def slow(self, seconds: float) -> None:
        """Delay all that clients are sent by so much, until it is set to 0 again."""
        self._faults.slow(seconds)

    # Private methods

    async def _start(self, node: int) -> None:
        if self._lookupd is None:
            raise LocalProtocolError("the broker is not running: call start() first")
        options = replace(self._options[node], lookupd_tcp_address=(self._lookupd.tcp_address,))
        nsqd = Nsqd(options, self._engines[node])
        nsqd.faults = self._faults
        await nsqd.start()
        self._nodes[node] = nsqd
        self._addresses[node] = nsqd.tcp_address, nsqd.http_address
        self._options[node] = replace(
            options, tcp_address=nsqd.tcp_address, http_address=nsqd.http_address
        )
        try:
            async with asyncio.timeout(_PATIENCE):
                await nsqd.lookup_peers.registered()
        except TimeoutError:
            raise NetworkError(
                f"node {node} could not register with nsqlookupd within {_PATIENCE:g} s"
            ) from None

    async def _stop_if_running(self, node: int) -> None:
        async with self._turns[node]:
            pass  # somebody else may be stopping it
        if self._nodes[node] is not None:
            await self.stop_node(node)

    def _turn(self, node: int) -> asyncio.Lock:
        if node not in range(len(self._nodes)):
            raise ConfigError(f"node {node!r}; there are 0 to {len(self._nodes) - 1}")
        return self._turns[node]

    def _running_node(self, node: int) -> Nsqd:
        nsqd = self._nodes[node]
        if nsqd is None:
            raise ConfigError(f"node {node} is not running")
        return nsqd

    def _running(self) -> list[Nsqd]:
        return [node for node in self._nodes if node is not None]


def _options(node: int, data_path: str | Path | None, given: dict[str, Any]) -> NsqdOptions:
    values: dict[str, Any] = dict.fromkeys(_DOORS, _ANY_PORT) | {"node_id": node} | given
    if data_path is not None:
        folder = Path(data_path) / f"nsqd-{node}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"data_path {str(data_path)!r}: {error}") from None
        values["data_path"] = str(folder)
    if given.get("lookupd_tcp_address"):
        raise ConfigError("lookupd_tcp_address; a Broker has an nsqlookupd of its own")
    for door in ("tcp_address", "http_address"):
        # nsqlookupd takes no nsqd without both ports.
        if not isinstance(parse_listen_address(door, values[door]), TcpAddress):
            raise ConfigError(f"{door} {values[door]!r}; a Broker needs host:port here")
    try:
        return NsqdOptions(**values)
    except TypeError as error:
        raise ConfigError(f"nsqd options: {error}") from None
