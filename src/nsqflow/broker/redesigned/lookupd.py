"""An nsqlookupd of a redesigned cluster: lookups over HTTP, and on the leading one changes.

It has no port for nodes: they are in the same process.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nsqflow.broker.daemon import Daemon
from nsqflow.broker.http_api import ApiError, ApiRouter, Query, Route, negotiated, plain_text
from nsqflow.broker.options import LookupdOptions
from nsqflow.broker.redesigned.engine.cluster import ClusterRefusal, ClusterTopic
from nsqflow.broker.redesigned.engine.partition import Partition
from nsqflow.broker.version import REDESIGNED_VERSION
from nsqflow.http.server import Request
from nsqflow.protocol import TopicMeta

if TYPE_CHECKING:
    from nsqflow.broker.redesigned.cluster import PartitionedCluster

logger = logging.getLogger("nsqflow.broker.lookupd")

_MAX_CONNECTIONS = 500
_MAX_BODY = 64 * 1024  # of an HTTP request; none is expected
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_NOT_LEADER = "Not nsqlookup leader"
_NO_CHANNEL = "Topic has no channel, should init at least one for the new topic"
_MAX_PARTITIONS = 255
_MAX_REPLICAS = 5


class ClusterLookupd(Daemon[LookupdOptions]):
    """One nsqlookupd; ``number`` is its number in the cluster."""

    def __init__(self, options: LookupdOptions, number: int, cluster: PartitionedCluster) -> None:
        super().__init__(options, logger)
        self.number = number
        self._cluster = cluster

    async def start(self) -> None:
        """Listen; raise ``OSError`` on failure."""
        api = ClusterLookupdApi(self._cluster, self.number)
        try:
            await self._serve_http(
                *("HTTP", self.options.http_address),
                ApiRouter(api.table(), logger, quiet=("/lookup", "/listlookup")),
                body_limit=lambda method, path: _MAX_BODY,
                max_connections=_MAX_CONNECTIONS,
            )
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the listener and connections; wait until all are closed."""
        self._close_listeners()
        await self._close_http()


