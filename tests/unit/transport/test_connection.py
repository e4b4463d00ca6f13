"""A connection, a consumer and a producer with an nsqd that does what no real one would."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from nsqflow import Consumer, Producer
from nsqflow import protocol as nsq
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.errors import (
    SERVER_ERRORS,
    AuthFailedError,
    ConfigError,
    InvalidCommandError,
    NetworkError,
    NsqError,
    RemoteProtocolError,
    ServerError,
    TlsNotGrantedError,
)
from nsqflow.transport.connection import Connection
from nsqflow.transport.handler import ConnectionHandler
from nsqflow.transport.handshake import is_final
from tests.conformance.server_side import reading
from tests.fixtures.certificates import Certificates
from tests.fixtures.events import EventLog
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.scripted import HANG, RESET, ScriptedNsqd
from tests.fixtures.scripted import Connection as Wire
from tests.fixtures.servers import PATIENCE

OK = nsq.encode_frame(nsq.FrameType.RESPONSE, b"OK")
REDESIGNED = nsq.IdentifyReply(version="0.3.7-HA.1.13.0")
QUICK: Any = {"reconnect_delay": 0.01}
WAYS = ["iterate", "batches", "run"]

uvloop = pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])


def error_frame(text: str) -> bytes:
    return nsq.encode_frame(nsq.FrameType.ERROR, text.encode())


def refuse(error: str) -> Callable[[Wire, nsq.Command], None]:
    """As nsqd does: an error, then the end."""

    def react(wire: Wire, _: nsq.Command) -> None:
        wire.send_raw(error_frame(error))
        wire.close()

    return react


def message(number: int) -> nsq.Message:
    return nsq.Message(1, 1, b"%016d" % number, b"body %d" % number)


class Recorder(ConnectionHandler):
    """A handler that only records."""

    def __init__(self) -> None:
        self.lost: list[NsqError] = []
        self.writable_calls = 0

    def connection_lost(self, error: NsqError) -> None:
        self.lost.append(error)

    def writable(self) -> None:
        self.writable_calls += 1


def connection_to(address: str, handler: Recorder | None = None, **options: Any) -> Connection:
    config = ProducerConfig.of("Producer", address, (), options)
    return Connection(address, config.connection_settings(), handler or Recorder())


async def consume(consumer: Consumer, way: str) -> None:
    """Use a consumer one way or another until it ends."""
    async with asyncio.timeout(PATIENCE), consumer:
        if way == "iterate":
            async for each in consumer:
                each.finish()
        elif way == "batches":
            async for batch in consumer.batches():
                batch.finish()
        else:
            await consumer.run(lambda each: None, signals=False)


# Taking up.


@pytest.mark.proves(rows=[16])
@asynchronous
async def test_a_consumer_says_hello_subscribes_and_only_then_asks_for_messages() -> None:
    async with (
        ScriptedNsqd() as peer,
        Consumer("t", "c", nsqd=peer.address) as consumer,
        reading(consumer),
    ):
        assert await peer.received(nsq.Rdy) == nsq.Rdy(1)  # one to begin with
        kinds = [type(command) for command in peer.commands]
        assert kinds[:3] == [nsq.Identify, nsq.Sub, nsq.Rdy]
        assert peer.commands[1] == nsq.Sub("t", "c")


@asynchronous
async def test_rdy_is_not_sent_before_sub_is_answered() -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Sub, HANG)
        async with Consumer("t", "c", nsqd=peer.address, dial_timeout=0.1):
            wire = await peer.connected()
            await wire.ended()  # given up at the dial_timeout
            assert [type(command) for command in wire.commands] == [nsq.Identify, nsq.Sub]


# Row 26 on a scripted peer: nsqd has answered in JSON since 2013.
@pytest.mark.proves(rows=[26])
@asynchronous
async def test_a_server_that_negotiates_nothing_gets_no_more_than_2500() -> None:
    async with (
        ScriptedNsqd(reply=None) as peer,
        Consumer("t", "c", nsqd=peer.address, max_in_flight=10_000) as consumer,
    ):
        wire = await peer.connected()
        async with reading(consumer):
            rdy, sent = (await peer.received(nsq.Rdy)).count, 0
            while rdy < 2500:  # it grows with what is handled
                wire.send_messages([message(sent + number) for number in range(rdy)])
                sent += rdy
                rdy = (await peer.received(nsq.Rdy)).count
        assert rdy == 2500


@pytest.mark.parametrize("step", [nsq.Identify, nsq.Sub])
@asynchronous
async def test_a_peer_that_takes_too_long_is_given_up(step: type[nsq.Command]) -> None:
    events = EventLog()
    options: Any = {"dial_timeout": 0.1, "on_event": events, **QUICK}
    async with ScriptedNsqd() as peer:
        peer.on(step, [HANG])
        async with Consumer("t", "c", nsqd=peer.address, **options):
            event = await events.next("connect_failed")
            assert str(event.error) == f"{peer.address}: not ready within the dial_timeout of 0.1 s"
            await events.next("connected")
            await peer.connections[0].ended()  # nothing was left open


@asynchronous
async def test_a_name_that_dns_cannot_have_is_a_failed_connection() -> None:
    events = EventLog()
    async with Consumer("t", "c", nsqd="a..b:4150", on_event=events):
        event = await events.next("connect_failed")
        assert isinstance(event.error, NetworkError)
        assert str(event.error).startswith("a..b:4150: ")


@pytest.mark.parametrize("way", WAYS)
@asynchronous
async def test_a_direct_nsqd_of_the_redesigned_nsq_is_a_clear_error(way: str) -> None:
    async with ScriptedNsqd(REDESIGNED) as peer:
        with pytest.raises(ConfigError) as caught:
            await consume(Consumer("t", "c", nsqd=peer.address), way)
        assert str(caught.value) == (
            f"{peer.address} is an nsqd of the redesigned NSQ (version 0.3.7-HA.1.13.0): "
            "pass lookupd= to find the leaders of its topics"
        )
        async with Producer(peer.address) as producer:
            with pytest.raises(ConfigError, match="redesigned"):
                await producer.publish("t", b"x")


# What SUB, AUTH and IDENTIFY are answered: what our own checks, or a real nsqd's good behaviour,
# never let happen.


@pytest.mark.proves(rows=[17, 31])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "error",
    [
        *("E_BAD_TOPIC no such name", "E_BAD_CHANNEL no such name", "E_UNAUTHORIZED not you"),
        *("E_AUTH_FIRST who are you", "E_AUTH_ERROR out of order", "E_AUTH_FAILED"),
    ],
)
@asynchronous
async def test_a_refused_subscription_comes_out_of_the_consumer(error: str, way: str) -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Sub, refuse(error))
        with pytest.raises(ServerError) as caught:
            await consume(Consumer("t", "c", nsqd=peer.address), way)
        assert str(caught.value) == error
        assert type(caught.value) is SERVER_ERRORS[error.split()[0]]
        assert len(peer.connections) == 1  # there was no second try
        assert not any(isinstance(command, nsq.Rdy) for command in peer.commands)


@pytest.mark.proves(rows=[17])
@pytest.mark.parametrize("error", ["E_SUB_FAILED full", "E_INVALID not now", "E_UNHEARD_OF"])
@asynchronous
async def test_a_subscription_that_may_work_later_is_tried_again_visibly(
    error: str, caplog: pytest.LogCaptureFixture
) -> None:
    events = EventLog()
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Sub, [refuse(error), refuse(error)])
        async with Consumer("t", "c", nsqd=peer.address, on_event=events, **QUICK):
            await events.next("connected")
        assert events.kinds[:3] == ["connect_failed", "connect_failed", "connected"]
        assert str(events.entries[0].error) == error
        assert f"no connection to {peer.address}: {error}; next try in" in caplog.text


@pytest.mark.parametrize("error", ["E_AUTH_FAILED no", "E_AUTH_ERROR down", "E_UNAUTHORIZED no"])
@asynchronous
async def test_a_refused_secret_comes_out_of_consumer_and_publish(error: str) -> None:
    async with ScriptedNsqd(nsq.IdentifyReply(auth_required=True)) as peer:
        peer.on(nsq.Auth, refuse(error))
        with pytest.raises(ServerError, match=error):
            await consume(Consumer("t", "c", nsqd=peer.address, auth_secret="hunter2"), "iterate")
        async with Producer(peer.address, auth_secret="hunter2") as producer:
            with pytest.raises(ServerError, match=error):
                await producer.publish("t", b"x")


@asynchronous
async def test_the_secret_goes_only_to_a_server_that_asks_and_never_into_a_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with ScriptedNsqd() as peer:
        async with (
            Consumer("t", "c", nsqd=peer.address, auth_secret="hunter2") as consumer,
            reading(consumer),
        ):
            await peer.received(nsq.Rdy)
        peer.reply = nsq.IdentifyReply(auth_required=True)
        async with Consumer("t", "c", nsqd=peer.address, auth_secret="hunter2") as consumer:
            assert await peer.received(nsq.Auth) == nsq.Auth(b"hunter2")
            await peer.received(nsq.Sub)
            assert "hunter2" not in repr(consumer) + consumer.explain()
        asked = [any(isinstance(c, nsq.Auth) for c in wire.commands) for wire in peer.connections]
        assert asked == [False, True]
    assert "hunter2" not in caplog.text


@asynchronous
async def test_no_password_of_nsqlookupd_is_shown_anywhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    events = EventLog()
    async with ScriptedNsqd() as gone:
        pass
    lookupd = f"http://user:hunter2@{gone.address}"
    async with Consumer("t", "c", lookupd=lookupd, on_event=events) as consumer:
        event = await events.next("lookup_failed")
        assert gone.address in event.text
        said = caplog.text + repr(event) + consumer.explain() + repr(consumer.stats())
    assert "hunter2" not in said


@pytest.mark.parametrize("way", WAYS)
@asynchronous
async def test_options_that_the_server_refuses_are_raised_with_its_text(way: str) -> None:
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Identify, refuse("E_BAD_BODY IDENTIFY heartbeat interval (1) is invalid"))
        with pytest.raises(ConfigError) as caught:
            await consume(Consumer("t", "c", nsqd=peer.address), way)
        assert str(caught.value) == (
            f"{peer.address} refused the options: "
            "E_BAD_BODY IDENTIFY heartbeat interval (1) is invalid"
        )


@pytest.mark.parametrize("code", ["E_BAD_TOPIC", "E_BAD_CHANNEL", "E_UNAUTHORIZED", "E_AUTH_X"])
def test_a_refusal_of_the_request_itself_is_final(code: str) -> None:
    assert is_final(ServerError(code))


@pytest.mark.parametrize("error", [ServerError("E_SUB_FAILED"), NetworkError("x"), OSError()])
def test_what_may_pass_is_not_final(error: Exception) -> None:
    assert not is_final(error)


# Once connected.


@pytest.mark.proves(rows=[31])
@asynchronous
async def test_a_fatal_error_is_logged_reported_and_survived(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = EventLog()
    async with (
        ScriptedNsqd() as peer,
        Consumer("t", "c", nsqd=peer.address, on_event=events, **QUICK) as consumer,
        reading(consumer) as taken,
    ):
        await peer.received(nsq.Rdy)
        wire = await peer.connected()
        wire.send_raw(error_frame("E_INVALID RDY count 5 out of range"))
        event = await events.next("disconnected")
        assert isinstance(event.error, InvalidCommandError)
        assert event.text == "E_INVALID RDY count 5 out of range"
        assert f"{peer.address} refused a command: E_INVALID RDY count" in caplog.text
        again = await peer.connected()
        await peer.received(nsq.Rdy)
        again.send_messages([message(1)])
        await peer.received(nsq.Fin)
        assert [each.body for each in taken] == [b"body 1"]


@pytest.mark.parametrize("garbage", [b"\0\0\0\4\0\0\0\7", b"\xff\xff\xff\xff", OK], ids=repr)
@asynchronous
async def test_a_peer_that_breaks_the_protocol_is_left_and_tried_again(garbage: bytes) -> None:
    events = EventLog()
    async with (
        ScriptedNsqd() as peer,
        Consumer("t", "c", nsqd=peer.address, on_event=events, **QUICK) as consumer,
        reading(consumer),
    ):
        await peer.received(nsq.Rdy)
        (await peer.connected()).send_raw(garbage)
        error = (await events.next("disconnected")).error
        assert isinstance(error, RemoteProtocolError)
        assert error.__notes__ == [f"from {peer.address}"]
        await peer.received(nsq.Rdy)


@asynchronous
async def test_a_connection_that_is_accepted_and_closed_at_once_has_failed() -> None:
    events = EventLog()
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Sub, [OK + error_frame("E_INVALID go away")])
        async with Consumer("t", "c", nsqd=peer.address, on_event=events, **QUICK):
            assert str((await events.next("connect_failed")).error) == "E_INVALID go away"
            await events.next("connected")
        assert events.kinds[:2] == ["connect_failed", "connected"]


@pytest.mark.proves(rows=[28])
@asynchronous
async def test_each_heartbeat_is_answered() -> None:
    async with (
        ScriptedNsqd() as peer,
        Consumer("t", "c", nsqd=peer.address),
        Producer(peer.address),
    ):
        for wire in (await peer.connected(), await peer.connected()):
            await eventually(lambda wire=wire: bool(wire.commands))  # type: ignore[misc]
            for _ in range(3):
                wire.send_heartbeat()
                await peer.received(nsq.Nop)


@asynchronous
async def test_a_full_write_buffer_is_not_written_to_and_its_draining_is_reported() -> None:
    handler = Recorder()
    async with ScriptedNsqd() as peer:
        connection = connection_to(peer.address, handler)
        await connection.open()
        wire = await peer.connected()
        wire.freeze()
        sent = 0
        while connection.can_write:
            connection.send(nsq.Pub("t", bytes(1_000_000)))
            sent += 1
            await asyncio.sleep(0)
            assert sent < 100
        wire.transport.resume_reading()
        await eventually(lambda: connection.can_write)
        assert handler.writable_calls == 1
        for _ in range(sent):
            await peer.received(nsq.Pub)
        await connection.drop()


# TLS.


@asynchronous
async def test_tls_that_is_not_granted_is_an_error_before_another_byte() -> None:
    async with ScriptedNsqd() as peer:
        with pytest.raises(TlsNotGrantedError):
            await consume(Consumer("t", "c", nsqd=peer.address, tls=True), "iterate")
        await peer.connections[0].ended()
        assert [type(command) for command in peer.commands] == [nsq.Identify]


@asynchronous
async def test_a_tls_handshake_that_never_comes_is_given_up() -> None:
    async with ScriptedNsqd(nsq.IdentifyReply(tls_v1=True)) as peer:
        connection = connection_to(peer.address, tls=True, dial_timeout=0.1)
        with pytest.raises(NetworkError, match=r"dial_timeout of 0\.1 s"):
            await connection.open()
        await peer.connections[0].ended()


@asynchronous
async def test_bytes_injected_before_tls_are_refused() -> None:
    reply = nsq.encode_frame(nsq.FrameType.RESPONSE, nsq.IdentifyReply(tls_v1=True).encode())
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Identify, reply + OK)
        with pytest.raises(RemoteProtocolError, match="between IDENTIFY's response and TLS"):
            await connection_to(peer.address, tls=True).open()


@asynccontextmanager
async def hasty_tls_server(certificates: Certificates) -> Any:
    """An nsqd whose last word of the handshake and first word inside TLS are one piece."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.cert, certificates.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # in 1.3 the last word is the client's
    reply = nsq.encode_frame(nsq.FrameType.RESPONSE, nsq.IdentifyReply(tls_v1=True).encode())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(reply)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        with suppress(ConnectionError):
            while not shake_hands(tls):
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
            tls.write(OK)
            writer.write(outgoing.read())
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield "{}:{}".format(*server.sockets[0].getsockname())


