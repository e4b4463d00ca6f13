"""One nsqlookupd, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from nsqflow.admin.http_api import HttpApi, name_query
from nsqflow.client.lookup_poller import list_lookupds, list_nodes, lookup_topic
from nsqflow.errors import ConfigError
from nsqflow.http.client import EMPTY
from nsqflow.protocol.lookup import LookupAnswer, LookupdNode, Node


class Lookupd(HttpApi):
    """The HTTP API of one nsqlookupd (port 4161 by default).

    Creating and deleting affect this nsqlookupd only; no nsqd is notified.
    """

    async def topics(self) -> tuple[str, ...]:
        """Return the topics it knows."""
        return await self._names("/topics", "topics")

    async def channels(self, topic: str) -> tuple[str, ...]:
        """Return the channels of a topic; none if the topic is unknown."""
        return await self._names("/channels", "channels", name_query(topic))

    async def nodes(self) -> tuple[Node, ...]:
        """Return the nsqd it knows; raise ``DiscoveryError`` if the answer is invalid."""
        return (await list_nodes(self._http, self._address)).producers

    async def lookup(self, topic: str, access: str = "r") -> LookupAnswer:
        """Return the nsqd of a topic; raise ``DiscoveryError`` if the answer is invalid.

        On the redesigned NSQ ``access`` is what they are for: to read from (r) or to write to (w).
        """
        return await lookup_topic(self._http, self._address, topic, access)

    async def members(self) -> tuple[LookupdNode, ...] | None:
        """Return all nsqlookupd of a redesigned cluster; None if this one is classic."""
        return await list_lookupds(self._http, self._address)

    async def tombstone(self, topic: str, node: Node | str) -> None:
        """Hide one nsqd from lookups of the topic, for about 45 s.

        Delete the topic there meanwhile, so that no consumer recreates it. ``node``
        as text is ``broadcast_address:http_port``.
        """
        query = name_query(topic) | {"node": _node_name(node)}
        await self._call("POST", "/topic/tombstone", query)

    async def _names(
        self, path: str, key: str, query: Mapping[str, str] = EMPTY
    ) -> tuple[str, ...]:
        names = (await self._object(path, query)).get(key) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self._useless(path, f"{key} is not a list of names")
        return tuple(names)


def _node_name(node: Node | str) -> str:
    if isinstance(node, Node):
        # Without the brackets of an IPv6 address: nsqlookupd compares the text without them.
        return f"{node.broadcast_address}:{node.http_port}"
    host, _, port = node.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"node={node!r} is invalid: must be broadcast_address:http_port")
    return node
