"""The protocol core against the real nsqd: every command, every transport, every way to fail."""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol import (
    AnswerFailed,
    ClientState,
    CloseWait,
    Cls,
    CommandFailed,
    CompressionRefused,
    CompressionStarted,
    Connected,
    Dpub,
    Event,
    Fin,
    Heartbeat,
    IdentifyRequest,
    Mpub,
    Pub,
    Published,
    Rdy,
    Req,
    StartTls,
    Sub,
    Subscribed,
    TlsStarted,
    Touch,
)
from tests.conformance.driver import Client, stats_of
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import Kind, Nsqd, start_nsqd

UNKNOWN_ID = b"0123456789abcdef"

numbers = count(1)


@pytest.fixture
def topic() -> str:
    """A topic of the test's own, on an nsqd that it shares with others."""
    return f"first_contact_{next(numbers)}"


@pytest.fixture(scope="module")
def trust(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates.ca)


@pytest.fixture(scope="module")
def modest_nsqd(server_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that neither encrypts nor compresses."""
    folder = tmp_path_factory.mktemp("modest-nsqd")
    with start_nsqd(
        folder, kind=server_kind, options=["-snappy=false", "-deflate=false"]
    ) as server:
        yield server


@pytest.fixture(scope="module")
def timely_nsqd(server_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that looks after the channel "ch" of these topics from its first moment on.

    Messages come back late from a new channel: only every five seconds nsqd looks which
    channels there are that may have some in flight (nsqd/nsqd.go: queueScanLoop). Those
    that it finds on its disk it knows at once.
    """
    folder = tmp_path_factory.mktemp("timely-nsqd")
    with start_nsqd(folder, kind=server_kind) as server:
        for topic in ("deferred", "requeued", "touched"):
            assert server.ask(f"/topic/create?topic={topic}", "POST")[0] == 200
            assert server.ask(f"/channel/create?topic={topic}&channel=ch", "POST")[0] == 200
    with start_nsqd(folder, kind=server_kind) as server:
        yield server


@contextmanager
def connect(
    nsqd: Nsqd, identify: IdentifyRequest | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[Client]:
    """A client, its negotiation done."""
    with Client(nsqd.connect(), identify, tls) as client:
        client.negotiate()
        yield client


@contextmanager
def subscribe(
    nsqd: Nsqd, topic: str, ready: int = 1, identify: IdentifyRequest | None = None
) -> Iterator[Client]:
    """A client that has subscribed and is ready for some messages."""
    with connect(nsqd, identify) as client:
        client.request(Sub(topic, "ch"), Subscribed)
        client.send(Rdy(ready))
        yield client


@pytest.fixture
def client(nsqd: Nsqd) -> Iterator[Client]:
    with connect(nsqd) as client:
        yield client


@pytest.fixture
def consumer(nsqd: Nsqd, topic: str) -> Iterator[Client]:
    with subscribe(nsqd, topic) as consumer:
        yield consumer


def publish(nsqd: Nsqd, topic: str, *bodies: bytes) -> None:
    """Publish over a connection of its own."""
    with connect(nsqd) as client:
        client.request(Mpub(topic, bodies), Published)


# Transports.

TRANSPORTS = {
    "plain": IdentifyRequest(),
    "TLS": IdentifyRequest(tls_v1=True),
    "snappy": IdentifyRequest(snappy=True),
    "deflate": IdentifyRequest(deflate=True),
    "TLS and snappy": IdentifyRequest(tls_v1=True, snappy=True),
    "TLS and deflate": IdentifyRequest(tls_v1=True, deflate=True, deflate_level=1),
}
BEFORE_CONNECTED: dict[str, list[Event]] = {
    "plain": [],
    "TLS": [StartTls(), TlsStarted()],
    "snappy": [CompressionStarted("snappy")],
    "deflate": [CompressionStarted("deflate")],
    "TLS and snappy": [StartTls(), TlsStarted(), CompressionStarted("snappy")],
    "TLS and deflate": [StartTls(), TlsStarted(), CompressionStarted("deflate")],
}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_negotiation_succeeds(
    nsqd: Nsqd, version: str, trust: ssl.SSLContext, transport: str
) -> None:
    asked = TRANSPORTS[transport]
    with Client(nsqd.connect(), asked, trust) as client:
        *way, connected = client.negotiate()
    assert way == BEFORE_CONNECTED[transport]
    assert isinstance(connected, Connected)
    reply = connected.reply
    assert (reply.version, reply.max_rdy_count, reply.auth_required) == (version, 2500, False)
    assert (reply.msg_timeout, reply.max_msg_timeout) == (60_000, 900_000)
    assert (reply.output_buffer_size, reply.output_buffer_timeout) == (16_384, 250)
    assert (reply.tls_v1, reply.snappy, reply.deflate) == (
        asked.tls_v1,
        asked.snappy,
        asked.deflate,
    )


def make_bodies() -> list[bytes]:
    """2,000 messages, each of its own content: tiny to 100 kB, compressible and not."""
    rng = random.Random(20_130_219)
    sizes = [100_000] * 40 + [70_000] * 40 + [10_000] * 120 + [1_000] * 800 + [10] * 999
    rng.shuffle(sizes)
    bodies = [bytes(range(256))]
    for number, size in enumerate(sizes):
        head = number.to_bytes(4, "big")
        filling = rng.randbytes(size - 4) if number % 2 else bytes(head * size)[: size - 4]
        bodies.append(head + filling)
    return bodies


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_everything_arrives_unharmed(
    nsqd: Nsqd, trust: ssl.SSLContext, topic: str, transport: str
) -> None:
    bodies = make_bodies()
    assert len(bodies) == 2_000
    with connect(nsqd, TRANSPORTS[transport], trust) as producer:
        producer.send(*(Pub(topic, body) for body in bodies[:500]))
        for _ in range(500):
            producer.expect(Published)
        for start in range(500, 2_000, 100):
            producer.request(Mpub(topic, bodies[start : start + 100]), Published)
    with connect(nsqd, TRANSPORTS[transport], trust) as consumer:
        consumer.request(Sub(topic, "ch"), Subscribed)
        consumer.send(Rdy(100))
        arrived: list[bytes] = []
        while len(arrived) < 2_000:
            columns = consumer.batch().columns()
            arrived += columns.bodies()
            consumer.session.finish_packed(columns.ids)
            consumer.flush()
        consumer.request(Cls(), CloseWait)
    assert sorted(arrived) == sorted(bodies)
    [channel] = stats_of(nsqd, topic)["channels"]
    assert (channel["depth"], channel["in_flight_count"]) == (0, 0)
    assert (channel["requeue_count"], channel["timeout_count"]) == (0, 0)


def test_a_server_without_a_trusted_certificate_is_refused(nsqd: Nsqd) -> None:
    with Client(nsqd.connect(), TRANSPORTS["TLS"], ssl.create_default_context()) as client:
        with pytest.raises(ssl.SSLCertVerificationError):
            client.negotiate()
        assert client.sent.count(b"\n") == 1  # IDENTIFY, and no other command


def test_tls_that_is_not_granted_ends_the_connection_before_another_byte(modest_nsqd: Nsqd) -> None:
    with Client(modest_nsqd.connect(), TRANSPORTS["TLS"]) as client:
        before = bytes(client.sent)
        with pytest.raises(RemoteProtocolError, match="TLS was requested"):
            client.negotiate()
        client.flush()
        assert client.sent == before
        assert before[:13] == b"  V2IDENTIFY\n"
        assert client.session.state is ClientState.FAILED


@pytest.mark.parametrize("method", ["snappy", "deflate"])
def test_without_granted_compression_the_connection_continues(
    modest_nsqd: Nsqd, topic: str, method: str
) -> None:
    with Client(modest_nsqd.connect(), TRANSPORTS[method]) as client:
        refused, connected = client.negotiate()
        assert refused == CompressionRefused(method)
        assert isinstance(connected, Connected)
        client.request(Pub(topic, b"plain"), Published)
        client.request(Sub(topic, "ch"), Subscribed)
        client.send(Rdy(1))
        assert client.messages(1)[0].body == b"plain"
        assert client.sent.endswith(b"RDY 1\n")


def test_nsqd_cuts_the_deflate_level_to_its_own_maximum(nsqd: Nsqd) -> None:
    with connect(nsqd, IdentifyRequest(deflate=True, deflate_level=9)) as client:
        assert client.session.reply.deflate_level == 6


# Publishing and consuming.


def test_messages_carry_what_was_published_and_when(
    nsqd: Nsqd, consumer: Client, topic: str
) -> None:
    before = time.time_ns()
    publish(nsqd, topic, bytes(range(256)))
    [message] = consumer.messages(1)
    assert message.body == bytes(range(256))
    assert message.attempts == 1
    assert len(message.id) == 16
    assert before <= message.timestamp <= time.time_ns()


def test_a_consumer_may_publish_too(consumer: Client, topic: str) -> None:
    consumer.send(Pub(topic, b"mine"))
    events = {type(consumer.next()).__name__ for _ in range(2)}  # either may come first
    assert events == {"Published", "MessageBatch"}


def test_a_deferred_message_comes_after_its_delay(timely_nsqd: Nsqd) -> None:
    with subscribe(timely_nsqd, "deferred") as consumer:
        before = time.monotonic()
        consumer.request(Dpub("deferred", 300, b"later"), Published)
        [message] = consumer.messages(1)
    assert message.body == b"later"
    assert time.monotonic() - before >= 0.3


def test_ready_is_a_cap_that_needs_no_renewal(nsqd: Nsqd, topic: str) -> None:
    publish(nsqd, topic, *(b"%d" % number for number in range(10)))
    arrived: list[bytes] = []
    with subscribe(nsqd, topic, ready=2) as consumer:
        while len(arrived) < 10:
            batch = consumer.batch()
            assert len(batch) <= 2
            arrived += [message.body for message in batch.messages()]
            consumer.session.finish_packed(batch.columns().ids)
            consumer.flush()
    assert sorted(arrived) == [b"%d" % number for number in range(10)]


def test_a_requeued_message_is_delivered_again_and_says_so(
    nsqd: Nsqd, consumer: Client, topic: str
) -> None:
    publish(nsqd, topic, b"again")
    [first] = consumer.messages(1)
    consumer.send(Req(first.id, 0))
    [second] = consumer.messages(1)
    assert (second.id, second.body, second.timestamp) == (first.id, b"again", first.timestamp)
    assert (first.attempts, second.attempts) == (1, 2)


def test_a_message_requeued_with_a_delay_comes_after_it(timely_nsqd: Nsqd) -> None:
    publish(timely_nsqd, "requeued", b"again")
    with subscribe(timely_nsqd, "requeued") as consumer:
        [first] = consumer.messages(1)
        before = time.monotonic()
        consumer.send(Req(first.id, 300))
        [second] = consumer.messages(1)
    assert second.attempts == 2
    assert time.monotonic() - before >= 0.3


def test_a_touched_message_outlives_its_timeout(timely_nsqd: Nsqd) -> None:
    publish(timely_nsqd, "touched", b"touched", b"untouched")
    with subscribe(timely_nsqd, "touched", 3, IdentifyRequest(msg_timeout=5_000)) as client:
        assert client.session.reply.msg_timeout == 5_000
        first = {message.body: message for message in client.messages(2)}
        # A deferred message is our clock: it rings when two of the five seconds are over, which
        # leaves three for a machine that is busy.
        client.request(Dpub("touched", 2_000, b"last"), Published)
        [last] = client.messages(1)
        assert last.body == b"last"
        client.send(Touch(first[b"touched"].id), Fin(last.id))
        # The other one's time is over before anything is heard of the touched one.
        [again] = client.messages(1)
        assert (again.body, again.attempts) == (b"untouched", 2)
        client.send(Fin(first[b"touched"].id), Fin(again.id))
        # Nothing failed: both were still in flight.
        client.request(Cls(), CloseWait)
    [channel] = stats_of(timely_nsqd, "touched")["channels"]
    assert (channel["timeout_count"], channel["depth"], channel["in_flight_count"]) == (1, 0, 0)


def test_a_closing_consumer_may_answer_but_gets_nothing_new(
    nsqd: Nsqd, consumer: Client, topic: str
) -> None:
    publish(nsqd, topic, b"first", b"second")
    [first] = consumer.messages(1)
    consumer.request(Cls(), CloseWait)
    assert consumer.session.state is ClientState.CLOSING
    # Neither a free place nor RDY brings the second message here any more.
    consumer.send(Fin(first.id), Rdy(10), Fin(UNKNOWN_ID))
    assert consumer.expect(AnswerFailed).id == UNKNOWN_ID
    with subscribe(nsqd, topic) as other:
        [second] = other.messages(1)
    assert {first.body, second.body} == {b"first", b"second"}
    assert second.attempts == 1


def test_heartbeats_are_answered_and_keep_the_connection(nsqd: Nsqd, topic: str) -> None:
    with subscribe(nsqd, topic, identify=IdentifyRequest(heartbeat_interval=1_000)) as client:
        # nsqd closes after two intervals without a word from us.
        for _ in range(4):
            client.expect(Heartbeat)
        assert client.sent.endswith(b"NOP\n" * 4)
        publish(nsqd, topic, b"still here")
        assert client.messages(1)[0].body == b"still here"


@pytest.mark.parametrize(
    "name", ["a", "a" * 64, "a" * 54 + "#ephemeral", ".aZ09_-"], ids=["1", "64", "54+10", "all"]
)
def test_nsqd_takes_the_names_that_we_take(client: Client, name: str) -> None:
    client.request(Pub(name, b"x"), Published)
    client.request(Sub(name, name), Subscribed)


# Failing.


def test_answers_that_come_too_late_fail_alone(nsqd: Nsqd, consumer: Client, topic: str) -> None:
    publish(nsqd, topic, b"one")
    [message] = consumer.messages(1)
    consumer.session.finish([message.id, UNKNOWN_ID, message.id])
    consumer.flush()
    for failed in (UNKNOWN_ID, message.id):
        event = consumer.expect(AnswerFailed)
        assert (event.command, event.id, event.error.code) == ("FIN", failed, "E_FIN_FAILED")
    consumer.session.requeue([UNKNOWN_ID], 10)
    consumer.session.touch([UNKNOWN_ID])
    consumer.flush()
    for command, code in (("REQ", "E_REQ_FAILED"), ("TOUCH", "E_TOUCH_FAILED")):
        event = consumer.expect(AnswerFailed)
        assert (event.command, event.id, event.error.code) == (command, UNKNOWN_ID, code)
        assert event.error.text == f"{command} 0123456789abcdef failed ID not in flight"
    publish(nsqd, topic, b"two")
    assert consumer.messages(1)[0].body == b"two"


FATAL = [
    (b"FROB\n", "E_INVALID invalid command FROB"),
    (b"PUB_TRACE t 0\n", "E_INVALID invalid command PUB_TRACE"),
    (b"PUB a$b\n", 'E_BAD_TOPIC PUB topic name "a$b" is not valid'),
    (b"MPUB a$b\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a$b" is not valid'),
    (b"PUB t\n\x00\x00\x00\x00", "E_BAD_MESSAGE PUB invalid message body size 0"),
    (b"PUB t\n\x00\x10\x00\x01", "E_BAD_MESSAGE PUB message too big 1048577 > 1048576"),
    (b"MPUB t\n\x00\x50\x00\x01", "E_BAD_BODY MPUB body too big 5242881 > 5242880"),
    (b"SUB t a$b\n", 'E_BAD_CHANNEL SUB channel name "a$b" is not valid'),
    (b"SUB %b c\n" % (b"a" * 65), f'E_BAD_TOPIC SUB topic name "{"a" * 65}" is not valid'),
    (b"SUB t ch\nSUB t ch\n", "E_INVALID cannot SUB in current state"),
    (b"SUB t ch\nRDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500"),
    (b"SUB t ch\nFIN 0123456789abcde\n", "E_INVALID invalid message ID"),
    (b"CLS\n", "E_INVALID cannot CLS in current state"),
    (b"AUTH\n\x00\x00\x00\x01x", "E_AUTH_DISABLED AUTH disabled"),
]


@pytest.mark.parametrize(("wire", "words"), FATAL, ids=[words for _, words in FATAL])
def test_what_no_session_would_send_is_answered_by_an_error_and_the_end(
    client: Client, wire: bytes, words: str
) -> None:
    if wire.startswith(b"SUB t ch\n"):
        client.request(Sub("t", "ch"), Subscribed)
        wire = wire.removeprefix(b"SUB t ch\n")
    client.send_raw(wire)
    failed = client.expect(CommandFailed)
    assert (str(failed.error), failed.command, failed.closes) == (words, None, True)
    client.expect_end()


def test_a_fatal_error_is_put_down_to_the_oldest_unanswered_command(
    client: Client, topic: str
) -> None:
    client.send(Pub(topic, b"x"), Dpub(topic, 3_600_001, b"x"), Pub(topic, b"x"))
    client.expect(Published)
    failed = client.expect(CommandFailed)
    assert (failed.command, failed.error.code, failed.closes) == ("DPUB", "E_INVALID", True)
    client.expect_end()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            IdentifyRequest(output_buffer_timeout=5),
            "E_BAD_BODY IDENTIFY output buffer timeout (5) is invalid",
        ),
        (
            IdentifyRequest(heartbeat_interval=999),
            "E_BAD_BODY IDENTIFY heartbeat interval (999) is invalid",
        ),
        (
            IdentifyRequest(msg_timeout=900_001),
            "E_BAD_BODY IDENTIFY msg timeout (900001) is invalid",
        ),
        (IdentifyRequest(sample_rate=100), "E_BAD_BODY IDENTIFY sample rate (100) is invalid"),
    ],
)
def test_nsqd_names_the_invalid_field_of_identify(
    nsqd: Nsqd, asked: IdentifyRequest, words: str
) -> None:
    with Client(nsqd.connect(), asked) as client:
        failed = client.expect(CommandFailed)
        assert (str(failed.error), failed.command, failed.closes) == (words, "IDENTIFY", True)
        client.expect_end()


def test_the_http_port_is_recognised_as_no_nsqd(nsqd: Nsqd) -> None:
    host, port = nsqd.http_address.split(":")
    complaint = pytest.raises(RemoteProtocolError, match="is this the TCP port of an nsqd")
    with Client(socket.create_connection((host, int(port)))) as client, complaint:
        client.negotiate()
