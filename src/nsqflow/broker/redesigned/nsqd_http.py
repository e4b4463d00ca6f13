"""A redesigned nsqd over HTTP: publishing, stats, channels, and single messages of a partition."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nsqflow.broker.engine.channel import NotInFlight
from nsqflow.broker.http_api import JSON, ApiError, ApiRouter, Query, Route, negotiated, plain_text
from nsqflow.broker.nsqd.http import split_binary, split_lines
from nsqflow.broker.redesigned.engine.channel import PartitionChannel
from nsqflow.broker.redesigned.engine.headers import parse_trace_id
from nsqflow.broker.redesigned.engine.partition import Partition, Publication, Refused
from nsqflow.broker.redesigned.engine.position import (
    InvalidPosition,
    NoSuchPosition,
    find_message,
    find_position,
    parse_position,
)
from nsqflow.broker.redesigned.nsqd_stats import gather_partitions, render_partitions
from nsqflow.broker.version import REDESIGNED_VERSION
from nsqflow.http.server import Handler, Request, Response
from nsqflow.protocol import Receipt

if TYPE_CHECKING:
    from nsqflow.broker.redesigned.nsqd import PartitionedNsqd

_log = logging.getLogger("nsqflow.broker.nsqd")

_OTHER_BODIES = 4096  # bytes
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_SEARCH_MODES = ("id", "count", "virtual_offset")
_PARTITION_BITS = 50  # an id is the partition, shifted by these, plus a number
_PUBLISHES = ("/pub", "/mpub", "/pubtrace")


class PartitionedNsqdApi:
    """The HTTP API of a node."""

    def __init__(self, nsqd: PartitionedNsqd) -> None:
        self._nsqd = nsqd

    def handler(self, *, tls: bool) -> Handler:
        """Return the handler of requests that come with TLS or without."""
        if self._nsqd.options.tls_required == "true" and not tls:
            return self._refuse_without_tls
        return ApiRouter(self._routes(), _log, quiet=_PUBLISHES)

    def body_limit(self, _method: str, path: str) -> int:
        """Return the number of bytes that are read of a body."""
        options = self._nsqd.options
        if path == "/mpub":
            return options.max_body_size
        return options.max_msg_size if path in _PUBLISHES else _OTHER_BODIES

    def _routes(self) -> dict[tuple[str, str], Route]:
        channel = self._channel_route
        return {
            ("GET", "/ping"): lambda request: plain_text(self._nsqd.health),
            ("GET", "/info"): negotiated(self._info),
            ("POST", "/pub"): negotiated(self._pub),
            ("POST", "/mpub"): negotiated(self._mpub),
            ("POST", "/pubtrace"): self._pub_trace,
            ("GET", "/stats"): negotiated(self._stats),
            ("GET", "/coordinator/stats"): self._coordinator_stats,
            ("POST", "/channel/create"): self._create_channel,
            ("POST", "/channel/delete"): self._delete_channel,
            ("POST", "/channel/empty"): channel(lambda each, _: each.empty()),
            ("POST", "/channel/pause"): channel(lambda each, _: each.pause(True), follower=True),
            ("POST", "/channel/unpause"): channel(lambda each, _: each.pause(False), follower=True),
            ("POST", "/channel/setoffset"): channel(self._set_offset),
            ("POST", "/channel/setorder"): channel(self._set_order, follower=True),
            ("GET", "/message/get"): self._get_message,
            ("POST", "/message/finish"): channel(self._finish_message),
        }

    # Status

    def _info(self, _: Request) -> dict[str, Any]:
        nsqd = self._nsqd
        return {
            "version": REDESIGNED_VERSION,
            "broadcast_address": nsqd.options.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": nsqd.http_port,
            "tcp_port": nsqd.tcp_port,
            "start_time": nsqd.started,
            "ha_support": True,
        }

    def _stats(self, request: Request) -> object:
        query = Query(request.query)
        topic = query.get("topic") or ""
        wanted = query.get("needClients") or ""
        stats = gather_partitions(
            self._nsqd,
            topic,
            query.get("partition") or "",
            query.get("channel") or "",
            leader_only=query.get("leaderOnly") in _TRUE,
            clients=wanted == "true" or (topic != "" and wanted == ""),
        )
        return stats if query.get("format") == "json" else render_partitions(stats)

    def _coordinator_stats(self, request: Request) -> dict[str, Any]:
        query, nsqd = Query(request.query), self._nsqd
        topic, wanted = query.get("topic") or "", _partition_number(query, "INVALID_REQUEST")
        found = [
            {
                "name": topic,
                "partition": each.number,
                "isr_stats": [
                    {"node_id": nsqd.members.distributed_id(node)} for node in each.in_sync
                ],
            }
            for each in nsqd.cluster.partitions()
            if each.topic == topic and nsqd.number in each.replicas
            if wanted in (None, each.number)
        ]
        return {"rpc_stats": None, "error_stats": {}, "topic_coord_stats": found}

    # Publishing

    async def _pub(self, request: Request) -> str:
        await self._publish(request, Publication((self._message(request),)))
        return "OK"

    async def _pub_trace(self, request: Request) -> dict[str, Any]:
        body = self._message(request)
        text = Query(request.query).get("trace_id") or ""
        if (trace_id := parse_trace_id(text)) is None:
            raise ApiError(400, "INVALID_TRACE_ID")
        receipt = await self._publish(request, Publication((body,), (trace_id,)))
        return {
            "status": "OK",
            "id": receipt.internal_id,
            "trace_id": text,
            "queue_offset": receipt.offset,
            "rawsize": receipt.size,
        }

    async def _mpub(self, request: Request) -> str:
        options = self._nsqd.options
        if not request.complete:
            raise ApiError(413, "BODY_TOO_BIG")
        self._partition(request)
        if Query(request.query).get("binary") is not None:
            bodies = split_binary(request.body, options.max_msg_size, options.max_body_size)
        else:
            bodies = split_lines(request.body, options.max_msg_size)
        if bodies:
            await self._publish(request, Publication(bodies, batch=True))
        return "OK"

    @staticmethod
    def _message(request: Request) -> bytes:
        if not request.complete:
            raise ApiError(413, "MSG_TOO_BIG")
        if not request.body:
            raise ApiError(406, "MSG_EMPTY")
        return request.body

    async def _publish(self, request: Request, publication: Publication) -> Receipt:
        nsqd, partition = self._nsqd, self._partition(request)
        done: asyncio.Future[Receipt | Refused] = asyncio.get_running_loop().create_future()

        def settle(result: Receipt | Refused) -> None:
            if not done.done():
                done.set_result(result)

        bodies, traces, batch = publication.bodies, publication.traces, publication.batch
        publication = Publication(bodies, traces, batch=batch, done=settle)
        try:
            stored = nsqd.cluster.publish(nsqd.number, partition, publication, nsqd.now())
        except Refused as refused:
            raise _api_error(refused) from None
        nsqd.pump()
        result = stored or await done
        if isinstance(result, Refused):
            raise _api_error(result)
        return result

    # Channels

    def _create_channel(self, request: Request) -> None:
        partition, name = self._partition_and_channel(request)
        self._check_leader(partition)
        if partition.meta.disable_channel_auto_create:
            text = f"channel {name} not registered. channel should be initialized before use."
            raise ApiError(403, text)
        partition.channel(name)

    def _delete_channel(self, request: Request) -> None:
        partition, name = self._partition_and_channel(request)
        self._check_leader(partition)
        if partition.meta.disable_channel_auto_create:
            raise ApiError(
                403,
                f"topic {partition.topic} has channel auto create disabled. channel {name} cuold "
                "not be deleted localy in nsqd.",  # (sic)
            )
        self._nsqd.cluster.delete_channel(partition, name)

    def _channel_route(
        self, act: Callable[[PartitionChannel, Request], None], *, follower: bool = False
    ) -> Route:
        """Return a route that acts on a channel; only the leader does unless a ``follower`` may."""

        def route(request: Request) -> None:
            partition, name = self._partition_and_channel(request)
            channel = partition.channels.get(name)
            if channel is None:
                raise ApiError(404, "CHANNEL_NOT_FOUND")
            if not follower:
                self._check_leader(partition)
            act(channel, request)
            self._nsqd.pump()

        return route

    def _set_offset(self, channel: PartitionChannel, request: Request) -> None:
        if not request.body:
            raise ApiError(406, "MSG_EMPTY")
        try:
            position = parse_position(request.body.decode("utf-8", "replace"))
        except InvalidPosition as error:
            raise ApiError(400, str(error)) from None
        try:
            channel.move(find_position(channel.reader.log, *position))
        except NoSuchPosition as error:
            raise ApiError(500, str(error)) from None

    def _set_order(self, channel: PartitionChannel, request: Request) -> None:
        words = {"true": True, "false": False}
        word = Query(request.query).get("order") or ""
        if word not in words:
            raise ApiError(400, "INVALID_OPTION")
        for subscriber in channel.order(words[word]):
            subscriber.owner.close()

    # Messages

    def _get_message(self, request: Request) -> dict[str, Any]:
        query, nsqd = Query(request.query), self._nsqd
        topic, mode = query.get("topic") or "", query.get("search_mode") or ""
        value = _integer(query.get("search_pos") or "")
        if mode not in _SEARCH_MODES:
            raise ApiError(400, "search mode should be one of id/count/virtual_offset")
        number = (
            _integer(query.get("partition") or "") if mode != "id" else value >> _PARTITION_BITS
        )
        try:
            partition = nsqd.cluster.find(nsqd.number, topic, number)
            found = find_message(partition.log, mode, value)
        except Refused:
            raise ApiError(400, "topic does not exist") from None
        except NoSuchPosition as error:
            raise ApiError(404, str(error)) from None
        if found is None:
            raise ApiError(500, "INTERNAL_ERROR")
        ext = found.ext.decode("utf-8", "replace") if query.get("needext") == "true" else ""
        return {
            "id": found.internal_id,
            "trace_id": found.trace_id,
            "body": found.body.decode("utf-8", "replace"),
            "timestamp": found.timestamp,
            "attempts": 0,
            "offset": found.offset,
            "queue_cnt_index": found.log_index + 1,
            "ext": ext,
        }

    def _finish_message(self, channel: PartitionChannel, request: Request) -> None:
        text = Query(request.query).get("msgid") or ""
        if not _INTEGER.fullmatch(text):
            raise ApiError(400, "INVALID_REQUEST")
        try:
            channel.finish_by_id(int(text))
        except NotInFlight as error:
            raise ApiError(500, str(error)) from None

    # Private methods

    async def _refuse_without_tls(self, _: Request) -> Response:
        return Response(403, b'{"message": "TLS_REQUIRED"}', [JSON])

    def _partition(self, request: Request) -> Partition:
        query = Query(request.query)
        return self._find(query.topic(), _partition_number(query))

    def _partition_and_channel(self, request: Request) -> tuple[Partition, str]:
        query = Query(request.query)
        topic, channel = query.topic_and_channel()
        return self._find(topic, _partition_number(query)), channel

    def _find(self, topic: str, number: int | None) -> Partition:
        try:
            return self._nsqd.cluster.find(self._nsqd.number, topic, number)
        except Refused as refused:
            raise ApiError(404, refused.code) from None

    def _check_leader(self, partition: Partition) -> None:
        try:
            self._nsqd.cluster.check_leader(self._nsqd.number, partition)
        except Refused as refused:
            raise _api_error(refused) from None


def _api_error(refused: Refused) -> ApiError:
    if refused.code in ("E_PUB_FAILED", "E_MPUB_FAILED"):
        return ApiError(503, refused.text)
    return ApiError(400, refused.code)


def _partition_number(query: Query, message: str = "") -> int | None:
    text = query.get("partition") or ""
    number = _integer(text, message) if text else -1
    return None if number == -1 else number


def _integer(text: str, message: str = "") -> int:
    if not _INTEGER.fullmatch(text):
        raise ApiError(400, message or f'strconv.Atoi: parsing "{text}": invalid syntax')
    return int(text)
