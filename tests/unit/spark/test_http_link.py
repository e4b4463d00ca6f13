"""The kept HTTP connection: used again, made anew when it is gone, never left half-read."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from nsqflow.errors import NetworkError
from nsqflow.spark import http_link
from nsqflow.spark.http_link import HttpLink
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous
from tests.fixtures.scripted import CLOSE, HANG, RESET, Answer, ScriptedLookupd

CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


def no_tls() -> ssl.SSLContext:
    raise AssertionError("no https address was given")


@asynchronous
async def test_one_connection_serves_many_questions() -> None:
    async with ScriptedLookupd({"/": (200, b"ok"), "/x": (404, b"no")}) as server:
        link = HttpLink(server.address, no_tls)
        answers = [await link.get(path) for path in ("/a", "/a", "/x", "/a")]
        link.close()
        await server.connections[0].ended()
    assert answers == [(200, b"ok"), (200, b"ok"), (404, b"no"), (200, b"ok")]
    assert [request.path for request in server.requests] == ["/a", "/a", "/x", "/a"]
    assert len(server.connections) == 1


@asynchronous
async def test_a_connection_that_was_closed_meanwhile_is_made_anew() -> None:
    async with ScriptedLookupd({"/": (200, b"ok")}) as server:
        link = HttpLink(server.address, no_tls)
        await link.get("/")
        for end in (CLOSE, RESET):
            wire = server.connections[-1]
            wire.do(end)
            await wire.ended()
            assert await link.get("/") == (200, b"ok")
        link.close()
    assert len(server.connections) == 3


@asynchronous
async def test_a_connection_that_was_idle_for_long_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ScriptedLookupd({"/": (200, b"ok")}) as server:
        link = HttpLink(server.address, no_tls)
        await link.get("/")
        monkeypatch.setattr(http_link, "_IDLE", 0)
        assert await link.get("/") == (200, b"ok")
        await server.connections[0].ended()
        link.close()
    assert len(server.connections) == 2


@asynchronous
async def test_a_server_that_wants_the_connection_closed_has_it_closed() -> None:
    async with ScriptedLookupd({"/": CLOSING}) as server:
        link = HttpLink(server.address, no_tls)
        assert await link.get("/") == (200, b"ok")
        await server.connections[0].ended()
        assert await link.get("/") == (200, b"ok")
    assert len(server.connections) == 2


@asynchronous
async def test_an_answer_may_come_in_chunks() -> None:
    async with ScriptedLookupd({"/": CHUNKED}) as server:
        link = HttpLink(server.address, no_tls)
        assert [await link.get("/"), await link.get("/")] == [(200, b"abcde")] * 2
        link.close()
    assert len(server.connections) == 1


@asynchronous
async def test_a_question_that_is_given_up_takes_its_connection_with_it() -> None:
    answers: dict[str, Answer] = {"/": HANG}
    async with ScriptedLookupd(answers) as server:
        link = HttpLink(server.address, no_tls)
        question = asyncio.create_task(link.get("/"))
        await server.requested()
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
        await server.connections[0].ended()
        answers["/"] = 200, b"late"
        assert await link.get("/") == (200, b"late")
        link.close()


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
async def test_an_answer_of_no_use_is_a_network_error_with_the_address(
    answer: Answer, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_link, "MAX_ANSWER", 2)
    async with ScriptedLookupd({"/": answer}) as server:
        link = HttpLink(server.address, no_tls)
        with pytest.raises(NetworkError, match=f"^{server.address}: .*{reason}"):
            await link.get("/")
        await server.connections[-1].ended()


@asynchronous
async def test_nobody_there_is_a_network_error_with_the_address() -> None:
    async with ScriptedLookupd({}) as server:
        address = server.address
    link = HttpLink(address, no_tls)
    with pytest.raises(NetworkError, match=f"^{address}: "):
        await link.get("/")


@asynchronous
async def test_over_https_a_password_is_sent_but_it_is_never_shown(
    certificates: Certificates,
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    async with ScriptedLookupd({"/": (200, b"ok")}, tls=context) as server:
        trusting = ssl.create_default_context(cafile=certificates.ca)
        link = HttpLink(f"https://me:secret@{server.address}/nsq/", lambda: trusting)
        assert await link.get("/a") == await link.get("/a") == (200, b"ok")
        assert "secret" not in f"{link} {link!r}"
        link.close()
    with pytest.raises(NetworkError) as caught:
        await link.get("/a")
    assert "secret" not in str(caught.value)
    first, second = server.requests
    assert first.path == second.path == "/nsq/a"
    assert first.headers["authorization"] == "Basic bWU6c2VjcmV0"