def shake_hands(tls: ssl.SSLObject) -> bool:
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


@uvloop
def test_the_first_response_inside_tls_may_come_with_the_end_of_the_handshake(
    certificates: Certificates, uvloop: bool
) -> None:
    async def connect() -> None:
        trust = ssl.create_default_context(cafile=certificates.ca)
        async with hasty_tls_server(certificates) as address:
            connection = connection_to(address, tls=trust)
            await connection.open()
            assert connection.reply.tls_v1
            await connection.drop()

    asynchronous(uvloop=uvloop)(connect)()


# Silence.


@contextmanager
def nsqd_elsewhere() -> Iterator[ScriptedNsqd]:
    """An nsqd in a thread of its own, which sends heartbeats whatever becomes of this one."""
    peer = ScriptedNsqd()
    ready, stop = threading.Event(), threading.Event()

    async def beat() -> None:
        async with peer:
            ready.set()
            while not stop.is_set():
                for wire in peer.connections:
                    if any(isinstance(command, nsq.Sub) for command in wire.commands):
                        wire.send_heartbeat()
                await asyncio.sleep(0.1)

    thread = threading.Thread(target=lambda: asyncio.run(beat()))
    thread.start()
    ready.wait(PATIENCE)
    try:
        yield peer
    finally:
        stop.set()
        thread.join()


