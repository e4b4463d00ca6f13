"""The HTTP server: what it understands, and what it can't be made to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsqflow.http.client import HttpClient
from nsqflow.http.server import HttpServer, Request, Response
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import PATIENCE
from tests.unit.http.site import (
    BRIEF,
    CHUNKED,
    CLOSING,
    LIMIT,
    PING,
    Visitor,
    converse,
    echo,
    post,
    serving,
)
from tests.unit.protocol.strategies import pieces


@asynchronous
async def test_a_handler_sees_the_whole_request() -> None:
    seen: list[Request] = []

    async def handler(request: Request) -> Response:
        seen.append(request)
        return Response(201, b"done", [("X-Colour", "green")])

    async with serving(handler) as site, await site.visit() as visitor:
        head = post(5, "X-Twice: a", "x-twice: b", path="/a%20b%2Fc?topic=t%23x&y")
        answer = await visitor.ask(head + b"hello")
        own = visitor.writer.get_extra_info("sockname")
    assert (answer.status, answer.body) == (201, b"done")
    assert answer.headers["x-colour"] == "green"
    assert "GMT" in answer.headers["date"]
    [request] = seen
    assert (request.method, request.path, request.query) == ("POST", "/a b/c", "topic=t%23x&y")
    assert request.headers == {"host": "x", "content-length": "5", "x-twice": "a, b"}
    assert (request.body, request.complete) == (b"hello", True)
    assert request.client == f"127.0.0.1:{own[1]}"


@asynchronous
async def test_a_connection_serves_one_request_after_another() -> None:
    async with serving() as site, await site.visit() as visitor:
        await converse(visitor)


@asynchronous(uvloop=True)
async def test_a_connection_serves_one_request_after_another_on_uvloop() -> None:
    async with serving() as site, await site.visit() as visitor:
        await converse(visitor)


@asynchronous
async def test_it_serves_on_a_unix_socket(tmp_path: Path) -> None:
    server = HttpServer(echo, body_limit=lambda method, path: LIMIT)
    path = str(tmp_path / "http.sock")
    listener = await asyncio.get_running_loop().create_unix_server(server, path)
    async with Visitor(*await asyncio.open_unix_connection(path)) as visitor:
        await converse(visitor)
    listener.close()
    await server.close()


@asynchronous
async def test_pipelined_requests_are_answered_in_their_order() -> None:
    release = asyncio.Event()
    begun: list[str] = []

    async def handler(request: Request) -> Response:
        begun.append(request.path)
        if request.path == "/1":
            await release.wait()
        return Response(200, request.path.encode() + request.body)

    async with serving(handler) as site, await site.visit() as visitor:
        requests = [post(1, path=f"/{i}") + b"!" for i in range(1, 6)]
        visitor.writer.write(b"".join(requests) + CLOSING)
        await eventually(lambda: bool(begun))
        # Were they handled side by side, the others would have begun by now.
        assert (await other_answer(site.port)) == 200
        assert begun == ["/1", "/ping"]
        release.set()
        answers = [(await visitor.answer()).body for _ in range(6)]
        assert answers == [b"/1!", b"/2!", b"/3!", b"/4!", b"/5!", b"/last"]
        assert await visitor.rest() == b""


async def other_answer(port: int) -> int:
    status, _ = await HttpClient(timeout=PATIENCE).get(f"127.0.0.1:{port}", "/ping")
    return status


@asynchronous
async def test_a_client_that_waits_to_send_its_body_is_told_to_go_on() -> None:
    async with serving() as site, await site.visit(post(3, "Expect: 100-continue")) as visitor:
        assert (await visitor.answer()).status == 100
        assert (await visitor.ask(b"abc")).body == b"POST /pub 3 abc"


@asynchronous
async def test_a_client_that_waits_to_send_too_much_is_refused_instead() -> None:
    waiting = post(LIMIT + 1, "Expect: 100-continue")
    async with serving() as site, await site.visit(waiting) as visitor:
        answer = await visitor.answer()
        assert (answer.status, answer.body) == (413, b"POST /pub too much ")
        assert answer.headers["connection"] == "close"
        assert await visitor.rest() == b""


@pytest.mark.parametrize(
    "request_", [b"GET /ping HTTP/1.0\r\n\r\n", b"GET /ping HTTP/1.0\r\nConnection: close\r\n\r\n"]
)
@asynchronous
async def test_a_client_of_http_1_0_is_answered_and_closed(request_: bytes) -> None:
    async with serving() as site, await site.visit(request_) as visitor:
        assert (await visitor.answer()).body == b"GET /ping 0 "
        assert await visitor.rest() == b""


@asynchronous
async def test_a_client_that_says_no_more_still_gets_its_answers() -> None:
    async with serving() as site, await site.visit(PING + post(1) + b"x") as visitor:
        visitor.writer.write_eof()
        assert (await visitor.answer()).body == b"GET /ping 0 "
        assert (await visitor.answer()).body == b"POST /pub 1 x"
        assert await visitor.rest() == b""


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /ping HTTP/1.1\r\n\r\n", 400),
        (b"GET /ping HTTP/1.1\r\nHost: x\r\nno header\r\n\r\n", 400),
        (b"GET /ping HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /ping HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n", 400),
        (b"GET ping HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"CONNECT host:1 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (CHUNKED + b"no number\r\n", 400),
        (b"GET /ping HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /ping HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000, 431),
        (b"y" * 100_000, 431),
    ],
)
@asynchronous
async def test_what_is_no_request_is_refused_and_closed(data: bytes, status: int) -> None:
    async with serving() as site, await site.visit(data) as visitor:
        answer = await visitor.answer()
        assert answer.status == status
        assert answer.body.startswith(str(status).encode())
        assert answer.headers["connection"] == "close"
        assert await visitor.rest() == b""


@asynchronous
async def test_a_bad_target_of_head_is_refused_without_a_body() -> None:
    async with serving() as site, await site.visit() as visitor:
        answer = await visitor.ask(b"HEAD nowhere HTTP/1.1\r\nHost: x\r\n\r\n", head=True)
        assert answer.status == 400
        assert await visitor.rest() == b""


@asynchronous
async def test_requests_before_a_bad_one_are_answered() -> None:
    async with serving() as site, await site.visit(PING + b"nonsense\r\n\r\n") as visitor:
        assert (await visitor.answer()).status == 200
        assert (await visitor.answer()).status == 400


@asynchronous
async def test_a_body_of_just_its_limit_is_complete() -> None:
    async with serving() as site, await site.visit() as visitor:
        answer = await visitor.ask(post(LIMIT) + b"x" * LIMIT)
        assert (answer.status, len(answer.body)) == (200, len(f"POST /pub {LIMIT} ") + LIMIT)


@asynchronous
async def test_of_a_chunked_body_beyond_its_limit_the_handler_gets_the_beginning() -> None:
    async with serving() as site, await site.visit() as visitor:
        answer = await visitor.ask(CHUNKED + b"400\r\n" + b"x" * 1024)
        assert (answer.status, answer.body) == (413, b"POST /pub too much " + b"x" * LIMIT)
        assert await visitor.rest() == b""


@asynchronous
async def test_each_path_has_its_own_limit() -> None:
    def limit(method: str, path: str) -> int:
        return 10 if (method, path) == ("POST", "/a b") else 2

    async with serving(body_limit=limit) as site, await site.visit() as visitor:
        assert (await visitor.ask(post(10, path="/a%20b?c") + b"0123456789")).status == 200
        assert (await visitor.ask(post(10) + b"0123456789")).status == 413


async def check_refusal_of_a_large_upload() -> None:
    size = 8 * 1024 * 1024
    async with serving() as site, await site.visit(post(size)) as visitor:
        visitor.writer.write(b"x" * size)
        async with asyncio.timeout(PATIENCE):
            await visitor.writer.drain()
        assert (await visitor.answer()).status == 413


@asynchronous
async def test_a_client_that_only_reads_after_a_large_upload_learns_of_the_refusal() -> None:
    await check_refusal_of_a_large_upload()


@asynchronous(uvloop=True)
async def test_a_client_on_uvloop_learns_of_the_refusal_too() -> None:
    await check_refusal_of_a_large_upload()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PING,
        b"GET /ping HTTP/1.1\r\nHo",
        post(LIMIT) + b"x",
        CHUNKED + b"3\r\nab",
        post(3, "Expect: 100-continue"),
    ],
)
@asynchronous
async def test_a_client_that_falls_silent_is_closed(data: bytes) -> None:
    async with serving(idle_timeout=BRIEF) as site, await site.visit(data) as visitor:
        await visitor.rest()
        await eventually(lambda: site.server.connection_count == 0)


@pytest.mark.parametrize("first", [b"GET /", post(10**6), CHUNKED + b"fffff\r\n"])
@asynchronous
async def test_a_client_that_dribbles_is_closed_all_the_same(first: bytes) -> None:
    patient = serving(body_limit=lambda *_: 10**7, idle_timeout=BRIEF)
    async with patient as site, await site.visit(first) as visitor:
        await eventually(lambda: site.server.connection_count == 1)

        def closed() -> bool:
            visitor.writer.write(b"x")
            return site.server.connection_count == 0

        await eventually(closed)


@asynchronous
async def test_a_large_body_may_take_as_long_as_it_goes_on_coming() -> None:
    size = 64 * 1024
    loop = asyncio.get_running_loop()
    generous = serving(body_limit=lambda *_: 100 * size, idle_timeout=2.0)
    async with generous as site, await site.visit(post(size * 8)) as visitor:
        began = loop.time()
        for _ in range(8):
            visitor.writer.write(b"x" * size)
            await asyncio.sleep(0.3)  # what is tested is the passing of time
        assert loop.time() - began > 2.0
        assert (await visitor.answer()).status == 200


@asynchronous
async def test_a_client_that_reads_nothing_is_served_no_more_and_closed() -> None:
    served: list[str] = []

    async def handler(request: Request) -> Response:
        served.append(request.path)
        return Response(200, b"x" * 32 * 1024 * 1024)

    async with serving(handler, idle_timeout=BRIEF) as site, await site.visit() as visitor:
        visitor.writer.transport.pause_reading()  # type: ignore[attr-defined]
        visitor.writer.write(PING * 100)
        await eventually(lambda: len(served) == 1)
        await eventually(lambda: site.server.connection_count == 0)
        assert len(served) == 1


@asynchronous
async def test_a_client_that_reads_slowly_is_served_on_when_it_has_caught_up() -> None:
    async def handler(request: Request) -> Response:
        return Response(200, b"x" * 8 * 1024 * 1024)

    async with serving(handler) as site, await site.visit(PING * 3) as visitor:
        for _ in range(3):
            assert len((await visitor.answer()).body) == 8 * 1024 * 1024


@asynchronous
async def test_a_handler_that_raises_is_an_internal_error_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(request: Request) -> Response:
        if request.path == "/ping":
            raise KeyError("nothing here")
        return Response()

    async with serving(handler) as site, await site.visit(PING) as visitor:
        answer = await visitor.answer()
        assert (answer.status, answer.body) == (500, b'{"message":"INTERNAL_ERROR"}')
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert (await visitor.ask(post(0))).status == 200
    [record] = caplog.records
    assert record.getMessage() == "HTTP: GET /ping failed"
    assert record.exc_info
    assert isinstance(record.exc_info[1], KeyError)


@asynchronous
async def test_a_handler_that_cancels_itself_closes_the_connection() -> None:
    async def handler(request: Request) -> Response:
        raise asyncio.CancelledError

    async with serving(handler) as site, await site.visit(PING) as visitor:
        assert await visitor.rest() == b""
        await eventually(lambda: site.server.connection_count == 0)


@asynchronous
async def test_an_answer_that_is_none_closes_the_connection_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(request: Request) -> Response:
        return Response(200, b"", [("X-Split", "a\r\nb: c")])

    async with serving(handler) as site, await site.visit(PING) as visitor:
        assert await visitor.rest() == b""
    assert "an answer that is none" in caplog.text


@asynchronous
async def test_closing_cancels_what_is_being_handled_and_waits_for_it() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: Request) -> Response:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            ended.set()
            raise
        raise AssertionError

    async with serving(handler) as site:
        visitors = [await site.visit(data) for data in (b"", b"GET /", PING)]
        await eventually(lambda: site.server.connection_count == 3)
        await began.wait()
        await site.server.close()
        assert ended.is_set()
        assert site.server.connection_count == 0
        for visitor in [*visitors, await site.visit(PING)]:
            async with visitor:
                assert await visitor.rest() == b""


@asynchronous
async def test_a_client_that_goes_in_the_middle_leaves_nothing() -> None:
    async with serving() as site:
        for data in (b"", b"GET /pi", post(3) + b"x", PING * 5):
            async with await site.visit(data):
                await eventually(lambda: site.server.connection_count == 1)
            await eventually(lambda: site.server.connection_count == 0)


STREAM = PING + post(3) + b"abc" + CHUNKED + b"3\r\nabc\r\n0\r\n\r\n" + CLOSING
ANSWERS = [b"GET /ping 0 ", b"POST /pub 3 abc", b"POST /pub 3 abc", b"GET /last 0 "]


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(pieces(STREAM))
def test_it_does_not_matter_how_the_network_cuts_a_request(parts: list[bytes]) -> None:
    @asynchronous
    async def check() -> None:
        async with serving() as site, await site.visit() as visitor:
            for part in parts:
                visitor.writer.write(part)
                await asyncio.sleep(0)
            assert [(await visitor.answer()).body for _ in ANSWERS] == ANSWERS

    check()


noise = st.lists(
    st.binary(max_size=50)
    | st.sampled_from([PING, CHUNKED, CLOSING, post(5), post(LIMIT + 1), b"\r\n", b"0\r\n\r\n"]),
    max_size=8,
).map(b"".join)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(noise)
def test_whatever_it_is_told_it_answers_or_closes_and_nothing_is_left(data: bytes) -> None:
    @asynchronous
    async def check() -> None:
        async with serving() as site, await site.visit(data) as visitor:
            visitor.writer.write_eof()
            said = await visitor.rest()
            assert said == b"" or said.startswith(b"HTTP/1.1 ")
            await eventually(lambda: site.server.connection_count == 0)

    check()
