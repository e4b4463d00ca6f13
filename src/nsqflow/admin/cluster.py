"""All servers of a cluster: asks every nsqlookupd and nsqd at once, and merges the answers.

A server that fails is skipped; its error is kept in ``Cluster.errors``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from nsqflow.address import AddressMap, default_http_address, join_address, map_address
from nsqflow.admin.lookupd import Lookupd
from nsqflow.admin.nsqd import Nsqd
from nsqflow.admin.stats import NsqdStats
from nsqflow.client.discovery import merge
from nsqflow.errors import ConfigError, DiscoveryError, NsqError
from nsqflow.protocol.lookup import LookupAnswer, Node

S = TypeVar("S")
T = TypeVar("T")

_MAX_CONCURRENT = 32  # requests; a cluster may have hundreds of nsqd


@dataclass(frozen=True, slots=True)
class NsqdNode:
    """One nsqd of a cluster."""

    address: str
    """Its TCP address."""
    http: Nsqd
    registration: Node | None = None
    """Its entry at nsqlookupd; None if it was named directly."""


class Cluster:
    """The servers that some nsqlookupd know, or some nsqd without nsqlookupd.

    ``lookupd`` and ``nsqd_http`` are HTTP addresses, ``nsqd`` TCP addresses; without
    ``nsqd_http``, the HTTP API of an nsqd is expected at the port after its TCP port. ``tls`` is
    used where an address is https. ``address_map`` translates the addresses that nsqlookupd
    reports. ``timeout`` bounds each request, in seconds.

        cluster = Cluster(lookupd=["127.0.0.1:4161"])
        for node, stats in await cluster.stats("orders"):
            print(node.address, sum(topic.depth for topic in stats.topics))
        for error in cluster.errors:
            print("incomplete:", error)

    Every method asks all servers concurrently. If at least one answers, the errors of the others
    are appended to ``errors``; if none does, ``DiscoveryError`` is raised.
    """

    def __init__(
        self,
        *,
        lookupd: Sequence[str] = (),
        nsqd: Sequence[str] = (),
        nsqd_http: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        address_map: AddressMap | None = None,
        timeout: float = 5.0,
    ) -> None:
        self.errors: list[NsqError] = []
        """Why results may be incomplete, in the order in which the errors occurred."""
        self.lookupds = [Lookupd(address, tls=tls, timeout=timeout) for address in lookupd]
        self._nsqd = nsqd
        self._nsqd_http = nsqd_http
        self._tls = tls
        self._address_map = address_map
        self._timeout = timeout

    async def nodes(self) -> list[NsqdNode]:
        """Return all nsqd that have an HTTP API."""
        if not self.lookupds:
            http_addresses = self._nsqd_http or map(_http_address, self._nsqd)
            return [self._node(*both) for both in zip(self._nsqd, http_addresses, strict=True)]
        nodes = []
        for node in await self.registered_nodes():
            if node.http_port:
                nodes.append(self.node_of(node))
            else:
                self.errors.append(ConfigError(f"nsqd {node.address} has no HTTP API"))
        return nodes

    def node_of(self, registration: Node) -> NsqdNode:
        """Return the nsqd of an entry at nsqlookupd, which names its HTTP port."""
        http = join_address(registration.broadcast_address, registration.http_port)
        return self._node(registration.address, self.map_address(http), registration)

    async def registered_nodes(self) -> list[Node]:
        """Return every nsqd that is registered with nsqlookupd, sorted by TCP address."""
        answers = await self.ask(self.lookupds, Lookupd.nodes)
        nodes = {node.address: node for _, known in answers for node in known}
        return [node for _, node in sorted(nodes.items())]

    async def lookup(self, topics: Sequence[str]) -> dict[str, LookupAnswer]:
        """Return for each topic its nsqd and channels, as registered with nsqlookupd."""

        async def ask(lookupd: Lookupd) -> list[LookupAnswer]:
            turns = asyncio.Semaphore(_MAX_CONCURRENT)

            async def one(topic: str) -> LookupAnswer:
                async with turns:
                    return await lookupd.lookup(topic)

            return [*await asyncio.gather(*map(one, topics))]

        answers = await self.ask(self.lookupds, ask)
        merged = map(merge, zip(*(known for _, known in answers), strict=True))
        return dict(zip(topics, merged, strict=True))

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        if self.lookupds:
            answers = await self.ask(self.lookupds, Lookupd.topics)
            return sorted({name for _, names in answers for name in names})
        return sorted({topic.name for _, stats in await self.stats() for topic in stats.topics})

    async def channels(self, topic: str) -> list[str]:
        """Return the names of a topic's channels, sorted; none if there is no such topic."""
        if self.lookupds:
            answers = await self.ask(self.lookupds, lambda lookupd: lookupd.channels(topic))
            return sorted({name for _, names in answers for name in names})
        found = await self.stats(topic)
        return sorted({c.name for _, stats in found for t in stats.topics for c in t.channels})

    async def stats(
        self, topic: str | None = None, *, include_clients: bool = False
    ) -> list[tuple[NsqdNode, NsqdStats]]:
        """Return the statistics of each nsqd, for one topic or for all.

        An nsqd of the redesigned NSQ counts bytes instead of messages, and every replica of a
        topic; ``NsqdStats.version`` says which one it is.
        """

        async def ask(node: NsqdNode) -> NsqdStats:
            return await node.http.stats(topic, include_clients=include_clients)

        return await self.ask(await self.nodes(), ask)

    async def register(self, topics: Sequence[str], channels: Sequence[str]) -> None:
        """Create channels on every nsqlookupd, for topics that no nsqd has.

        The nsqd that gets a topic's first message asks nsqlookupd for the channels, and creates
        them before it delivers the message.
        """

        async def create(lookupd: Lookupd) -> None:
            for topic, channel in product(topics, channels):
                await lookupd.create_channel(topic, channel)

        await self.ask(self.lookupds, create)

    async def for_each(
        self, servers: Iterable[S], call: Callable[[S], Awaitable[T]]
    ) -> list[tuple[S, T]]:
        """Call a coroutine function for each server; return those that succeeded, with results."""
        turns = asyncio.Semaphore(_MAX_CONCURRENT)

        async def one(server: S) -> tuple[S, T] | NsqError:
            async with turns:
                try:
                    return server, await call(server)
                except NsqError as error:
                    return self.explain(error)

        answers = await asyncio.gather(*map(one, servers))
        self.errors += [answer for answer in answers if isinstance(answer, NsqError)]
        return [answer for answer in answers if not isinstance(answer, NsqError)]

    async def ask(
        self, servers: Sequence[S], call: Callable[[S], Awaitable[T]]
    ) -> list[tuple[S, T]]:
        """Do the same as ``for_each``, but raise ``DiscoveryError`` if no server succeeds."""
        answers = await self.for_each(servers, call)
        if servers and not answers:
            raise self.no_answer()
        return answers

    def no_answer(self) -> NsqError:
        """Return the error to raise if no server has answered; it replaces all ``errors``."""
        error = DiscoveryError(f"no server is reachable: {'; '.join(map(str, self.errors))}")
        error.__cause__ = self.errors[-1]
        self.errors.clear()
        return error

    def explain(self, error: NsqError) -> NsqError:
        """Return the error to record for a server's failure; a subclass may add to it."""
        return error

    def map_address(self, address: str) -> str:
        """Return the address to connect to for one that a server has reported."""
        return map_address(address, self._address_map)

    def lookupd_at(self, address: str) -> Lookupd:
        """Return an nsqlookupd that is not part of the cluster, with the same timeout."""
        return Lookupd(address, timeout=self._timeout)

    def _node(self, address: str, http: str, registration: Node | None = None) -> NsqdNode:
        nsqd = Nsqd(http, tls=self._tls, timeout=self._timeout)
        return NsqdNode(address, nsqd, registration)


def _http_address(nsqd: str) -> str:
    if (address := default_http_address(nsqd)) is None:
        raise ConfigError(f"the HTTP address of nsqd {nsqd} is unknown: set nsqd_http")
    return address
