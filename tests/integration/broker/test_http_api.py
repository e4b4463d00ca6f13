"""Routing and responses of the HTTP APIs."""

from __future__ import annotations

import asyncio
import logging

import pytest

from nsqflow.broker.http_api import ApiRouter
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import Nsqd, Server
from tests.unit.broker.api_routes import (
    NSQD,
)
from tests.unit.http.running import Answer, RawClient, serving

logger = logging.getLogger("tests.api")


REQUESTS = [
    "GET /ping",
    "GET /%70ing",
    "GET /ping?whatever=1;2",
    "HEAD /ping",
    "POST /ping",
    "DELETE /ping",
    "OPTIONS /ping",
    "OPTIONS /nothing",
    "GET /",
    "GET /nothing",
    "HEAD /nothing",
    "POST /",
    "GET /ping/",
    "GET /ping/?a=b%20c&d=%22%3Ce%3E",
    "HEAD /ping/",
    "POST /ping/",
    "GET /PING",
    "GET /Ping/",
    "GET //ping",
    "GET /a/../ping",
    "GET /./ping/.",
    "GET /../../ping",
    "GET /a/ping",
    "POST /topic/create/?topic=abc",
    "POST /TOPIC/create?topic=abc",
    "PUT /topic/create?topic=abc",
    "GET /topic/create?topic=abc",
    "OPTIONS /topic/create",
    "POST /topic/create",
    "POST /topic/create?",
    "POST /topic/create?topic",
    "POST /topic/create?topic=",
    "POST /topic/create?topic=&topic=b",
    "POST /topic/create?topic=b+c",
    "POST /topic/create?topic=b%20c",
    "POST /topic/create?topic=%ff",
    "POST /topic/create?topic=%zz",
    "POST /topic/create?topic=%2",
    "POST /topic/create?topic=b&%",
    "POST /topic/create?topic=a;b",
    "POST /topic/create?&&=&topic=test_api&&",
    "POST /topic/create?%74opic=test%5Fapi",
    "POST /topic/create?topic=test_api%23ephemeral",
    "POST /topic/create?Topic=test_api",
    "POST /channel/create",
    "POST /channel/create?channel=c",
    "POST /channel/create?topic=a:b&channel=c",
    "POST /channel/create?topic=unknown",
    "POST /channel/create?topic=unknown&channel=",
    "POST /channel/create?topic=unknown&channel=a%2Fb",
    "POST /channel/create?topic=unknown&channel=" + "c" * 65,
    "POST /channel/create?topic=unknown&channel=" + "c" * 64,
    "POST /pub?topic=abc",
    "GET /config/log_level",
    "GET /config/nsqlookupd_tcp_addresses",
    "GET /config/broadcast_address",
    "GET /config/snappy",
    "GET /config/statsd_address",
    "GET /config/log_level/",
    "GET /CONFIG/log_level",
    "GET /Config/Log_Level/",
    "GET /config//log_level",
    "GET /config/nothing",
    "GET /config/a%2Fb",
    "GET /config/",
    "GET /config",
    "GET /config/a/b",
    "POST /config/log_level",
    "OPTIONS /config/log_level",
]


def wire(request: str, body: bytes = b"") -> bytes:
    return f"{request} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def ask_real(server: Server, request: str, body: bytes = b"") -> Answer:
    host, port = server.http_address.rsplit(":", 1)
    async with RawClient(*await asyncio.open_connection(host, int(port))) as client:
        return await client.ask(wire(request, body), head=request.startswith("HEAD "))


async def ask_ours(api: ApiRouter, request: str, body: bytes = b"") -> Answer:
    async with serving(api) as server, await server.connect() as client:
        return await client.ask(wire(request, body), head=request.startswith("HEAD "))


def comparable(answer: Answer) -> Answer:
    headers = {name: value for name, value in answer.headers.items() if name != "date"}
    # Go writes quotes in HTML by their numbers, Python by their names.
    return Answer(answer.status, headers, answer.body.replace(b"&#34;", b"&quot;"))


@pytest.mark.parametrize("request_", REQUESTS)
@asynchronous
async def test_a_request_is_answered_as_nsqd_answers_it(request_: str, nsqd: Nsqd) -> None:
    ours = await ask_ours(ApiRouter(NSQD, logger), request_)
    assert comparable(ours) == comparable(await ask_real(nsqd, request_))


@asynchronous
async def test_text_is_sent_as_nsqd_sends_it(nsqd: Nsqd) -> None:
    request = "POST /pub?topic=test_api%23ephemeral"
    ours = await ask_ours(ApiRouter(NSQD, logger), request, b"hello")
    assert comparable(ours) == comparable(await ask_real(nsqd, request, b"hello"))
    assert ours.body == b"OK"
