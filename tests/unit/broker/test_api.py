"""Answers over HTTP: those of the real daemons are the measure."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import given

from nsqflow.broker.api import Api, ApiError, Query, Route, encode_json, plain_text
from nsqflow.http.server import Request, Response
from tests.fixtures.loops import asynchronous
from tests.fixtures.servers import Nsqd, Server
from tests.unit.http.site import Answer, Visitor, serving
from tests.unit.protocol.strategies import json_values

logger = logging.getLogger("tests.api")


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


# As much of nsqd as shows how it answers.
NSQD: dict[tuple[str, str], Route] = {
    ("GET", "/ping"): lambda request: plain_text("OK"),
    ("POST", "/pub"): publish,
    ("POST", "/topic/create"): create_topic,
    ("POST", "/channel/create"): create_channel,
    ("GET", "/config/{opt}"): config,
    ("PUT", "/config/{opt}"): config,
}

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
    async with Visitor(*await asyncio.open_connection(host, int(port))) as visitor:
        return await visitor.ask(wire(request, body), head=request.startswith("HEAD "))


async def ask_ours(api: Api, request: str, body: bytes = b"") -> Answer:
    async with serving(api) as site, await site.visit() as visitor:
        return await visitor.ask(wire(request, body), head=request.startswith("HEAD "))


def comparable(answer: Answer) -> Answer:
    headers = {name: value for name, value in answer.headers.items() if name != "date"}
    # Go writes quotes in HTML by their numbers, Python by their names.
    return Answer(answer.status, headers, answer.body.replace(b"&#34;", b"&quot;"))


@pytest.mark.parametrize("request_", REQUESTS)
@asynchronous
async def test_a_request_is_answered_as_nsqd_answers_it(request_: str, nsqd: Nsqd) -> None:
    ours = await ask_ours(Api(NSQD, logger), request_)
    assert comparable(ours) == comparable(await ask_real(nsqd, request_))


@asynchronous
async def test_text_is_answered_as_nsqd_does(nsqd: Nsqd) -> None:
    request = "POST /pub?topic=test_api%23ephemeral"
    ours = await ask_ours(Api(NSQD, logger), request, b"hello")
    assert comparable(ours) == comparable(await ask_real(nsqd, request, b"hello"))
    assert ours.body == b"OK"


@pytest.mark.parametrize(
    ("result", "body", "kind"),
    [
        (None, b"", None),
        ("", b"", None),
        ("text é", "text é".encode(), "text/plain; charset=utf-8"),
        (b"\xff", b"\xff", "text/plain; charset=utf-8"),
        ({"a": [1, None]}, b'{"a":[1,null]}', "application/json; charset=utf-8"),
        ([], b"[]", "application/json; charset=utf-8"),
        (0, b"0", "application/json; charset=utf-8"),
        (False, b"false", "application/json; charset=utf-8"),
    ],
)
@asynchronous
async def test_what_a_route_returns_is_the_answer(
    result: object, body: bytes, kind: str | None
) -> None:
    answer = await ask_ours(Api({("GET", "/x"): lambda request: result}, logger), "GET /x")
    assert (answer.status, answer.body) == (200, body)
    assert answer.headers.get("content-type") == kind
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


@asynchronous
async def test_a_route_may_answer_for_itself() -> None:
    routes: dict[tuple[str, str], Route] = {
        ("GET", "/x"): lambda request: Response(418, b"tea", [("X-Pot", "yes")]),
        ("GET", "/ping"): lambda request: plain_text("NOK - the disk is full", 500),
    }
    answer = await ask_ours(Api(routes, logger), "GET /x")
    assert (answer.status, answer.body, answer.headers["x-pot"]) == (418, b"tea", "yes")
    answer = await ask_ours(Api(routes, logger), "GET /ping")
    assert (answer.status, answer.body) == (500, b"NOK - the disk is full")
    assert "x-nsq-content-type" not in answer.headers


@asynchronous
async def test_what_else_a_route_raises_is_an_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(request: Request) -> None:
        raise ZeroDivisionError("oh")

    answer = await ask_ours(Api({("GET", "/x"): broken}, logger), "GET /x")
    assert (answer.status, answer.body) == (500, b'{"message":"INTERNAL_ERROR"}')
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert "ZeroDivisionError: oh" in caplog.text


@asynchronous
async def test_requests_are_logged_but_for_the_quiet_ones(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tests.api")
    api = Api(NSQD, logger, quiet={"/pub"})
    async with serving(api) as site, await site.visit() as visitor:
        for request in ("GET /ping?a=b", "GET /no%0Athing", "POST /pub?topic=t"):
            await visitor.ask(wire(request))
    texts = [message.split(" (")[0] for message in caplog.messages]
    assert texts == ["200 GET /ping?a=b", "404 GET /no%0Athing"]
    assert "(127.0.0.1:" in caplog.messages[0]


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("", "a", None),
        ("a", "a", ""),
        ("a=b=c", "a", "b=c"),
        ("a=1&a=2", "a", "1"),
        ("a=%2B+%20", "a", "+  "),
        ("a=%ff", "a", "\ufffd"),
        ("a=%C3%A9", "a", "é"),
        ("=x", "", "x"),
    ],
)
def test_parameters_are_read(text: str, name: str, value: str | None) -> None:
    assert Query(text).get(name) == value


@given(json_values)
def test_json_is_read_back_as_what_was_written(value: Any) -> None:
    written = encode_json(value)
    assert not set(written) & set(b"<>&")
    assert json.dumps(json.loads(written)) == json.dumps(value)  # (NaN is not equal to itself)


def test_half_a_character_does_not_make_json_fail() -> None:
    assert encode_json({"a": "\ud800"}) == b'{"a":"?"}'