def count_answers(peer: ScriptedNsqd) -> int:
    return sum(isinstance(command, nsq.Nop) for command in peer.commands)


@pytest.mark.proves(rows=[29], wishes=[9])
@uvloop
def test_a_loop_that_was_blocked_for_long_is_not_taken_for_silence(uvloop: bool) -> None:
    async def be_blocked(peer: ScriptedNsqd) -> None:
        events = EventLog()
        options: Any = {"heartbeat_interval": 1, "on_event": events}
        async with Consumer("t", "c", nsqd=peer.address, **options):
            await eventually(lambda: count_answers(peer) > 2)
            time.sleep(2.1)  # noqa: ASYNC251 - blocking is the point
            after = count_answers(peer)
            await eventually(lambda: count_answers(peer) > after + 21 + 12)
            assert events.kinds == ["connected"]

    with nsqd_elsewhere() as peer:
        asynchronous(uvloop=uvloop)(be_blocked)(peer)


def test_a_loop_that_was_blocked_just_before_a_check_is_not_taken_for_silence() -> None:
    @asynchronous
    async def be_blocked(peer: ScriptedNsqd) -> None:
        loop, handler = asyncio.get_running_loop(), Recorder()
        connection = connection_to(peer.address, handler, heartbeat_interval=1)
        await connection.open(nsq.Sub("t", "c"))
        first_look = connection._read_timeout.last_read + 2
        # In one turn with the look: what arrived meanwhile is read only after both.
        loop.call_at(first_look - 0.0004, time.sleep, 2.1)
        await eventually(lambda: count_answers(peer) > 20 + 21 + 12)
        assert (connection.closed, handler.lost) == (False, [])
        await connection.drop()

    with nsqd_elsewhere() as peer:
        be_blocked(peer)


