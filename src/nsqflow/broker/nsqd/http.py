"""nsqd over HTTP: publishing, administration, stats and options.

Statuses, messages and bodies are nsqd's (``nsqd/http.go``), with checks in the same order. One is
our own: a publish that exceeds ``max_memory`` is refused with 503 and FULL. A response of 200 means
that the messages are stored, if the nsqd has a data path.
"""

from __future__ import annotations

import gc
import json
import logging
import re
import socket
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any

from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.topic import OutOfMemory, Topic
from nsqflow.broker.http_api import JSON, V1, ApiError, ApiRouter, Query, Route, plain_text
from nsqflow.broker.nsqd import stats
from nsqflow.broker.options import LOG_LEVEL
from nsqflow.broker.storage import StorageError
from nsqflow.broker.version import VERSION
from nsqflow.errors import ConfigError
from nsqflow.http.server import Handler, Request, Response

if TYPE_CHECKING:
    from nsqflow.broker.nsqd.daemon import NsqdDaemon


_log = logging.getLogger("nsqflow.broker.nsqd")

_OTHER_BODIES = 4096  # bytes, for requests whose body is ignored

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_INTEGER = re.compile(r"[+-]?0*[0-9]{1,19}", re.ASCII)  # a 64-bit integer as Go reads it
_MS = 10**6
_INT32 = Struct(">i")


