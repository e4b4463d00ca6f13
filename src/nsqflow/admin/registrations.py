"""Finds the nsqlookupd that some nsqd report to.

When a topic is deleted on nsqd, nsqd unregisters from its nsqlookupd, but these keep the topic's
name. nsqd knows only their TCP addresses; their HTTP API is expected at the next port, the default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from nsqflow.address import (
    TcpAddress,
    default_http_address,
    join_address,
    parse_address,
    parse_http_address,
)
from nsqflow.admin.cluster import Cluster, NsqdNode
from nsqflow.errors import ConfigError, NsqError
from nsqflow.loopback import resolves_to_loopback

_OPTION = "nsqlookupd_tcp_addresses"
_MAX_LOOKUPDS = 16


@dataclass(frozen=True, slots=True)
class ReportedLookupd:
    """An nsqlookupd as an nsqd names it."""

    tcp_address: str
    http_address: str
    """Where its HTTP API should be."""


@dataclass(frozen=True, slots=True)
class Registrations:
    """Some nsqd, and the nsqlookupd that they report to."""

    nsqds: frozenset[str] = frozenset()
    """The addresses under which nsqlookupd knows the nsqd."""
    lookupds: tuple[ReportedLookupd, ...] = ()


async def find_registrations(cluster: Cluster, nodes: Iterable[NsqdNode]) -> Registrations:
    """Ask each nsqd for its nsqlookupd; one that does not report them is assumed to have none."""
    nsqds, lookupds = set[str](), dict[ReportedLookupd, None]()

    async def ask(node: NsqdNode) -> None:
        try:
            info = await node.http.info()
            addresses = await node.http.config(_OPTION)
        except NsqError:  # an older nsqd has no such option
            return
        host, port = info.get("broadcast_address"), info.get("tcp_port")
        if isinstance(host, str) and isinstance(port, int):
            nsqds.add(join_address(host, port))
        for address in addresses if isinstance(addresses, list) else ():
            # A hostile nsqd must not make us scan other hosts.
            if len(lookupds) >= _MAX_LOOKUPDS:
                break
            if found := await find_lookupd(cluster, node, address):
                lookupds[found] = None

    await cluster.for_each(nodes, ask)
    return Registrations(frozenset(nsqds), tuple(lookupds))


async def find_lookupd(cluster: Cluster, node: NsqdNode, address: object) -> ReportedLookupd | None:
    """Return the nsqlookupd that an nsqd names; None if ``address`` is not usable."""
    if not isinstance(address, str):
        return None
    try:
        parsed, http = parse_address(address), default_http_address(address)
    except ConfigError:
        return None
    if not isinstance(parsed, TcpAddress) or http is None:
        return None
    host = parsed.host
    # (0.0.0.0 has many spellings; some of them resolve to loopback.)
    if host in ("0.0.0.0", "::") or await asyncio.to_thread(resolves_to_loopback, host):
        # This means the machine of the nsqd, which may not be ours.
        http = join_address(parse_http_address(node.http.address).host, parsed.port + 1)
    return ReportedLookupd(address, cluster.map_address(http))
