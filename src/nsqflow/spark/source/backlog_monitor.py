"""Polls the servers for the number of messages waiting in the query's channel.

    monitor = BacklogMonitor(options)
    monitor.create()
    for backlog in monitor.poll(): ...

It is for synchronous code in one thread: its event loop runs only during a call. Connections stay
open between calls.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from time import monotonic
from typing import Any

from nsqflow.address import join_address
from nsqflow.admin.partition import BrowsedMessage, PartitionStats
from nsqflow.client.position import Position
from nsqflow.errors import AdminError, ConfigError, NetworkError
from nsqflow.protocol.lookup import Node
from nsqflow.spark.connection import LeaderEndpoint
from nsqflow.spark.options import SourceOptions
from nsqflow.spark.source.allocation import ChannelBacklog
from nsqflow.spark.source.nsqd_stats import NsqdStatsClient
from nsqflow.spark.source.offsets import make_key, partition_of, split_key
from nsqflow.spark.source.partition_monitor import (
    PartitionMonitor,
    check_classic,
    missing_topic,
)
from nsqflow.spark.source.topic_lookup import INTERVAL, ServerGroup, TopicLookup, unknown_name

logger = logging.getLogger(__name__)

_TIMEOUT = 5.0
_CREATE_TIMEOUT = 60.0  # seconds to create all channels on one nsqd, maybe hundreds
_FLOW_TIMEOUT = 10.0  # seconds for a topic's backlog to reach the channel to be emptied
_POLL_INTERVAL = 0.02
_VANISHED = 600.0  # seconds for which an nsqd that nsqlookupd does not name is still missed
_CLOSE_CYCLES = 3  # turns of the loop: an aborted transport closes its socket in one or two


class BacklogMonitor:
    """Polls all nsqd that have topics of one query, of the classic NSQ or of the redesigned one."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pattern = re.compile(options.topic_pattern or "")
        self._tls = cache(options.access.http_context)
        servers = options.servers
        self._lookup = TopicLookup(options, self._tls) if servers.lookupd else None
        self.partitions = PartitionMonitor(options, self._tls)
        self._clients = {
            nsqd: self._make_client(nsqd, http, options.topics)
            for nsqd, http in zip(servers.nsqd, servers.nsqd_http, strict=True)
        }
        self._servers = ServerGroup("nsqd")
        self._lists_topics = bool(servers.nsqd and options.topic_pattern)
        self._creates_topics = bool(servers.nsqd and options.topics)
        self._next_listing_at = 0.0
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self._deleted: set[str] = set()
        self._vanished: dict[str, float] = {}  # nsqd, and since when they are not named
        self._closed = False

    @property
    def unreachable(self) -> dict[str, str]:
        """The nsqd that did not answer the last request, and why.

        Those that nsqlookupd has just stopped naming are among them: it forgets an nsqd whose
        connection is lost at once.
        """
        now = monotonic()
        self._vanished = {nsqd: at for nsqd, at in self._vanished.items() if now < at + _VANISHED}
        gone = dict.fromkeys(self._vanished, "nsqlookupd does not name it any more")
        return gone | self._servers.unreachable | self.partitions.unreachable

    def unreachable_keys(self, keys: Iterable[str]) -> set[str]:
        """Return the keys whose nsqd did not answer, and partitions without leader or channel."""
        classic, silent, lacking = (
            self.unreachable,
            self.partitions.silent,
            self.partitions.lacking,
        )
        endpoints = self.partitions.endpoints()
        found = set()
        for key in keys:
            if partition_of(key) is None:
                gone = split_key(key)[1] in classic
            else:
                gone = key not in endpoints or endpoints[key].nsqd in silent or key in lacking
            if gone:
                found.add(key)
        return found

    def places(self, keys: Iterable[str]) -> dict[str, LeaderEndpoint | None]:
        """Return the leader of each partition that has one; None for a key of the classic NSQ."""
        endpoints = self.partitions.endpoints()
        return {
            key: endpoints.get(key) for key in keys if partition_of(key) is None or key in endpoints
        }

    def http_of(self, key: str) -> str:
        """Return the address of the HTTP API that has a key; empty for a partition."""
        return self._clients[split_key(key)[1]].http if partition_of(key) is None else ""

    def take_deleted(self) -> set[str]:
        """Return the keys whose topic was found to be deleted since the last call."""
        deleted, self._deleted = self._deleted, set()
        return deleted

    def poll(self, timeout: float = _TIMEOUT) -> list[ChannelBacklog]:
        """Return the backlogs of all topics on all reachable nsqd, sorted by their keys.

        Each server has ``timeout`` seconds to answer. A missing channel is created at once. Raises
        ``DiscoveryError`` or ``NetworkError`` if no server is reachable.
        """
        return self._runner.run(self._poll(timeout))

    def poll_existing(self) -> list[ChannelBacklog]:
        """Return the backlogs as ``poll`` does, but create nothing.

        Raises ``ConfigError`` for a topic that no nsqd has, or that has no such channel.
        """
        return self._runner.run(self._poll_existing())

    def find(self) -> list[ChannelBacklog]:
        """Return the backlogs of those topics that have the channel; create nothing."""
        return self._runner.run(self._find())

    def clients(self, keys: Iterable[str]) -> dict[str, list[Mapping[str, Any]]]:
        """Return what the nsqd know of the channel's clients, for each key whose nsqd answers."""
        return self._runner.run(self._read_clients(keys))

    def create(self) -> None:
        """Create the channel on all nsqd that have the topics.

        On nsqd given by the option ``nsqd`` the topics are created too. A topic that no nsqd has
        yet is created on nsqlookupd.
        """
        self._runner.run(self._create())

    def empty(self) -> None:
        """Create the channel, and empty it on all reachable nsqd."""
        self._runner.run(self._empty())

    def look_up_each_time(self, topics: Set[str]) -> None:
        """Look these topics up in each poll, so that it asks their leaders of that moment."""
        if self._lookup is not None:
            self._lookup.urgent = topics

    def seek(self, key: str, position: Position) -> None:
        """Move the channel of a partition; raise ``AdminError`` or ``NetworkError``."""
        self._runner.run(self.partitions.seek(key, position))

    def message_at(self, key: str, offset: int) -> BrowsedMessage:
        """Return the first message of a partition at an offset or after it.

        Raises ``AdminError`` at its end, ``NetworkError`` or ``DiscoveryError``.
        """
        return self._runner.run(self.partitions.message_at(key, offset))

    def message_number(self, key: str, number: int) -> BrowsedMessage:
        """Return a message of a partition by its number; raise the same."""
        return self._runner.run(self.partitions.message_number(key, number))

    def partition_stats(self) -> list[PartitionStats]:
        """Return the partitions of all topics whose leaders answer.

        Raises ``ConfigError`` for a topic that is unknown, or one of the classic NSQ.
        """
        return self._runner.run(self._partition_stats())

    def close(self) -> None:
        """Close all connections."""
        if not self._closed:
            self._closed = True
            self._runner.run(self._close())
            self._runner.close()

    # Private methods

    async def _poll(self, timeout: float) -> list[ChannelBacklog]:
        await self._refresh(timeout)
        readings = await self._read(timeout)
        created = await self._create_missing(readings)
        partitions = await self.partitions.poll(timeout)
        self._check_reachable()
        found = chain(*readings.values(), *created.values(), partitions)
        return sorted(found, key=lambda backlog: backlog.key)

    async def _refresh(self, timeout: float) -> None:
        if self._lookup is not None:
            if await self._lookup.refresh(timeout):
                answers = self._lookup.answers
                self.partitions.update(answers)
                classic = {
                    topic: answers[topic] for topic in answers.keys() - self.partitions.topics
                }
                check_classic((t for t, each in classic.items() if each.producers), self._options)
                self._update_clients({topic: each.producers for topic, each in classic.items()})
            if not self._clients:
                self._lookup.check_reachable()
        else:  # nsqd that are named directly are classic ones
            check_classic(
                self._options.topics or [self._options.topic_pattern or ""], self._options
            )

    def _check_reachable(self) -> None:
        servers = len(self._clients) + len(self.partitions.nodes)
        if servers and len(self._servers.unreachable) + len(self.partitions.silent) == servers:
            reasons = (self._servers.unreachable | self.partitions.silent).values()
            raise NetworkError(f"no nsqd is reachable: {'; '.join(reasons)}")

    async def _find(self) -> list[ChannelBacklog]:
        await self._refresh(_TIMEOUT)
        readings = await self._read(_TIMEOUT)
        partitions = await self.partitions.find(_TIMEOUT)
        self._check_reachable()
        return sorted(chain(*readings.values(), partitions), key=lambda backlog: backlog.key)

    async def _partition_stats(self) -> list[PartitionStats]:
        await self._refresh(_TIMEOUT)
        known = self.partitions.topics
        unknown = [topic for topic in self._options.topics if topic not in known]
        if self._lookup is not None and (unknown or not known):
            if not await self._lookup.is_redesigned(_TIMEOUT):
                check_classic(unknown, self._options)
            raise await self._unknown(unknown[0] if unknown else "")
        found = await self.partitions.stats(_TIMEOUT)
        self._check_reachable()
        return [*chain(*found.values())]

    async def _poll_existing(self) -> list[ChannelBacklog]:
        found = await self._find()
        topics = {backlog.topic for backlog in found}
        unknown = [topic for topic in self._options.topics if topic not in topics]
        if unknown or not found:
            raise await self._unknown(unknown[0] if unknown else "")
        return found

    async def _unknown(self, topic: str) -> ConfigError:
        """Return the error that names the unknown topic or channel, and similar ones."""
        requests = {nsqd: client.topics_and_channels for nsqd, client in self._clients.items()}
        answers = await self._servers.ask(requests, _TIMEOUT)
        known: dict[str, set[str]] = {}
        for each in answers.values():
            for name, channels in each.items():
                known.setdefault(name, set()).update(channels)
        asked = [f"nsqd {nsqd}" for nsqd in answers]
        if self._lookup is not None:
            for name in await self._lookup.topic_names(_TIMEOUT):
                known.setdefault(name, set())
            asked = [f"nsqlookupd {name}" for name in self._lookup.responding] + asked
        options = self._options
        pattern = options.topic_pattern or ""
        return unknown_name(
            topic, pattern, options.channel, known, asked, self.unreachable, options.mode
        )

    async def _read_clients(self, keys: Iterable[str]) -> dict[str, list[Mapping[str, Any]]]:
        found: dict[str, list[Mapping[str, Any]]] = {}

        async def read(key: str, client: NsqdStatsClient) -> None:
            with suppress(NetworkError, AdminError, TimeoutError):
                async with asyncio.timeout(_TIMEOUT):
                    found[key] = await client.clients(split_key(key)[0])

        clients = {key: self._clients.get(split_key(key)[1]) for key in keys}
        await asyncio.gather(*(read(key, each) for key, each in clients.items() if each))
        return found | await self.partitions.clients(keys)

    async def _create(self) -> None:
        await self._poll(_TIMEOUT)
        if self._lookup is None:
            return
        known = {topic for client in self._clients.values() for topic in client.topics}
        known |= self.partitions.topics.keys()
        for topic in self._options.topics:
            if topic not in known:
                if await self._lookup.is_redesigned(_TIMEOUT):
                    raise missing_topic(topic)
                await self._lookup.create_channel(topic, self._options.channel, _TIMEOUT)

    async def _empty(self) -> None:
        await self._create()
        await self._await_flow()
        for backlog in await self._poll(_TIMEOUT):
            if backlog.partition is None:  # partitions seek instead
                await self._clients[backlog.nsqd].empty_channel(backlog.topic)

    async def _await_flow(self) -> None:
        """Wait until the topics' messages have reached the channel."""
        deadline = monotonic() + _FLOW_TIMEOUT
        rounds, held = 0, list[ChannelBacklog]()
        while rounds < 2 and monotonic() < deadline:  # a message may have been on its way
            await asyncio.sleep(_POLL_INTERVAL)
            held = [backlog for backlog in await self._poll(_TIMEOUT) if backlog.topic_depth]
            rounds = rounds + 1 if all(backlog.topic_paused for backlog in held) else 0
        for backlog in held:
            logger.warning(
                "%s: %d older messages may follow, the topic has not passed them on yet",
                backlog.key,
                backlog.topic_depth,
            )

    async def _close(self) -> None:
        for client in self._clients.values():
            client.close()
        if self._lookup is not None:
            self._lookup.close()
        self.partitions.close()
        for _ in range(_CLOSE_CYCLES):
            await asyncio.sleep(0)

    def _update_clients(self, nodes_of: Mapping[str, Collection[Node]]) -> None:
        """Keep clients for the nsqd that nsqlookupd names, and for others that respond.

        An nsqlookupd that has just been started knows no nsqd yet.
        """
        named: dict[str, set[str]] = {}
        for topic, nodes in nodes_of.items():
            for node in nodes:
                self._add_client(node)
                named.setdefault(node.address, set()).add(topic)
        for nsqd, client in [*self._clients.items()]:
            if nsqd in self._servers.unreachable:
                client.topics.clear()
            client.topics |= named.get(nsqd, set())
            if not client.topics:
                client.close()
                del self._clients[nsqd]
                if nsqd in self._servers.unreachable:
                    self._vanished[nsqd] = monotonic()
        for nsqd in named:
            self._vanished.pop(nsqd, None)
        self._servers.keep(self._clients)

    def _add_client(self, node: Node) -> None:
        http = join_address(node.broadcast_address, node.http_port)
        before = self._clients.get(node.address)
        if before is None:
            self._clients[node.address] = self._make_client(node.address, http)
        elif before.http != http:
            before.close()
            self._clients[node.address] = self._make_client(node.address, http, before.topics)

    def _make_client(self, nsqd: str, http: str, topics: Iterable[str] = ()) -> NsqdStatsClient:
        return NsqdStatsClient(nsqd, http, self._options.channel, self._tls, topics)

    async def _read(self, timeout: float) -> dict[str, list[ChannelBacklog]]:
        """Return the backlogs of each nsqd; list the topics first if that is due."""
        listing = self._lists_topics and monotonic() >= self._next_listing_at
        if listing:
            self._next_listing_at = monotonic() + INTERVAL
        requests = {
            nsqd: partial(self._read_one, client, listing)
            for nsqd, client in self._clients.items()
            if listing or client.topics
        }
        return await self._servers.ask(requests, timeout)

    async def _read_one(self, client: NsqdStatsClient, listing: bool) -> list[ChannelBacklog]:
        if listing:
            client.topics = set(filter(self._pattern.fullmatch, await client.topic_names()))
        return await client.backlogs(client.topics)

    async def _create_missing(
        self, readings: Mapping[str, Collection[ChannelBacklog]]
    ) -> dict[str, list[ChannelBacklog]]:
        """Create missing channels; return their backlogs by nsqd."""
        requests = {}
        for nsqd, found in readings.items():
            client = self._clients[nsqd]
            if missing := client.topics - {backlog.topic for backlog in found}:
                requests[nsqd] = partial(self._create_on, client, missing)
        return await self._servers.ask(requests, _CREATE_TIMEOUT)

    async def _create_on(
        self, client: NsqdStatsClient, topics: Collection[str]
    ) -> list[ChannelBacklog]:
        channel = self._options.channel
        created = set()
        for topic in sorted(topics):
            if await client.create_channel(topic, create_topic=self._creates_topics):
                logger.info("created channel %s of topic %s on %s", channel, topic, client.nsqd)
                created.add(topic)
            else:  # the topic was deleted meanwhile; nsqlookupd may name it again
                client.topics.discard(topic)
                self._deleted.add(make_key(topic, client.nsqd))
        return [replace(backlog, exists=False) for backlog in await client.backlogs(created)]
