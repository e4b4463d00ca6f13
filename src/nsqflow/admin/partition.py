"""One partition of the redesigned NSQ, over the HTTP API of the nsqd that leads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nsqflow.admin.http_api import HttpApi, name_query
from nsqflow.client.position import LATEST, Position
from nsqflow.errors import AdminError
from nsqflow.protocol.names import check_topic

_NOT_CREATED = 403  # the topic's channels are created by nsqlookupd alone
_EMPTY = "end of file"  # what nsqd says of a partition without messages
_REPLACED = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChannelStats:
    """One channel of a partition."""

    name: str
    depth: int
    """Messages from the oldest unfinished one to the end; delayed ones do not count."""
    depth_bytes: int
    depth_timestamp: int
    """When the message was published that nsqd has read last, in nanoseconds; 0: none."""
    in_flight_count: int
    deferred_count: int
    delayed_count: int
    """Messages that were requeued with a delay above 15 minutes."""
    delayed_until: int
    """When the first of them is delivered, in nanoseconds since 1970; 0 if there is none."""
    requeue_count: int
    timeout_count: int
    client_count: int
    paused: bool
    clients: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """As nsqd describes them; empty if not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStats:
    """One partition on one nsqd."""

    topic: str
    partition: int
    writable: bool
    """nsqd leads it, and takes publishes."""
    message_count: int
    """Messages that were ever published."""
    start: int
    """The offset of the oldest byte that is kept."""
    end: int
    """The offset of the next message."""
    channels: tuple[PartitionChannelStats, ...]

    def channel(self, name: str) -> PartitionChannelStats | None:
        """Return a channel; None if there is none of this name."""
        return next((each for each in self.channels if each.name == name), None)


@dataclass(frozen=True, slots=True)
class ChannelPosition:
    """Where a channel is in its partition, in bytes."""

    cursor: int
    """Everything before it is finished."""
    end: int
    """Where the next message will begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowsedMessage:
    """A message that was read without consuming it."""

    partition: int
    internal_id: int
    trace_id: int
    timestamp: int
    """When nsqd received it, in nanoseconds since 1970."""
    offset: int
    number: int
    """Its place in the partition, counted from 1."""
    body: str
    """nsqd returns it as text: what is not UTF-8 is replaced."""
    headers: Mapping[str, Any] | None

    @property
    def damaged(self) -> bool:
        """Whether nsqd may have replaced bytes of the body that are not UTF-8."""
        return _REPLACED in self.body


class PartitionApi(HttpApi):
    """The HTTP API of the nsqd that leads a partition."""

    async def create_partition_channel(self, topic: str, partition: int, channel: str) -> None:
        """Create a channel at the end of the partition, unless it exists.

        A topic whose channels nsqlookupd creates is left as it is.
        """
        try:
            await self._change("create", topic, partition, channel)
        except AdminError as error:
            if error.status != _NOT_CREATED:
                raise

    async def change_partition_channel(
        self, change: str, topic: str, partition: int, channel: str
    ) -> None:
        """Delete, empty, pause or unpause a channel of the partition."""
        await self._change(change, topic, partition, channel)

    async def set_offset(
        self, topic: str, partition: int, channel: str, position: Position
    ) -> None:
        """Move a channel, for all of its consumers; if there are no messages, to the end."""
        query = _query(topic, partition, channel)
        try:
            await self._call("POST", "/channel/setoffset", query, str(position).encode())
        except AdminError as error:
            if _EMPTY not in error.message:
                raise
            await self._call("POST", "/channel/setoffset", query, str(LATEST).encode())

    async def finish_message(
        self, topic: str, partition: int, channel: str, internal_id: int
    ) -> None:
        """Finish a message that a consumer has in flight: the partition goes on."""
        query = _query(topic, partition, channel) | {"msgid": str(internal_id)}
        await self._call("POST", "/message/finish", query)

    async def partition_stats(
        self, topic: str | None = None, *, include_clients: bool = False
    ) -> list[PartitionStats]:
        """Return the partitions of a topic, or of all, of which this nsqd has a copy."""
        query = {"format": "json", "needClients": str(include_clients).lower()}
        if topic is not None:
            query["topic"] = check_topic(topic)
        stats = await self._object("/stats", query)
        try:
            return [_partition(entry) for entry in _objects(stats, "topics")]
        except (KeyError, TypeError, ValueError) as error:
            raise self._useless("/stats", f"not that of a redesigned nsqd: {error!r}") from None

    async def position(self, topic: str, partition: int, channel: str) -> ChannelPosition | None:
        """Return where a channel is; None if this nsqd has no such channel."""
        for stats in await self.partition_stats(topic):
            found = stats.channel(channel) if stats.partition == partition else None
            if found is not None:
                return ChannelPosition(stats.end - found.depth_bytes, stats.end)
        return None

    async def replicas(self, topic: str, partition: int) -> dict[str, str]:
        """Return the TCP addresses of the nsqd with a copy, and their names in the cluster."""
        return (await self.all_replicas(topic)).get(partition, {})

    async def all_replicas(self, topic: str) -> dict[int, dict[str, str]]:
        """Return the same for each partition of which this nsqd has a copy."""
        stats = await self._object("/coordinator/stats", {"topic": check_topic(topic)})
        found: dict[int, dict[str, str]] = {}
        for entry in _objects(stats, "topic_coord_stats"):
            ids = [str(member.get("node_id")) for member in _objects(entry, "isr_stats")]
            number = entry.get("partition")
            if type(number) is int:
                found[number] = {_node_address(id): id for id in ids}
        return found

    async def get_message(self, topic: str, partition: int, offset: int) -> BrowsedMessage:
        """Return the first message at an offset or after it; raise ``AdminError`` at the end."""
        return await self._get_message(topic, partition, "virtual_offset", offset)

    async def get_message_number(self, topic: str, partition: int, number: int) -> BrowsedMessage:
        """Return a message by its place in the partition; raise ``AdminError`` at the end."""
        return await self._get_message(topic, partition, "count", number)

    async def _get_message(
        self, topic: str, partition: int, mode: str, value: int
    ) -> BrowsedMessage:
        query = {
            "topic": check_topic(topic),
            "partition": str(partition),
            "search_mode": mode,
            "search_pos": str(value),
            "needext": "true",
        }
        found = await self._object("/message/get", query)
        try:
            return _browsed(partition, found)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise self._useless("/message/get", f"unexpected answer: {error!r}") from None

    async def _change(self, change: str, topic: str, partition: int, channel: str) -> None:
        await self._call("POST", f"/channel/{change}", _query(topic, partition, channel))


def _query(topic: str, partition: int, channel: str) -> dict[str, str]:
    return name_query(topic, channel) | {"partition": str(partition)}


def _node_address(distributed_id: str) -> str:
    """Return the TCP address in a node's name: host, port of its RPC, of TCP, and a number."""
    if distributed_id.count(":") < 3:
        return distributed_id
    host, _, tcp_port, _ = distributed_id.rsplit(":", 3)
    return f"{host}:{tcp_port}"


