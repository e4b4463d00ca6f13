"""One nsqd, over HTTP."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from nsqflow.admin.http_api import HttpApi, name_query
from nsqflow.admin.stats import NsqdStats, parse_stats
from nsqflow.errors import ConfigError, LocalProtocolError, NoResponseError, PublishUncertain
from nsqflow.protocol.names import check_channel, check_topic
from nsqflow.protocol.publish import Mpub

_OPTION = re.compile(r"[a-z0-9_]+")


class Nsqd(HttpApi):
    """The HTTP API of one nsqd (port 4151 by default)."""

    async def stats(
        self, topic: str | None = None, channel: str | None = None, include_clients: bool = True
    ) -> NsqdStats:
        """Return the statistics of everything, or of one topic or channel.

        Without clients the answer is much smaller on an nsqd that has many.
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

    async def empty_topic(self, topic: str) -> None:
        """Drop the messages that no channel has yet."""
        await self.change("empty", topic)

    async def pause_topic(self, topic: str) -> None:
        """Hold messages back from the topic's channels."""
        await self.change("pause", topic)

    async def unpause_topic(self, topic: str) -> None:
        """Let messages flow to the topic's channels again."""
        await self.change("unpause", topic)

    async def empty_channel(self, topic: str, channel: str) -> None:
        """Drop a channel's messages."""
        await self.change("empty", topic, channel)

    async def pause_channel(self, topic: str, channel: str) -> None:
        """Hold messages back from the channel's clients."""
        await self.change("pause", topic, channel)

    async def unpause_channel(self, topic: str, channel: str) -> None:
        """Let messages flow to the channel's clients again."""
        await self.change("unpause", topic, channel)

    async def publish(self, topic: str, body: bytes, delay: float | None = None) -> None:
        """Publish a message, optionally delivered after ``delay`` seconds.

        Raises ``PublishUncertain`` if it was sent and no answer arrived.
        """
        query = name_query(topic)
        if not body:
            raise LocalProtocolError("empty message body: nsqd rejects empty messages")
        if delay is not None:
            query["defer"] = _milliseconds(delay)
        await self._publish("/pub", query, body)

    async def publish_many(self, topic: str, bodies: Iterable[bytes]) -> None:
        """Publish messages in one request: all of them or none.

        Together they must stay below nsqd's max-body-size. Raises ``PublishUncertain`` if they
        were sent and no answer arrived.
        """
        # The body is that of MPUB, without the command line and the total size.
        _, _, sized = Mpub(topic, [*bodies]).encode().partition(b"\n")
        await self._publish("/mpub", name_query(topic) | {"binary": "true"}, sized[4:])

    async def config(self, name: str) -> Any:
        """Return the value of an nsqd option, such as ``mem_queue_size``.

        Durations are in nanoseconds.
        """
        return await self._json("GET", _option_path(name))

    async def set_config(self, name: str, value: Any) -> Any:
        """Change an option of the running nsqd; return its new value.

        nsqd 1.3.0 takes ``log_level`` (text) and ``nsqlookupd_tcp_addresses`` (a list).
        """
        body = value if isinstance(value, str) else json.dumps(value)
        return await self._json("PUT", _option_path(name), body=body.encode())

    async def _publish(self, path: str, query: dict[str, str], body: bytes) -> None:
        try:
            await self._call("POST", path, query, body)
        except NoResponseError as error:
            raise PublishUncertain(str(error)) from error


def _milliseconds(delay: float) -> str:
    if not 0 <= delay < math.inf:
        raise ConfigError(f"delay={delay!r} is invalid: must be 0 to nsqd's max-req-timeout")
    return str(math.ceil(delay * 1000))


def _option_path(name: str) -> str:
    if not _OPTION.fullmatch(name):
        raise ConfigError(f"option {name!r} is invalid: must be lower-case letters, digits and '_'")
    return f"/config/{name}"
