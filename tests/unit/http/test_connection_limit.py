"""The limit of connections, and which idle ones are closed for new ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from nsqflow.http.server import Request, Response
from tests.fixtures.loops import asynchronous, eventually
from tests.unit.http.running import CHUNKED, PING, post, serving


@pytest.mark.parametrize(
    "data", [b"", b"GET /pi", post(3) + b"x", CHUNKED + b"3\r\nab", PING, b"nonsense\r\n\r\n"]
)
@pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_idle_connections_do_not_lock_out_others(data: bytes, uvloop: bool) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with serving(max_connections=3) as server:
            idle = [await server.connect(data) for _ in range(5)]
            await eventually(lambda: server.http.connection_count == 3)
            for _ in range(5):
                async with await server.connect(PING) as client:
                    assert (await client.answer()).status == 200
                assert server.http.connection_count <= 3
            for each in idle:
                each.writer.transport.abort()

    run()


@asynchronous
async def test_the_longest_idle_connection_is_closed_first() -> None:
    async with serving(max_connections=3) as server, contextlib.AsyncExitStack() as stack:
        first, second, third = [await server.connect() for _ in range(3)]
        for each in (first, second, third):
            await stack.enter_async_context(each)
            assert (await each.ask(PING)).status == 200
        first.writer.write(b"GET /pi")  # by which it is the last of the three
        for longest in (second, third, first):
            another = await stack.enter_async_context(await server.connect(PING))
            assert (await another.answer()).status == 200
            assert await longest.rest() == b""
        assert server.http.connection_count == 3


@asynchronous
async def test_a_request_that_is_being_handled_is_never_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun: list[str] = []
    release = asyncio.Event()

    async def handler(request: Request) -> Response:
        begun.append(request.path)
        await release.wait()
        return Response(200, b"at last")

    async with serving(handler, max_connections=2) as server:
        async with await server.connect(PING) as first, await server.connect(PING) as second:
            await eventually(lambda: len(begun) == 2)
            for _ in range(3):
                async with await server.connect(PING) as third:
                    assert await third.rest() == b""
            release.set()
            assert (await first.answer()).body == b"at last"
            assert (await second.answer()).body == b"at last"
        assert len(begun) == 2
    assert caplog.messages == ["HTTP: 2 connections are open, the maximum; refusing new ones"]
    assert caplog.records[0].levelno == logging.WARNING


@asynchronous
async def test_reaching_the_limit_is_logged_once_until_connections_are_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "HTTP: 2 connections are open, the maximum; closing idle ones for new ones"
    async with serving(max_connections=2) as server:
        for times in (1, 2):
            clients = [await server.connect(PING) for _ in range(6)]
            await clients[-1].answer()
            assert caplog.messages == [text] * times
            for client in clients:
                client.writer.transport.abort()
            await eventually(lambda: server.http.connection_count == 0)
