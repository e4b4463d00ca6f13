"""The backlogs of topics of the redesigned NSQ, by partition, as their leaders report them.

Only the leader that nsqlookupd names for reading counts: other nodes list copies whose numbers lag,
and ``is_leader`` only says whether a node takes publishes. A channel belongs to one partition, and
gets what is published after its creation, so it is created in all of them.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from nsqflow.admin.partition import (
    BrowsedMessage,
    PartitionApi,
    PartitionChannelStats,
    PartitionStats,
)
from nsqflow.admin.redesigned import RedesignedCluster
from nsqflow.client.position import Position
from nsqflow.errors import ConfigError, DiscoveryError
from nsqflow.protocol.commands import SubscribeMode
from nsqflow.protocol.dialect import Dialect
from nsqflow.protocol.lookup import LookupAnswer, Node, TopicMeta
from nsqflow.spark.connection import LeaderEndpoint
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.allocation import ChannelBacklog
from nsqflow.spark.source.leader import is_passing, subscribe_once
from nsqflow.spark.source.offsets import make_key, split_key
from nsqflow.spark.source.topic_lookup import ServerGroup

logger = logging.getLogger(__name__)

_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class TopicLeaders:
    """A topic, and the leaders of its partitions that have one."""

    meta: TopicMeta
    leaders: Mapping[int, Node]


class PartitionMonitor:
    """Polls the leaders of all partitions of a query's redesigned topics."""

    def __init__(self, options: SourceOptions, tls: Callable[[], ssl.SSLContext]) -> None:
        self.topics: dict[str, TopicLeaders] = {}
        """The redesigned topics; once known they stay, also while they have no leaders."""
        self._options = options
        self._tls = tls
        self._apis: dict[str, PartitionApi] = {}  # by HTTP address
        self._servers = ServerGroup("nsqd")
        self.created: set[str] = set()
        """Keys that lacked the channel, until the query has begun with them."""
        self.lacking: Set[str] = frozenset()
        """Keys that lack the channel still, as it could not be created."""
        self._registration = ServerGroup("nsqlookupd of topic")
        self._creation = ServerGroup("leader of", is_passing)

    @property
    def unreachable(self) -> dict[str, str]:
        """The nsqd that did not answer, and the partitions without a leader or the channel."""
        without = {
            f"partition {number} of {topic}": "it has no leader now"
            for topic, found in self.topics.items()
            for number in range(found.meta.partition_num)
            if number not in found.leaders
        }
        return self._without_channel() | without | self._servers.unreachable

    @property
    def silent(self) -> dict[str, str]:
        """The leaders that did not answer, and why."""
        return self._servers.unreachable

    @property
    def nodes(self) -> dict[str, str]:
        """The HTTP addresses of all leaders, by their TCP addresses."""
        return {
            leader.address: leader.http_address
            for found in self.topics.values()
            for leader in found.leaders.values()
        }

    def update(self, answers: Mapping[str, LookupAnswer]) -> None:
        """Take over what nsqlookupd says of topics."""
        for topic, answer in answers.items():
            known = self.topics.get(topic)
            meta = answer.meta if answer.meta and answer.meta.partition_num else None
            if answer.dialect is Dialect.REDESIGNED or (meta and not answer.producers):
                meta = meta or (known.meta if known else TopicMeta())
                self.topics[topic] = TopicLeaders(meta, dict(answer.partitions))
            elif known is not None:
                # After a crash answers are empty for a while.
                self.topics[topic] = TopicLeaders(known.meta, {})
        for topic in self.topics.keys() - answers.keys():
            del self.topics[topic]
        self._servers.keep(self.nodes)

    def is_ordered(self, topic: str) -> bool:
        """Return whether a topic is read in order."""
        return self._options.ordered or self.topics[topic].meta.ordered

    def endpoints(self) -> dict[str, LeaderEndpoint]:
        """Return where each partition that has a leader is read, by its key."""
        return {
            make_key(topic, number): LeaderEndpoint(
                leader.address,
                leader.http_address,
                SubscribeMode.ORDERED if self.is_ordered(topic) else SubscribeMode.ADVANCED,
                found.meta.extend_support,
            )
            for topic, found in self.topics.items()
            for number, leader in found.leaders.items()
        }

    async def poll(self, timeout: float) -> list[ChannelBacklog]:
        """Return the backlogs of all partitions whose leader answers; create missing channels."""
        backlogs, lacking = await self._read(timeout)
        if lacking:
            self.created |= lacking
            await self.create(lacking)
            backlogs, lacking = await self._read(timeout)
        self._keep_lacking(lacking, backlogs)
        return [replace(each, exists=each.key not in self.created) for each in backlogs]

    async def find(self, timeout: float) -> list[ChannelBacklog]:
        """Return the backlogs of all partitions that have the channel; create nothing."""
        return (await self._read(timeout))[0]

    async def create(self, keys: Collection[str]) -> None:
        """Create the channel in these partitions.

        Of an ordered topic by subscribing in order: a channel that is made ordered later repeats
        its first message.
        """
        topics = {split_key(key)[0] for key in keys}
        registered = [t for t in topics if self.topics[t].meta.disable_channel_auto_create]
        await self._registration.ask({t: partial(self._register, t) for t in registered}, _TIMEOUT)
        endpoints = self.endpoints()
        requests = {key: partial(self._create, key, endpoints[key]) for key in keys}
        await self._creation.ask(requests, _TIMEOUT)  # those that fail: with the next poll

    async def clients(self, keys: Iterable[str]) -> dict[str, list[Mapping[str, Any]]]:
        """Return what the leaders know of the channel's clients."""
        found: dict[str, list[Mapping[str, Any]]] = {}

        async def read(http: str, topic: str) -> None:
            stats = await self._api(http).partition_stats(topic, include_clients=True)
            for each in stats:
                channel = each.channel(self._options.channel)
                key = make_key(topic, each.partition)
                if channel is not None and key in wanted and endpoints[key].http == http:
                    found[key] = [*channel.clients]

        endpoints = self.endpoints()
        wanted = {key for key in keys if key in endpoints}
        places = {(endpoints[key].http, split_key(key)[0]) for key in wanted}
        requests = {f"{http}/{topic}": partial(read, http, topic) for http, topic in places}
        await ServerGroup("nsqd").ask(requests, _TIMEOUT)
        return found

    async def seek(self, key: str, position: Position) -> None:
        """Move the channel of a partition."""
        topic, number = split_key(key)
        api = self._leader(key)
        await api.set_offset(topic, int(number), self._options.channel, position)

    async def message_at(self, key: str, offset: int) -> BrowsedMessage:
        """Return the first message of a partition at an offset or after it."""
        topic, number = split_key(key)
        return await self._leader(key).get_message(topic, int(number), offset)

    async def message_number(self, key: str, number: int) -> BrowsedMessage:
        """Return a message of a partition by its number, counted from 1."""
        topic, partition = split_key(key)
        return await self._leader(key).get_message_number(topic, int(partition), number)

    async def stats(self, timeout: float) -> dict[str, list[PartitionStats]]:
        """Return what each leader that answers says of the partitions that it leads."""
        requests = {nsqd: partial(self._read_one, nsqd, http) for nsqd, http in self.nodes.items()}
        return await self._servers.ask(requests, timeout)

    def close(self) -> None:
        """Close the connections."""
        for api in self._apis.values():
            api.close_idle()

    # Private methods

    def _without_channel(self) -> dict[str, str]:
        """Return the partitions that lack the channel, and why."""
        found = {}
        for key in sorted(self.lacking):
            topic, number = split_key(key)
            why = self._registration.unreachable.get(topic) or self._creation.unreachable.get(key)
            found[f"partition {number} of {topic}"] = f"it has no channel: {why or 'not yet'}"
        return found

    def _keep_lacking(self, lacking: Set[str], backlogs: Iterable[ChannelBacklog]) -> None:
        """Remember which partitions lack the channel; a leader may not have answered again."""
        still = (self.lacking | lacking) - {each.key for each in backlogs}
        self.lacking = {key for key in still if split_key(key)[0] in self.topics}
        self._creation.keep(self.lacking)
        self._registration.keep(split_key(key)[0] for key in self.lacking)

    async def _register(self, topic: str) -> None:
        """Have nsqlookupd create the channel, where consumers create none."""
        cluster = RedesignedCluster(
            lookupd=[*self._options.servers.lookupd], tls=self._https(), timeout=_TIMEOUT
        )
        await cluster.create_channel(topic, self._options.channel)

    async def _create(self, key: str, endpoint: LeaderEndpoint) -> None:
        if endpoint.mode is SubscribeMode.ORDERED:
            await asyncio.to_thread(subscribe_once, key, endpoint, self._options)
        else:
            topic, number = split_key(key)
            api = self._api(endpoint.http)
            await api.create_partition_channel(topic, int(number), self._options.channel)
        logger.info("created channel %s of %s on %s", self._options.channel, key, endpoint.nsqd)

    async def _read(self, timeout: float) -> tuple[list[ChannelBacklog], set[str]]:
        """Return the backlogs, and the keys of the partitions that lack the channel."""
        answers = await self.stats(timeout)
        backlogs: list[ChannelBacklog] = []
        lacking: set[str] = set()
        for nsqd, entries in answers.items():
            for stats in entries:
                channel = stats.channel(self._options.channel)
                if channel is None:
                    lacking.add(make_key(stats.topic, stats.partition))
                else:
                    backlogs.append(_backlog(nsqd, stats, channel))
        return backlogs, lacking

    async def _read_one(self, nsqd: str, http: str) -> list[PartitionStats]:
        """Return the partitions that an nsqd leads."""
        found: list[PartitionStats] = []
        for topic, each in self.topics.items():
            led = {number for number, node in each.leaders.items() if node.address == nsqd}
            if led:
                stats = await self._api(http).partition_stats(topic)
                found += [entry for entry in stats if entry.partition in led]
        return found

    def _leader(self, key: str) -> PartitionApi:
        endpoint = self.endpoints().get(key)
        if endpoint is None:
            topic, number = split_key(key)
            raise DiscoveryError(f"partition {number} of {topic!r} has no leader now")
        return self._api(endpoint.http)

    def _api(self, http: str) -> PartitionApi:
        if http not in self._apis:
            self._apis[http] = PartitionApi(
                http, tls=self._https(), timeout=_TIMEOUT, keep_alive=True
            )
        return self._apis[http]

    def _https(self) -> ssl.SSLContext | None:
        return self._tls() if self._options.servers.use_https else None


