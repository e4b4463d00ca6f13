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
from tests.unit.http.running import (
    CHUNKED,
    CLOSING,
    LIMIT,
    PING,
    SHORT_TIMEOUT,
    RawClient,
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

    async with serving(handler) as server, await server.connect() as client:
        head = post(5, "X-Twice: a", "x-twice: b", path="/a%20b%2Fc?topic=t%23x&y")
        answer = await client.ask(head + b"hello")
        own = client.writer.get_extra_info("sockname")
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
    async with serving() as server, await server.connect() as client:
        await converse(client)


@asynchronous(uvloop=True)
async def test_a_connection_serves_one_request_after_another_on_uvloop() -> None:
    async with serving() as server, await server.connect() as client:
        await converse(client)


@asynchronous
async def test_it_serves_on_a_unix_socket(tmp_path: Path) -> None:
    server = HttpServer(echo, body_limit=lambda method, path: LIMIT)
    path = str(tmp_path / "http.sock")
    listener = await asyncio.get_running_loop().create_unix_server(server, path)
    async with RawClient(*await asyncio.open_unix_connection(path)) as client:
        await converse(client)
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

    async with serving(handler) as server, await server.connect() as client:
        requests = [post(1, path=f"/{i}") + b"!" for i in range(1, 6)]
        client.writer.write(b"".join(requests) + CLOSING)
        await eventually(lambda: bool(begun))
        # Were they handled side by side, the others would have begun by now.
        assert (await other_answer(server.port)) == 200
        assert begun == ["/1", "/ping"]
        release.set()
        answers = [(await client.answer()).body for _ in range(6)]
        assert answers == [b"/1!", b"/2!", b"/3!", b"/4!", b"/5!", b"/last"]
        assert await client.rest() == b""


async def other_answer(port: int) -> int:
    response = await HttpClient(timeout=PATIENCE).get(f"127.0.0.1:{port}", "/ping")
    return response.status


@asynchronous
async def test_a_client_that_expects_100_continue_gets_it() -> None:
    async with serving() as server, await server.connect(post(3, "Expect: 100-continue")) as client:
        assert (await client.answer()).status == 100
        assert (await client.ask(b"abc")).body == b"POST /pub 3 abc"


@asynchronous
async def test_a_client_that_waits_to_send_too_much_is_refused_instead() -> None:
    waiting = post(LIMIT + 1, "Expect: 100-continue")
    async with serving() as server, await server.connect(waiting) as client:
        answer = await client.answer()
        assert (answer.status, answer.body) == (413, b"POST /pub too much ")
        assert answer.headers["connection"] == "close"
        assert await client.rest() == b""


@pytest.mark.parametrize(
    "request_", [b"GET /ping HTTP/1.0\r\n\r\n", b"GET /ping HTTP/1.0\r\nConnection: close\r\n\r\n"]
)
@asynchronous
async def test_a_client_of_http_1_0_is_answered_and_closed(request_: bytes) -> None:
    async with serving() as server, await server.connect(request_) as client:
        assert (await client.answer()).body == b"GET /ping 0 "
        assert await client.rest() == b""


@asynchronous
async def test_a_client_that_closes_its_side_still_gets_its_responses() -> None:
    async with serving() as server, await server.connect(PING + post(1) + b"x") as client:
        client.writer.write_eof()
        assert (await client.answer()).body == b"GET /ping 0 "
        assert (await client.answer()).body == b"POST /pub 1 x"
        assert await client.rest() == b""


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
async def test_an_invalid_request_is_refused_and_closed(data: bytes, status: int) -> None:
    async with serving() as server, await server.connect(data) as client:
        answer = await client.answer()
        assert answer.status == status
        assert answer.body.startswith(str(status).encode())
        assert answer.headers["connection"] == "close"
        assert await client.rest() == b""


@asynchronous
async def test_a_bad_target_of_head_is_refused_without_a_body() -> None:
    async with serving() as server, await server.connect() as client:
        answer = await client.ask(b"HEAD nowhere HTTP/1.1\r\nHost: x\r\n\r\n", head=True)
        assert answer.status == 400
        assert await client.rest() == b""


@asynchronous
async def test_requests_before_a_bad_one_are_answered() -> None:
    async with serving() as server, await server.connect(PING + b"nonsense\r\n\r\n") as client:
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 400


@asynchronous
async def test_a_body_of_just_its_limit_is_complete() -> None:
    async with serving() as server, await server.connect() as client:
        answer = await client.ask(post(LIMIT) + b"x" * LIMIT)
        assert (answer.status, len(answer.body)) == (200, len(f"POST /pub {LIMIT} ") + LIMIT)


@asynchronous
async def test_of_a_chunked_body_beyond_its_limit_the_handler_gets_the_beginning() -> None:
    async with serving() as server, await server.connect() as client:
        answer = await client.ask(CHUNKED + b"400\r\n" + b"x" * 1024)
        assert (answer.status, answer.body) == (413, b"POST /pub too much " + b"x" * LIMIT)
        assert await client.rest() == b""


@asynchronous
async def test_each_path_has_its_own_limit() -> None:
    def limit(method: str, path: str) -> int:
        return 10 if (method, path) == ("POST", "/a b") else 2

    async with serving(body_limit=limit) as server, await server.connect() as client:
        assert (await client.ask(post(10, path="/a%20b?c") + b"0123456789")).status == 200
        assert (await client.ask(post(10) + b"0123456789")).status == 413


async def check_refusal_of_a_large_upload() -> None:
    size = 8 * 1024 * 1024
    async with serving() as server, await server.connect(post(size)) as client:
        client.writer.write(b"x" * size)
        async with asyncio.timeout(PATIENCE):
            await client.writer.drain()
        assert (await client.answer()).status == 413


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
    async with serving(idle_timeout=SHORT_TIMEOUT) as server, await server.connect(data) as client:
        await client.rest()
        await eventually(lambda: server.http.connection_count == 0)


@pytest.mark.parametrize("first", [b"GET /", post(10**6), CHUNKED + b"fffff\r\n"])
@asynchronous
async def test_a_client_that_sends_byte_by_byte_is_closed_anyway(first: bytes) -> None:
    patient = serving(body_limit=lambda *_: 10**7, idle_timeout=SHORT_TIMEOUT)
    async with patient as server, await server.connect(first) as client:
        await eventually(lambda: server.http.connection_count == 1)

        def closed() -> bool:
            client.writer.write(b"x")
            return server.http.connection_count == 0

        await eventually(closed)


class RecordingTransport(asyncio.Transport):
    """A transport without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        """Data comes from the test alone."""

    resume_reading = pause_reading


@asynchronous
async def test_a_large_body_may_take_as_long_as_data_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, size, passed = asyncio.get_running_loop(), 64 * 1024, 0.0
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + passed)

    async def pass_time(seconds: float) -> None:
        nonlocal passed
        passed += seconds
        for _ in range(3):  # turns of the loop, in which timers run
            await asyncio.sleep(0)

    server = HttpServer(echo, body_limit=lambda *_: 100 * size, idle_timeout=2.0)
    connection, transport = server(), RecordingTransport()
    connection.connection_made(transport)
    connection.data_received(post(size * 8))
    for _ in range(8):
        await pass_time(1.5)
        connection.data_received(b"x" * size)
    await pass_time(0)
    assert transport.written.startswith(b"HTTP/1.1 200 ")
    await pass_time(1.5)
    assert not transport.aborted
    await pass_time(1.5)
    assert transport.aborted
    connection.connection_lost(None)
    await server.close()


@asynchronous
async def test_a_client_that_reads_nothing_is_served_no_more_and_closed() -> None:
    served: list[str] = []

    async def handler(request: Request) -> Response:
        served.append(request.path)
        return Response(200, b"x" * 32 * 1024 * 1024)

    async with (
        serving(handler, idle_timeout=SHORT_TIMEOUT) as server,
        await server.connect() as client,
    ):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(PING * 100)
        await eventually(lambda: len(served) == 1)
        await eventually(lambda: server.http.connection_count == 0)
        assert len(served) == 1


@asynchronous
async def test_a_client_that_reads_slowly_is_served_on_when_it_has_caught_up() -> None:
    async def handler(request: Request) -> Response:
        return Response(200, b"x" * 8 * 1024 * 1024)

    async with serving(handler) as server, await server.connect(PING * 3) as client:
        for _ in range(3):
            assert len((await client.answer()).body) == 8 * 1024 * 1024


@asynchronous
async def test_a_handler_that_raises_is_an_internal_error_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(request: Request) -> Response:
        if request.path == "/ping":
            raise KeyError("nothing here")
        return Response()

    async with serving(handler) as server, await server.connect(PING) as client:
        answer = await client.answer()
        assert (answer.status, answer.body) == (500, b'{"message":"INTERNAL_ERROR"}')
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert (await client.ask(post(0))).status == 200
    [record] = caplog.records
    assert record.getMessage() == "HTTP: GET /ping failed"
    assert record.exc_info
    assert isinstance(record.exc_info[1], KeyError)


@asynchronous
async def test_a_handler_that_cancels_itself_closes_the_connection() -> None:
    async def handler(request: Request) -> Response:
        raise asyncio.CancelledError

    async with serving(handler) as server, await server.connect(PING) as client:
        assert await client.rest() == b""
        await eventually(lambda: server.http.connection_count == 0)


@asynchronous
async def test_an_invalid_response_closes_the_connection_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(request: Request) -> Response:
        return Response(200, b"", [("X-Split", "a\r\nb: c")])

    async with serving(handler) as server, await server.connect(PING) as client:
        assert await client.rest() == b""
    assert "invalid response" in caplog.text


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

    async with serving(handler) as server:
        clients = [await server.connect(data) for data in (b"", b"GET /", PING)]
        await eventually(lambda: server.http.connection_count == 3)
        await began.wait()
        await server.http.close()
        assert ended.is_set()
        assert server.http.connection_count == 0
        for client in [*clients, await server.connect(PING)]:
            async with client:
                assert await client.rest() == b""


@asynchronous
async def test_a_client_that_goes_in_the_middle_leaves_nothing() -> None:
    async with serving() as server:
        for data in (b"", b"GET /pi", post(3) + b"x", PING * 5):
            async with await server.connect(data):
                await eventually(lambda: server.http.connection_count == 1)
            await eventually(lambda: server.http.connection_count == 0)


STREAM = PING + post(3) + b"abc" + CHUNKED + b"3\r\nabc\r\n0\r\n\r\n" + CLOSING
ANSWERS = [b"GET /ping 0 ", b"POST /pub 3 abc", b"POST /pub 3 abc", b"GET /last 0 "]


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(pieces(STREAM))
def test_it_does_not_matter_how_the_network_cuts_a_request(parts: list[bytes]) -> None:
    @asynchronous
    async def check() -> None:
        async with serving() as server, await server.connect() as client:
            for part in parts:
                client.writer.write(part)
                await asyncio.sleep(0)
            assert [(await client.answer()).body for _ in ANSWERS] == ANSWERS

    check()


noise = st.lists(
    st.binary(max_size=50)
    | st.sampled_from([PING, CHUNKED, CLOSING, post(5), post(LIMIT + 1), b"\r\n", b"0\r\n\r\n"]),
    max_size=8,
).map(b"".join)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(noise)
def test_any_input_is_answered_or_closed_and_nothing_is_left(data: bytes) -> None:
    @asynchronous
    async def check() -> None:
        async with serving() as server, await server.connect(data) as client:
            client.writer.write_eof()
            said = await client.rest()
            assert said == b"" or said.startswith(b"HTTP/1.1 ")
            await eventually(lambda: server.http.connection_count == 0)

    check()