class ClusterLookupdApi:
    """The HTTP API of one nsqlookupd of a cluster."""

    def __init__(self, cluster: PartitionedCluster, number: int) -> None:
        self._cluster = cluster
        self._number = number

    def table(self) -> dict[tuple[str, str], Route]:
        """Return the routes by method and path."""
        return {
            ("GET", "/ping"): lambda request: plain_text("OK"),
            ("GET", "/info"): negotiated(self._info),
            ("GET", "/lookup"): negotiated(self._lookup),
            ("GET", "/listlookup"): negotiated(self._list_lookupds),
            ("GET", "/topics"): negotiated(self._topics),
            ("GET", "/channels"): negotiated(self._channels),
            ("GET", "/nodes"): negotiated(self._nodes),
            ("GET", "/cluster/stats"): self._cluster_stats,
            ("POST", "/topic/create"): self._create_topic,
            ("PUT", "/topic/create"): self._create_topic,
            ("POST", "/topic/delete"): self._delete_topic,
            ("POST", "/topic/partition/move"): self._move_partition,
            ("POST", "/channel/create"): self._create_channel,
            ("POST", "/channel/delete"): self._delete_channel,
        }

    # Lookups

    def _info(self, _: Request) -> dict[str, Any]:
        return {"version": REDESIGNED_VERSION, "ha_support": True}

    async def _lookup(self, request: Request) -> dict[str, Any]:
        query = Query(request.query)
        name = _required(query, "topic")
        number = query.get("partition") or ""
        access = query.get("access") or "r"
        if access not in ("r", "w"):
            raise ApiError(400, "INVALID_ACCESS_MODE")
        topic = self._cluster.engine.topics.get(name)
        if topic is None and access == "w":
            raise ApiError(404, "Key not found")
        wanted = [] if topic is None else _select(topic.partitions, number)
        if topic is not None and access == "w":
            leaders = await self._writable(topic, wanted)
        else:
            leaders = _readable(topic, wanted)
        answer: dict[str, Any] = {"channels": _channels_of(wanted)}
        if query.get("metainfo"):
            answer["meta"] = _meta(topic.meta if topic else TopicMeta())
        nodes = {each: self._cluster.node_info(each, self._number) for each in leaders.values()}
        partitions = {str(each): nodes[leader] for each, leader in leaders.items()}
        return answer | {"partitions": partitions, "producers": [*nodes.values()]}

    async def _writable(self, topic: ClusterTopic, wanted: Iterable[Partition]) -> dict[int, int]:
        """Return the nodes that take publishes, by partition."""
        leads = self._cluster.election.leads(self._number)
        known = {
            each: each.leader
            for each in wanted
            if each.leader is not None and (each.writable if topic.ready else not leads)
        }
        if leads and not known and self._cluster.options.lookup_delay:
            await asyncio.sleep(self._cluster.options.lookup_delay)
        if not self._cluster.options.allow_write_without_channels:
            with_channel = {each: leader for each, leader in known.items() if each.channels}
            if known and not with_channel:
                raise ApiError(404, _NO_CHANNEL)
            known = with_channel
        return {each.number: leader for each, leader in known.items()}

    def _list_lookupds(self, _: Request) -> dict[str, Any]:
        election = self._cluster.election
        leader = _EMPTY if election.leader is None else self._member(election.leader)
        return {
            "lookupdleader": leader,
            "lookupdnodes": [self._member(each) for each in election.listed],
        }

    def _member(self, number: int) -> dict[str, Any]:
        host, port = self._cluster.lookupd_host_and_port(number)
        return {
            # Real servers have the port of their RPC where the port of HTTP is here.
            "ID": f"{host}:{port}:0:nsqlookup",
            "NodeIP": host,
            "TcpPort": "0",  # the nodes are in the same process
            "HttpPort": str(port),
            "RpcPort": "0",
            "Epoch": 0,
        }

    def _topics(self, request: Request) -> dict[str, Any]:
        known = [each for each in self._cluster.engine.topics.values() if each.ready]
        answer: dict[str, Any] = {"topics": [each.name for each in known]}
        if Query(request.query).get("metaInfo") == "true":
            answer["meta_info"] = [
                {
                    "topic_name": each.name,
                    "extend_support": each.meta.extend_support,
                    "ordered": each.meta.ordered,
                    "multi_part": each.meta.multi_part,
                    "disable_channel_auto_create": each.meta.disable_channel_auto_create,
                    "registered_channels": None,
                }
                for each in known
            ]
        return answer

    def _channels(self, request: Request) -> dict[str, Any]:
        query = Query(request.query)
        topic = self._cluster.engine.topics.get(_required(query, "topic"))
        wanted = _select(topic.partitions, query.get("partition") or "") if topic else []
        return {"channels": _channels_of(wanted)}

    def _nodes(self, _: Request) -> dict[str, Any]:
        producers = []
        for number in self._cluster.running_nodes():
            led = [
                each
                for each in self._cluster.engine.partitions()
                if each.leader == number and each.writable
            ]
            topics = list(dict.fromkeys(each.topic for each in led))
            info = self._cluster.node_info(number, self._number)
            del info["id"], info["distributed_id"]
            producers.append(
                info
                | {
                    "tombstones": [False] * len(topics),
                    "topics": topics,
                    "partitions": {
                        topic: [str(each.number) for each in led if each.topic == topic]
                        for topic in topics
                    },
                }
            )
        return {"producers": producers}

    def _cluster_stats(self, _: Request) -> dict[str, Any]:
        self._check_leads("E_FAILED_ON_NOT_LEADER")
        names = ("hostname", "broadcast_address", "tcp_port", "http_port")
        infos = [
            self._cluster.node_info(each, self._number) for each in self._cluster.running_nodes()
        ]
        return {
            "stable": self._cluster.stable,
            "node_stat_list": [
                {name: info[name] for name in names}
                | {"leader_load_factor": 0, "node_load_factor": 0}
                for info in infos
            ],
            "topn_topics": [],
        }

    # Changes

    def _create_topic(self, request: Request) -> None:
        query = Query(request.query)
        name = query.topic() if _required(query, "topic") else ""
        meta = TopicMeta(
            partition_num=_number(query, "partition_num", "PARTITION_NUM", _MAX_PARTITIONS),
            replica=_number(query, "replicator", "REPLICATOR", _MAX_REPLICAS),
            ordered=query.get("orderedmulti") == "true",
            multi_part=query.get("multipart") == "true",
            extend_support=query.get("extend") == "true",
            disable_channel_auto_create=query.get("disable_channel_auto_create") == "true",
        )
        _check_integer(query, "suggestload", "INVALID_ARG_TOPIC_LOAD_FACTOR")
        _check_integer(query, "syncdisk", "INVALID_ARG_TOPIC_SYNC_DISK")
        _check_integer(query, "retention", "INVALID_ARG_TOPIC_RETENTION")
        self._check_leads("E_FAILED_ON_NOT_LEADER")
        try:
            self._cluster.create_topic(name, meta)
        except ClusterRefusal as refusal:
            raise ApiError(400, str(refusal)) from None

    def _delete_topic(self, request: Request) -> None:
        query = Query(request.query)
        name = _required(query, "topic")
        partition = query.get("partition")
        if not partition:
            raise ApiError(400, "MISSING_ARG_TOPIC_PARTITION")
        if partition != "**":
            raise ApiError(400, "REMOVE_SINGLE_PARTITION_NOT_ALLOWED")
        self._check_leads(_NOT_LEADER, 500)
        try:
            self._cluster.delete_topic(name)
        except ClusterRefusal as refusal:
            raise ApiError(500, str(refusal)) from None

    async def _move_partition(self, request: Request) -> None:
        query = Query(request.query)
        name = _required(query, "topic")
        text = query.get("partition") or ""
        if not text:
            raise ApiError(400, "MISSING_ARG_TOPIC_PARTITION")
        if not _INTEGER.fullmatch(text) or int(text) < 0:
            raise ApiError(400, "INVALID_ARG_TOPIC_PARTITION_NUM")
        self._check_leads(_NOT_LEADER)
        topic = self._cluster.engine.topics.get(name)
        if topic is None or int(text) >= len(topic.partitions):
            raise ApiError(400, "Key not found")
        partition = topic.partitions[int(text)]
        nodes = {
            self._cluster.node_info(each, self._number)["distributed_id"]: each
            for each in self._cluster.running_nodes()
        }
        target = nodes.get(query.get("move_to") or "")
        if target is None or query.get("move_leader") != "true":
            raise ApiError(400, "the target node is invalid")
        if nodes.get(query.get("move_from") or "") != partition.leader:
            raise ApiError(400, "the moved node is not the leader")
        if not self._cluster.stable:
            raise ApiError(400, "the cluster is unstable")
        await self._cluster.move_leader(partition, target)

    def _create_channel(self, request: Request) -> None:
        topic, channel = self._topic_and_channel(request)
        if not topic.meta.disable_channel_auto_create:
            raise ApiError(400, f"channel auto create NOT disabled in topic {topic.name}")
        if channel in topic.registered_channels:
            raise ApiError(400, f"channel {channel} already registered")
        self._check_leads(_NOT_LEADER)
        self._cluster.engine.register_channel(topic, channel)

    def _delete_channel(self, request: Request) -> None:
        topic, channel = self._topic_and_channel(request)
        if not topic.meta.disable_channel_auto_create:
            return  # nsqlookupd says that it succeeded
        if channel not in topic.registered_channels:
            raise ApiError(400, f"channel {channel} not registered")
        self._check_leads(_NOT_LEADER)
        self._cluster.engine.unregister_channel(topic, channel)

    def _topic_and_channel(self, request: Request) -> tuple[ClusterTopic, str]:
        name, channel = Query(request.query).topic_and_channel()
        topic = self._cluster.engine.topics.get(name)
        if topic is None:
            raise ApiError(400, "Key not found")
        return topic, channel

    def _check_leads(self, message: str, status: int = 400) -> None:
        if not self._cluster.election.leads(self._number):
            raise ApiError(status, message)


