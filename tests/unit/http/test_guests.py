"""How many connections a server has, and who makes room for others."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from nsqflow.http.server import Request, Response
from tests.fixtures.loops import asynchronous, eventually
from tests.unit.http.site import CHUNKED, PING, post, serving


@pytest.mark.parametrize(
    "data", [b"", b"GET /pi", post(3) + b"x", CHUNKED + b"3\r\nab", PING, b"nonsense\r\n\r\n"]
)
@pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])
def test_those_who_are_idle_lock_nobody_out(data: bytes, uvloop: bool) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with serving(max_connections=3) as site:
            idle = [await site.visit(data) for _ in range(5)]
            await eventually(lambda: site.server.connection_count == 3)
            for _ in range(5):
                async with await site.visit(PING) as visitor:
                    assert (await visitor.answer()).status == 200
                assert site.server.connection_count <= 3
            for each in idle:
                each.writer.transport.abort()

    run()


@asynchronous
async def test_who_has_been_idle_longest_makes_room_first() -> None:
    async with serving(max_connections=3) as site, contextlib.AsyncExitStack() as stack:
        first, second, third = [await site.visit() for _ in range(3)]
        for each in (first, second, third):
            await stack.enter_async_context(each)
            assert (await each.ask(PING)).status == 200
        first.writer.write(b"GET /pi")  # by which it is the last of the three
        for longest in (second, third, first):
            another = await stack.enter_async_context(await site.visit(PING))
            assert (await another.answer()).status == 200
            assert await longest.rest() == b""
        assert site.server.connection_count == 3


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

    async with serving(handler, max_connections=2) as site:
        async with await site.visit(PING) as first, await site.visit(PING) as second:
            await eventually(lambda: len(begun) == 2)
            for _ in range(3):
                async with await site.visit(PING) as third:
                    assert await third.rest() == b""
            release.set()
            assert (await first.answer()).body == b"at last"
            assert (await second.answer()).body == b"at last"
        assert len(begun) == 2
    assert caplog.messages == ["HTTP: there are 2 connections; refusing more"]
    assert caplog.records[0].levelno == logging.WARNING


@asynchronous
async def test_that_room_is_made_is_said_once_each_time_it_has_become_full(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "HTTP: there are 2 connections; ending the idle ones to let others in"
    async with serving(max_connections=2) as site:
        for times in (1, 2):
            visitors = [await site.visit(PING) for _ in range(6)]
            await visitors[-1].answer()
            assert caplog.messages == [text] * times
            for visitor in visitors:
                visitor.writer.transport.abort()
            await eventually(lambda: site.server.connection_count == 0)
