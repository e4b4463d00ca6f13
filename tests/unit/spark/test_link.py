"""A blocking connection to the real nsqd, by every transport; and to peers that misbehave."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trustme

from nsqflow.errors import (
    AuthFailedError,
    BadMessageError,
    ConfigError,
    InvalidCommandError,
    NetworkError,
    NsqError,
    RemoteProtocolError,
    TlsNotGrantedError,
    UnauthorizedError,
)
from nsqflow.protocol import (
    AnswerFailed,
    CloseWait,
    Cls,
    CommandFailed,
    Event,
    FrameType,
    Identify,
    IdentifyReply,
    MessageBatch,
    Mpub,
    Nop,
    Pub,
    Published,
    Rdy,
    Sub,
)
from nsqflow.protocol.frames import FRAME_HEADER
from nsqflow.spark.access import Access
from nsqflow.spark.link import Link
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import CLOSE, HANG, RESET, asynchronous
from tests.fixtures.scripted import Connection, ScriptedNsqd
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd

SECRET = "hunter2"
PLAIN = Access()

numbers = count(1)


@pytest.fixture
def topic() -> str:
    return f"link_{next(numbers)}"


@pytest.fixture(scope="module")
def auth() -> Iterator[AuthServer]:
    with AuthServer(
        {SECRET: [Authorization()], "writer": [Authorization(permissions=["publish"])]}
    ) as server:
        yield server


@pytest.fixture(scope="module")
def strict_nsqd(
    tmp_path_factory: pytest.TempPathFactory, auth: AuthServer, certificates: Certificates
) -> Iterator[Nsqd]:
    """An nsqd that asks who one is."""
    options = [f"-auth-http-address={auth.address}"]
    folder = tmp_path_factory.mktemp("strict-nsqd")
    with start_nsqd(folder, tls=certificates, options=options) as server:
        yield server


@pytest.fixture(scope="module")
def modest_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that grants little."""
    options = [
        "-snappy=false",
        "-max-output-buffer-size=4096",
        "-max-output-buffer-timeout=1s",
        "-max-msg-timeout=30s",
        "-max-msg-size=1000",
    ]
    with start_nsqd(tmp_path_factory.mktemp("modest-nsqd"), options=options) as server:
        yield server


def subscribe(address: str, topic: str, access: Access = PLAIN) -> closing[Link]:
    return closing(Link.open(address, access, topic=topic, channel="c"))


def next_event(link: Link) -> Event:
    events = link.receive(PATIENCE)
    assert len(events) == 1
    return events[0]


def pull(link: Link, number: int) -> list[bytes]:
    """The bodies of so many messages."""
    bodies: list[bytes] = []
    while len(bodies) < number:
        event = next_event(link)
        assert isinstance(event, MessageBatch)
        bodies += event.columns().bodies()
    return bodies


# With the real nsqd


