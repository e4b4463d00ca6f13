"""One nsqd, over HTTP."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from nsqflow.admin.daemon import Daemon, channel_query, topic_query
from nsqflow.admin.stats import NsqdStats, parse_stats
from nsqflow.errors import ConfigError, LocalProtocolError, PublishUncertain
from nsqflow.http.client import NoAnswer
from nsqflow.protocol.names import check_channel, check_topic
from nsqflow.protocol.publish import Mpub

_OPTION = re.compile(r"[a-z0-9_]+")


class Nsqd(Daemon):
    """The HTTP API of one nsqd (port 4151, unless it was told otherwise)."""

    async def stats(
        self, topic: str | None = None, channel: str | None = None, include_clients: bool = True
    ) -> NsqdStats:
        """What it counts, of everything or of one topic or channel.

        Without clients it is far cheaper on an nsqd that has many.
        """
        query = {"format": "json", "include_clients": str(include_clients).lower()}
        if topic is not None:
            query["topic"] = check_topic(topic)
        if channel is not None:
            query["channel"] = check_channel(channel)
        data = await self._object("/stats", query)
        try:
            return parse_stats(data)
        except ValueError as error:
            raise self._useless("/stats", str(error)) from None

    async def create_topic(self, topic: str) -> None:
        """Create a topic; one that is there already stays as it is."""
        await self._call("POST", "/topic/create", topic_query(topic))

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its channels and all their messages."""
        await self._call("POST", "/topic/delete", topic_query(topic))

    async def empty_topic(self, topic: str) -> None:
        """Throw away the messages that no channel has yet."""
        await self._call("POST", "/topic/empty", topic_query(topic))

    async def pause_topic(self, topic: str) -> None:
        """Hold messages back from the topic's channels."""
        await self._call("POST", "/topic/pause", topic_query(topic))

    async def unpause_topic(self, topic: str) -> None:
        """Let messages flow to the topic's channels again."""
        await self._call("POST", "/topic/unpause", topic_query(topic))

    async def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel of a topic that exists; one that is there already stays as it is."""
        await self._call("POST", "/channel/create", channel_query(topic, channel))

    async def delete_channel(self, topic: str, channel: str) -> None:
        """Delete a channel and its messages; its clients are disconnected."""
        await self._call("POST", "/channel/delete", channel_query(topic, channel))

    async def empty_channel(self, topic: str, channel: str) -> None:
        """Throw away a channel's messages."""
        await self._call("POST", "/channel/empty", channel_query(topic, channel))

    async def pause_channel(self, topic: str, channel: str) -> None:
        """Hold messages back from the channel's clients."""
        await self._call("POST", "/channel/pause", channel_query(topic, channel))

    async def unpause_channel(self, topic: str, channel: str) -> None:
        """Let messages flow to the channel's clients again."""
        await self._call("POST", "/channel/unpause", channel_query(topic, channel))

    async def publish(self, topic: str, body: bytes, delay: float | None = None) -> None:
        """Publish a message, to be delivered after ``delay`` seconds if that is given.

        Raises ``PublishUncertain`` if it was sent and no answer came.
        """
        query = topic_query(topic)
        if not body:
            raise LocalProtocolError("empty message body; nsqd refuses it")
        if delay is not None:
            query["defer"] = _milliseconds(delay)
        await self._publish("/pub", query, body)

    async def publish_many(self, topic: str, bodies: Iterable[bytes]) -> None:
        """Publish messages in one request: all of them or none.

        Together they must stay below nsqd's max-body-size. Raises ``PublishUncertain`` if they
        were sent and no answer came.
        """
        # The body is that of MPUB: what follows its line and the size of the whole.
        _, _, sized = Mpub(topic, [*bodies]).encode().partition(b"\n")
        await self._publish("/mpub", topic_query(topic) | {"binary": "true"}, sized[4:])

    async def config(self, name: str) -> Any:
        """The value of an option that nsqd runs with, such as ``mem_queue_size``.

        As nsqd has it: durations are nanoseconds.
        """
        return await self._json("GET", _option_path(name))

    async def set_config(self, name: str, value: Any) -> Any:
        """Change an option while nsqd runs; gives its value afterwards.

        nsqd 1.3.0 takes ``log_level`` (text) and ``nsqlookupd_tcp_addresses`` (a list).
        """
        body = value if isinstance(value, str) else json.dumps(value)
        return await self._json("PUT", _option_path(name), body=body.encode())

    async def _publish(self, path: str, query: dict[str, str], body: bytes) -> None:
        try:
            await self._call("POST", path, query, body)
        except NoAnswer as error:
            raise PublishUncertain(str(error)) from error


def _milliseconds(delay: float) -> str:
    if not 0 <= delay < math.inf:
        raise ConfigError(f"delay {delay!r}; allowed are 0 seconds to nsqd's max-req-timeout")
    return str(math.ceil(delay * 1000))


def _option_path(name: str) -> str:
    if not _OPTION.fullmatch(name):
        raise ConfigError(f"option {name!r}; allowed are small letters, digits and '_'")
    return f"/config/{name}"