def _objects(values: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [each for each in values.get(name) or () if isinstance(each, dict)]


def _partition(entry: Mapping[str, Any]) -> PartitionStats:
    return PartitionStats(
        topic=entry["topic_name"],
        partition=int(entry["topic_partition"]),
        writable=bool(entry["is_leader"]),
        message_count=_number(entry, "message_count"),
        start=_number(entry, "backend_start"),
        end=_number(entry, "depth"),
        channels=tuple(map(_channel, _objects(entry, "channels"))),
    )


def _channel(entry: Mapping[str, Any]) -> PartitionChannelStats:
    return PartitionChannelStats(
        name=str(entry["channel_name"]),
        depth=_number(entry, "depth"),
        depth_bytes=_number(entry, "depth_size"),
        depth_timestamp=_number(entry, "depth_ts_nano"),
        in_flight_count=_number(entry, "in_flight_count"),
        deferred_count=_number(entry, "deferred_count"),
        delayed_count=_number(entry, "delayed_queue_count"),
        delayed_until=_number(entry, "delayed_queue_recent_nano"),
        requeue_count=_number(entry, "requeue_count"),
        timeout_count=_number(entry, "timeout_count"),
        client_count=_number(entry, "client_num"),
        paused=bool(entry["paused"]),
        clients=tuple(_objects(entry, "clients")),
    )


def _number(entry: Mapping[str, Any], name: str) -> int:
    value = entry[name]
    if type(value) is not int:
        raise TypeError(f"{name} is {value!r}")
    return value


def _browsed(partition: int, found: Mapping[str, Any]) -> BrowsedMessage:
    headers = json.loads(found["ext"]) if found.get("ext") else None
    return BrowsedMessage(
        partition=partition,
        internal_id=_number(found, "id"),
        trace_id=_number(found, "trace_id"),
        timestamp=_number(found, "timestamp"),
        offset=_number(found, "offset"),
        number=_number(found, "queue_cnt_index"),
        body=str(found["body"]),
        headers=headers if isinstance(headers, dict) else None,
    )
