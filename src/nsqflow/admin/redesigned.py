"""A cluster of the redesigned NSQ over HTTP: topics with partitions, leaders, positions."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from nsqflow.address import AddressMap, map_address
from nsqflow.admin.cluster import Cluster
from nsqflow.admin.http_api import name_query
from nsqflow.admin.leading_lookupd import LeadingLookupd
from nsqflow.admin.partition import BrowsedMessage, PartitionApi, PartitionStats
from nsqflow.client.position import Position, PositionLike, parse_position, parse_positions
from nsqflow.errors import (
    AdminError,
    ConfigError,
    DiscoveryError,
    NetworkError,
    RequestTimeout,
)
from nsqflow.protocol import Dialect, Node, TopicMeta

_REGISTERED = " already registered"  # of a channel that nsqlookupd creates
_RETRY = 0.2  # seconds until a new topic is looked up again

ChannelChange = Literal["delete", "empty", "pause", "unpause"]


@dataclass(frozen=True, slots=True)
class PartitionedTopic:
    """A topic with partitions, as nsqlookupd describes it."""

    name: str
    meta: TopicMeta
    leaders: Mapping[int, Node]
    """The nsqd that leads each partition; without one that has no leader now."""
    channels: tuple[str, ...]


class RedesignedCluster:
    """A cluster of the redesigned NSQ.

        cluster = RedesignedCluster(lookupd=["127.0.0.1:4161"])
        await cluster.create_topic("orders", partitions=4, replicas=2, ordered=True)
        await cluster.seek("orders", "billing", "2026-11-18T07:00:00+00:00")

    ``tls`` is used where an address is https. ``address_map`` translates the addresses that
    nsqlookupd reports. ``timeout`` bounds each request, in seconds.
    """

    def __init__(
        self,
        *,
        lookupd: list[str],
        tls: ssl.SSLContext | None = None,
        address_map: AddressMap | None = None,
        timeout: float = 5.0,
    ) -> None:
        self._lookupds = LeadingLookupd(lookupd, tls=tls, address_map=address_map, timeout=timeout)
        self._tls = tls
        self._address_map = address_map
        self._timeout = timeout
        self._cluster = Cluster(lookupd=lookupd, tls=tls, address_map=address_map, timeout=timeout)

    # Topics

    async def topic(self, name: str) -> PartitionedTopic:
        """Return how a topic is set up; raise ``ConfigError`` if it is missing or classic."""
        answer = (await self._cluster.lookup([name]))[name]
        self._cluster.errors.clear()  # one nsqlookupd that answers is enough
        if answer.dialect is Dialect.CLASSIC:
            raise ConfigError(f"topic {name!r} is one of the classic NSQ: it has no partitions")
        if answer.meta is None or not answer.meta.partition_num:
            raise ConfigError(f"topic {name!r} does not exist")
        return PartitionedTopic(name, answer.meta, dict(answer.partitions), answer.channels)

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = 1,
        ordered: bool = False,
        extended: bool = False,
        multi_part: bool = False,
        registered_channels: bool = False,
        retention_days: int | None = None,
        wait: float = 0.0,
    ) -> None:
        """Create a topic; with ``wait``, return when it is writable, or raise after that time.

        ``extended`` messages have headers. With ``multi_part`` one nsqd may lead several
        partitions of an ordinary topic. With ``registered_channels`` consumers do not create
        channels: ``create_channel`` does.
        """
        query = name_query(name) | {"partition_num": str(partitions), "replicator": str(replicas)}
        flags = {
            "orderedmulti": ordered,
            "extend": extended,
            "multipart": multi_part,
            "disable_channel_auto_create": registered_channels,
        }
        query |= {flag: "true" for flag, wanted in flags.items() if wanted}
        if retention_days is not None:
            query["retention"] = str(retention_days)
        await self._lookupds.change("/topic/create", query)
        if wait:
            await self.await_writable(name, wait)

    async def await_writable(
        self, name: str, timeout: float, on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Return when all partitions of a new topic are writable; raise ``TimeoutError``.

        ``on_progress`` is called with the number of those that are, and of all. A server that does
        not answer is asked again.
        """
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                # nsqlookupd names the leaders of a new topic, sometimes long before they lead it.
                while True:
                    if await self._is_writable(name, on_progress):
                        return
                    await asyncio.sleep(_RETRY)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(
                f"topic {name!r} is not writable after {timeout:g} seconds; a cluster may take two "
                "minutes"
            ) from None

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all of its messages."""
        await self._lookupds.change("/topic/delete", name_query(name) | {"partition": "**"})

    async def move_leader(self, topic: str, partition: int, nsqd: str) -> None:
        """Have another nsqd that has a copy, by its TCP address, lead a partition.

        Of more than two copies, nsqlookupd may choose another one than that.
        """
        leader = await self._leader(topic, partition)
        async with self._api(leader) as api:
            replicas = await api.replicas(topic, partition)
        target = replicas.get(nsqd)
        if target is None:
            raise ConfigError(
                f"nsqd={nsqd!r} is invalid: it has no copy of partition {partition} (nsqd with "
                f"one: {', '.join(sorted(replicas))})"
            )
        await self._lookupds.change(
            "/topic/partition/move",
            name_query(topic)
            | {
                "partition": str(partition),
                "move_leader": "true",
                "move_from": leader.distributed_id,
                "move_to": target,
            },
        )

    async def is_stable(self) -> bool:
        """Return whether all nodes run and no partition is changing."""
        return await self._lookupds.is_stable()

    # Channels

    async def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel in every partition, at its end, unless it exists.

        On an ordered topic let a consumer create it instead: a channel that is made ordered later
        repeats its first message.
        """
        found = await self.topic(topic)
        if found.meta.disable_channel_auto_create:
            try:
                await self._lookupds.change("/channel/create", name_query(topic, channel))
            except AdminError as error:
                if not error.message.endswith(_REGISTERED):
                    raise
            return
        self._check_leaders(found)
        await self._on_each(found, lambda api, n: api.create_partition_channel(topic, n, channel))

    async def change_channel(self, change: ChannelChange, topic: str, channel: str) -> None:
        """Delete, empty, pause or unpause a channel in every partition."""
        found = await self.topic(topic)
        if change == "delete" and found.meta.disable_channel_auto_create:
            await self._lookupds.change("/channel/delete", name_query(topic, channel))
            return
        self._check_leaders(found)
        await self._on_each(
            found, lambda api, n: api.change_partition_channel(change, topic, n, channel)
        )

    async def seek(
        self, topic: str, channel: str, position: PositionLike | Mapping[int, PositionLike]
    ) -> None:
        """Move a channel, for all of its consumers; messages that were finished come again.

        ``position`` is ``earliest``, ``latest``, ``count:N``, ``offset:N``,
        ``timestamp:SECONDS``, an ISO time or a ``datetime``, or a mapping of partitions to these.
        A change of leaders soon after it may undo it.
        """
        positions = parse_positions("position", position, time.time())
        found = await self.topic(topic)
        wanted = (
            dict.fromkeys(range(found.meta.partition_num), positions)
            if isinstance(positions, Position)
            else positions
        )
        self._check_leaders(found, set(wanted))
        await self._on_each(
            found,
            lambda api, n: api.set_offset(topic, n, channel, wanted[n]),
            only=set(wanted),
        )

    async def unblock(self, topic: str, partition: int, channel: str, internal_id: int) -> None:
        """Finish a message by its id: one that is in flight and blocks an ordered partition."""
        async with self._api(await self._leader(topic, partition)) as api:
            await api.finish_message(topic, partition, channel, internal_id)

    async def stats(
        self,
        topic: str,
        *,
        include_clients: bool = False,
        partitions: Collection[int] | None = None,
    ) -> list[PartitionStats]:
        """Return each partition that has a leader, as its leader describes it.

        With ``partitions`` only the leaders of these are asked.
        """
        found = await self.topic(topic)
        results: list[PartitionStats] = []

        async def ask(api: PartitionApi, number: int) -> None:
            stats = await api.partition_stats(topic, include_clients=include_clients)
            results.extend(each for each in stats if each.partition == number)

        await self._on_each(found, ask, partitions)
        return sorted(results, key=lambda each: each.partition)

    async def browse(
        self, topic: str, partition: int, start: PositionLike = "earliest"
    ) -> AsyncGenerator[BrowsedMessage, None]:
        """Yield the messages of a partition from a position to its end, without consuming them.

        Each takes a request. Bodies are text; a ``timestamp`` is found by reading from the
        oldest message.
        """
        position = parse_position("start", start, time.time())
        if position.kind == "special":
            return
        async with self._api(await self._leader(topic, partition)) as api:
            stats = await api.partition_stats(topic)
            here = next((each for each in stats if each.partition == partition), None)
            if here is None:
                raise DiscoveryError(f"partition {partition} of {topic!r} has moved: try again")
            offset = max(position.value if position.kind == "virtual_queue" else 0, here.start)
            number = 0
            while offset < here.end and number < here.message_count:
                message = await api.get_message(topic, partition, offset)
                offset, number = message.offset + 1, message.number
                if _is_due(message, position):
                    yield message

    # Private methods

    def _api(self, node: Node) -> PartitionApi:
        address = map_address(node.http_address, self._address_map)
        return PartitionApi(address, tls=self._tls, timeout=self._timeout)

    async def _leader(self, topic: str, partition: int) -> Node:
        found = await self.topic(topic)
        if partition not in range(found.meta.partition_num):
            raise ConfigError(
                f"partition={partition!r} is invalid: {topic!r} has partitions 0 to "
                f"{found.meta.partition_num - 1}"
            )
        self._check_leaders(found, {partition})
        return found.leaders[partition]

    @staticmethod
    def _check_leaders(topic: PartitionedTopic, wanted: set[int] | None = None) -> None:
        numbers = {*range(topic.meta.partition_num)} if wanted is None else wanted
        if unknown := sorted(numbers - {*range(topic.meta.partition_num)}):
            raise ConfigError(f"topic {topic.name!r} has no partition {unknown[0]}")
        if missing := sorted(numbers - topic.leaders.keys()):
            raise DiscoveryError(
                f"partition {missing[0]} of {topic.name!r} has no leader now: try again later"
            )

    async def _on_each(
        self,
        topic: PartitionedTopic,
        call: Callable[[PartitionApi, int], Awaitable[None]],
        only: Collection[int] | None = None,
    ) -> None:
        async def one(number: int, node: Node) -> None:
            async with self._api(node) as api:
                await call(api, number)

        leaders = topic.leaders.items()
        wanted = [(n, node) for n, node in leaders if only is None or n in only]
        calls = (one(number, node) for number, node in wanted)
        # One that fails must not leave the others half done.
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if result is not None:
                raise result

    async def _is_writable(self, name: str, on_progress: Callable[[int, int], None] | None) -> bool:
        with suppress(ConfigError, AdminError, DiscoveryError, NetworkError, RequestTimeout):
            count = (await self.topic(name)).meta.partition_num
            writable = sum(each.writable for each in await self.stats(name))
            if on_progress is not None:
                on_progress(writable, count)
            return writable == count
        return False


def _is_due(message: BrowsedMessage, start: Position) -> bool:
    if start.kind == "timestamp":
        return message.timestamp >= start.value * 10**9
    return start.kind != "msgcount" or message.number >= start.value
