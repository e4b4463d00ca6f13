"""The blocking connection: with the real nsqd, plain, TLS and compressed; with faulty peers."""

from __future__ import annotations

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
    MessageBatch,
    Mpub,
    Nop,
    Pub,
    Published,
    Rdy,
)
from nsqflow.spark.connection import connect
from nsqflow.spark.server_options import Access
from nsqflow.transport.sync_connection import SyncConnection
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import PATIENCE, Nsqd, start_nsqd

SECRET = "hunter2"


PLAIN = Access()


numbers = count(1)


@pytest.fixture
def topic() -> str:
    return f"sync_{next(numbers)}"


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
    """An nsqd that asks for AUTH."""
    options = [f"-auth-http-address={auth.address}"]
    folder = tmp_path_factory.mktemp("strict-nsqd")
    with start_nsqd(folder, tls=certificates, options=options) as server:
        yield server


@pytest.fixture(scope="module")
def modest_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd with low limits."""
    options = [
        "-snappy=false",
        "-max-output-buffer-size=4096",
        "-max-output-buffer-timeout=1s",
        "-max-msg-timeout=30s",
        "-max-msg-size=1000",
    ]
    with start_nsqd(tmp_path_factory.mktemp("modest-nsqd"), options=options) as server:
        yield server


def subscribe(address: str, topic: str, access: Access = PLAIN) -> closing[SyncConnection]:
    return closing(connect(address, access, topic=topic, channel="c"))


def next_event(connection: SyncConnection) -> Event:
    events = connection.receive(PATIENCE)
    assert len(events) == 1
    return events[0]


def pull(connection: SyncConnection, number: int) -> list[bytes]:
    """Return the bodies of ``number`` messages."""
    bodies: list[bytes] = []
    while len(bodies) < number:
        event = next_event(connection)
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
    with subscribe(nsqd.tcp_address, topic, access) as connection:
        assert (connection.reply.tls_v1, connection.reply.snappy, connection.reply.deflate) == (
            tls,
            access.snappy,
            access.deflate,
        )
        connection.send(Mpub(topic, bodies), Rdy(500))
        events: list[Event] = []
        received: list[bytes] = []
        while len(received) < 500:
            events = connection.receive(PATIENCE)
            assert events, "nothing came"
            batches = [event for event in events if isinstance(event, MessageBatch)]
            received += [body for batch in batches for body in batch.columns().bodies()]
        assert sorted(received) == sorted(bodies)


def test_it_identifies_itself_and_asks_for_its_options(nsqd: Nsqd, topic: str) -> None:
    with closing(
        connect(
            nsqd.tcp_address,
            PLAIN,
            topic=topic,
            channel="c",
            msg_timeout=7.5,
            output_buffer_timeout=0.025,
        )
    ) as connection:
        assert connection.address == nsqd.tcp_address
        assert connection.reply.msg_timeout == 7500
        assert connection.reply.output_buffer_size == 65536
        assert connection.reply.output_buffer_timeout == 25
        stats = nsqd.ask(f"/stats?format=json&topic={topic}")[1].decode()
        assert '"user_agent":"nsqflow-spark/' in stats
        assert f'"hostname":"{socket.gethostname()}"' in stats


def test_it_finishes_and_gets_close_wait(nsqd: Nsqd, topic: str) -> None:
    with subscribe(nsqd.tcp_address, topic) as connection:
        connection.send(Mpub(topic, [b"a", b"b", b"c"]))
        assert isinstance(next_event(connection), Published)
        connection.send(Rdy(3))
        ids = b""
        while len(ids) < 3 * 16:
            event = next_event(connection)
            assert isinstance(event, MessageBatch)
            ids += event.columns().ids
        connection.session.finish_packed(ids)
        connection.session.finish_packed(ids[:16])  # that one was finished already
        connection.send(Rdy(0), Cls())
        events: list[Event] = []
        while not events or not isinstance(events[-1], CloseWait):
            events += connection.receive(PATIENCE)
        failed, _ = events
        assert isinstance(failed, AnswerFailed)
        assert failed.id == ids[:16]


def test_receiving_ends_when_time_is_up(nsqd: Nsqd, topic: str) -> None:
    with subscribe(nsqd.tcp_address, topic) as connection:
        began = time.monotonic()
        assert connection.receive(0.05) == []
        assert time.monotonic() - began >= 0.05
        assert connection.receive(0) == []


def test_writing_and_receiving_much_at_once_does_not_deadlock(
    nsqd: Nsqd, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dial = socket.create_connection

    def dial_narrowly(*args: Any) -> socket.socket:
        sock = dial(*args)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        return sock

    monkeypatch.setattr(socket, "create_connection", dial_narrowly)
    # nsqd answers each of these FINs with an error, and reads no further while nothing takes
    # its answers.
    ids = b"".join(b"%016x" % n for n in range(100_000))
    with subscribe(nsqd.tcp_address, topic) as connection:
        connection.session.finish_packed(ids)
        connection.send(Cls())
        failed: list[bytes | None] = []
        events: list[Event] = []
        while not events or not isinstance(events[-1], CloseWait):
            events = connection.receive(PATIENCE)
            assert events, "nothing came"
            failed += [event.id for event in events if isinstance(event, AnswerFailed)]
        assert b"".join(filter(None, failed)) == ids


def test_the_end_of_nsqd_is_an_error_after_the_events_before_it(tmp_path: Path, topic: str) -> None:
    with start_nsqd(tmp_path) as server, subscribe(server.tcp_address, topic) as connection:
        connection.send(Mpub(topic, [b"last words"] * 3), Rdy(3))
        # The answer to MPUB and the messages, in whichever pieces.
        received = 0
        while received < 3:
            for event in connection.receive(PATIENCE):
                received += len(event) if isinstance(event, MessageBatch) else 0
        connection.send(Pub(topic, b"unanswered as yet"))
        server.await_log(rf"TOPIC\({topic}\)")
        server.stop()
        with pytest.raises(NetworkError, match=server.tcp_address):
            while connection.receive(PATIENCE):
                pass
        with pytest.raises(NetworkError, match=server.tcp_address):
            connection.receive(0)
        with pytest.raises(NetworkError, match=server.tcp_address):
            connection.send(Nop())


def test_an_error_that_closes_is_returned_and_then_raised(modest_nsqd: Nsqd, topic: str) -> None:
    with closing(connect(modest_nsqd.tcp_address, PLAIN)) as connection:
        connection.send(Pub(topic, b"good"), Pub(topic, bytes(1001)), Pub(topic, b"in vain"))
        events: list[Event] = []
        while not events or not isinstance(events[-1], CommandFailed):
            received = connection.receive(PATIENCE)
            assert received, "nothing came"
            events += received
        assert [type(event) for event in events] == [Published, CommandFailed]
        for _ in range(2):
            with pytest.raises(BadMessageError, match=f"from {modest_nsqd.tcp_address}"):
                connection.receive(PATIENCE)
        with pytest.raises(BadMessageError):
            connection.flush()


def test_an_error_frame_before_the_close_is_read_though_writing_failed(
    modest_nsqd: Nsqd, topic: str
) -> None:
    with closing(connect(modest_nsqd.tcp_address, PLAIN)) as connection:
        for _ in range(3):
            connection.send(Pub(topic, b"good"))
            assert isinstance(next_event(connection), Published)
        with pytest.raises(NetworkError):
            while True:  # nsqd reads nothing after the first
                connection.send(Pub(topic, bytes(1001)), Pub(topic, bytes(1000)))
        assert isinstance(next_event(connection), CommandFailed)
        with pytest.raises(BadMessageError):
            connection.receive(PATIENCE)


def test_nsqd_is_asked_again_without_the_option_it_refuses(modest_nsqd: Nsqd, topic: str) -> None:
    with closing(
        connect(modest_nsqd.tcp_address, PLAIN, topic=topic, channel="c", output_buffer_timeout=2.0)
    ) as connection:
        assert connection.reply.output_buffer_size == 16 * 1024  # its default
        assert connection.reply.output_buffer_timeout == 250


def test_a_msg_timeout_beyond_what_nsqd_takes_names_the_option(modest_nsqd: Nsqd) -> None:
    with pytest.raises(ConfigError, match=r"msgTimeout=31 .*-max-msg-timeout"):
        connect(modest_nsqd.tcp_address, PLAIN, msg_timeout=31)


def test_compression_that_nsqd_does_not_offer_is_a_warning(
    modest_nsqd: Nsqd, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "nsqflow.transport"),
        subscribe(modest_nsqd.tcp_address, topic, Access(snappy=True)) as connection,
    ):
        connection.send(Pub(topic, b"anyway"), Rdy(1))
        assert not connection.reply.snappy
    assert f"{modest_nsqd.tcp_address} does not support snappy" in caplog.text


def test_tls_that_nsqd_does_not_offer_is_an_error(modest_nsqd: Nsqd) -> None:
    with pytest.raises(TlsNotGrantedError, match=f"^{modest_nsqd.tcp_address}: TLS"):
        connect(modest_nsqd.tcp_address, Access(tls=True))


def test_an_untrusted_certificate_is_refused(nsqd: Nsqd) -> None:
    with pytest.raises(NetworkError, match=f"^{nsqd.tcp_address}: .*CERTIFICATE_VERIFY_FAILED"):
        connect(nsqd.tcp_address, Access(tls=True))
    connect(nsqd.tcp_address, Access(tls=True, tls_verify=False)).close()


def test_a_certificate_file_that_has_changed_is_read_again(
    nsqd: Nsqd, certificates: Certificates, tmp_path: Path
) -> None:
    trusted = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(trusted)
    access = Access(tls=True, tls_ca_file=str(trusted))
    with pytest.raises(NetworkError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(nsqd.tcp_address, access)
    trusted.write_bytes(certificates.ca.read_bytes())
    connect(nsqd.tcp_address, access).close()
    trusted.unlink()
    with pytest.raises(ConfigError, match="tlsCaFile"):
        connect(nsqd.tcp_address, access)


def test_the_certificate_must_be_that_of_the_host(
    tmp_path: Path, certificates: Certificates
) -> None:
    options = ["-tcp-address=[::1]:0"]
    access = Access(tls=True, tls_ca_file=str(certificates.ca))
    with (
        start_nsqd(tmp_path, tls=certificates, options=options) as server,
        pytest.raises(NetworkError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        connect(server.tcp_address, access)


@pytest.mark.parametrize("tls", [False, True])
def test_the_right_secret_is_accepted(
    strict_nsqd: Nsqd, topic: str, certificates: Certificates, tls: bool
) -> None:
    access = Access(tls=tls, tls_ca_file=str(certificates.ca) if tls else None, auth_secret=SECRET)
    with subscribe(strict_nsqd.tcp_address, topic, access) as connection:
        connection.send(Pub(topic, b"body"))
        assert isinstance(next_event(connection), Published)
        connection.send(Rdy(1))
        assert pull(connection, 1) == [b"body"]


def test_without_a_secret_the_error_names_the_options(strict_nsqd: Nsqd) -> None:
    with pytest.raises(ConfigError, match=f"^{strict_nsqd.tcp_address} asks for AUTH.*authSecret"):
        connect(strict_nsqd.tcp_address, PLAIN)


def test_a_wrong_secret_is_refused_and_never_shown(strict_nsqd: Nsqd) -> None:
    with pytest.raises(AuthFailedError) as caught:
        connect(strict_nsqd.tcp_address, Access(auth_secret="swordfish"))
    assert strict_nsqd.tcp_address in str(caught.value)
    assert "swordfish" not in repr(caught.value)


def test_a_secret_that_may_not_subscribe_is_refused(strict_nsqd: Nsqd, topic: str) -> None:
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


def test_the_http_port_is_recognized_as_not_an_nsqd(nsqd: Nsqd) -> None:
    with pytest.raises(RemoteProtocolError, match=f"^{nsqd.http_address}: .*TCP port of an nsqd"):
        connect(nsqd.http_address, PLAIN)


# What is left open


def test_a_closed_connection_says_so(nsqd: Nsqd) -> None:
    connection = connect(nsqd.tcp_address, PLAIN)
    connection.close()
    connection.close()
    with pytest.raises(NetworkError, match="closed on this side"):
        connection.receive(0)
    with pytest.raises(NetworkError, match="closed on this side"):
        connection.send(Nop())


def test_an_invalid_topic_is_refused_before_anything_is_sent(nsqd: Nsqd) -> None:
    with pytest.raises(ConfigError, match="not a topic"):
        subscribe(nsqd.tcp_address, "not a topic")


@pytest.mark.parametrize("access", [PLAIN, Access(tls=True)])
def test_a_failed_open_leaves_no_socket(nsqd: Nsqd, access: Access) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NsqError):
        connect(nsqd.tcp_address, access, topic="not a topic", channel="c")
    assert len(os.listdir("/proc/self/fd")) == before
