"""A connection to nsqd where timing matters: TLS, closing, waiting for the disk, slow readers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from nsqflow.broker.nsqd import client as client_module
from nsqflow.broker.nsqd.client import Client
from nsqflow.broker.nsqd.daemon import Nsqd
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
    hear,
    hear_message,
    hear_out,
    pub,
)
from tests.unit.broker.nsqd.running import (
    Speaker,
    ask,
    connected,
    make_nsqd,
    new_name,
    sized,
    stats_of,
)

LONG = 3600.0
WITH_TLS = b'{"feature_negotiation": true, "tls_v1": true}'
INVALID = error("E_INVALID invalid command BOGUS")

both_loops = pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])


def with_tls(certificates: Certificates, **options: Any) -> Nsqd:
    files = {"tls_cert": str(certificates.cert), "tls_key": str(certificates.key)}
    return make_nsqd(https_address="127.0.0.1:0", **files, **options)


class Tls:
    """TLS by hand, so that a test decides what is in one packet."""

    def __init__(self, speaker: Speaker, certificates: Certificates) -> None:
        self._speaker = speaker
        self._received, self._unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=certificates.ca)
        self._tls = context.wrap_bio(self._received, self._unsent, server_hostname="127.0.0.1")

    async def shake_hands(self, behind: bytes = b"") -> None:
        """Do the handshake, and send something in the same packet as the last of it."""
        await self._do(self._tls.do_handshake)
        if behind:
            self._tls.write(behind)
        self._speaker.writer.write(self._unsent.read())

    async def hear(self, count: int) -> list[Frame]:
        """What so many frames of a response OK take, read as frames."""
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
    """A transport that counts what is written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.writes = 0
        self._transport = transport

    def write(self, data: bytes) -> None:
        self.writes += 1
        self._transport.write(data)


class Slow:
    """A transport to a client that answers heartbeats and reads slowly, if at all.

    Each time that is asked for, it has read some more, until there is ``rest`` left.
    """

    def __init__(self, nsqd: Nsqd, unsent: int, rest: int) -> None:
        self.unsent = unsent
        self.heartbeats = 0
        self.aborted = asyncio.Event()
        self.client = Client(nsqd)
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


