"""Limits, TLS, compression and heartbeats of a redesigned nsqd."""

from __future__ import annotations

import contextlib
import ssl
import zlib
from collections.abc import Iterator

import cramjam
import pytest

from nsqflow.broker import BackgroundBroker
from tests.conformance.redesigned.wire import (
    HEARTBEAT,
    OK,
    Codec,
    Connect,
    Wire,
    batch,
    code_of,
    create_topics,
    error,
    fin,
    identify,
    pub,
    pub_trace,
    read_receipt,
    sized,
)
from tests.fixtures.certificates import Certificates

MAX_MESSAGE = 1048576
MAX_BODY = 5242880
MAX_LINE = 16 * 1024


# Limits


def test_the_largest_message_is_taken_whole(connect: Connect) -> None:
    consumer, producer = connect(), connect()
    consumer.subscribe("SUB t_part ch 0", rdy=2)
    assert producer.ask(pub("t_part", b"x" * MAX_MESSAGE)) == OK
    # The trace id counts.
    traced = producer.ask(pub_trace("t_part", 7, b"y" * (MAX_MESSAGE - 8)))
    assert read_receipt(traced).size == 4 + 26 + MAX_MESSAGE - 8
    assert list(map(len, consumer.bodies(2))) == [MAX_MESSAGE, MAX_MESSAGE - 8]


@pytest.mark.parametrize(
    "sent",
    [
        pub("t_part", b"x" * (MAX_MESSAGE + 1)),
        pub_trace("t_part", 7, b"x" * (MAX_MESSAGE - 7)),
        batch("MPUB t_part 0", b"x" * (MAX_MESSAGE + 1)),
    ],
    ids=["PUB", "PUB_TRACE", "MPUB"],
)
def test_a_message_that_is_too_big_is_refused_while_it_is_written(wire: Wire, sent: bytes) -> None:
    # The server may have reset the connection before all of it was sent.
    with contextlib.suppress(ConnectionError):
        wire.send(sent)
    assert code_of(wire.frame()) == "E_BAD_MESSAGE"
    wire.expect_closed()


def largest_batch() -> list[bytes]:
    """Return messages that make up the largest body, with their count and sizes."""
    count = 8
    return [b"x" * ((MAX_BODY - 4) // count - 4)] * (count - 1) + [
        b"x" * ((MAX_BODY - 4) // count - 4 + (MAX_BODY - 4) % count)
    ]


def test_the_largest_batch_is_taken(wire: Wire) -> None:
    sent = batch("MPUB t_part 0", *largest_batch())
    assert int.from_bytes(sent[14:18], "big") == MAX_BODY
    assert wire.ask(sent) == OK
    wire.expect_open()


def test_a_batch_that_is_too_big_is_refused_while_it_is_written(wire: Wire) -> None:
    *rest, last = largest_batch()
    with contextlib.suppress(ConnectionError):
        wire.send(batch("MPUB t_part 0", *rest, last + b"x"))
    assert code_of(wire.frame()) == "E_BAD_BODY"
    wire.expect_closed()


def test_a_batch_with_fewer_messages_than_it_says_waits_for_more(wire: Wire) -> None:
    body = (2).to_bytes(4, "big") + sized(b"first")
    wire.send(b"MPUB t_part 0\n", sized(body))
    # It takes this for the second message, whatever it is, and only then answers.
    assert wire.ask(sized(b"NOP\n")) == OK
    assert read_receipt(wire.ask(pub_trace("t_part", 0, b"x"))).internal_id == 4


def test_a_line_that_is_too_long_closes_without_an_answer(wire: Wire) -> None:
    with contextlib.suppress(ConnectionError):
        wire.send(b"X" * MAX_LINE + b"\n")
    wire.expect_closed()


# Heartbeats


def test_a_client_that_answers_no_heartbeat_is_closed_after_three_intervals(wire: Wire) -> None:
    wire.identify(heartbeat_interval=1000)
    received = []
    with pytest.raises(EOFError):
        while True:
            received.append(wire.frame())
    # The third is due when the connection ends.
    assert received in ([HEARTBEAT] * 2, [HEARTBEAT] * 3)


@pytest.mark.nsq_redesigned_broker(client_timeout=1)
@pytest.mark.parametrize("answer", [b"NOP\n", b"RDY 1\n"])
def test_any_command_answers_a_heartbeat(wire: Wire, answer: bytes) -> None:
    wire.subscribe("SUB t_part ch 0")
    for _ in range(4):
        assert wire.frame() == HEARTBEAT
        wire.send(answer)


def test_the_answer_to_a_heartbeat_has_a_stalled_channel_read_on(connect: Connect) -> None:
    wire, producer = connect(), connect()
    wire.subscribe("SUB t_part ch 0", rdy=2500)
    assert producer.ask(batch("MPUB t_part 0", *[b"x"] * 3500)) == OK
    messages = [wire.message() for _ in range(2500)]
    # The oldest is held; more than 500 gaps stall the channel, even once they are closed.
    wire.send(*[fin(each.id) for each in messages[1:2000:2]])
    before = len(wire.arrived())
    wire.send(*[fin(each.id) for each in messages[2:2000:2]])
    wire.expect_open()
    wire.send(b"NOP\n")
    assert len(wire.arrived()) == 1000 - before > 0


# Transports


class Deflate:
    """Raw deflate."""

    def __init__(self) -> None:
        self._deflater = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)

    def encode(self, data: bytes) -> bytes:
        return self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        return self._inflater.decompress(data)


class Snappy:
    """Snappy's framing format: whole chunks, each of which says how long it is."""

    def __init__(self) -> None:
        self._received = b""

    def encode(self, data: bytes) -> bytes:
        return bytes(cramjam.snappy.compress(data))

    def decode(self, data: bytes) -> bytes:
        self._received += data
        plain, identifier = b"", b"\xff\x06\x00\x00sNaPpY"
        while len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[1:4], "little")
            if len(self._received) < end:
                break
            chunk, self._received = self._received[:end], self._received[end:]
            if chunk != identifier:
                plain += bytes(cramjam.snappy.decompress(identifier + chunk))
        return plain


