"""A classic NSQ in one process: nsqd that register with one nsqlookupd."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

from nsqflow.broker.engine.engine import Engine
from nsqflow.broker.lookupd.daemon import Nsqlookupd
from nsqflow.broker.nsqd.daemon import NsqdDaemon
from nsqflow.broker.nsqd.fault_injection import FaultInjector
from nsqflow.broker.nsqd.server import NsqdServer
from nsqflow.broker.options import LookupdOptions, NsqdOptions
from nsqflow.errors import ConfigError, LocalProtocolError, NetworkError

_TIMEOUT = 30.0  # seconds for an nsqd to register with nsqlookupd, which runs in the same loop
_ANY_PORT = "127.0.0.1:0"


class ClassicCluster:
    """One nsqlookupd and one or several nsqd."""

    def __init__(self, nsqd_options: Sequence[NsqdOptions], faults: FaultInjector) -> None:
        self._lookupd: Nsqlookupd | None = None  # while it runs
        self._nodes = [ClassicNode(i, each, faults) for i, each in enumerate(nsqd_options)]

    @property
    def running(self) -> bool:
        """Whether it was started."""
        return self._lookupd is not None

    @property
    def nsqd_addresses(self) -> list[str]:
        """The TCP addresses of all nsqd, after the start."""
        return [node.tcp_address for node in self._nodes if node.tcp_address]

    @property
    def nsqd_http_addresses(self) -> list[str]:
        """The HTTP addresses of all nsqd."""
        return [node.http_address for node in self._nodes if node.http_address]

    @property
    def lookupd_addresses(self) -> list[str]:
        """The HTTP address of nsqlookupd, while it runs."""
        return [self._lookupd.http_address] if self._lookupd else []

    def servers(self) -> list[NsqdServer]:
        """Return the nsqd that run."""
        return [*self._running()]

    async def start(self) -> None:
        """Start nsqlookupd, then all nsqd."""
        options = LookupdOptions(
            tcp_address=_ANY_PORT,
            http_address=_ANY_PORT,
            allowed_host=self._nodes[0].options.allowed_host,
        )
        self._lookupd = Nsqlookupd(options)
        await self._lookupd.start()
        for number in range(len(self._nodes)):
            await self.start_node(number)

    async def stop(self) -> None:
        """Stop everything that runs."""
        lookupd, self._lookupd = self._lookupd, None
        async with contextlib.AsyncExitStack() as stack:
            if lookupd is not None:
                stack.push_async_callback(lookupd.stop)
            for node in self._nodes:
                stack.push_async_callback(node.stop_if_running)

    async def start_node(self, number: int) -> None:
        """Start an nsqd; return when it is registered."""
        if self._lookupd is None:
            raise LocalProtocolError("the broker is not running: call start() first")
        await self._nodes[number].start(self._lookupd.tcp_address)

    async def stop_node(self, number: int) -> None:
        """Stop an nsqd as SIGTERM does."""
        await self._nodes[number].stop()

    async def kill_node(self, number: int) -> None:
        """End an nsqd as ``kill -9`` does."""
        await self._nodes[number].stop(kill=True)

    async def new_topic(self, name: str) -> None:
        """Create a topic on all nsqd that run."""
        for nsqd in self._running():
            nsqd.engine.topic(name, nsqd.now())
            nsqd.pump()
            await nsqd.stored()

    async def new_channel(self, topic: str, channel: str) -> None:
        """Create a channel, and its topic, on all nsqd that run."""
        for nsqd in self._running():
            now = nsqd.now()
            nsqd.engine.topic(topic, now).channel(channel, now)
            nsqd.pump()
            await nsqd.stored()

    def _running(self) -> list[NsqdDaemon]:
        return [node.nsqd for node in self._nodes if node.nsqd is not None]


class ClassicNode:
    """An nsqd, and while it is stopped what it continues with; one operation at a time."""

    def __init__(self, number: int, options: NsqdOptions, faults: FaultInjector) -> None:
        self.options = options
        self.nsqd: NsqdDaemon | None = None  # while it runs
        self.tcp_address = self.http_address = ""  # after the first start
        self._number = number
        self._faults = faults
        self._engine: Engine | None = None  # while it is stopped
        self._lock = asyncio.Lock()

    async def start(self, lookupd: str) -> None:
        """Start it; return when it is registered with nsqlookupd."""
        async with self._lock:
            if self.nsqd is not None:
                raise ConfigError(f"node {self._number} is running")
            options = replace(self.options, lookupd_tcp_address=(lookupd,))
            nsqd = NsqdDaemon(options, self._engine)
            nsqd.faults = self._faults
            await nsqd.start()
            self.nsqd = nsqd
            self.tcp_address, self.http_address = nsqd.tcp_address, nsqd.http_address
            self.options = replace(
                options, tcp_address=self.tcp_address, http_address=self.http_address
            )
            try:
                async with asyncio.timeout(_TIMEOUT):
                    await nsqd.lookup_peers.registered()
            except TimeoutError:
                raise NetworkError(
                    f"node {self._number} could not register with nsqlookupd within {_TIMEOUT:g} s"
                ) from None

    async def stop(self, *, kill: bool = False) -> None:
        """Stop it; with ``kill`` its messages in memory are lost."""
        async with self._lock:
            if (nsqd := self.nsqd) is None:
                raise ConfigError(f"node {self._number} is not running")
            if not nsqd.durable:
                self._engine = nsqd.engine.without_messages() if kill else nsqd.engine
            await (nsqd.kill() if kill else nsqd.stop())
            self.nsqd = None

    async def stop_if_running(self) -> None:
        """Stop it unless it is stopped."""
        async with self._lock:
            pass  # another task may be stopping it
        if self.nsqd is not None:
            await self.stop()
