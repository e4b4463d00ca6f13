"""Connections to nsqd: TLS, closing, waiting for the disk, slow readers, injected delays."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from nsqflow.broker.nsqd import connection as client_module
from nsqflow.broker.nsqd.connection import ClientConnection
from nsqflow.broker.nsqd.daemon import NsqdDaemon
from nsqflow.broker.storage import StorageError
from nsqflow.broker.storage.database import Database
from nsqflow.protocol import ServerState
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import PATIENCE
from tests.unit.broker.nsqd.frames import (
    HEARTBEAT,
    OK,
    Frame,
    error,
    frames_in,
    pub,
    receive,
    receive_all,
    receive_message,
)
from tests.unit.broker.nsqd.running import (
    RawClient,
    ask,
    connected,
    make_nsqd,
    new_name,
    sized,
    stats_of,
)

LONG = 3600.0
SHORT = 0.4  # longer than a busy machine interrupts the loop for
WITH_TLS = b'{"feature_negotiation": true, "tls_v1": true}'
INVALID = error("E_INVALID invalid command BOGUS")

both_loops = pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])


def with_tls(certificates: Certificates, **options: Any) -> NsqdDaemon:
    files = {"tls_cert": str(certificates.cert), "tls_key": str(certificates.key)}
    return make_nsqd(https_address="127.0.0.1:0", **files, **options)


class Tls:
    """A TLS client that decides what is in one packet."""

    def __init__(self, raw: RawClient, certificates: Certificates) -> None:
        self._speaker = raw
        self._received, self._unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=certificates.ca)
        self._tls = context.wrap_bio(self._received, self._unsent, server_hostname="127.0.0.1")

    async def handshake(self, following: bytes = b"") -> None:
        """Do the handshake; send ``following`` in its last packet."""
        await self._do(self._tls.do_handshake)
        if following:
            self._tls.write(following)
        self._speaker.writer.write(self._unsent.read())

    async def receive(self, count: int) -> list[Frame]:
        """Return frames of at least the size of ``count`` OK responses."""
        data = b""
        while len(data) < count * 10:
            data += await self._do(lambda: self._tls.read(65536))
        return frames_in(data)

    async def _do(self, act: Callable[[], Any]) -> Any:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    return act()
                except ssl.SSLWantReadError:
                    self._speaker.writer.write(self._unsent.read())
                    data = await self._speaker.reader.read(65536)
                    assert data, "nsqd has closed the connection"
                    self._received.write(data)


class Counted:
    """A transport that counts writes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.writes = 0
        self._transport = transport

    def write(self, data: bytes) -> None:
        self.writes += 1
        self._transport.write(data)


class Slow:
    """A transport to a slow client that answers heartbeats.

    Each query of the buffer size finds one byte less, until ``rest`` is left.
    """

    def __init__(self, nsqd: NsqdDaemon, unsent: int, rest: int) -> None:
        self.unsent = unsent
        self.heartbeats = 0
        self.aborted = asyncio.Event()
        self.client = ClientConnection(nsqd)
        self._rest = rest
        self.client.connection_made(cast("asyncio.Transport", self))
        self.client.data_received(b"  V2")

    def get_write_buffer_size(self) -> int:
        self.unsent = max(self.unsent - 1, self._rest)
        return self.unsent

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.heartbeats += frames_in(data).count(HEARTBEAT)
        self.client.data_received(b"NOP\n")

    def abort(self) -> None:
        self.aborted.set()
        asyncio.get_running_loop().call_soon(self.client.connection_lost, None)

    close = abort


def only_client(nsqd: NsqdDaemon) -> ClientConnection:
    [client] = nsqd.clients
    return client


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise StorageError("disk full")

    monkeypatch.setattr(Database, "write", write)