_EMPTY = {"ID": "", "NodeIP": "", "TcpPort": "", "HttpPort": "", "RpcPort": "", "Epoch": 0}


def _required(query: Query, name: str) -> str:
    value = query.get(name)
    if not value:
        raise ApiError(400, f"MISSING_ARG_{name.upper()}")
    return value


def _select(partitions: Iterable[Partition], number: str) -> list[Partition]:
    return [each for each in partitions if number in ("", "*", str(each.number))]


def _readable(topic: ClusterTopic | None, wanted: Iterable[Partition]) -> dict[int, int]:
    """Return the nodes that deliver messages, by partition."""
    if topic is None or not topic.ready:
        return {}
    return {each.number: each.leader for each in wanted if each.leader is not None and each.named}


def _channels_of(partitions: Iterable[Partition]) -> list[str]:
    return [*dict.fromkeys(name for each in partitions for name in each.channels)]


def _meta(meta: TopicMeta) -> dict[str, Any]:
    return {
        "disable_channel_auto_create": meta.disable_channel_auto_create,
        "extend_support": meta.extend_support,
        "multi_part": meta.multi_part,
        "ordered": meta.ordered,
        "partition_num": meta.partition_num,
        "replica": meta.replica,
    }


def _number(query: Query, name: str, of: str, maximum: int) -> int:
    text = query.get(name)
    if not text:
        raise ApiError(400, f"MISSING_ARG_TOPIC_{of}")
    if not _INTEGER.fullmatch(text) or not 1 <= int(text) <= maximum:
        raise ApiError(400, f"INVALID_ARG_TOPIC_{of}")
    return int(text)


def _check_integer(query: Query, name: str, message: str) -> None:
    if (text := query.get(name)) and not _INTEGER.fullmatch(text):
        raise ApiError(400, message)