CODECS: dict[str, type[Codec]] = {"deflate": Deflate, "snappy": Snappy}
BODIES = [bytes([number]) * 2048 for number in range(200)]


def exchange(wire: Wire) -> None:
    """Check that data go both ways: large messages, and receipts."""
    wire.subscribe("SUB t_part ch 0", rdy=0)
    assert wire.ask(batch("MPUB t_part 0", *BODIES)) == OK
    receipt = read_receipt(wire.ask(pub_trace("t_part", 7, b"last")))
    assert (receipt.internal_id, receipt.trace_id) == (202, 7)
    wire.rdy(201)
    assert wire.bodies(201, finish=True) == [*BODIES, b"last"]
    wire.expect_open()


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_data_go_both_ways(wire: Wire, codec: str) -> None:
    assert wire.identify(**{codec: True})[codec] is True
    wire.start_compression(CODECS[codec]())
    exchange(wire)


@pytest.mark.parametrize(("asked", "granted"), [(None, 0), (3, 3), (6, 6), (9, 6)])
def test_a_deflate_level_is_granted_up_to_6(wire: Wire, asked: int | None, granted: int) -> None:
    level = {} if asked is None else {"deflate_level": asked}
    reply = wire.identify(deflate=True, **level)
    assert (reply["deflate"], reply["deflate_level"]) == (True, granted)
    wire.start_compression(Deflate())
    wire.expect_open()


@pytest.mark.nsq_redesigned_broker(snappy=False, deflate=False)
@pytest.mark.parametrize("asked", ["snappy", "deflate", "tls_v1"])
def test_what_is_off_on_the_server_is_not_granted(wire: Wire, asked: str) -> None:
    assert wire.identify(**{asked: True})[asked] is False
    exchange(wire)


@pytest.fixture
def trusting(certificates: Certificates) -> ssl.SSLContext:
    """TLS as a client has it that trusts the server's certificate."""
    return ssl.create_default_context(cafile=certificates.ca)


@pytest.fixture
def encrypting(
    request: pytest.FixtureRequest, certificates: Certificates
) -> Iterator[BackgroundBroker]:
    """A node with a certificate, whose further options are the parameter."""
    with BackgroundBroker(
        dialect="redesigned",
        nodes=1,
        tls_cert=str(certificates.cert),
        tls_key=str(certificates.key),
        **getattr(request, "param", {}),
    ) as broker:
        create_topics(broker)
        yield broker


@pytest.fixture
def encrypted(encrypting: BackgroundBroker) -> Iterator[Wire]:
    """A connection to it."""
    with Wire(encrypting.nsqd_addresses[0]) as wire:
        yield wire


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_data_go_both_ways_with_tls(
    encrypted: Wire, trusting: ssl.SSLContext, codec: str | None
) -> None:
    reply = encrypted.identify(tls_v1=True, **{codec: True} if codec else {})
    assert reply["tls_v1"] is True
    encrypted.start_tls(trusting)
    if codec:
        encrypted.start_compression(CODECS[codec]())
    exchange(encrypted)


@pytest.mark.parametrize(
    ("encrypting", "version"),
    [({}, "TLSv1.2"), ({"tls_min_version": "tls1.3"}, "TLSv1.3")],
    indirect=["encrypting"],
)
def test_tls_is_1_2_unless_the_server_is_configured_for_a_newer_one(
    encrypted: Wire, trusting: ssl.SSLContext, version: str
) -> None:
    encrypted.identify(tls_v1=True)
    encrypted.start_tls(trusting)
    assert isinstance(encrypted.socket, ssl.SSLSocket)
    assert encrypted.socket.version() == version


def test_tls_is_not_forced_upon_a_client(encrypted: Wire) -> None:
    assert encrypted.identify()["tls_v1"] is False
    exchange(encrypted)


REQUIRED = pytest.mark.parametrize("encrypting", [{"tls_required": "true"}], indirect=True)


@REQUIRED
@pytest.mark.parametrize("line", ["SUB t_part ch 0", "PUB t_part 0", "NOP", "MPUB t_part 0"])
def test_where_tls_is_required_other_commands_than_identify_close(
    encrypted: Wire, line: str
) -> None:
    answer = encrypted.ask(f"{line}\n".encode())
    command = line.split()[0]
    assert answer == error(f"E_INVALID cannot {command} in current state (TLS required)")
    encrypted.expect_closed()


@REQUIRED
def test_where_tls_is_required_a_client_may_begin_it(
    encrypted: Wire, trusting: ssl.SSLContext
) -> None:
    encrypted.send(identify({"tls_v1": True}))
    encrypted.frame()
    encrypted.start_tls(trusting)
    exchange(encrypted)