@pytest.fixture
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the timeouts for handshakes and closing longer than a test."""
    monkeypatch.setattr(client_module, "_TLS_TIMEOUT", LONG)
    monkeypatch.setattr(client_module, "_CLOSE_TIMEOUT", LONG, raising=False)


# TLS


@both_loops
@pytest.mark.parametrize("end", [NsqdDaemon.stop, NsqdDaemon.kill])
@pytest.mark.usefixtures("long_timeouts")
def test_stopping_does_not_wait_for_tls_handshakes(
    certificates: Certificates, uvloop: bool, end: Callable[[NsqdDaemon], Awaitable[None]]
) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        nsqd = with_tls(certificates)
        await nsqd.start()
        async with connected(nsqd.tcp_address) as raw:
            await raw.identify(tls_v1=True)
            async with asyncio.timeout(PATIENCE):
                await end(nsqd)
            assert nsqd.clients == set()

    run()


@both_loops
@pytest.mark.parametrize("last", [b"", b"no handshake at all"])
def test_a_client_that_leaves_during_the_handshake_is_removed(
    certificates: Certificates, uvloop: bool, last: bytes
) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with with_tls(certificates) as nsqd, connected(nsqd.tcp_address) as raw:
            await raw.identify(tls_v1=True)
            raw.writer.write(last)
            raw.writer.write_eof()
            await eventually(lambda: not nsqd.clients)

    run()


@both_loops
def test_data_in_the_last_packet_of_the_handshake_is_served(
    certificates: Certificates, uvloop: bool
) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with with_tls(certificates) as nsqd, connected(nsqd.tcp_address) as raw:
            await raw.identify(tls_v1=True)
            tls = Tls(raw, certificates)
            await tls.handshake(following=pub(new_name(), b"x"))
            assert await tls.receive(2) == [OK, OK]

    run()


@both_loops
def test_no_heartbeat_is_sent_during_a_handshake(certificates: Certificates, uvloop: bool) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with (
            with_tls(certificates, client_timeout=0.4) as nsqd,
            connected(nsqd.tcp_address) as raw,
        ):
            raw.writer.write(b"IDENTIFY\n" + sized(WITH_TLS))
            while await receive(raw) == HEARTBEAT:  # allowed before the response
                pass
            async with connected(nsqd.tcp_address) as other:
                assert (
                    await receive(other) == HEARTBEAT
                )  # by now one was due for the first client too
            tls = Tls(raw, certificates)
            await tls.handshake()
            assert (await tls.receive(1))[0] == OK

    run()


# Closing


@asynchronous
async def test_a_connection_that_is_being_closed_gets_no_message() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd:
        async with connected(nsqd.tcp_address) as producer:
            await producer.command(pub(topic, b"x"))
        async with connected(nsqd.tcp_address) as raw:
            raw.writer.write(b"SUB %s ch\nRDY 1\nBOGUS\n" % topic.encode())
            assert await receive_all(raw) == [OK, INVALID]
        async with connected(nsqd.tcp_address) as other:
            await other.command(b"SUB %s ch\n" % topic.encode())
            other.writer.write(b"RDY 1\n")
            message = await receive_message(other)
            assert (message.body, message.attempts) == (b"x", 1)


@asynchronous
async def test_a_client_that_does_not_read_its_last_error_gets_no_message() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as producer:
        with socket.socket() as sock:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", nsqd.tcp_port))
            await loop.sock_sendall(sock, b"  V2SUB %s ch\nRDY 2500\n" % topic.encode())
            await eventually(lambda: any(each.subscriber for each in nsqd.clients))
            [client] = [each for each in nsqd.clients if each.subscriber]
            channel = nsqd.engine.topics[topic].channels["ch"]
            while client.writable:  # until the socket's buffers are full
                await producer.command(pub(topic, bytes(500_000)))
            await loop.sock_sendall(sock, b"BOGUS\n")
            await eventually(lambda: client.session.state is ServerState.FAILED)
            client.resume_writing()  # as if it had read almost everything
            in_flight = channel.in_flight_count
            async with connected(nsqd.tcp_address) as other:
                await other.command(b"SUB %s ch\n" % topic.encode())
                other.writer.write(b"RDY 2500\n")
                for number in range(10):
                    await producer.command(pub(topic, b"%d" % number))
                while (await receive_message(other)).body != b"9":
                    pass
            assert client.subscriber is not None
            assert client.subscriber.in_flight_count == in_flight


@pytest.mark.usefixtures("full_disk")
@asynchronous
async def test_nothing_is_sent_after_an_error_that_closes_the_connection(tmp_path: Path) -> None:
    topic = new_name()
    async with make_nsqd(data_path=tmp_path) as nsqd, connected(nsqd.tcp_address) as raw:
        raw.writer.write(
            b"".join(pub(topic, b"%d" % number) for number in range(3))
            + b"SUB %s ch\nRDY 1\n" % topic.encode()
        )
        assert await receive_all(raw) == [error("E_PUB_FAILED PUB failed disk full")]


# Waiting for the disk


@asynchronous
async def test_the_response_to_sub_comes_before_messages_and_after_earlier_responses(
    tmp_path: Path,
) -> None:
    topic = new_name()
    async with make_nsqd(data_path=tmp_path) as nsqd:
        async with connected(nsqd.tcp_address) as producer:
            await producer.command(pub(topic, b"old"))
        async with connected(nsqd.tcp_address) as raw:
            raw.writer.write(pub(new_name(), b"x") + b"SUB %s ch\nRDY 5\n" % topic.encode())
            assert [await receive(raw) for _ in range(2)] == [OK, OK]
            assert (await receive_message(raw)).body == b"old"


@asynchronous
async def test_responses_of_one_commit_are_written_together(
    tmp_path: Path,
) -> None:
    topic = new_name()
    async with make_nsqd(data_path=tmp_path) as nsqd, connected(nsqd.tcp_address) as raw:
        await raw.command(pub(topic, b"first"))
        client = only_client(nsqd)
        counted = Counted(cast("Any", client)._transport)
        client.output.attach(cast("asyncio.Transport", counted))
        raw.writer.write(pub(topic, b"x") * 1000)
        assert [await receive(raw) for _ in range(1000)] == [OK] * 1000
        assert counted.writes < 20


@both_loops
def test_a_client_that_half_closes_gets_all_its_responses(tmp_path: Path, uvloop: bool) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with make_nsqd(data_path=tmp_path) as nsqd, connected(nsqd.tcp_address) as raw:
            raw.writer.write(pub(new_name(), bytes(1000)) * 2000)
            raw.writer.write_eof()
            assert await receive_all(raw) == [OK] * 2000

    run()


@asynchronous
async def test_a_client_that_half_closes_within_a_command_gets_an_error_after_its_responses(
    tmp_path: Path,
) -> None:
    topic = new_name()
    async with make_nsqd(data_path=tmp_path) as nsqd, connected(nsqd.tcp_address) as raw:
        raw.writer.write(pub(topic, b"whole") + pub(topic, b"half")[:-1])
        raw.writer.write_eof()
        failure = error("E_BAD_MESSAGE PUB failed to read message body")
        assert await receive_all(raw) == [OK, failure]


# Slow readers


@asynchronous
async def test_a_slow_client_is_kept_until_it_reads_nothing() -> None:
    async with make_nsqd(client_timeout=SHORT) as nsqd:
        slow = Slow(nsqd, unsent=1000, rest=997)
        slow.client.pause_writing()
        async with asyncio.timeout(PATIENCE):
            await slow.aborted.wait()
        assert slow.unsent == 997


@asynchronous
async def test_a_client_that_has_read_everything_is_not_closed() -> None:
    async with make_nsqd(client_timeout=SHORT) as nsqd:
        slow = Slow(nsqd, unsent=0, rest=0)
        slow.client.pause_writing()
        slow.client.resume_writing()
        await eventually(lambda: slow.heartbeats >= 3)
        assert not slow.aborted.is_set()
        slow.abort()


# Negotiated settings


@asynchronous
async def test_a_second_identify_keeps_what_the_first_has_set() -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as raw:
        await raw.identify(msg_timeout=1234, output_buffer_size=64, output_buffer_timeout=77)
        agreed = await raw.identify()
    assert agreed["msg_timeout"] == 1234
    assert (agreed["output_buffer_size"], agreed["output_buffer_timeout"]) == (64, 77)


@asynchronous
async def test_heartbeats_that_were_turned_off_stay_off_and_allow_no_sub() -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as raw:
        await raw.identify(heartbeat_interval=-1)
        await raw.identify()
        raw.writer.write(b"SUB %s ch\n" % new_name().encode())
        refusal = error("E_INVALID cannot SUB with heartbeats disabled")
        assert await receive_all(raw) == [refusal]


async def client_stats(nsqd: NsqdDaemon, topic: str) -> dict[str, Any]:
    stats = await stats_of(nsqd.http_address, topic=topic)
    [client] = stats["topics"][0]["channels"][0]["clients"]
    assert isinstance(client, dict)
    return client


@asynchronous
async def test_an_empty_identify_leaves_the_client_without_a_name() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as raw:
        await raw.command(b"IDENTIFY\n" + sized(b"{}"))
        await raw.command(b"SUB %s ch\n" % topic.encode())
        stats = await client_stats(nsqd, topic)
    assert (stats["client_id"], stats["hostname"]) == ("", "")


@asynchronous
async def test_a_client_that_does_not_identify_is_known_by_its_address() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as raw:
        await raw.command(b"SUB %s ch\n" % topic.encode())
        stats = await client_stats(nsqd, topic)
    assert (stats["client_id"], stats["hostname"]) == ("127.0.0.1", "127.0.0.1")


@asynchronous
async def test_compression_without_negotiation_is_not_in_the_stats() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as raw:
        await raw.command(b"IDENTIFY\n" + sized(b'{"snappy": true, "deflate": true}'))
        await raw.command(b"SUB %s ch\n" % topic.encode())
        stats = await client_stats(nsqd, topic)
    assert (stats["snappy"], stats["deflate"]) == (False, False)


# Buffered messages


@asynchronous
async def test_buffered_messages_are_written_when_the_channel_is_paused() -> None:
    topic = new_name()
    async with (
        make_nsqd() as nsqd,
        connected(nsqd.tcp_address) as consumer,
        connected(nsqd.tcp_address) as producer,
    ):
        await consumer.identify(output_buffer_timeout=30_000)
        await consumer.command(b"SUB %s ch\n" % topic.encode())
        consumer.writer.write(b"RDY 10\n")
        channel = nsqd.engine.topics[topic].channels["ch"]
        await producer.command(pub(topic, b"x"))
        await eventually(lambda: channel.in_flight_count == 1)
        await ask(nsqd.http_address, "POST", "/channel/pause", None, topic=topic, channel="ch")
        assert (await receive_message(consumer)).body == b"x"


# Injected delays


@pytest.fixture
def short_close_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the timeout for closing short."""
    monkeypatch.setattr(client_module, "_CLOSE_TIMEOUT", 0.05, raising=False)


@pytest.mark.usefixtures("short_close_timeout")
@asynchronous
async def test_a_delayed_error_that_closes_the_connection_is_sent() -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as raw:
        nsqd.faults.slow(0.3)
        raw.writer.write(pub(new_name(), b"x") + b"BOGUS\n")
        assert await receive_all(raw) == [OK, INVALID]


@pytest.mark.usefixtures("short_close_timeout")
@asynchronous
async def test_a_delayed_response_is_sent_before_later_ones_without_delay() -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as raw:
        topic = new_name()
        nsqd.faults.slow(0.3)
        raw.writer.write(pub(topic, b"x"))
        await eventually(lambda: topic in nsqd.engine.topics)
        nsqd.faults.slow(0)
        raw.writer.write(b"BOGUS\n")
        assert await receive_all(raw) == [OK, INVALID]


@both_loops
@pytest.mark.usefixtures("short_close_timeout")
def test_a_client_that_half_closes_gets_delayed_responses(uvloop: bool) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as raw:
            topic = new_name()
            nsqd.faults.slow(0.3)
            raw.writer.write(pub(topic, b"x"))
            await eventually(lambda: topic in nsqd.engine.topics)
            raw.writer.write_eof()
            assert await receive_all(raw) == [OK]

    run()
