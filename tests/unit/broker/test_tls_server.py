"""The HTTP server with TLS: clients that do not finish the handshake do not affect others."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import ssl
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from nsqflow.broker import listener
from nsqflow.http.server import Request, Response
from tests.conformance.web import server_context
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.servers import PATIENCE
from tests.unit.http.running import PING, SHORT_TIMEOUT, RunningServer, converse, post, serving

Serve = Callable[..., AbstractAsyncContextManager[RunningServer]]
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a ClientHello

pytestmark = pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])


@pytest.fixture
def secure(certificates: Certificates) -> Serve:
    trusting = ssl.create_default_context(cafile=certificates.ca)

    def serve(**options: Any) -> AbstractAsyncContextManager[RunningServer]:
        return serving(tls=server_context(certificates), client_tls=trusting, **options)

    return serve


def run(uvloop: bool, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asynchronous(uvloop=uvloop)(test)()
    gc.collect()  # an open socket would cause a warning


def test_a_connection_serves_one_request_after_another(uvloop: bool, secure: Serve) -> None:
    async def test() -> None:
        async with secure() as server, await server.connect() as client:
            await converse(client)

    run(uvloop, test)


def test_many_clients_can_connect_at_once(uvloop: bool, secure: Serve) -> None:
    async def test() -> None:
        async with secure() as server:
            clients = await asyncio.gather(*(server.connect(PING) for _ in range(20)))
            for client in clients:
                async with client:
                    assert (await client.answer()).status == 200

    run(uvloop, test)


def test_large_bodies_are_transferred_in_both_directions(uvloop: bool, secure: Serve) -> None:
    body = random.randbytes(8 * 1024 * 1024)

    async def test() -> None:
        generous = secure(body_limit=lambda *_: len(body))
        async with generous as server, await server.connect() as client:
            for _ in range(2):
                answer = await client.ask(post(len(body)) + body)
                assert answer.body.endswith(body)

    run(uvloop, test)


def test_requests_may_arrive_in_small_pieces(uvloop: bool, secure: Serve) -> None:
    async def test() -> None:
        async with secure() as server, Proxy(f"127.0.0.1:{server.port}") as proxy:
            proxy.chop = 7
            behind = RunningServer(
                server.http, int(proxy.address.partition(":")[2]), server.tls, server.listener
            )
            async with await behind.connect() as client:
                await converse(client)

    run(uvloop, test)


def test_a_client_can_close_the_connection(uvloop: bool, secure: Serve) -> None:
    async def test() -> None:
        async with secure() as server, await server.connect(PING) as client:
            assert (await client.answer()).status == 200
            client.writer.close()
            async with asyncio.timeout(PATIENCE):
                await client.writer.wait_closed()
            await eventually(lambda: server.http.connection_count == 0)

    run(uvloop, test)


@pytest.mark.parametrize("data", [b"", HELLO])
def test_closing_the_listener_ends_handshakes(data: bytes, uvloop: bool, secure: Serve) -> None:
    async def test() -> None:
        async with secure() as server:
            clients = [await server.connect_in_plain_text(data) for _ in range(3)]
            await eventually(lambda: server.handshake_count == 3)
            clients.append(await server.connect_in_plain_text(data))  # it may be in any state
            server.listener.close()
            assert server.handshake_count == 0
            for client in clients:
                async with client:
                    assert await client.rest() == b""

    run(uvloop, test)


@pytest.mark.parametrize("data", [b"", HELLO])
def test_a_handshake_times_out(
    data: bytes, uvloop: bool, secure: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_HANDSHAKE_TIMEOUT", SHORT_TIMEOUT)

    async def test() -> None:
        async with secure() as server, await server.connect_in_plain_text(data) as client:
            assert await client.rest() == b""
            await eventually(lambda: server.handshake_count == 0)

    run(uvloop, test)


def test_a_client_that_finished_the_handshake_does_not_time_out(
    uvloop: bool, secure: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with secure() as server, await server.connect() as client:
            monkeypatch.setattr(listener, "_HANDSHAKE_TIMEOUT", SHORT_TIMEOUT)
            async with await server.connect_in_plain_text() as silent:
                await silent.rest()
            assert (await client.ask(PING)).status == 200

    run(uvloop, test)


def test_a_client_of_an_older_tls_is_refused_and_the_reason_is_logged(
    uvloop: bool, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    old = ssl.create_default_context(cafile=certificates.ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    modern = server_context(certificates)
    modern.minimum_version = ssl.TLSVersion.TLSv1_3

    async def test() -> None:
        async with serving(tls=modern, client_tls=old) as server:
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                await server.connect()
            await eventually(lambda: server.handshake_count == 0)
        assert "UNSUPPORTED_PROTOCOL" in caplog.text

    run(uvloop, test)


def test_plain_data_after_the_handshake_closes_the_connection(uvloop: bool, secure: Serve) -> None:
    async def test() -> None:
        async with secure() as server, await server.connect(PING) as client:
            assert (await client.answer()).status == 200
            sock = client.writer.get_extra_info("socket")
            os.write(sock.fileno(), PING)
            await client.rest()
            await eventually(lambda: server.http.connection_count == 0)

    run(uvloop, test)


def test_a_client_that_reads_nothing_is_closed(uvloop: bool, secure: Serve) -> None:
    answered = 0

    async def large(_: Request) -> Response:
        nonlocal answered
        answered += 1
        return Response(200, bytes(1024 * 1024))

    async def test() -> None:
        async with secure(handler=large, idle_timeout=SHORT_TIMEOUT) as server:
            client = await server.connect()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.writer.write(PING * 1000)
            await eventually(lambda: answered > 0)
            await eventually(lambda: server.http.connection_count == 0)
            assert answered < 100
            client.writer.transport.abort()

    run(uvloop, test)


def test_a_client_without_tls_is_closed_and_logged(
    uvloop: bool, secure: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with secure() as server, await server.connect_in_plain_text(PING) as client:
            await client.rest()
            await eventually(lambda: server.handshake_count == 0)
            own = client.writer.get_extra_info("sockname")[1]
        [message] = caplog.messages
        assert message.startswith(f"HTTPS: TLS handshake with 127.0.0.1:{own} failed: ")

    run(uvloop, test)


@pytest.mark.parametrize("data", [b"", HELLO])
def test_a_client_that_leaves_during_the_handshake_is_removed(
    data: bytes, uvloop: bool, secure: Serve
) -> None:
    async def test() -> None:
        async with secure() as server:
            async with await server.connect_in_plain_text(data):
                await eventually(lambda: server.handshake_count == 1)
            await eventually(lambda: server.handshake_count == 0)

    run(uvloop, test)


@pytest.mark.parametrize("data", [b"", HELLO])
def test_unfinished_handshakes_do_not_lock_out_others(
    data: bytes, uvloop: bool, secure: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_MAX_HANDSHAKES", 3)

    async def test() -> None:
        async with secure() as server:
            idle = [await server.connect_in_plain_text(data) for _ in range(5)]
            await eventually(lambda: server.handshake_count == 3)
            for dropped in idle[:2]:
                assert await dropped.rest() == b""
            async with await server.connect(PING) as client:
                assert (await client.answer()).status == 200
            for each in idle:
                each.writer.transport.abort()

    run(uvloop, test)