class NsqdApi:
    """The HTTP API of an nsqd."""

    def __init__(self, nsqd: NsqdDaemon) -> None:
        self._nsqd = nsqd

    def handler(self, *, tls: bool) -> Handler:
        """Return the handler of requests that come with TLS or without."""
        if self._nsqd.options.tls_required == "true" and not tls:
            return self._refuse_without_tls
        # Like Go: all requests are logged, except publishes.
        return ApiRouter(self._routes(), _log, quiet=("/pub", "/mpub"))

    def body_limit(self, _method: str, path: str) -> int:
        """Return the number of bytes that are read of a body."""
        options = self._nsqd.options
        if path == "/mpub":
            return options.max_body_size
        if path == "/pub" or path.startswith("/config/"):
            return options.max_msg_size
        return _OTHER_BODIES

    def _routes(self) -> dict[tuple[str, str], Route]:
        engine, now = self._nsqd.engine, self._nsqd.now
        topic, channel = self._topic_route, self._channel_route
        return {
            ("GET", "/ping"): self._ping,
            ("GET", "/info"): self._info,
            ("POST", "/pub"): self._pub,
            ("POST", "/mpub"): self._mpub,
            ("GET", "/stats"): self._stats,
            ("POST", "/topic/create"): self._create_topic,
            ("POST", "/topic/delete"): topic(lambda each: engine.delete_topic(each.name)),
            ("POST", "/topic/empty"): self._empty_topic,
            ("POST", "/topic/pause"): topic(Topic.pause),
            ("POST", "/topic/unpause"): topic(lambda each: each.unpause(now())),
            ("POST", "/channel/create"): self._create_channel,
            ("POST", "/channel/delete"): channel(
                lambda each: engine.topics[each.topic].delete_channel(each.name)
            ),
            ("POST", "/channel/empty"): channel(Channel.empty),
            ("POST", "/channel/pause"): channel(self._pause_channel),
            ("POST", "/channel/unpause"): channel(Channel.unpause),
            ("GET", "/config/{opt}"): self._get_option,
            ("PUT", "/config/{opt}"): self._set_option,
            # The rest of /debug profiles a Go program.
            ("POST", "/debug/freememory"): self._free_memory,
        }

    # Status

    def _ping(self, _: Request) -> Response:
        health = self._nsqd.health
        return plain_text(health, 200 if health == "OK" else 500)

    def _info(self, _: Request) -> dict[str, Any]:
        nsqd, options = self._nsqd, self._nsqd.options
        return {
            "version": VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": nsqd.http_port,
            "tcp_port": nsqd.tcp_port,
            "start_time": nsqd.started,
            "max_heartbeat_interval": options.value("max_heartbeat_interval"),
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": options.value("max_output_buffer_timeout"),
            "max_deflate_level": options.max_deflate_level,
        }

    def _stats(self, request: Request) -> object:
        query = Query(request.query)
        gathered = stats.gather(
            self._nsqd,
            query.get("topic") or "",
            query.get("channel") or "",
            include_clients=_BOOLEANS.get(query.get("include_clients") or "", True),
            include_mem=_BOOLEANS.get(query.get("include_mem") or "", True),
        )
        if query.get("format") == "json":
            return gathered
        return stats.render(gathered, self._nsqd.now())

    def _free_memory(self, _: Request) -> Response:
        gc.collect()  # nsqd does it too, and then fails to respond: 500
        return plain_text("")

    # Publishing

    async def _pub(self, request: Request) -> str:
        if not request.complete:
            raise ApiError(413, "MSG_TOO_BIG")
        if not request.body:
            raise ApiError(400, "MSG_EMPTY")
        query = Query(request.query)
        topic = self._topic(query)
        await self._publish(topic, [request.body], self._delay(query))
        return "OK"

    async def _mpub(self, request: Request) -> str:
        options = self._nsqd.options
        if not request.complete:
            raise ApiError(413, "BODY_TOO_BIG")
        query = Query(request.query)
        topic = self._topic(query)
        if _is_binary(query):
            bodies = split_binary(request.body, options.max_msg_size, options.max_body_size)
        else:
            bodies = split_lines(request.body, options.max_msg_size)
        if bodies:
            await self._publish(topic, bodies)
        return "OK"

    def _delay(self, query: Query) -> int:
        text = query.get("defer")
        if text is None:
            return 0
        delay = int(text) * _MS if _INTEGER.fullmatch(text) else -1
        if not 0 <= delay <= self._nsqd.options.value("max_req_timeout"):
            raise ApiError(400, "INVALID_DEFER")
        return delay

    async def _publish(self, topic: Topic, bodies: list[bytes], delay: int = 0) -> None:
        try:
            must_store = topic.publish(bodies, self._nsqd.now(), delay)
        except OutOfMemory as error:
            _log.error("refused %d messages to topic %s: %s", len(bodies), topic.name, error)
            raise ApiError(503, "FULL") from None
        if must_store:
            await self._changed(503, "EXITING")
        else:
            self._nsqd.pump()

    # Topics and channels

    async def _create_topic(self, request: Request) -> None:
        self._topic(Query(request.query))
        await self._changed()

    async def _empty_topic(self, request: Request) -> None:
        Query(request.query).topic("INVALID_TOPIC")
        self._existing_topic(request).empty()
        await self._changed()

    async def _create_channel(self, request: Request) -> None:
        topic, channel = self._topic_and_channel(request)
        topic.channel(channel, self._nsqd.now())
        await self._changed()

    def _pause_channel(self, channel: Channel) -> None:
        channel.pause()
        self._nsqd.flush(channel)

    def _topic_route(self, act: Callable[[Topic], None]) -> Route:
        async def route(request: Request) -> None:
            act(self._existing_topic(request))
            await self._changed()

        return route

    def _channel_route(self, act: Callable[[Channel], None]) -> Route:
        async def route(request: Request) -> None:
            topic, name = self._topic_and_channel(request)
            if name not in topic.channels:
                raise ApiError(404, "CHANNEL_NOT_FOUND")
            act(topic.channels[name])
            await self._changed()

        return route

    # Options: all can be read, two can be set at run time

    def _get_option(self, _: Request, opt: str) -> object:
        # Ports that nsqd has chosen itself.
        chosen = {
            "broadcast_tcp_port": max(self._nsqd.tcp_port, 0),
            "broadcast_http_port": max(self._nsqd.http_port, 0),
        }
        try:
            value = self._nsqd.options.value(opt)
        except KeyError:
            raise ApiError(400, "INVALID_OPTION") from None
        return chosen[opt] if opt in chosen and not value else value

    def _set_option(self, request: Request, opt: str) -> object:
        if not request.complete or not request.body:
            raise ApiError(413, "INVALID_VALUE")
        try:
            if opt == "nsqlookupd_tcp_addresses":
                self._nsqd.set_lookupd_addresses(_parse_addresses(request.body))
            elif opt == "log_level":
                self._nsqd.set_log_level(LOG_LEVEL.parse("log_level", request.body.decode()))
            else:
                raise ApiError(400, "INVALID_OPTION")
        except (ValueError, RecursionError):  # a ConfigError is a ValueError
            raise ApiError(400, "INVALID_VALUE") from None
        return self._get_option(request, opt)

    # Private methods

    async def _refuse_without_tls(self, _: Request) -> Response:
        body = f'{{"message": "TLS_REQUIRED", "https_port": {self._nsqd.https_port}}}'
        return Response(403, body.encode(), [JSON, V1])

    def _topic(self, query: Query) -> Topic:
        """Return the topic; create it even if the request fails later."""
        return self._nsqd.engine.topic(query.topic("INVALID_TOPIC"), self._nsqd.now())

    def _existing_topic(self, request: Request) -> Topic:
        return self._find(Query(request.query).require("topic"))

    def _topic_and_channel(self, request: Request) -> tuple[Topic, str]:
        topic, channel = Query(request.query).topic_and_channel()
        return self._find(topic), channel

    def _find(self, name: str) -> Topic:
        topic = self._nsqd.engine.topics.get(name)
        if topic is None:
            raise ApiError(404, "TOPIC_NOT_FOUND")
        return topic

    async def _changed(self, status: int = 500, message: str = "INTERNAL_ERROR") -> None:
        """Apply a change and wait until it is stored; if that fails, raise with this status."""
        self._nsqd.pump()
        try:
            await self._nsqd.stored()
        except StorageError:  # the daemon logs it and is no longer healthy
            raise ApiError(status, message) from None


