"""The HTTP client: headers, and connections that are kept, replaced, and never left half-read."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Callable

import pytest

from nsqflow.errors import NetworkError
from nsqflow.http import client
from nsqflow.http.client import HttpClient, HttpResponse
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous
from tests.fixtures.scripted import CLOSE, HANG, RESET, Answer, ScriptedLookupd
from tests.fixtures.servers import PATIENCE

CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


def no_tls() -> ssl.SSLContext:
    raise AssertionError("no https address was given")


class Keeper:
    """A client that keeps its connection to one server."""

    def __init__(
        self, address: str, tls: Callable[[], ssl.SSLContext] = no_tls, max_response: int = 1000
    ) -> None:
        self.address = address
        self.http = HttpClient(tls=tls, timeout=None, max_response=max_response, keep_alive=True)

    async def get(self, path: str) -> tuple[int, bytes]:
        response = await self.http.get(self.address, path)
        return response.status, response.body


@asynchronous
async def test_one_connection_serves_many_requests() -> None:
    async with ScriptedLookupd({"/": (200, b"ok"), "/x": (404, b"no")}) as server:
        kept = Keeper(server.address)
        answers = [await kept.get(path) for path in ("/a", "/a", "/x", "/a")]
        kept.http.close_idle()
        await server.connections[0].ended()
    assert answers == [(200, b"ok"), (200, b"ok"), (404, b"no"), (200, b"ok")]
    assert [request.path for request in server.requests] == ["/a", "/a", "/x", "/a"]
    assert len(server.connections) == 1


@asynchronous
async def test_a_connection_that_was_closed_meanwhile_is_replaced() -> None:
    async with ScriptedLookupd({"/": (200, b"ok")}) as server:
        kept = Keeper(server.address)
        await kept.get("/")
        for end in (CLOSE, RESET):
            wire = server.connections[-1]
            wire.do(end)
            await wire.ended()
            assert await kept.get("/") == (200, b"ok")
        kept.http.close_idle()
    assert len(server.connections) == 3


@asynchronous
async def test_a_connection_that_was_idle_for_long_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ScriptedLookupd({"/": (200, b"ok")}) as server:
        kept = Keeper(server.address)
        await kept.get("/")
        monkeypatch.setattr(client, "_MAX_IDLE", 0)
        assert await kept.get("/") == (200, b"ok")
        await server.connections[0].ended()
        kept.http.close_idle()
    assert len(server.connections) == 2


@asynchronous
async def test_a_server_that_wants_the_connection_closed_has_it_closed() -> None:
    async with ScriptedLookupd({"/": CLOSING}) as server:
        kept = Keeper(server.address)
        assert await kept.get("/") == (200, b"ok")
        await server.connections[0].ended()
        assert await kept.get("/") == (200, b"ok")
    assert len(server.connections) == 2


@asynchronous
async def test_an_answer_may_come_in_chunks() -> None:
    async with ScriptedLookupd({"/": CHUNKED}) as server:
        kept = Keeper(server.address)
        assert [await kept.get("/"), await kept.get("/")] == [(200, b"abcde")] * 2
        kept.http.close_idle()
    assert len(server.connections) == 1


@asynchronous
async def test_a_cancelled_request_closes_its_connection() -> None:
    answers: dict[str, Answer] = {"/": HANG}
    async with ScriptedLookupd(answers) as server:
        kept = Keeper(server.address)
        question = asyncio.create_task(kept.get("/"))
        await server.requested()
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
        await server.connections[0].ended()
        answers["/"] = 200, b"late"
        assert await kept.get("/") == (200, b"late")
        kept.http.close_idle()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (CLOSE, "not HTTP"),
        (RESET, "reset"),
        (b"hello\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "more than 2 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "more than 2 bytes"),
    ],
)
@asynchronous
async def test_an_unusable_answer_is_a_network_error_with_the_address(
    answer: Answer, reason: str
) -> None:
    async with ScriptedLookupd({"/": answer}) as server:
        kept = Keeper(server.address, max_response=2)
        with pytest.raises(NetworkError, match=f"^{server.address}: .*{reason}"):
            await kept.get("/")
        await server.connections[-1].ended()


@asynchronous
async def test_a_refused_connection_is_a_network_error_that_names_the_address_once() -> None:
    async with ScriptedLookupd({}) as server:
        address = server.address
    kept = Keeper(address)
    with pytest.raises(NetworkError, match=f"^{address}: {os.strerror(errno.ECONNREFUSED)}$"):
        await kept.get("/")


@asynchronous
async def test_over_https_a_password_is_sent_but_it_is_never_shown(
    certificates: Certificates,
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    async with ScriptedLookupd({"/": (200, b"ok")}, tls=context) as server:
        trusting = ssl.create_default_context(cafile=certificates.ca)
        kept = Keeper(f"https://me:secret@{server.address}/nsq/", lambda: trusting)
        assert await kept.get("/a") == await kept.get("/a") == (200, b"ok")
        assert "secret" not in repr(kept.http)
        kept.http.close_idle()
    with pytest.raises(NetworkError) as caught:
        await kept.get("/a")
    assert "secret" not in str(caught.value)
    first, second = server.requests
    assert first.path == second.path == "/nsq/a"
    assert first.headers["authorization"] == "Basic bWU6c2VjcmV0"


@asynchronous
async def test_a_response_has_its_headers_by_their_names_in_lower_case() -> None:
    raw = b"HTTP/1.1 200 OK\r\nDATE: today\r\nContent-Length: 2\r\n\r\nok"
    async with ScriptedLookupd({"/": raw}) as server:
        response = await HttpClient(timeout=PATIENCE).get(server.address, "/")
    assert response == HttpResponse(200, b"ok", {"date": "today", "content-length": "2"})


@asynchronous
async def test_without_keep_alive_each_request_has_a_connection_of_its_own() -> None:
    async with ScriptedLookupd({"/": (200, b"ok")}) as server:
        http = HttpClient(timeout=PATIENCE)
        for _ in range(2):
            await http.get(server.address, "/")
            await server.connections[-1].ended()
    assert len(server.connections) == 2
    assert {request.headers["connection"] for request in server.requests} == {"close"}


@asynchronous
async def test_of_requests_at_once_one_connection_is_kept() -> None:
    async with ScriptedLookupd({"/": (200, b"ok")}) as server:
        kept = Keeper(server.address)
        await asyncio.gather(*(kept.get("/") for _ in range(3)))
        assert len(server.connections) == 3
        await kept.get("/")
        assert len(server.connections) == 3
        kept.http.close()
        for wire in server.connections:
            await wire.ended()


@asynchronous
async def test_a_post_is_never_sent_twice() -> None:
    async with ScriptedLookupd({"/": (200, b"ok")}) as server:
        kept = Keeper(server.address)
        await kept.get("/")
        server.connections[0].do(CLOSE)
        await server.connections[0].ended()
        response = await kept.http.request(server.address, "POST", "/", body=b"x")
        assert response.status == 200
        kept.http.close()
    assert len(server.connections) == 2
