"""The HTTP API of one nsqd, as the driver uses it: backlogs, creating and emptying a channel."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from nsqflow.address import HttpAddress, join_address, parse_http_address
from nsqflow.admin import AdminError, ChannelStats, Nsqd, TopicStats
from nsqflow.admin.stats import NsqdStats, parse_stats
from nsqflow.errors import ConfigError, NetworkError
from nsqflow.http.client import HttpClient, HttpResponse
from nsqflow.spark.source.allocation import ChannelBacklog

# Without clients, as there may be many, and memory, as nsqd stops the world to read it.
_STATS_QUERY = {"format": "json", "include_clients": "false", "include_mem": "false"}

_MAX_SEPARATE_REQUESTS = 3  # topics requested one by one; with more, all are in one answer
_MAX_MESSAGE = 200  # characters of a server's message that are worth showing


class NsqdStatsClient:
    """Reads the counters of one channel, over a connection that stays open.

    ``nsqd`` is the TCP address that identifies it, ``http`` the address of its HTTP API. Methods
    raise ``NetworkError`` or ``AdminError``.
    """

    def __init__(
        self,
        nsqd: str,
        http: str,
        channel: str,
        tls: Callable[[], ssl.SSLContext],
        topics: Iterable[str] = (),
    ) -> None:
        self.nsqd = nsqd
        self.http = http
        self.topics = set(topics)
        """The topics to read."""
        self._channel = channel
        self._tls = tls
        self._address = http  # or its HTTPS address, if nsqd requires TLS
        self._target: HttpAddress | None = None
        self._client = HttpClient(tls=tls, timeout=None, keep_alive=True)

    async def topic_names(self) -> list[str]:
        """Return the names of all its topics."""
        return [topic.name for topic in (await self._stats()).topics]

    async def topics_and_channels(self) -> dict[str, list[str]]:
        """Return the channels of all its topics."""
        topics = (await self._stats()).topics
        return {topic.name: [channel.name for channel in topic.channels] for topic in topics}

    async def backlogs(self, topics: Collection[str]) -> list[ChannelBacklog]:
        """Return the backlogs of those topics that it has with the channel."""
        if len(topics) <= _MAX_SEPARATE_REQUESTS:
            found = [await self._stats(topic=topic, channel=self._channel) for topic in topics]
        else:
            found = [await self._stats(channel=self._channel)]
        return [
            self._backlog(stats.start_time, topic, channel)
            for stats in found
            for topic in stats.topics
            if topic.name in topics
            for channel in topic.channels
            if channel.name == self._channel
        ]

    async def clients(self, topic: str) -> list[Mapping[str, Any]]:
        """Return what nsqd knows of the channel's clients."""
        stats = await self._stats(topic=topic, channel=self._channel, include_clients="true")
        return [
            client
            for found in stats.topics
            for channel in found.channels
            for client in channel.clients
        ]

    async def create_channel(self, topic: str, *, create_topic: bool) -> bool:
        """Create the channel, and the topic if ``create_topic``; False if the topic is missing."""
        async with self._admin() as nsqd:
            if create_topic:
                await nsqd.create_topic(topic)
            try:
                await nsqd.create_channel(topic, self._channel)
            except AdminError as error:
                if error.status == 404:
                    return False
                raise
        return True

    async def empty_channel(self, topic: str) -> None:
        """Delete the channel's messages, including those in flight and deferred."""
        async with self._admin() as nsqd:
            await nsqd.empty_channel(topic, self._channel)

    def close(self) -> None:
        """Close the connection."""
        self._client.close_idle()

    def _admin(self) -> Nsqd:
        secure = parse_http_address(self._address).scheme == "https"
        return Nsqd(self._address, tls=self._tls() if secure else None)

    async def _stats(self, *, topic: str = "", channel: str = "", **more: str) -> NsqdStats:
        query = _STATS_QUERY | {"topic": topic, "channel": channel} | more
        response = await self._get(query)
        if response.status == 403 and (port := _https_port(response.body)):
            self._switch_to_https(port)
            response = await self._get(query)
        status, body = response.status, response.body
        if status != 200:
            raise self._error(status, body[:_MAX_MESSAGE].decode(errors="backslashreplace"))
        try:
            return parse_stats(json.loads(body))
        except (AttributeError, ValueError, RecursionError) as error:
            raise self._error(status, f"no stats: {error}") from None

    async def _get(self, query: dict[str, str]) -> HttpResponse:
        if self._target is None:
            try:
                self._target = parse_http_address(self._address)
            except ConfigError as error:  # port 0, where nsqd runs without its HTTP API
                raise NetworkError(f"{self.nsqd} has no usable HTTP API: {error}") from None
        try:
            return await self._client.get(self._target, "/stats", query)
        except NetworkError:
            # After a restart it may have other ports.
            self._address, self._target = self.http, None
            raise

    def _switch_to_https(self, port: int) -> None:
        """Use HTTPS from now on: nsqd runs with --tls-required and named its HTTPS port."""
        self.close()
        self._address = f"https://{join_address(parse_http_address(self.http).host, port)}"
        self._target = None

    def _backlog(self, started: float, topic: TopicStats, channel: ChannelStats) -> ChannelBacklog:
        return ChannelBacklog(
            topic=topic.name,
            nsqd=self.nsqd,
            depth=channel.depth,
            topic_depth=topic.depth,
            in_flight=channel.in_flight_count,
            deferred=channel.deferred_count,
            requeues=channel.requeue_count,
            timeouts=channel.timeout_count,
            started=started,
            channel_count=channel.message_count,
            message_count=topic.message_count,
            message_bytes=topic.message_bytes,
            paused=channel.paused,
            topic_paused=topic.paused,
        )

    def _error(self, status: int, why: str) -> AdminError:
        return AdminError(status, why, f"{self._target}/stats")


def _https_port(body: bytes) -> int:
    """Return the port in ``{"message": "TLS_REQUIRED", "https_port": ...}``, or 0."""
    try:
        answer: Any = json.loads(body)
        port = answer["https_port"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return 0
    return port if type(port) is int and 1 <= port <= 65535 else 0