def _is_binary(query: Query) -> bool:
    value = query.get("binary")
    if value is None:
        return False
    if value not in _BOOLEANS:
        _log.warning("deprecated value '%s' used for /mpub binary param", value)
    return _BOOLEANS.get(value, True)


def _parse_addresses(body: bytes) -> list[str]:
    addresses = json.loads(body)
    if not isinstance(addresses, list):
        raise ConfigError(f"nsqlookupd_tcp_addresses={addresses!r} is invalid: must be a list")
    return addresses


def split_lines(body: bytes, max_msg_size: int) -> list[bytes]:
    """Split the body of /mpub into its non-empty lines; raise ``ApiError`` if one is too long."""
    bodies = [line for line in body.split(b"\n") if line]
    if bodies and max(map(len, bodies)) > max_msg_size:
        raise ApiError(413, "MSG_TOO_BIG")
    return bodies


def split_binary(body: bytes, max_msg_size: int, max_body_size: int) -> list[bytes]:
    """Split the binary body of /mpub; raise ``ApiError`` if it is malformed.

        | count: int32 | (size: int32 | body)* |

    Like nsqd, it ignores what follows the last message.
    """
    count = _int32(body, 0)
    if not 0 < count <= (max_body_size - 4) // 5:  # a message takes at least five bytes
        raise ApiError(413, "BAD_BODY")
    bodies: list[bytes] = []
    at = 4
    for _ in range(count):
        size = _int32(body, at)
        end = at + 4 + size
        if not 0 < size <= max_msg_size or end > len(body):
            raise ApiError(413, "BAD_MESSAGE")
        bodies.append(body[at + 4 : end])
        at = end
    return bodies


def _int32(body: bytes, at: int) -> int:
    """Read a number; -1 if the body is too short."""
    number: int = _INT32.unpack_from(body, at)[0] if at + 4 <= len(body) else -1
    return number
