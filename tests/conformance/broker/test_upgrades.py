"""Upgrades to TLS, snappy and deflate, with nothing of ours between the test and the bytes."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import cramjam
import pytest

from tests.conformance.broker.dialogue import (
    CLOSED,
    MAGIC,
    OK,
    Client,
    Dialogue,
    Table,
    agreed,
    error,
    hold,
    identify,
    negotiate,
    sized,
    table,
)
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import PATIENCE, Kind, Nsqd, start_nsqd

OK_FRAME = struct.pack(">ii", 6, 0) + b"OK"
NO_SUCH = b"E_INVALID invalid command PROBE"
NO_SUCH_FRAME = struct.pack(">ii", 4 + len(NO_SUCH), 1) + NO_SUCH


def read_answer(sock: socket.socket) -> dict[str, object]:
    """What IDENTIFY agreed upon; reads not a byte more, as the next ones are of another kind."""
    head = sock.recv(4, socket.MSG_WAITALL)
    data = sock.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
    answer = json.loads(data[4:])
    assert isinstance(answer, dict)
    return answer


def read_all(sock: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    data = b""
    while more := sock.recv(65536):
        data += more
    return data


def dial(nsqd: Nsqd, greeting: bytes) -> socket.socket:
    sock = nsqd.connect()
    sock.settimeout(PATIENCE)
    sock.sendall(greeting)
    return sock


def trusting(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates.ca)


def test_deflate_begins_with_the_ok(nsqd: Nsqd, topic: str) -> None:
    deflater = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    commands = b"PUB %s\n" % topic.encode() + sized(b"x" * 1000) + b"PROBE\n"
    with dial(nsqd, negotiate(deflate=True)) as sock:
        assert read_answer(sock)["deflate"] is True
        sock.sendall(deflater.compress(commands) + deflater.flush(zlib.Z_SYNC_FLUSH))
        inflated = zlib.decompressobj(-zlib.MAX_WBITS).decompress(read_all(sock))
    assert inflated == OK_FRAME + OK_FRAME + NO_SUCH_FRAME


def test_snappy_begins_with_the_ok(nsqd: Nsqd, topic: str) -> None:
    commands = b"PUB %s\n" % topic.encode() + sized(b"x" * 1000) + b"PROBE\n"
    with dial(nsqd, negotiate(snappy=True)) as sock:
        assert read_answer(sock)["snappy"] is True
        sock.sendall(bytes(cramjam.snappy.compress(commands)))
        received = read_all(sock)
    assert received.startswith(b"\xff\x06\x00\x00sNaPpY")
    assert bytes(cramjam.snappy.decompress(received)) == OK_FRAME + OK_FRAME + NO_SUCH_FRAME


def test_tls_goes_before_compression_and_each_has_its_ok(
    nsqd: Nsqd, certificates: Certificates
) -> None:
    with dial(nsqd, negotiate(tls_v1=True, snappy=True)) as plain:
        answer = read_answer(plain)
        assert (answer["tls_v1"], answer["snappy"]) == (True, True)
        with trusting(certificates).wrap_socket(plain, server_hostname="127.0.0.1") as sock:
            received = b""
            while len(received) < len(OK_FRAME):
                received += sock.recv(len(OK_FRAME) - len(received))
            assert received == OK_FRAME
            sock.sendall(bytes(cramjam.snappy.compress(b"PROBE\n")))
            rest = bytes(cramjam.snappy.decompress(read_all(sock)))
    assert rest == OK_FRAME + NO_SUCH_FRAME


def test_a_client_that_does_not_negotiate_is_not_upgraded(nsqd: Nsqd) -> None:
    hold(nsqd, "t", (identify(tls_v1=True, snappy=True), OK))


COMMANDS = [
    "FIN",
    "RDY",
    "REQ",
    "PUB",
    "MPUB",
    "DPUB",
    "NOP",
    "TOUCH",
    "SUB",
    "CLS",
    "AUTH",
    "HELLO",
]

TLS_REQUIRED: Table = {
    command: (
        MAGIC + command.encode() + b" {topic} 0\n",
        error(f"E_INVALID cannot {command} in current state (TLS required)"),
        CLOSED,
    )
    for command in COMMANDS
} | {
    "IDENTIFY without TLS": (
        negotiate(),
        agreed(tls_v1=False),
        b"NOP\n",
        error("E_INVALID cannot NOP in current state (TLS required)"),
        CLOSED,
    ),
    "IDENTIFY without negotiation": (
        identify(),
        OK,
        b"NOP\n",
        error("E_INVALID cannot NOP in current state (TLS required)"),
        CLOSED,
    ),
}


@table(TLS_REQUIRED)
def test_where_tls_is_required_nothing_goes_without(
    encrypted_nsqd: Nsqd, topic: str, dialogue: Dialogue
) -> None:
    hold(encrypted_nsqd, topic, dialogue)


def test_where_tls_is_required_it_is_enough(
    encrypted_nsqd: Nsqd, certificates: Certificates, topic: str
) -> None:
    with dial(encrypted_nsqd, negotiate(tls_v1=True)) as plain:
        read_answer(plain)
        with trusting(certificates).wrap_socket(plain, server_hostname="127.0.0.1") as sock:
            sock.sendall(b"PUB %s\n" % topic.encode() + sized(b"x") + b"PROBE\n")
            assert read_all(sock) == OK_FRAME + OK_FRAME + NO_SUCH_FRAME


def test_where_tls_is_required_http_is_refused_and_https_is_not(
    encrypted_nsqd: Nsqd, certificates: Certificates
) -> None:
    port = int(encrypted_nsqd.https_address.rsplit(":", 1)[1])
    status, body = encrypted_nsqd.ask("/ping")
    assert (status, body) == (403, b'{"message": "TLS_REQUIRED", "https_port": %d}' % port)
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port, timeout=PATIENCE, context=trusting(certificates)
    )
    connection.request("GET", "/ping")
    assert connection.getresponse().read() == b"OK"
    connection.close()


def test_tls_can_be_required_of_tcp_only(
    server_kind: Kind, tmp_path: Path, certificates: Certificates
) -> None:
    options = ["-tls-required=tcp-https"]
    with start_nsqd(tmp_path, kind=server_kind, tls=certificates, options=options) as nsqd:
        assert nsqd.ask("/ping") == (200, b"OK")
        with Client(nsqd, MAGIC + b"NOP\n") as client:
            client.expect(error("E_INVALID cannot NOP in current state (TLS required)"))
            client.expect_end()


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_a_client_can_be_asked_for_its_certificate(
    server_kind: Kind, tmp_path: Path, certificates: Certificates, policy: str
) -> None:
    options = [f"-tls-client-auth-policy={policy}", f"-tls-root-ca-file={certificates.ca}"]
    unknown = trusting(certificates)
    known = trusting(certificates)
    known.load_cert_chain(certificates.cert, certificates.key)
    with start_nsqd(tmp_path, kind=server_kind, tls=certificates, options=options) as nsqd:
        with dial(nsqd, negotiate(tls_v1=True)) as plain:
            read_answer(plain)
            with known.wrap_socket(plain, server_hostname="127.0.0.1") as sock:
                sock.sendall(b"PROBE\n")
                assert read_all(sock) == OK_FRAME + NO_SUCH_FRAME
        with dial(nsqd, negotiate(tls_v1=True)) as plain:
            read_answer(plain)
            # With TLS 1.3 the client learns of it only after its own part of the handshake.
            with (
                suppress(ssl.SSLError, ConnectionError),
                unknown.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
            ):
                assert sock.recv(1) == b""


def test_an_invalid_handshake_ends_the_connection(nsqd: Nsqd) -> None:
    with dial(nsqd, negotiate(tls_v1=True)) as sock:
        read_answer(sock)
        sock.sendall(b"NOP\n" * 10)
        try:
            data = read_all(sock)
        except ConnectionResetError:
            return
    assert OK_FRAME not in data
