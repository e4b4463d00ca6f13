"""An HTTP API with some routes of nsqd."""

from __future__ import annotations

import asyncio

from nsqflow.broker.http_api import ApiError, Query, Route, plain_text
from nsqflow.http.server import Request


def query_of(request: Request) -> Query:
    return Query(request.query)


def create_channel(request: Request) -> None:
    query_of(request).topic_and_channel()
    raise ApiError(404, "TOPIC_NOT_FOUND")


def create_topic(request: Request) -> None:
    query_of(request).topic("INVALID_TOPIC")


async def publish(request: Request) -> str:
    await asyncio.sleep(0)
    if not request.body:
        raise ApiError(400, "MSG_EMPTY")
    query_of(request).topic("INVALID_TOPIC")
    return "OK"


def config(request: Request, opt: str) -> object:
    values = {
        "log_level": 2,
        "nsqlookupd_tcp_addresses": [],
        "snappy": True,
        "broadcast_address": "127.0.0.1",
        "statsd_address": "",
    }
    if opt not in values:
        raise ApiError(400, "INVALID_OPTION")
    return values[opt]


# Some routes of nsqd.
NSQD: dict[tuple[str, str], Route] = {
    ("GET", "/ping"): lambda request: plain_text("OK"),
    ("POST", "/pub"): publish,
    ("POST", "/topic/create"): create_topic,
    ("POST", "/channel/create"): create_channel,
    ("GET", "/config/{opt}"): config,
    ("PUT", "/config/{opt}"): config,
}