@pytest.mark.parametrize("compression", ["", "snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True])
def test_all_arrives_by_every_transport(
    nsqd: Nsqd, topic: str, certificates: Certificates, tls: bool, compression: str
) -> None:
    access = Access(
        tls=tls,
        tls_ca_file=str(certificates.ca) if tls else None,
        snappy=compression == "snappy",
        deflate=compression == "deflate",
    )
    bodies = [b"%d " % n + (os.urandom(n * 37) if n % 2 else b"again " * n) for n in range(500)]
    with subscribe(nsqd.tcp_address, topic, access) as link:
        assert (link.reply.tls_v1, link.reply.snappy, link.reply.deflate) == (
            tls,
            access.snappy,
            access.deflate,
        )
        link.send(Mpub(topic, bodies), Rdy(500))
        events: list[Event] = []
        received: list[bytes] = []
        while len(received) < 500:
            events = link.receive(PATIENCE)
            assert events, "nothing came"
            batches = [event for event in events if isinstance(event, MessageBatch)]
            received += [body for batch in batches for body in batch.columns().bodies()]
        assert sorted(received) == sorted(bodies)


def test_it_tells_nsqd_who_it_is_and_what_it_wants(nsqd: Nsqd, topic: str) -> None:
    with closing(
        Link.open(
            nsqd.tcp_address,
            PLAIN,
            topic=topic,
            channel="c",
            msg_timeout=7.5,
            output_buffer_timeout=0.025,
        )
    ) as link:
        assert link.address == nsqd.tcp_address
        assert link.reply.msg_timeout == 7500
        assert link.reply.output_buffer_size == 65536
        assert link.reply.output_buffer_timeout == 25
        stats = nsqd.ask(f"/stats?format=json&topic={topic}")[1].decode()
        assert '"user_agent":"nsqflow-spark/' in stats
        assert f'"hostname":"{socket.gethostname()}"' in stats


def test_it_finishes_and_hears_that_all_was_dealt_with(nsqd: Nsqd, topic: str) -> None:
    with subscribe(nsqd.tcp_address, topic) as link:
        link.send(Mpub(topic, [b"a", b"b", b"c"]))
        assert isinstance(next_event(link), Published)
        link.send(Rdy(3))
        ids = b""
        while len(ids) < 3 * 16:
            event = next_event(link)
            assert isinstance(event, MessageBatch)
            ids += event.columns().ids
        link.session.finish_packed(ids)
        link.session.finish_packed(ids[:16])  # that one was finished already
        link.send(Rdy(0), Cls())
        events: list[Event] = []
        while not events or not isinstance(events[-1], CloseWait):
            events += link.receive(PATIENCE)
        failed, _ = events
        assert isinstance(failed, AnswerFailed)
        assert failed.id == ids[:16]


def test_receiving_ends_when_time_is_up(nsqd: Nsqd, topic: str) -> None:
    with subscribe(nsqd.tcp_address, topic) as link:
        began = time.monotonic()
        assert link.receive(0.05) == []
        assert time.monotonic() - began >= 0.05
        assert link.receive(0) == []


def test_writing_much_and_being_told_much_is_no_deadlock(
    nsqd: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dial = socket.create_connection

    def dial_narrowly(*args: Any) -> socket.socket:
        sock = dial(*args)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        return sock

    monkeypatch.setattr(socket, "create_connection", dial_narrowly)
    # nsqd answers each of these FINs with an error, and reads no further while nobody takes
    # its answers.
    ids = b"".join(b"%016x" % n for n in range(100_000))
    with subscribe(nsqd.tcp_address, topic) as link:
        link.session.finish_packed(ids)
        link.send(Cls())
        failed: list[bytes | None] = []
        events: list[Event] = []
        while not events or not isinstance(events[-1], CloseWait):
            events = link.receive(PATIENCE)
            assert events, "nothing came"
            failed += [event.id for event in events if isinstance(event, AnswerFailed)]
        assert b"".join(filter(None, failed)) == ids


def test_the_end_of_nsqd_is_an_error_behind_what_came_before(tmp_path: Path, topic: str) -> None:
    with start_nsqd(tmp_path) as server, subscribe(server.tcp_address, topic) as link:
        link.send(Mpub(topic, [b"last words"] * 3), Rdy(3))
        # The answer to MPUB and the messages, in whichever pieces.
        received = 0
        while received < 3:
            for event in link.receive(PATIENCE):
                received += len(event) if isinstance(event, MessageBatch) else 0
        link.send(Pub(topic, b"unanswered as yet"))
        server.await_log(rf"TOPIC\({topic}\)")
        server.stop()
        with pytest.raises(NetworkError, match=server.tcp_address):
            while link.receive(PATIENCE):
                pass
        with pytest.raises(NetworkError, match=server.tcp_address):
            link.receive(0)
        with pytest.raises(NetworkError, match=server.tcp_address):
            link.send(Nop())


def test_an_error_that_closes_is_told_and_then_raised(modest_nsqd: Nsqd, topic: str) -> None:
    with closing(Link.open(modest_nsqd.tcp_address, PLAIN)) as link:
        link.send(Pub(topic, b"good"), Pub(topic, bytes(1001)), Pub(topic, b"in vain"))
        events: list[Event] = []
        while not events or not isinstance(events[-1], CommandFailed):
            received = link.receive(PATIENCE)
            assert received, "nothing came"
            events += received
        assert [type(event) for event in events] == [Published, CommandFailed]
        for _ in range(2):
            with pytest.raises(BadMessageError, match=f"from {modest_nsqd.tcp_address}"):
                link.receive(PATIENCE)
        with pytest.raises(BadMessageError):
            link.flush()


def test_what_nsqd_said_before_it_closed_is_heard_though_writing_failed(
    modest_nsqd: Nsqd, topic: str
) -> None:
    with closing(Link.open(modest_nsqd.tcp_address, PLAIN)) as link:
        for _ in range(3):
            link.send(Pub(topic, b"good"))
            assert isinstance(next_event(link), Published)
        with pytest.raises(NetworkError):
            while True:  # nsqd reads none of what is behind the first
                link.send(Pub(topic, bytes(1001)), Pub(topic, bytes(1000)))
        assert isinstance(next_event(link), CommandFailed)
        with pytest.raises(BadMessageError):
            link.receive(PATIENCE)


def test_nsqd_is_asked_for_less_where_it_refuses_a_wish(modest_nsqd: Nsqd, topic: str) -> None:
    with closing(
        Link.open(
            modest_nsqd.tcp_address, PLAIN, topic=topic, channel="c", output_buffer_timeout=2.0
        )
    ) as link:
        assert link.reply.output_buffer_size == 16 * 1024  # its default
        assert link.reply.output_buffer_timeout == 250


def test_a_msg_timeout_beyond_what_nsqd_takes_names_the_option(modest_nsqd: Nsqd) -> None:
    with pytest.raises(ConfigError, match=r"msgTimeout of 31 s; .*-max-msg-timeout"):
        Link.open(modest_nsqd.tcp_address, PLAIN, msg_timeout=31)


def test_compression_that_nsqd_does_not_do_is_a_warning(
    modest_nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "nsqflow.spark"),
        subscribe(modest_nsqd.tcp_address, topic, Access(snappy=True)) as link,
    ):
        link.send(Pub(topic, b"all the same"), Rdy(1))
        assert not link.reply.snappy
    assert f"{modest_nsqd.tcp_address} does not do snappy" in caplog.text


def test_tls_that_nsqd_does_not_do_is_an_error(modest_nsqd: Nsqd) -> None:
    with pytest.raises(TlsNotGrantedError, match=f"^{modest_nsqd.tcp_address}: TLS"):
        Link.open(modest_nsqd.tcp_address, Access(tls=True))


def test_a_certificate_nobody_vouches_for_is_refused(nsqd: Nsqd) -> None:
    with pytest.raises(NetworkError, match=f"^{nsqd.tcp_address}: .*CERTIFICATE_VERIFY_FAILED"):
        Link.open(nsqd.tcp_address, Access(tls=True))
    Link.open(nsqd.tcp_address, Access(tls=True, tls_verify=False)).close()


def test_a_certificate_file_that_has_changed_is_read_again(
    nsqd: Nsqd, certificates: Certificates, tmp_path: Path
) -> None:
    trusted = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(trusted)
    access = Access(tls=True, tls_ca_file=str(trusted))
    with pytest.raises(NetworkError, match="CERTIFICATE_VERIFY_FAILED"):
        Link.open(nsqd.tcp_address, access)
    trusted.write_bytes(certificates.ca.read_bytes())
    Link.open(nsqd.tcp_address, access).close()
    trusted.unlink()
    with pytest.raises(ConfigError, match="tlsCaFile"):
        Link.open(nsqd.tcp_address, access)


def test_the_certificate_must_be_that_of_the_host(
    tmp_path: Path, certificates: Certificates
) -> None:
    options = ["-tcp-address=[::1]:0"]
    access = Access(tls=True, tls_ca_file=str(certificates.ca))
    with (
        start_nsqd(tmp_path, tls=certificates, options=options) as server,
        pytest.raises(NetworkError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        Link.open(server.tcp_address, access)


@pytest.mark.parametrize("tls", [False, True])
def test_the_secret_opens_the_door(
    strict_nsqd: Nsqd, topic: str, certificates: Certificates, tls: bool
) -> None:
    access = Access(tls=tls, tls_ca_file=str(certificates.ca) if tls else None, auth_secret=SECRET)
    with subscribe(strict_nsqd.tcp_address, topic, access) as link:
        link.send(Pub(topic, b"body"))
        assert isinstance(next_event(link), Published)
        link.send(Rdy(1))
        assert pull(link, 1) == [b"body"]


def test_without_a_secret_the_error_names_the_options(strict_nsqd: Nsqd) -> None:
    with pytest.raises(ConfigError, match=f"^{strict_nsqd.tcp_address} asks for AUTH.*authSecret"):
        Link.open(strict_nsqd.tcp_address, PLAIN)


def test_a_wrong_secret_is_refused_and_never_shown(strict_nsqd: Nsqd) -> None:
    with pytest.raises(AuthFailedError) as caught:
        Link.open(strict_nsqd.tcp_address, Access(auth_secret="swordfish"))
    assert strict_nsqd.tcp_address in str(caught.value)
    assert "swordfish" not in repr(caught.value)


def test_a_secret_that_may_not_subscribe_is_told_so(strict_nsqd: Nsqd, topic: str) -> None:
    with pytest.raises(UnauthorizedError, match=f"from {strict_nsqd.tcp_address}"):
        subscribe(strict_nsqd.tcp_address, topic, Access(auth_secret="writer"))


def test_an_nsqd_that_insists_on_tls_says_so(
    tmp_path: Path, certificates: Certificates, topic: str
) -> None:
    with (
        start_nsqd(tmp_path, tls=certificates, options=["-tls-required"]) as server,
        pytest.raises(InvalidCommandError, match="TLS required"),
    ):
        subscribe(server.tcp_address, topic)


def test_where_nobody_listens_there_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(NetworkError, match=f"^{address}: .*refused"):
        Link.open(address, PLAIN)


def test_an_address_that_is_none_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'127\.0\.0\.1'; allowed are"):
        Link.open("127.0.0.1", PLAIN)
    with pytest.raises(NetworkError, match=r"^\.\.:4150: "):
        Link.open("..:4150", PLAIN)


def test_the_web_port_is_recognised_as_no_nsqd(nsqd: Nsqd) -> None:
    with pytest.raises(RemoteProtocolError, match=f"^{nsqd.http_address}: .*TCP port of an nsqd"):
        Link.open(nsqd.http_address, PLAIN)


# With peers that misbehave


async def open_link(peer: ScriptedNsqd, timeout: float = PATIENCE) -> Link:
    return await asyncio.to_thread(
        Link.open, peer.address, PLAIN, topic="t", channel="c", timeout=timeout
    )


@asynchronous
async def test_heartbeats_are_answered_and_not_told() -> None:
    async with ScriptedNsqd() as peer:
        with closing(await open_link(peer)) as link:
            wire = peer.connections[0]
            wire.send_heartbeat()
            receiving = asyncio.create_task(asyncio.to_thread(link.receive, PATIENCE))
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
        with closing(await open_link(peer)) as link:
            wire = peer.connections[0]
            wire.session.send_heartbeat()
            wire.send_error(b"E_FIN_FAILED FIN 0123456789abcdef failed")
            (event,) = await asyncio.to_thread(link.receive, PATIENCE)
            assert isinstance(event, AnswerFailed)
            await peer.received(Nop)


@pytest.mark.parametrize("deed", [CLOSE, RESET])
@asynchronous
async def test_whoever_hangs_up_while_connecting_is_named(deed: object) -> None:
    async with ScriptedNsqd() as peer:
        peer.on(Identify, deed)  # type: ignore[arg-type]
        with pytest.raises(NetworkError, match=f"^{peer.address}: "):
            await open_link(peer)


@asynchronous
async def test_a_peer_that_says_nothing_is_waited_for_no_longer_than_told() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(Sub, HANG)
        with pytest.raises(NetworkError, match=f"^{peer.address}: no answer in time"):
            await open_link(peer, timeout=0.2)
        await peer.connections[0].ended()


@asynchronous
async def test_a_tls_handshake_that_never_comes_is_waited_for_no_longer_than_told() -> None:
    reply = IdentifyReply(version="1.3.0", tls_v1=True)
    async with ScriptedNsqd(reply) as peer:
        with pytest.raises(NetworkError, match=f"^{peer.address}: .*timed out"):
            await asyncio.to_thread(Link.open, peer.address, Access(tls=True), timeout=0.2)
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
            await asyncio.to_thread(Link.open, peer.address, Access(tls=True))


@asynchronous
async def test_a_peer_that_reads_nothing_is_written_to_no_longer_than_told() -> None:
    async with ScriptedNsqd() as peer:
        with closing(await open_link(peer)) as link:
            peer.connections[0].freeze()
            link.session.finish_packed(bytes(16) * 2_000_000)
            with pytest.raises(NetworkError, match=rf"^{peer.address}: \d+ bytes not taken within"):
                await asyncio.to_thread(link.flush, 0.2)
            with pytest.raises(NetworkError, match="not taken"):
                link.receive(0)
            peer.connections[0].reset()


@asynchronous
async def test_a_frame_that_never_ends_is_waited_for_no_longer_than_told() -> None:
    async with ScriptedNsqd() as peer:
        with closing(await open_link(peer)) as link:
            wire = peer.connections[0]
            wire.send_raw(FRAME_HEADER.pack(64 * 1024 * 1024, FrameType.MESSAGE))
            receiving = asyncio.create_task(asyncio.to_thread(link.receive, 0.2))
            async with asyncio.timeout(PATIENCE):
                while not receiving.done():
                    wire.send_raw(b"on ")
                    await asyncio.sleep(0)
            assert await receiving == []


@asynchronous
async def test_a_peer_that_only_talks_is_listened_to_no_longer_than_told() -> None:
    async with ScriptedNsqd() as peer:
        with closing(await open_link(peer)) as link:
            wire = peer.connections[0]
            wire.freeze()
            link.session.finish_packed(bytes(16) * 2_000_000)
            flushing = asyncio.create_task(asyncio.to_thread(link.flush, 0.2))
            async with asyncio.timeout(PATIENCE):
                while not flushing.done():
                    wire.send_error(b"E_FIN_FAILED FIN 0123456789abcdef failed")
                    await asyncio.sleep(0)
            with pytest.raises(NetworkError, match="not taken within"):
                await flushing
            wire.reset()


@asynchronous
async def test_an_nsqd_of_the_redesigned_nsq_is_refused() -> None:
    async with ScriptedNsqd(IdentifyReply(version="0.3.7-HA.1.13.0")) as peer:
        with pytest.raises(ConfigError, match=f"^{peer.address} is an nsqd of the redesigned"):
            await open_link(peer)
        await peer.connections[0].ended()


@asynchronous
async def test_an_nsqd_that_lets_nobody_read_is_refused() -> None:
    async with ScriptedNsqd(IdentifyReply(version="1.3.0", max_rdy_count=0)) as peer:
        with pytest.raises(RemoteProtocolError, match=f"^{peer.address}: max_rdy_count of 0"):
            await open_link(peer)


@asynchronous
async def test_options_that_are_refused_for_no_known_reason_are_not_tried_again() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(
            Identify, lambda connection, _: connection.send_error(b"E_BAD_BODY IDENTIFY is odd")
        )
        with pytest.raises(ConfigError, match=f"^{peer.address} refused the options: .*is odd"):
            await open_link(peer)
        assert len(peer.connections) == 1


@asynchronous
async def test_nonsense_is_an_error_behind_what_came_before() -> None:
    async with ScriptedNsqd() as peer:
        with closing(await open_link(peer)) as link:
            wire = peer.connections[0]
            wire.session.send_error("E_FIN_FAILED", "FIN 0123456789abcdef failed")
            wire.send_raw(wire.session.data_to_send() + b"HTTP/1.1 400 Bad Request\r\n\r\n")
            (event,) = await asyncio.to_thread(link.receive, PATIENCE)
            assert isinstance(event, AnswerFailed)
            for _ in range(2):
                with pytest.raises(RemoteProtocolError, match=f"^{peer.address}: frame of"):
                    await asyncio.to_thread(link.receive, PATIENCE)


# What is left behind


def test_a_closed_link_says_so(nsqd: Nsqd) -> None:
    link = Link.open(nsqd.tcp_address, PLAIN)
    link.close()
    link.close()
    with pytest.raises(NetworkError, match="closed on this side"):
        link.receive(0)
    with pytest.raises(NetworkError, match="closed on this side"):
        link.send(Nop())


def test_an_invalid_topic_is_refused_before_anything_is_sent(nsqd: Nsqd) -> None:
    with pytest.raises(ConfigError, match="not a topic"):
        subscribe(nsqd.tcp_address, "not a topic")


@pytest.mark.parametrize("access", [PLAIN, Access(tls=True)])
def test_no_socket_is_left_behind_by_what_failed(nsqd: Nsqd, access: Access) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NsqError):
        Link.open(nsqd.tcp_address, access, topic="not a topic", channel="c")
    assert len(os.listdir("/proc/self/fd")) == before


def test_importing_it_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, nsqflow.spark.link; "
        "print([m for m in ('asyncio', 'ssl', 'pyarrow', 'pandas', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
