"""The blocking connection: with the real nsqd, plain, TLS and compressed; with faulty peers."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from nsqflow.errors import (
    ConfigError,
    NetworkError,
    RemoteProtocolError,
)
from nsqflow.protocol import (
    AnswerFailed,
    FrameType,
    Identify,
    IdentifyReply,
    Nop,
    Sub,
    encode_frame,
)
from nsqflow.protocol.frames import FRAME_HEADER
from nsqflow.spark.connection import connect, connection_settings
from nsqflow.spark.server_options import Access
from nsqflow.transport.sync_connection import SyncConnection
from tests.fixtures.loops import CLOSE, HANG, RESET, asynchronous
from tests.fixtures.scripted import Connection, ScriptedNsqd
from tests.fixtures.servers import PATIENCE

PLAIN = Access()


# With the real nsqd


def test_a_closed_port_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(NetworkError, match=f"^{address}: .*refused"):
        connect(address, PLAIN)


def test_an_invalid_address_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'127\.0\.0\.1' is invalid"):
        connect("127.0.0.1", PLAIN)
    with pytest.raises(NetworkError, match=r"^\.\.:4150: "):
        connect("..:4150", PLAIN)


def test_an_address_may_be_mapped_to_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.sock"
    settings = replace(connection_settings(PLAIN), address_map={"nsqd-0:4150": str(path)})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                assert peer.recv(65536).startswith(b"  V2IDENTIFY")
                peer.sendall(encode_frame(FrameType.RESPONSE, b"OK"))
                peer.recv(1)

        server = threading.Thread(target=serve)
        server.start()
        with closing(SyncConnection.open("nsqd-0:4150", settings)) as connection:
            assert connection.reply == IdentifyReply()
        server.join(PATIENCE)


# With peers that misbehave


async def open_connection(peer: ScriptedNsqd, timeout: float = PATIENCE) -> SyncConnection:
    return await asyncio.to_thread(
        connect, peer.address, PLAIN, topic="t", channel="c", timeout=timeout
    )


@asynchronous
async def test_heartbeats_are_answered_and_not_returned() -> None:
    async with ScriptedNsqd() as peer:
        with closing(await open_connection(peer)) as connection:
            wire = peer.connections[0]
            wire.send_heartbeat()
            receiving = asyncio.create_task(asyncio.to_thread(connection.receive, PATIENCE))
            await peer.received(Nop)
            wire.send_heartbeat()
            await peer.received(Nop)
            assert not receiving.done()
            wire.send_error(b"E_FIN_FAILED FIN 0123456789abcdef failed")
            (event,) = await receiving
            assert isinstance(event, AnswerFailed)


@asynchronous
async def test_a_heartbeat_among_other_things_is_answered_too() -> None:
    async with ScriptedNsqd() as peer:
        with closing(await open_connection(peer)) as connection:
            wire = peer.connections[0]
            wire.session.send_heartbeat()
            wire.send_error(b"E_FIN_FAILED FIN 0123456789abcdef failed")
            (event,) = await asyncio.to_thread(connection.receive, PATIENCE)
            assert isinstance(event, AnswerFailed)
            await peer.received(Nop)


@pytest.mark.parametrize("behaviour", [CLOSE, RESET])
@asynchronous
async def test_a_peer_that_closes_while_connecting_is_named(behaviour: object) -> None:
    async with ScriptedNsqd() as peer:
        peer.on(Identify, behaviour)  # type: ignore[arg-type]
        with pytest.raises(NetworkError, match=f"^{peer.address}: "):
            await open_connection(peer)


@asynchronous
async def test_a_silent_peer_is_waited_for_until_the_timeout() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(Sub, HANG)
        with pytest.raises(NetworkError, match=f"^{peer.address}: no response in time"):
            await open_connection(peer, timeout=0.2)
        await peer.connections[0].ended()


@asynchronous
async def test_a_tls_handshake_that_never_comes_is_waited_for_until_the_timeout() -> None:
    reply = IdentifyReply(version="1.3.0", tls_v1=True)
    async with ScriptedNsqd(reply) as peer:
        with pytest.raises(NetworkError, match=f"^{peer.address}: .*timed out"):
            await asyncio.to_thread(connect, peer.address, Access(tls=True), timeout=0.2)
        await peer.connections[0].ended()


@asynchronous
async def test_bytes_before_tls_are_an_attack() -> None:
    reply = IdentifyReply(version="1.3.0", tls_v1=True)

    def inject(connection: Connection, _: Identify) -> None:
        connection.identify(reply)
        connection.send_raw(b"\x00\x00\x00\x06\x00\x00\x00\x00OK")

    async with ScriptedNsqd(reply) as peer:
        peer.on(Identify, inject)
        with pytest.raises((RemoteProtocolError, NetworkError), match=f"^{peer.address}: "):
            await asyncio.to_thread(connect, peer.address, Access(tls=True))


@asynchronous
async def test_a_peer_that_reads_nothing_is_written_to_until_the_timeout() -> None:
    async with ScriptedNsqd() as peer:
        with closing(await open_connection(peer)) as connection:
            peer.connections[0].freeze()
            connection.session.finish_packed(bytes(16) * 2_000_000)
            with pytest.raises(NetworkError, match=rf"^{peer.address}: \d+ bytes not accepted"):
                await asyncio.to_thread(connection.flush, 0.2)
            with pytest.raises(NetworkError, match="not accepted"):
                connection.receive(0)
            peer.connections[0].reset()


@asynchronous
async def test_a_frame_that_never_ends_is_waited_for_until_the_timeout() -> None:
    async with ScriptedNsqd() as peer:
        with closing(await open_connection(peer)) as connection:
            wire = peer.connections[0]
            wire.send_raw(FRAME_HEADER.pack(64 * 1024 * 1024, FrameType.MESSAGE))
            receiving = asyncio.create_task(asyncio.to_thread(connection.receive, 0.2))
            async with asyncio.timeout(PATIENCE):
                while not receiving.done():
                    wire.send_raw(b"on ")
                    await asyncio.sleep(0)
            assert await receiving == []


@asynchronous
async def test_a_peer_that_only_sends_is_read_until_the_timeout() -> None:
    async with ScriptedNsqd() as peer:
        with closing(await open_connection(peer)) as connection:
            wire = peer.connections[0]
            wire.freeze()
            connection.session.finish_packed(bytes(16) * 2_000_000)
            flushing = asyncio.create_task(asyncio.to_thread(connection.flush, 0.2))
            async with asyncio.timeout(PATIENCE):
                while not flushing.done():
                    wire.send_error(b"E_FIN_FAILED FIN 0123456789abcdef failed")
                    await asyncio.sleep(0)
            with pytest.raises(NetworkError, match="not accepted within"):
                await flushing
            wire.reset()


@asynchronous
async def test_an_nsqd_of_the_redesigned_nsq_is_refused() -> None:
    async with ScriptedNsqd(IdentifyReply(version="0.3.7-HA.1.13.0")) as peer:
        with pytest.raises(ConfigError, match=f"^{peer.address} is an nsqd of the redesigned"):
            await open_connection(peer)
        await peer.connections[0].ended()


@asynchronous
async def test_an_nsqd_that_allows_no_rdy_is_refused() -> None:
    async with ScriptedNsqd(IdentifyReply(version="1.3.0", max_rdy_count=0)) as peer:
        with pytest.raises(RemoteProtocolError, match=f"^{peer.address}: max_rdy_count=0 "):
            await open_connection(peer)


@asynchronous
async def test_options_that_are_refused_for_no_known_reason_are_not_tried_again() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(
            Identify, lambda connection, _: connection.send_error(b"E_BAD_BODY IDENTIFY is odd")
        )
        with pytest.raises(ConfigError, match=f"^{peer.address} refused the options: .*is odd"):
            await open_connection(peer)
        assert len(peer.connections) == 1


@asynchronous
async def test_invalid_bytes_are_an_error_after_the_events_before_them() -> None:
    async with ScriptedNsqd() as peer:
        with closing(await open_connection(peer)) as connection:
            wire = peer.connections[0]
            wire.session.send_error("E_FIN_FAILED", "FIN 0123456789abcdef failed")
            wire.send_raw(wire.session.data_to_send() + b"HTTP/1.1 400 Bad Request\r\n\r\n")
            (event,) = await asyncio.to_thread(connection.receive, PATIENCE)
            assert isinstance(event, AnswerFailed)
            for _ in range(2):
                with pytest.raises(RemoteProtocolError, match=f"^{peer.address}: frame of"):
                    await asyncio.to_thread(connection.receive, PATIENCE)


# What is left open


def test_importing_it_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, nsqflow.spark.connection; "
        "print([m for m in ('asyncio', 'ssl', 'pyarrow', 'pandas', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