def check_classic(topics: Iterable[str], options: SourceOptions) -> None:
    """Raise ``ConfigError`` if classic topics are read with options of the redesigned NSQ."""
    topic = next(iter(topics), None)
    if topic is None:
        return
    if options.mode == "range":
        raise ConfigError(
            f"mode=range is invalid: {topic!r} is a classic topic, and classic NSQ keeps nothing "
            "that is finished; must be consume or peek, which read what waits in a channel"
        )
    if options.ordered:
        raise ConfigError(f"ordered=true is invalid: {topic!r} is a classic topic, without order")
    if options.starting_position not in ("existing", "latest"):
        raise ConfigError(
            f"startingPosition={options.starting_position!r} is invalid: {topic!r} is a classic "
            "topic, and classic NSQ can't go back; must be existing, or latest"
        )


def _backlog(nsqd: str, stats: PartitionStats, channel: PartitionChannelStats) -> ChannelBacklog:
    return ChannelBacklog(
        topic=stats.topic,
        nsqd=nsqd,
        partition=stats.partition,
        depth=channel.depth,
        in_flight=max(0, channel.in_flight_count - channel.deferred_count),
        deferred=channel.deferred_count,
        delayed=channel.delayed_count,
        due=int(channel.delayed_count > 0 and channel.delayed_until <= time.time_ns()),
        requeues=channel.requeue_count,
        timeouts=channel.timeout_count,
        message_count=stats.message_count,
        message_bytes=stats.end,
        start=stats.start,
        end=stats.end,
        cursor=stats.end - channel.depth_bytes,
        paused=channel.paused,
    )


def missing_topic(topic: str) -> ConfigError:
    """Return the error for a topic that a cluster of the redesigned NSQ does not have."""
    return ConfigError(
        f"topic {topic!r} does not exist in the redesigned NSQ, where publishing creates none: "
        f"nsqflow create {topic} --partitions N"
    )
