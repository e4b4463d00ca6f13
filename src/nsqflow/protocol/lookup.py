"""Parses nsqlookupd's answers over HTTP: the nodes of a topic, and the leaders of its partitions.

An answer is the object itself (since 1.0), or it is inside ``{"status_code", "status_txt",
"data"}`` (before 1.0, and from a redesigned nsqlookupd that was not asked for version 1.0). Any
part may be null or missing. Some errors count as answers: an unknown topic has no nodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from reprlib import repr as shorten  # limits the depth too: a peer's JSON may be deeply nested
from typing import Any, TypeVar

from nsqflow.address import join_address
from nsqflow.errors import DiscoveryError
from nsqflow.protocol.dialect import Dialect

T = TypeVar("T")

ACCEPT_V1 = "application/vnd.nsq; version=1.0"
"""The Accept header that makes a redesigned nsqlookupd answer with proper status codes."""

# "Key not found" comes from the redesigned one, with status 500 in its old envelope.
_NOT_FOUND = ("TOPIC_NOT_FOUND", "Key not found")
_LACKS_CHANNEL = "Topic has no channel"
_NO_CHANNEL: dict[str, Any] = {}  # stands for that answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One nsqd."""

    broadcast_address: str
    tcp_port: int
    http_port: int = 0
    hostname: str = ""
    version: str = ""
    distributed_id: str = ""
    """Redesigned: its name within the cluster."""

    @property
    def address(self) -> str:
        """``host:port``: the address to connect to, which identifies a node.

        (Its ``id`` and ``remote_address`` differ between nsqlookupd.)
        """
        return join_address(self.broadcast_address, self.tcp_port)

    @property
    def http_address(self) -> str:
        """``host:port`` of its HTTP API."""
        return join_address(self.broadcast_address, self.http_port)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMeta:
    """The settings of a topic of the redesigned NSQ."""

    partition_num: int = 0
    replica: int = 0
    ordered: bool = False
    extend_support: bool = False
    multi_part: bool = False
    disable_channel_auto_create: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupAnswer:
    """Where a topic is."""

    producers: tuple[Node, ...] = ()
    channels: tuple[str, ...] = ()
    partitions: Mapping[int, Node] = field(default_factory=dict)
    """Redesigned: the leader of each partition that currently has one."""
    meta: TopicMeta | None = None
    lacks_channel: bool = False
    """Redesigned: nsqlookupd lists no node for publishing, because the topic has no channel."""

    @property
    def dialect(self) -> Dialect | None:
        """The dialect of the topic's nodes; None: unknown, ask again later."""
        if self.partitions or self.lacks_channel:
            return Dialect.REDESIGNED
        return Dialect.CLASSIC if self.producers else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupdNode:
    """One redesigned nsqlookupd."""

    address: str
    """``host:port`` of its HTTP API."""
    leader: bool = False


def parse_lookup(status: int, body: bytes) -> LookupAnswer:
    """Parse the answer to ``/lookup`` or ``/nodes``; raise ``DiscoveryError`` if it is invalid."""
    data = _data(status, body)
    nodes: dict[str, Any] = _expect(data.get("partitions") or {}, dict, "partitions")
    return LookupAnswer(
        producers=tuple(map(_node, _list(data, "producers"))),
        channels=tuple(_expect(name, str, "a channel") for name in _list(data, "channels")),
        partitions={_number(number, "partition"): _node(node) for number, node in nodes.items()},
        meta=_meta(data["meta"]) if data.get("meta") else None,
        lacks_channel=data is _NO_CHANNEL,
    )


def parse_listlookup(status: int, body: bytes) -> tuple[LookupdNode, ...] | None:
    """Parse the answer to ``/listlookup``: all nsqlookupd of the cluster.

    None: a classic nsqlookupd, which has no such path. Empty: it runs without a cluster.
    """
    if status == 404:
        return None
    if status == 200 and not body.strip():
        return ()
    data = _data(status, body)
    leader = data.get("lookupdleader") or {}
    # Before the election, the leader is an object with empty values.
    leads = _lookupd(leader) if _text(_expect(leader, dict, "lookupdleader"), "NodeIP") else ""
    addresses = map(_lookupd, _list(data, "lookupdnodes"))
    return tuple(LookupdNode(address=each, leader=each == leads) for each in addresses)


def _data(status: int, body: bytes) -> dict[str, Any]:
    """Return the answer, without its envelope if it has one."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise DiscoveryError(f"status {status}, not JSON: {body[:100]!r}") from None
    answer = _expect(answer, dict, "the answer")
    text = _text(answer, "status_txt") or _text(answer, "message")
    if status != 200 or answer.get("status_code", 200) != 200:
        if text in _NOT_FOUND:
            return {}
        if text.startswith(_LACKS_CHANNEL):
            return _NO_CHANNEL
        raise DiscoveryError(f"status {status}: {text[:200] or body[:100]!r}")
    if "status_code" in answer:
        return _expect(answer.get("data") or {}, dict, "data")
    return answer


def _node(value: Any) -> Node:
    _expect(value, dict, "a node")
    host = _text(value, "broadcast_address")
    if not host:
        raise DiscoveryError(f"a node without broadcast_address: {shorten(value)}")
    return Node(
        broadcast_address=host,
        tcp_port=_number(value.get("tcp_port"), "tcp_port", 1),
        http_port=_number(value.get("http_port") or 0, "http_port"),
        hostname=_text(value, "hostname"),
        version=_text(value, "version"),
        distributed_id=_text(value, "distributed_id"),
    )


def _meta(value: Any) -> TopicMeta:
    _expect(value, dict, "meta")
    flags = ("ordered", "extend_support", "multi_part", "disable_channel_auto_create")
    return TopicMeta(
        partition_num=_number(value.get("partition_num") or 0, "partition_num"),
        replica=_number(value.get("replica") or 0, "replica"),
        **{name: _expect(value.get(name) or False, bool, name) for name in flags},
    )


def _lookupd(value: Any) -> str:
    _expect(value, dict, "an nsqlookupd")
    host = _text(value, "NodeIP")
    if not host:
        raise DiscoveryError(f"an nsqlookupd without NodeIP: {shorten(value)}")
    return join_address(host, _number(value.get("HttpPort"), "HttpPort", 1))


def _list(data: dict[str, Any], name: str) -> list[Any]:
    return _expect(data.get(name) or [], list, name)


def _text(data: dict[str, Any], name: str) -> str:
    text = _expect(data.get(name) or "", str, name)
    if not text.isprintable():  # a lone surrogate is not encodable: no socket accepts it
        raise DiscoveryError(f"{name} is {shorten(text)}; expected text")
    return text


def _number(value: Any, what: str, minimum: int = 0) -> int:
    """Return a port or another small number; /listlookup writes ports as strings."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 6:
        value = int(value)
    if type(value) is not int or not minimum <= value <= 65535:
        raise DiscoveryError(
            f"{what} is {shorten(value)}; expected a number from {minimum} to 65535"
        )
    return value


def _expect(value: Any, kind: type[T], what: str) -> T:
    if type(value) is not kind:
        raise DiscoveryError(f"{what} is {shorten(value)}; expected {kind.__name__}")
    return value
