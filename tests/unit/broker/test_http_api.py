"""Routing and responses of the HTTP APIs."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given

from nsqflow.broker.http_api import ApiRouter, Query, Route, encode_json, plain_text
from nsqflow.http.server import Request, Response
from tests.fixtures.loops import asynchronous
from tests.unit.broker.api_routes import (
    NSQD,
)
from tests.unit.http.running import Answer, serving
from tests.unit.protocol.strategies import json_values

logger = logging.getLogger("tests.api")


def wire(request: str, body: bytes = b"") -> bytes:
    return f"{request} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def ask_ours(api: ApiRouter, request: str, body: bytes = b"") -> Answer:
    async with serving(api) as server, await server.connect() as client:
        return await client.ask(wire(request, body), head=request.startswith("HEAD "))


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
async def test_the_result_of_a_route_becomes_the_response(
    result: object, body: bytes, kind: str | None
) -> None:
    answer = await ask_ours(ApiRouter({("GET", "/x"): lambda request: result}, logger), "GET /x")
    assert (answer.status, answer.body) == (200, body)
    assert answer.headers.get("content-type") == kind
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


@asynchronous
async def test_a_route_may_return_a_response() -> None:
    routes: dict[tuple[str, str], Route] = {
        ("GET", "/x"): lambda request: Response(418, b"tea", [("X-Pot", "yes")]),
        ("GET", "/ping"): lambda request: plain_text("NOK - the disk is full", 500),
    }
    answer = await ask_ours(ApiRouter(routes, logger), "GET /x")
    assert (answer.status, answer.body, answer.headers["x-pot"]) == (418, b"tea", "yes")
    answer = await ask_ours(ApiRouter(routes, logger), "GET /ping")
    assert (answer.status, answer.body) == (500, b"NOK - the disk is full")
    assert "x-nsq-content-type" not in answer.headers


@asynchronous
async def test_any_other_exception_of_a_route_is_an_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(request: Request) -> None:
        raise ZeroDivisionError("oh")

    answer = await ask_ours(ApiRouter({("GET", "/x"): broken}, logger), "GET /x")
    assert (answer.status, answer.body) == (500, b'{"message":"INTERNAL_ERROR"}')
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert "ZeroDivisionError: oh" in caplog.text


@asynchronous
async def test_requests_are_logged_except_the_quiet_ones(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tests.api")
    api = ApiRouter(NSQD, logger, quiet={"/pub"})
    async with serving(api) as server, await server.connect() as client:
        for request in ("GET /ping?a=b", "GET /no%0Athing", "POST /pub?topic=t"):
            await client.ask(wire(request))
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
def test_query_parameters_are_parsed(text: str, name: str, value: str | None) -> None:
    assert Query(text).get(name) == value


@given(json_values)
def test_encoded_json_can_be_decoded(value: Any) -> None:
    written = encode_json(value)
    assert not set(written) & set(b"<>&")
    assert json.dumps(json.loads(written)) == json.dumps(value)  # (NaN is not equal to itself)


def test_a_lone_surrogate_does_not_make_json_fail() -> None:
    assert encode_json({"a": "\ud800"}) == b'{"a":"?"}'
