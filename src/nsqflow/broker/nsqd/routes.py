"""nsqd over HTTP: publishing, administration, stats and options.

Statuses, messages and bodies are nsqd's (``nsqd/http.go``), in the same order of checks. One is
our own: a publish for which there is no memory left is refused with 503 and FULL. What is
answered with 200 has been stored, where the nsqd stores.
"""

from __future__ import annotations

import gc
import logging
import re
import socket
from typing import TYPE_CHECKING, Any

from nsqflow.broker.api import Api, ApiError, Query, Route, plain_text
from nsqflow.broker.engine.channel import Channel
from nsqflow.broker.engine.topic import Full, Topic
from nsqflow.broker.nsqd import mpub, stats, stats_text
from nsqflow.broker.nsqd.config_routes import ConfigRoutes
from nsqflow.broker.storage import StorageError
from nsqflow.broker.version import VERSION
from nsqflow.http.server import HttpServer, Request, Response

if TYPE_CHECKING:
    from nsqflow.broker.nsqd.daemon import Nsqd

_log = logging.getLogger("nsqflow.broker.nsqd")

_MAX_CONNECTIONS = 250  # through each door: most files are for the clients over TCP
_OTHER_BODIES = 4096  # bytes that come with requests in which they mean nothing

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_INTEGER = re.compile(r"[+-]?0*[0-9]{1,19}", re.ASCII)  # as Go reads one of 64 bits
_MS = 10**6


def http_server(nsqd: Nsqd, *, tls: bool) -> HttpServer:
    """Make the HTTP server of an nsqd: the one behind TLS, or the other."""
    routes = Routes(nsqd)
    # (Go logs all requests but publishes, of which there are too many.)
    api = Api(routes.table(), _log, quiet=("/pub", "/mpub"))

    async def only_with_tls(_: Request) -> Response:
        return _tls_required(nsqd.https_port)

    refused = nsqd.options.tls_required == "true" and not tls
    return HttpServer(
        only_with_tls if refused else api,
        body_limit=routes.body_limit,
        max_connections=_MAX_CONNECTIONS,
    )


class Routes:
    """The answers of an nsqd."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd

    def table(self) -> dict[tuple[str, str], Route]:
        """Give the routes by method and path."""
        config = ConfigRoutes(self._nsqd)
        return {
            ("GET", "/ping"): self._ping,
            ("GET", "/info"): self._info,
            ("POST", "/pub"): self._pub,
            ("POST", "/mpub"): self._mpub,
            ("GET", "/stats"): self._stats,
            ("POST", "/topic/create"): self._create_topic,
            ("POST", "/topic/delete"): self._delete_topic,
            ("POST", "/topic/empty"): self._empty_topic,
            ("POST", "/topic/pause"): self._pause_topic,
            ("POST", "/topic/unpause"): self._unpause_topic,
            ("POST", "/channel/create"): self._create_channel,
            ("POST", "/channel/delete"): self._delete_channel,
            ("POST", "/channel/empty"): self._empty_channel,
            ("POST", "/channel/pause"): self._pause_channel,
            ("POST", "/channel/unpause"): self._unpause_channel,
            ("GET", "/config/{opt}"): config.tell,
            ("PUT", "/config/{opt}"): config.set,
            # The rest of /debug profiles a Go program; there is none here.
            ("POST", "/debug/freememory"): self._free_memory,
        }

    def body_limit(self, _method: str, path: str) -> int:
        """Tell how many bytes of a body are read."""
        options = self._nsqd.options
        if path == "/mpub":
            return options.max_body_size
        if path == "/pub" or path.startswith("/config/"):
            return options.max_msg_size
        return _OTHER_BODIES

    # What it is, and how it is.

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
        return stats_text.render(gathered, self._nsqd.now())

    def _free_memory(self, _: Request) -> Response:
        gc.collect()  # (nsqd does as much, and then fails to say so: 500)
        return plain_text("")

    # Publishing.

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
            bodies = mpub.split_binary(request.body, options.max_msg_size, options.max_body_size)
        else:
            bodies = mpub.split_lines(request.body, options.max_msg_size)
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
        except Full as error:
            _log.error("refused %d messages to topic %s: %s", len(bodies), topic.name, error)
            raise ApiError(503, "FULL") from None
        if must_store:
            await self._changed(503, "EXITING")
        else:
            self._nsqd.pump()

    # Topics.

    async def _create_topic(self, request: Request) -> None:
        self._topic(Query(request.query))
        await self._changed()

    async def _delete_topic(self, request: Request) -> None:
        self._nsqd.engine.delete_topic(self._existing_topic(request).name)
        await self._changed()

    async def _empty_topic(self, request: Request) -> None:
        Query(request.query).topic("INVALID_TOPIC")
        self._existing_topic(request).empty()
        await self._changed()

    async def _pause_topic(self, request: Request) -> None:
        self._existing_topic(request).pause()
        await self._changed()

    async def _unpause_topic(self, request: Request) -> None:
        self._existing_topic(request).unpause(self._nsqd.now())
        await self._changed()

    # Channels.

    async def _create_channel(self, request: Request) -> None:
        topic, channel = self._topic_and_channel(request)
        topic.channel(channel, self._nsqd.now())
        await self._changed()

    async def _delete_channel(self, request: Request) -> None:
        topic, channel = self._topic_and_channel(request)
        topic.delete_channel(_existing_channel(topic, channel).name)
        await self._changed()

    async def _empty_channel(self, request: Request) -> None:
        _existing_channel(*self._topic_and_channel(request)).empty()
        await self._changed()

    async def _pause_channel(self, request: Request) -> None:
        channel = _existing_channel(*self._topic_and_channel(request))
        channel.pause()
        self._nsqd.flush(channel)
        await self._changed()

    async def _unpause_channel(self, request: Request) -> None:
        _existing_channel(*self._topic_and_channel(request)).unpause()
        await self._changed()

    # Private methods

    def _topic(self, query: Query) -> Topic:
        """Return the topic, which is made if need be: even if the request fails later."""
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
        """Act on a change, and wait until it is stored; if that fails, refuse with this."""
        self._nsqd.pump()
        try:
            await self._nsqd.stored()
        except StorageError:  # the daemon logs it, and is no longer healthy
            raise ApiError(status, message) from None


def _existing_channel(topic: Topic, name: str) -> Channel:
    channel = topic.channels.get(name)
    if channel is None:
        raise ApiError(404, "CHANNEL_NOT_FOUND")
    return channel


def _is_binary(query: Query) -> bool:
    value = query.get("binary")
    if value is None:
        return False
    if value not in _BOOLEANS:
        _log.warning("deprecated value '%s' used for /mpub binary param", value)
    return _BOOLEANS.get(value, True)


def _tls_required(port: int) -> Response:
    body = f'{{"message": "TLS_REQUIRED", "https_port": {port}}}'
    headers = [
        ("Content-Type", "application/json; charset=utf-8"),
        ("X-Nsq-Content-Type", "nsq; version=1.0"),
    ]
    return Response(403, body.encode(), headers)
