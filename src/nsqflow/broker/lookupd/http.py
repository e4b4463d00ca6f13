"""nsqlookupd over HTTP: lookups, lists of topics, channels and nodes, administration."""

from __future__ import annotations

import logging
import time
from typing import Any

from nsqflow.broker.http_api import ApiError, Query, Route, plain_text
from nsqflow.broker.lookupd.registration_db import (
    RegisteredNode,
    RegisteredProducer,
    Registration,
    RegistrationDb,
)
from nsqflow.broker.version import VERSION
from nsqflow.http.server import Request, Response

logger = logging.getLogger("nsqflow.broker.lookupd")

_NEVER = -6795364578871345152  # nanoseconds; Go's year 1 in 64 bits


class LookupdApi:
    """The HTTP API of an nsqlookupd."""

    def __init__(self, db: RegistrationDb) -> None:
        self._db = db

    def table(self) -> dict[tuple[str, str], Route]:
        """Return the routes by method and path."""
        return {
            ("GET", "/ping"): self._ping,
            ("GET", "/info"): self._info,
            ("GET", "/debug"): self._debug,
            ("GET", "/lookup"): self._lookup,
            ("GET", "/topics"): self._topics,
            ("GET", "/channels"): self._channels,
            ("GET", "/nodes"): self._nodes,
            ("POST", "/topic/create"): self._create_topic,
            ("POST", "/topic/delete"): self._delete_topic,
            ("POST", "/topic/tombstone"): self._tombstone,
            ("POST", "/channel/create"): self._create_channel,
            ("POST", "/channel/delete"): self._delete_channel,
        }

    def _ping(self, _: Request) -> Response:
        return plain_text("OK")

    def _info(self, _: Request) -> dict[str, str]:
        return {"version": VERSION}

    def _topics(self, _: Request) -> dict[str, list[str]]:
        return {"topics": self._db.topics()}

    def _channels(self, request: Request) -> dict[str, list[str]]:
        return {"channels": self._db.channels(Query(request.query).require("topic"))}

    def _lookup(self, request: Request) -> dict[str, Any]:
        topic = Query(request.query).require("topic")
        if not self._db.topics(topic):
            raise ApiError(404, "TOPIC_NOT_FOUND")
        producers = self._db.producers(topic, time.time_ns())
        return {
            "channels": self._db.channels(topic),
            "producers": [_node(node) for node in producers],
        }

    def _nodes(self, _: Request) -> dict[str, list[dict[str, Any]]]:
        nodes = self._db.nodes(time.time_ns())
        return {
            "producers": [
                _node(node) | {"tombstones": [*topics.values()], "topics": [*topics]}
                for node, topics in nodes
            ]
        }

    def _debug(self, _: Request) -> dict[str, list[dict[str, Any]]]:
        known = self._db.registrations()
        return {":".join(key): [_debug_entry(each) for each in known[key]] for key in sorted(known)}

    def _create_topic(self, request: Request) -> None:
        topic = Query(request.query).topic()
        logger.info("DB: adding topic(%s)", topic)
        self._db.create(topic)

    def _delete_topic(self, request: Request) -> None:
        for gone in self._db.delete_topic(Query(request.query).require("topic")):
            _log_removal(gone)

    def _tombstone(self, request: Request) -> None:
        query = Query(request.query)
        topic, node = query.require("topic"), query.require("node")
        # As literals: the client can send anything.
        logger.info("DB: setting tombstone for producer@%r of topic(%r)", node, topic)
        self._db.tombstone(topic, node, time.time_ns())

    def _create_channel(self, request: Request) -> None:
        topic, channel = Query(request.query).topic_and_channel()
        logger.info("DB: adding channel(%s) in topic(%s)", channel, topic)
        self._db.create(topic, channel)

    def _delete_channel(self, request: Request) -> None:
        topic, channel = Query(request.query).topic_and_channel()
        if not self._db.delete_channel(topic, channel):
            raise ApiError(404, "CHANNEL_NOT_FOUND")
        _log_removal(Registration("channel", topic, channel))


def _log_removal(gone: Registration) -> None:
    if gone.category == "channel":
        logger.info("DB: removing channel(%s) from topic(%s)", gone.subkey, gone.key)
    else:
        logger.info("DB: removing topic(%s)", gone.key)


def _node(node: RegisteredNode) -> dict[str, Any]:
    return {
        "remote_address": node.id,
        "hostname": node.peer.hostname,
        "broadcast_address": node.peer.broadcast_address,
        "tcp_port": node.peer.tcp_port,
        "http_port": node.peer.http_port,
        "version": node.peer.version,
    }


def _debug_entry(producer: RegisteredProducer) -> dict[str, Any]:
    node, at = producer.node, producer.tombstoned_at
    return {
        "broadcast_address": node.peer.broadcast_address,
        "hostname": node.peer.hostname,
        "http_port": node.peer.http_port,
        "id": node.id,
        "last_update": node.last_update,
        "tcp_port": node.peer.tcp_port,
        "tombstoned": at is not None,
        "tombstoned_at": _NEVER if at is None else at,
        "version": node.peer.version,
    }