def only_client(nsqd: Nsqd) -> Client:
    [client] = nsqd.clients
    return client


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise StorageError("disk full")

    monkeypatch.setattr(Database, "write", write)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is given up because of the time it takes to upgrade or to close it."""
    monkeypatch.setattr(client_module, "_TLS_TIMEOUT", LONG)
    monkeypatch.setattr(client_module, "_CLOSE_TIMEOUT", LONG, raising=False)


# TLS


@both_loops
@pytest.mark.parametrize("end", [Nsqd.stop, Nsqd.kill])
@pytest.mark.usefixtures("patient")
def test_an_nsqd_that_ends_waits_for_no_handshake(
    certificates: Certificates, uvloop: bool, end: Callable[[Nsqd], Awaitable[None]]
) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        nsqd = with_tls(certificates)
        await nsqd.start()
        async with connected(nsqd.tcp_address) as speaker:
            await speaker.identify(tls_v1=True)
            async with asyncio.timeout(PATIENCE):
                await end(nsqd)
            assert nsqd.clients == set()

    run()


@both_loops
@pytest.mark.parametrize("last", [b"", b"no handshake at all"])
def test_a_handshake_that_a_client_leaves_is_the_end_of_the_connection(
    certificates: Certificates, uvloop: bool, last: bytes
) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with with_tls(certificates) as nsqd, connected(nsqd.tcp_address) as speaker:
            await speaker.identify(tls_v1=True)
            speaker.writer.write(last)
            speaker.writer.write_eof()
            await eventually(lambda: not nsqd.clients)

    run()


@both_loops
def test_what_comes_right_behind_the_handshake_is_served(
    certificates: Certificates, uvloop: bool
) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with with_tls(certificates) as nsqd, connected(nsqd.tcp_address) as speaker:
            await speaker.identify(tls_v1=True)
            tls = Tls(speaker, certificates)
            await tls.shake_hands(behind=pub(new_name(), b"x"))
            assert await tls.hear(2) == [OK, OK]

    run()


@both_loops
def test_no_heartbeat_comes_in_the_middle_of_a_handshake(
    certificates: Certificates, uvloop: bool
) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with (
            with_tls(certificates, client_timeout=0.4) as nsqd,
            connected(nsqd.tcp_address) as speaker,
        ):
            speaker.writer.write(b"IDENTIFY\n" + sized(WITH_TLS))
            while await hear(speaker) == HEARTBEAT:  # up to here they may come
                pass
            async with connected(nsqd.tcp_address) as other:
                assert await hear(other) == HEARTBEAT  # one was due for the first by now, too
            tls = Tls(speaker, certificates)
            await tls.shake_hands()
            assert (await tls.hear(1))[0] == OK

    run()


# Closing


@asynchronous
async def test_a_connection_that_is_being_closed_is_given_no_message() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd:
        async with connected(nsqd.tcp_address) as producer:
            await producer.say(pub(topic, b"x"))
        async with connected(nsqd.tcp_address) as speaker:
            speaker.writer.write(b"SUB %s ch\nRDY 1\nBOGUS\n" % topic.encode())
            assert await hear_out(speaker) == [OK, INVALID]
        async with connected(nsqd.tcp_address) as other:
            await other.say(b"SUB %s ch\n" % topic.encode())
            other.writer.write(b"RDY 1\n")
            message = await hear_message(other)
            assert (message.body, message.attempts) == (b"x", 1)


@asynchronous
async def test_a_client_that_does_not_read_its_last_error_is_given_no_message() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as producer:
        with socket.socket() as deaf:
            deaf.setblocking(False)
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, ("127.0.0.1", nsqd.tcp_port))
            await loop.sock_sendall(deaf, b"  V2SUB %s ch\nRDY 2500\n" % topic.encode())
            await eventually(lambda: any(each.subscriber for each in nsqd.clients))
            [client] = [each for each in nsqd.clients if each.subscriber]
            channel = nsqd.engine.topics[topic].channels["ch"]
            while client.reads:  # until the buffers of the network are full
                await producer.say(pub(topic, bytes(500_000)))
            await loop.sock_sendall(deaf, b"BOGUS\n")
            await eventually(lambda: client.session.state is ServerState.FAILED)
            client.resume_writing()  # as if it had read all but the last bytes
            in_flight = channel.in_flight_count
            async with connected(nsqd.tcp_address) as other:
                await other.say(b"SUB %s ch\n" % topic.encode())
                other.writer.write(b"RDY 2500\n")
                for number in range(10):
                    await producer.say(pub(topic, b"%d" % number))
                while (await hear_message(other)).body != b"9":
                    pass
            assert client.subscriber is not None
            assert client.subscriber.in_flight == in_flight


@pytest.mark.usefixtures("full_disk")
@asynchronous
async def test_nothing_is_said_behind_an_error_that_ends_the_connection(tmp_path: Path) -> None:
    topic = new_name()
    async with make_nsqd(data_path=tmp_path) as nsqd, connected(nsqd.tcp_address) as speaker:
        speaker.writer.write(
            b"".join(pub(topic, b"%d" % number) for number in range(3))
            + b"SUB %s ch\nRDY 1\n" % topic.encode()
        )
        assert await hear_out(speaker) == [error("E_PUB_FAILED PUB failed disk full")]


# Waiting for the disk


@asynchronous
async def test_the_answer_to_sub_comes_before_messages_and_behind_earlier_answers(
    tmp_path: Path,
) -> None:
    topic = new_name()
    async with make_nsqd(data_path=tmp_path) as nsqd:
        async with connected(nsqd.tcp_address) as producer:
            await producer.say(pub(topic, b"old"))
        async with connected(nsqd.tcp_address) as speaker:
            speaker.writer.write(pub(new_name(), b"x") + b"SUB %s ch\nRDY 5\n" % topic.encode())
            assert [await hear(speaker) for _ in range(2)] == [OK, OK]
            assert (await hear_message(speaker)).body == b"old"


@asynchronous
async def test_many_publishes_that_are_stored_together_are_answered_together(
    tmp_path: Path,
) -> None:
    topic = new_name()
    async with make_nsqd(data_path=tmp_path) as nsqd, connected(nsqd.tcp_address) as speaker:
        await speaker.say(pub(topic, b"first"))
        client = only_client(nsqd)
        counted = Counted(cast("Any", client)._transport)
        client.output.attach(cast("asyncio.Transport", counted))
        speaker.writer.write(pub(topic, b"x") * 1000)
        assert [await hear(speaker) for _ in range(1000)] == [OK] * 1000
        assert counted.writes < 20


@both_loops
def test_a_client_that_half_closes_gets_all_its_answers(tmp_path: Path, uvloop: bool) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with make_nsqd(data_path=tmp_path) as nsqd, connected(nsqd.tcp_address) as speaker:
            speaker.writer.write(pub(new_name(), bytes(1000)) * 2000)
            speaker.writer.write_eof()
            assert await hear_out(speaker) == [OK] * 2000

    run()


@asynchronous
async def test_a_client_that_half_closes_within_a_command_is_told_so_behind_its_answers(
    tmp_path: Path,
) -> None:
    topic = new_name()
    async with make_nsqd(data_path=tmp_path) as nsqd, connected(nsqd.tcp_address) as speaker:
        speaker.writer.write(pub(topic, b"whole") + pub(topic, b"half")[:-1])
        speaker.writer.write_eof()
        failure = error("E_BAD_MESSAGE PUB failed to read message body")
        assert await hear_out(speaker) == [OK, failure]


# Slow readers


@asynchronous
async def test_a_client_that_reads_slowly_is_kept_until_it_reads_nothing() -> None:
    async with make_nsqd(client_timeout=0.04) as nsqd:
        slow = Slow(nsqd, unsent=1000, rest=980)
        slow.client.pause_writing()
        async with asyncio.timeout(PATIENCE):
            await slow.aborted.wait()
        assert slow.unsent == 980


@asynchronous
async def test_a_client_that_has_read_all_is_no_longer_watched() -> None:
    async with make_nsqd(client_timeout=0.04) as nsqd:
        slow = Slow(nsqd, unsent=0, rest=0)
        slow.client.pause_writing()
        slow.client.resume_writing()
        await eventually(lambda: slow.heartbeats >= 3)
        assert not slow.aborted.is_set()
        slow.abort()


# What was negotiated


@asynchronous
async def test_a_second_identify_keeps_what_the_first_has_set() -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as speaker:
        await speaker.identify(msg_timeout=1234, output_buffer_size=64, output_buffer_timeout=77)
        agreed = await speaker.identify()
    assert agreed["msg_timeout"] == 1234
    assert (agreed["output_buffer_size"], agreed["output_buffer_timeout"]) == (64, 77)


@asynchronous
async def test_heartbeats_that_were_turned_off_stay_off_and_allow_no_sub() -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as speaker:
        await speaker.identify(heartbeat_interval=-1)
        await speaker.identify()
        speaker.writer.write(b"SUB %s ch\n" % new_name().encode())
        refusal = error("E_INVALID cannot SUB with heartbeats disabled")
        assert await hear_out(speaker) == [refusal]


async def client_stats(nsqd: Nsqd, topic: str) -> dict[str, Any]:
    stats = await stats_of(nsqd.http_address, topic=topic)
    [client] = stats["topics"][0]["channels"][0]["clients"]
    told: dict[str, Any] = client
    return told


@asynchronous
async def test_a_client_that_says_nothing_of_itself_has_no_name() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as speaker:
        await speaker.say(b"IDENTIFY\n" + sized(b"{}"))
        await speaker.say(b"SUB %s ch\n" % topic.encode())
        stats = await client_stats(nsqd, topic)
    assert (stats["client_id"], stats["hostname"]) == ("", "")


@asynchronous
async def test_a_client_that_does_not_identify_is_known_by_its_address() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as speaker:
        await speaker.say(b"SUB %s ch\n" % topic.encode())
        stats = await client_stats(nsqd, topic)
    assert (stats["client_id"], stats["hostname"]) == ("127.0.0.1", "127.0.0.1")


@asynchronous
async def test_compression_that_is_not_negotiated_is_not_told_of() -> None:
    topic = new_name()
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as speaker:
        await speaker.say(b"IDENTIFY\n" + sized(b'{"snappy": true, "deflate": true}'))
        await speaker.say(b"SUB %s ch\n" % topic.encode())
        stats = await client_stats(nsqd, topic)
    assert (stats["snappy"], stats["deflate"]) == (False, False)


# Messages that wait


@asynchronous
async def test_what_was_gathered_goes_out_when_the_channel_is_paused() -> None:
    topic = new_name()
    async with (
        make_nsqd() as nsqd,
        connected(nsqd.tcp_address) as consumer,
        connected(nsqd.tcp_address) as producer,
    ):
        await consumer.identify(output_buffer_timeout=30_000)
        await consumer.say(b"SUB %s ch\n" % topic.encode())
        consumer.writer.write(b"RDY 10\n")
        channel = nsqd.engine.topics[topic].channels["ch"]
        await producer.say(pub(topic, b"x"))
        await eventually(lambda: channel.in_flight_count == 1)
        await ask(nsqd.http_address, "POST", "/channel/pause", None, topic=topic, channel="ch")
        assert (await hear_message(consumer)).body == b"x"


# Late on demand


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read its last answers is cut off soon."""
    monkeypatch.setattr(client_module, "_CLOSE_TIMEOUT", 0.05, raising=False)