@asynchronous
async def test_a_silent_peer_is_left_and_its_handler_called() -> None:
    handler = Recorder()
    async with ScriptedNsqd() as peer:
        connection = connection_to(peer.address, handler, heartbeat_interval=1)
        await connection.open()
        error = await connection.wait_ended()
        assert re.fullmatch(f"{peer.address}: silent for \\d+ s, heartbeats missing", str(error))
        assert handler.lost == [error]
        assert connection.closed


@pytest.mark.parametrize("behaviour", [RESET, HANG])
@asynchronous
async def test_a_connection_that_never_was_is_not_reported_as_lost(behaviour: Any) -> None:
    handler = Recorder()
    async with ScriptedNsqd() as peer:
        peer.on(nsq.Identify, behaviour)
        connection = connection_to(peer.address, handler, dial_timeout=0.1)
        with pytest.raises(NetworkError, match=peer.address):
            await connection.open()
        assert (handler.lost, connection.closed) == ([], True)


@asynchronous
async def test_an_auth_error_is_the_class_of_its_code() -> None:
    async with ScriptedNsqd(nsq.IdentifyReply(auth_required=True)) as peer:
        peer.on(nsq.Auth, refuse("E_AUTH_FAILED"))
        with pytest.raises(AuthFailedError):
            await connection_to(peer.address, auth_secret=b"\xff").open()
        with pytest.raises(ConfigError, match="asks for AUTH: set auth_secret"):
            await connection_to(peer.address).open()
