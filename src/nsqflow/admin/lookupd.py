"""One nsqlookupd, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from nsqflow.admin.daemon import Daemon, channel_query, topic_query
from nsqflow.client.poller import list_nodes, lookup_topic
from nsqflow.errors import ConfigError
from nsqflow.http.client import NOTHING
from nsqflow.protocol.lookup import LookupAnswer, Node


class Lookupd(Daemon):
    """The HTTP API of one nsqlookupd (port 4161, unless it was told otherwise).

    What it creates and deletes is known to this nsqlookupd alone; no nsqd hears of it.
    """

    async def topics(self) -> tuple[str, ...]:
        """The topics it knows."""
        return await self._names("/topics", "topics")

    async def channels(self, topic: str) -> tuple[str, ...]:
        """The channels of a topic; none if it does not know the topic."""
        return await self._names("/channels", "channels", topic_query(topic))

    async def nodes(self) -> tuple[Node, ...]:
        """The nsqd it knows; ``DiscoveryError`` if its answer can't be read."""
        return (await list_nodes(self._http, self._address)).producers

    async def lookup(self, topic: str) -> LookupAnswer:
        """Where a topic is; empty if nowhere, ``DiscoveryError`` if the answer can't be read."""
        return await lookup_topic(self._http, self._address, topic)

    async def create_topic(self, topic: str) -> None:
        """Make a topic known before any nsqd has it."""
        await self._call("POST", "/topic/create", topic_query(topic))

    async def delete_topic(self, topic: str) -> None:
        """Forget a topic and its channels."""
        await self._call("POST", "/topic/delete", topic_query(topic))

    async def create_channel(self, topic: str, channel: str) -> None:
        """Make a channel known: each nsqd creates it when it creates the topic."""
        await self._call("POST", "/channel/create", channel_query(topic, channel))

    async def delete_channel(self, topic: str, channel: str) -> None:
        """Forget a channel."""
        await self._call("POST", "/channel/delete", channel_query(topic, channel))

    async def tombstone(self, topic: str, node: Node | str) -> None:
        """Hide one nsqd from those who look the topic up, for some 45 s.

        Delete the topic there meanwhile, and nobody creates it again by connecting. ``node``
        as text is ``broadcast_address:http_port``.
        """
        query = topic_query(topic) | {"node": _node_name(node)}
        await self._call("POST", "/topic/tombstone", query)

    async def _names(
        self, path: str, key: str, query: Mapping[str, str] = NOTHING
    ) -> tuple[str, ...]:
        names = (await self._object(path, query)).get(key) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self._useless(path, f"{key} is not a list of names")
        return tuple(names)


def _node_name(node: Node | str) -> str:
    if isinstance(node, Node):
        # Without the brackets of an IPv6 address: nsqlookupd compares the text, and has none.
        return f"{node.broadcast_address}:{node.http_port}"
    host, _, port = node.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"node {node!r}; allowed is broadcast_address:http_port")
    return node