@pytest.mark.usefixtures("hasty")
@asynchronous
async def test_a_late_answer_that_ends_the_connection_comes_all_the_same() -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as speaker:
        nsqd.faults.slow(0.3)
        speaker.writer.write(pub(new_name(), b"x") + b"BOGUS\n")
        assert await hear_out(speaker) == [OK, INVALID]


@pytest.mark.usefixtures("hasty")
@asynchronous
async def test_an_answer_stays_late_when_later_ones_are_not_but_is_not_lost() -> None:
    async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as speaker:
        topic = new_name()
        nsqd.faults.slow(0.3)
        speaker.writer.write(pub(topic, b"x"))
        await eventually(lambda: topic in nsqd.engine.topics)
        nsqd.faults.slow(0)
        speaker.writer.write(b"BOGUS\n")
        assert await hear_out(speaker) == [OK, INVALID]


@both_loops
@pytest.mark.usefixtures("hasty")
def test_a_client_that_half_closes_gets_its_late_answers(uvloop: bool) -> None:
    @asynchronous(uvloop=uvloop)
    async def run() -> None:
        async with make_nsqd() as nsqd, connected(nsqd.tcp_address) as speaker:
            topic = new_name()
            nsqd.faults.slow(0.3)
            speaker.writer.write(pub(topic, b"x"))
            await eventually(lambda: topic in nsqd.engine.topics)
            speaker.writer.write_eof()
            assert await hear_out(speaker) == [OK]

    run()
