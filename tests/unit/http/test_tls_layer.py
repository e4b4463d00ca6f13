"""The HTTP server behind TLS: whoever does not finish the handshake is a guest like others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import ssl
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import pytest

from nsqflow.http import tls_layer
from nsqflow.http.tls_layer import TlsLayer
from tests.conformance.web import server_context
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.proxy import Proxy
from tests.fixtures.servers import PATIENCE
from tests.unit.http.site import BRIEF, PING, Site, converse, post, serving

Serve = Callable[..., AbstractAsyncContextManager[Site]]
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # how a ClientHello begins

pytestmark = pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])


@pytest.fixture
def secure(certificates: Certificates) -> Serve:
    trusting = ssl.create_default_context(cafile=certificates.ca)

    def serve(**options: Any) -> AbstractAsyncContextManager[Site]:
        return serving(tls=server_context(certificates), client_tls=trusting, **options)

    return serve


def run(uvloop: bool, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asynchronous(uvloop=uvloop)(test)()
    gc.collect()  # and nobody warns of a socket that was left open


def test_a_connection_serves_one_request_after_another(uvloop: bool, secure: Serve) -> None:
    async def test() -> None:
        async with secure() as site, await site.visit() as visitor:
            await converse(visitor)

    run(uvloop, test)


def test_many_can_come_at_once(uvloop: bool, secure: Serve) -> None:
    async def test() -> None:
        async with secure() as site:
            visitors = await asyncio.gather(*(site.visit(PING) for _ in range(20)))
            for visitor in visitors:
                async with visitor:
                    assert (await visitor.answer()).status == 200

    run(uvloop, test)


def test_what_is_large_comes_through_in_both_directions(uvloop: bool, secure: Serve) -> None:
    body = random.randbytes(8 * 1024 * 1024)

    async def test() -> None:
        generous = secure(body_limit=lambda *_: len(body))
        async with generous as site, await site.visit() as visitor:
            for _ in range(2):
                answer = await visitor.ask(post(len(body)) + body)
                assert answer.body.endswith(body)

    run(uvloop, test)


def test_it_does_not_matter_how_the_network_cuts_it(uvloop: bool, secure: Serve) -> None:
    async def test() -> None:
        async with secure() as site, Proxy(f"127.0.0.1:{site.port}") as proxy:
            proxy.chop = 7
            behind = Site(site.server, int(proxy.address.partition(":")[2]), site.tls)
            async with await behind.visit() as visitor:
                await converse(visitor)

    run(uvloop, test)


def test_a_goodbye_is_answered(uvloop: bool, secure: Serve) -> None:
    async def test() -> None:
        async with secure() as site, await site.visit(PING) as visitor:
            assert (await visitor.answer()).status == 200
            visitor.writer.close()
            async with asyncio.timeout(PATIENCE):
                await visitor.writer.wait_closed()
            await eventually(lambda: site.server.connection_count == 0)

    run(uvloop, test)


def test_what_was_asked_before_a_goodbye_is_still_answered(uvloop: bool, secure: Serve) -> None:
    async def test() -> None:
        async with secure() as site, await site.knock() as visitor:
            assert site.tls
            received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = site.tls.wrap_bio(received, to_send, server_hostname="127.0.0.1")
            while not tls.version() or to_send.pending:
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                visitor.writer.write(to_send.read())
                if not tls.version():
                    received.write(await visitor.reader.read(65536))
            tls.write(PING)
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.unwrap()
            visitor.writer.write(to_send.read())
            received.write(await visitor.rest())
            assert tls.read().startswith(b"HTTP/1.1 200 ")
            with pytest.raises(ssl.SSLZeroReturnError):  # which is the server's goodbye
                tls.read()

    run(uvloop, test)


@pytest.mark.parametrize("data", [b"", HELLO])
def test_closing_ends_a_handshake(data: bytes, uvloop: bool, secure: Serve) -> None:
    async def test() -> None:
        async with secure() as site:
            visitors = [await site.knock(data) for _ in range(3)]
            await eventually(lambda: site.server.connection_count == 3)
            visitors.append(await site.knock(data))  # this one may be in any state
            await site.server.close()
            assert site.server.connection_count == 0
            for visitor in visitors:
                async with visitor:
                    assert await visitor.rest() == b""

    run(uvloop, test)


@pytest.mark.parametrize("data", [b"", HELLO])
def test_a_handshake_that_takes_too_long_is_ended(
    data: bytes, uvloop: bool, secure: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_layer, "_HANDSHAKE_TIMEOUT", BRIEF)

    async def test() -> None:
        async with secure() as site, await site.knock(data) as visitor:
            assert await visitor.rest() == b""
            await eventually(lambda: site.server.connection_count == 0)

    run(uvloop, test)


def test_who_has_finished_the_handshake_may_stay_longer(
    uvloop: bool, secure: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_layer, "_HANDSHAKE_TIMEOUT", BRIEF)

    async def test() -> None:
        async with secure() as site, await site.visit() as visitor, await site.knock() as mute:
            await mute.rest()
            assert (await visitor.ask(PING)).status == 200

    run(uvloop, test)


def test_why_a_handshake_fails_is_told_to_the_client(
    uvloop: bool, certificates: Certificates
) -> None:
    old = ssl.create_default_context(cafile=certificates.ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    modern = server_context(certificates)
    modern.minimum_version = ssl.TLSVersion.TLSv1_3

    async def test() -> None:
        async with serving(tls=modern, client_tls=old) as site:
            with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
                await site.visit()

    run(uvloop, test)


def test_what_is_no_tls_any_more_is_cut_off(
    uvloop: bool, secure: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with secure() as site, await site.visit(PING) as visitor:
            assert (await visitor.answer()).status == 200
            sock = visitor.writer.get_extra_info("socket")
            os.write(sock.fileno(), PING)
            await visitor.rest()
            await eventually(lambda: site.server.connection_count == 0)
        [message] = caplog.messages
        assert message.startswith("HTTPS: TLS error from 127.0.0.1:")

    run(uvloop, test)


class Echo(asyncio.Protocol):
    """Says whatever it hears, however little is read of that."""

    def __init__(self) -> None:
        self.heard = 0
        self.paused = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard += len(data)
        self._transport.write(data)

    def pause_writing(self) -> None:
        self.paused.set()


def test_a_client_that_reads_nothing_is_heard_no_more(
    uvloop: bool, certificates: Certificates
) -> None:
    size = 32 * 1024 * 1024
    trusting = ssl.create_default_context(cafile=certificates.ca)
    context = server_context(certificates)

    async def test() -> None:
        echoes = [Echo(), Echo()]
        makes = iter([TlsLayer(echo, context) for echo in echoes])
        listener = await asyncio.get_running_loop().create_server(
            lambda: next(makes), "127.0.0.1", 0
        )
        address = listener.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*address, ssl=trusting)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(bytes(size))
        async with asyncio.timeout(PATIENCE):
            await echoes[0].paused.wait()
            other_reader, other = await asyncio.open_connection(*address, ssl=trusting)
            for _ in range(300):  # in which more could be heard than is said
                other.write(b"x")
                await other_reader.readexactly(1)
            assert echoes[0].heard < size
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert await reader.readexactly(size) == bytes(size)
        for each in (writer, other):
            each.transport.abort()
        listener.close()

    run(uvloop, test)


def test_what_is_no_tls_is_closed_and_logged(
    uvloop: bool, secure: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with secure() as site, await site.knock(PING) as visitor:
            await visitor.rest()
            await eventually(lambda: site.server.connection_count == 0)
            own = visitor.writer.get_extra_info("sockname")[1]
        [message] = caplog.messages
        assert message.startswith(f"HTTPS: TLS handshake error from 127.0.0.1:{own}: ")

    run(uvloop, test)


@pytest.mark.parametrize("data", [b"", HELLO])
def test_who_goes_within_the_handshake_leaves_nothing(
    data: bytes, uvloop: bool, secure: Serve
) -> None:
    async def test() -> None:
        async with secure() as site:
            async with await site.knock(data):
                await eventually(lambda: site.server.connection_count == 1)
            await eventually(lambda: site.server.connection_count == 0)

    run(uvloop, test)


@pytest.mark.parametrize("data", [b"", HELLO])
def test_those_who_do_not_finish_the_handshake_lock_nobody_out(
    data: bytes, uvloop: bool, secure: Serve
) -> None:
    async def test() -> None:
        async with secure(max_connections=3) as site:
            idle = [await site.knock(data) for _ in range(5)]
            await eventually(lambda: site.server.connection_count == 3)
            async with await site.visit(PING) as visitor:
                assert (await visitor.answer()).status == 200
            for each in idle:
                each.writer.transport.abort()

    run(uvloop, test)
