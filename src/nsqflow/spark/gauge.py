"""One nsqd as the driver sees it: what it counts, and the channels it is given."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from nsqflow.admin import AdminError, ChannelStats, Nsqd, TopicStats
from nsqflow.admin.stats import NsqdStats, parse_stats
from nsqflow.errors import ConfigError, NetworkError
from nsqflow.http.client import parse_http_address
from nsqflow.protocol.lookup import join_address
from nsqflow.spark.backlog import Backlog
from nsqflow.spark.http_link import HttpLink

# Neither clients, of which there may be many, nor memory, for which nsqd stops its world.
_BRIEFLY = {"format": "json", "include_clients": "false", "include_mem": "false"}

_FEW = 3  # topics that are asked for one by one; more of them come in one answer
_MAX_MESSAGE = 200  # characters of a server's message that are worth showing


class Gauge:
    """Reads what one nsqd counts of one channel, through a connection that it keeps.

    ``nsqd`` is its TCP address, by which it goes here; ``http`` is where it is asked. Raises
    ``NetworkError`` or ``AdminError``.
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
        """Those that are to be read."""
        self._channel = channel
        self._tls = tls
        self._address = http  # or where it has sent us
        self._link: HttpLink | None = None

    async def names(self) -> list[str]:
        """Give the names of all its topics."""
        return [topic.name for topic in (await self._stats()).topics]

    async def read(self, topics: Collection[str]) -> list[Backlog]:
        """Give the backlogs of those topics that it has, with the channel."""
        if len(topics) <= _FEW:
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

    async def create(self, topic: str, *, anew: bool) -> bool:
        """Create the channel, and the topic too if ``anew``; False: there is no such topic."""
        async with self._admin() as nsqd:
            if anew:
                await nsqd.create_topic(topic)
            try:
                await nsqd.create_channel(topic, self._channel)
            except AdminError as error:
                if error.status == 404:
                    return False
                raise
        return True

    async def empty(self, topic: str) -> None:
        """Throw the channel's messages away, also those in flight and deferred."""
        async with self._admin() as nsqd:
            await nsqd.empty_channel(topic, self._channel)

    def close(self) -> None:
        """Drop the connection."""
        if self._link is not None:
            self._link.close()

    def _admin(self) -> Nsqd:
        secure = parse_http_address(self._address).scheme == "https"
        return Nsqd(self._address, tls=self._tls() if secure else None)

    async def _stats(self, *, topic: str = "", channel: str = "") -> NsqdStats:
        path = _path(topic, channel)
        status, body = await self._get(path)
        if status == 403 and (port := _https_port(body)):
            self._move(port)
            status, body = await self._get(path)
        if status != 200:
            raise self._useless(status, body[:_MAX_MESSAGE].decode(errors="backslashreplace"))
        try:
            return parse_stats(json.loads(body))
        except (AttributeError, ValueError, RecursionError) as error:
            raise self._useless(status, f"no stats: {error}") from None

    async def _get(self, path: str) -> tuple[int, bytes]:
        if self._link is None:
            try:
                self._link = HttpLink(self._address, self._tls)
            except ConfigError as error:  # port 0, where nsqd runs without its HTTP API
                raise NetworkError(f"{self.nsqd} can't be asked what it has: {error}") from None
        try:
            return await self._link.get(path)
        except NetworkError:
            # When it comes back, it may be with other ports.
            self._address, self._link = self.http, None
            raise

    def _move(self, port: int) -> None:
        """Ask over https from now on: nsqd runs with --tls-required, and told its port."""
        self.close()
        self._address = f"https://{join_address(parse_http_address(self.http).host, port)}"
        self._link = None

    def _backlog(self, started: float, topic: TopicStats, channel: ChannelStats) -> Backlog:
        return Backlog(
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

    def _useless(self, status: int, why: str) -> AdminError:
        return AdminError(status, why, f"{self._link}/stats")


@lru_cache(maxsize=1000)  # it is a tenth of what a question costs
def _path(topic: str, channel: str) -> str:
    return "/stats?" + urlencode(_BRIEFLY | {"topic": topic, "channel": channel})


def _https_port(body: bytes) -> int:
    """The port in ``{"message": "TLS_REQUIRED", "https_port": ...}``, or 0."""
    try:
        answer: Any = json.loads(body)
        port = answer["https_port"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return 0
    return port if type(port) is int and 1 <= port <= 65535 else 0
