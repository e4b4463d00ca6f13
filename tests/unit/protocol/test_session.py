"""What both sessions share: upgrades, compression, bounds, the order of events and errors."""

from __future__ import annotations

import zlib

import pytest

from nsqflow.errors import LocalProtocolError, RemoteProtocolError, ServerError
from nsqflow.protocol import (
    ClientSession,
    CompressionStarted,
    Connected,
    FrameType,
    Heartbeat,
    IdentifyReply,
    IdentifyRequest,
    Mpub,
    Nop,
    Pub,
    Published,
    ServerSession,
    ServerState,
    StartTls,
    Sub,
    TlsStarted,
    encode_frame,
)
from nsqflow.protocol.compression import WINDOW
from nsqflow.protocol.frames import ReceiveBuffer
from nsqflow.protocol.session import Session

from .pair import connected_pair, make_pair

OK_FRAME = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
HEARTBEAT_FRAME = encode_frame(FrameType.RESPONSE, b"_heartbeat_")


def reply_frame(**granted: bool | int) -> bytes:
    return encode_frame(FrameType.RESPONSE, IdentifyReply(version="1.3.0", **granted).encode())  # type: ignore[arg-type]


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)


TRANSPORTS = [
    (IdentifyRequest(), []),
    (IdentifyRequest(tls_v1=True), [StartTls(), TlsStarted()]),
    (IdentifyRequest(snappy=True), [CompressionStarted("snappy")]),
    (IdentifyRequest(deflate=True), [CompressionStarted("deflate")]),
    (
        IdentifyRequest(tls_v1=True, snappy=True),
        [StartTls(), TlsStarted(), CompressionStarted("snappy")],
    ),
    (
        IdentifyRequest(tls_v1=True, deflate=True, deflate_level=9),
        [StartTls(), TlsStarted(), CompressionStarted("deflate")],
    ),
]


@pytest.mark.parametrize(("asked", "upgrades"), TRANSPORTS)
def test_each_upgrade_is_an_event_of_its_own_and_data_flows_after_it(
    asked: IdentifyRequest, upgrades: list[object]
) -> None:
    pair = make_pair(asked)
    *before, last = pair.take_client_events()
    assert before == upgrades
    assert isinstance(last, Connected)
    pair.server_events.clear()
    bodies = [bytes([i % 256]) * (i + 1) for i in range(300)]
    pair.client.send(Mpub("t", bodies))
    assert pair.take_server_events() == [Mpub("t", bodies)]
    pair.server.send_response()
    assert pair.take_client_events() == [Published()]


@pytest.mark.parametrize(("asked", "upgrades"), TRANSPORTS)
def test_negotiation_is_the_same_when_every_byte_comes_alone(
    asked: IdentifyRequest, upgrades: list[object]
) -> None:
    client, server = ClientSession(asked), ServerSession()
    events: list[object] = []
    while sent := client.data_to_send():
        for i in range(len(sent)):
            server.receive_data(sent[i : i + 1])
            if server.events() and server.state is ServerState.INIT:
                server.accept_identify(
                    IdentifyReply(tls_v1=asked.tls_v1, snappy=asked.snappy, deflate=asked.deflate)
                )
        answered = server.data_to_send()
        while answered:
            for i in range(len(answered)):
                client.receive_data(answered[i : i + 1])
                events += client.events()
            if events[-1] == StartTls():
                assert server.events() == [StartTls()]
                client.tls_started()
                server.tls_started()
            answered = server.data_to_send()
    assert events[:-1] == upgrades
    assert isinstance(events[-1], Connected)


def test_bytes_after_the_reply_belong_to_the_tls_handshake() -> None:
    client = ClientSession(IdentifyRequest(tls_v1=True))
    client.receive_data(reply_frame(tls_v1=True) + b"\x16\x03\x03hello")
    assert client.events() == [StartTls(b"\x16\x03\x03hello")]
    assert client.events() == []


def test_bytes_fed_before_tls_has_started_are_refused() -> None:
    client = ClientSession(IdentifyRequest(tls_v1=True))
    client.receive_data(reply_frame(tls_v1=True))
    client.events()
    with pytest.raises(LocalProtocolError, match="TLS handshake pending"):
        client.receive_data(b"x")


def test_tls_that_was_not_asked_for_cannot_start() -> None:
    with pytest.raises(LocalProtocolError, match="no TLS handshake was pending"):
        ClientSession().tls_started()


@pytest.mark.parametrize("method", ["snappy", "deflate", ""])
def test_a_session_says_whether_what_arrives_is_compressed(method: str) -> None:
    pair = make_pair(IdentifyRequest(snappy=method == "snappy", deflate=method == "deflate"))
    assert not pair.client.compressed
    pair.pump()
    assert pair.client.compressed is pair.server.compressed is bool(method)


@pytest.mark.parametrize("method", ["snappy", "deflate"])
def test_compressed_bytes_that_came_with_the_clear_reply_are_not_lost(method: str) -> None:
    asked = IdentifyRequest(snappy=method == "snappy", deflate=method == "deflate")
    server = ServerSession()
    client = ClientSession(asked)
    server.receive_data(client.data_to_send())
    server.events()
    server.accept_identify(IdentifyReply(snappy=asked.snappy, deflate=asked.deflate))
    server.send_heartbeat()
    client.receive_data(server.data_to_send())  # clear reply, compressed OK and heartbeat in one
    events = client.events()
    while more := client.events():
        events += more
    assert [type(event) for event in events] == [CompressionStarted, Connected, Heartbeat]


@pytest.mark.parametrize("level", [-5, 0, 1, 9, 10, 2**40])
def test_any_deflate_level_in_the_reply_is_survived(level: int) -> None:
    client = ClientSession(IdentifyRequest(deflate=True))
    client.receive_data(reply_frame(deflate=True, deflate_level=level) + raw_deflate(OK_FRAME))
    client.events()
    client.data_to_send()
    client.send(Nop())
    assert zlib.decompressobj(-15).decompress(client.data_to_send()) == b"NOP\n"


def test_what_expands_a_thousandfold_comes_out_a_window_at_a_time() -> None:
    client = ClientSession(IdentifyRequest(deflate=True))
    client.receive_data(reply_frame(deflate=True) + raw_deflate(OK_FRAME))
    while client.events():
        pass
    count = 100_000
    client.receive_data(raw_deflate(HEARTBEAT_FRAME * count))
    seen = 0
    while events := client.events():
        assert len(events) <= WINDOW // len(HEARTBEAT_FRAME) + 1
        seen += len(events)
        client.data_to_send()
    assert seen == count


def test_a_second_identify_on_a_compressed_connection_is_answered_compressed() -> None:
    pair = connected_pair(IdentifyRequest(deflate=True))
    pair.server.receive_data(zlib_continuation(pair.client, IDENTIFY_AGAIN))
    pair.server.events()
    pair.server.accept_identify(IdentifyReply(snappy=True))
    sent = pair.server.data_to_send()
    assert b"max_rdy_count" not in sent
    assert sent.count(b"sNaPpY") == 1


def test_a_paused_server_does_not_unpack_what_it_cannot_read_yet() -> None:
    pair = connected_pair(IdentifyRequest(deflate=True))
    again = b"IDENTIFY\n\x00\x00\x00\x02{}" + b"NOP\n" * 200_000
    pair.server.receive_data(zlib_continuation(pair.client, again))
    assert len(pair.server.events()) == 1
    assert pair.server.events() == []
    assert len(pair.server._buffer) <= WINDOW
    pair.server.accept_identify(IdentifyReply())
    count = 0
    while events := pair.server.events():
        count += len(events)
    assert count == 200_000


IDENTIFY_AGAIN = b'IDENTIFY\n\x00\x00\x00\x2a{"feature_negotiation":true,"snappy":true}'


def zlib_continuation(client: ClientSession, data: bytes) -> bytes:
    """Send raw bytes through the client's own compressor."""
    client._out.append(data)
    return client.data_to_send()


def test_events_before_the_violation_come_first_then_each_call_raises() -> None:
    client = ClientSession()
    client.receive_data(reply_frame() + HEARTBEAT_FRAME + b"HTTP/1.1 400 Bad Request")
    assert [type(event) for event in client.events()] == [Connected, Heartbeat]
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="frame of 1213486160 bytes"):
            client.events()


def test_nothing_is_taken_in_after_the_violation() -> None:
    client = ClientSession()
    client.receive_data(b"HTTP/1.1 400 Bad Request")
    with pytest.raises(RemoteProtocolError):
        client.events()
    client.receive_data(b"x" * 1000)
    assert len(client._buffer) == 0


def test_any_bytes_like_object_is_taken() -> None:
    client = ClientSession()
    client.receive_data(bytearray(reply_frame()))
    client.receive_data(memoryview(HEARTBEAT_FRAME))
    assert [type(event) for event in client.events()] == [Connected, Heartbeat]


def test_nothing_to_send_is_no_bytes_also_when_compressed() -> None:
    pair = connected_pair(IdentifyRequest(deflate=True))
    assert pair.client.data_to_send() == b""
    assert pair.server.data_to_send() == b""


def test_what_is_queued_in_one_turn_goes_out_in_one_piece_and_in_order() -> None:
    pair = connected_pair()
    pair.client.send(Pub("t", b"1"))
    pair.client.send(Nop())
    pair.client.send(Sub("t", "c"))
    sent = pair.client.data_to_send()
    assert sent == b"PUB t\n\x00\x00\x00\x011NOP\nSUB t c\n"
    assert pair.client.data_to_send() == b""


def test_the_base_class_leaves_parsing_to_its_children() -> None:
    class Bare(Session[object]):
        pass

    bare = Bare(ReceiveBuffer())
    with pytest.raises(NotImplementedError):
        bare.events()
    with pytest.raises(NotImplementedError):
        bare._end(ServerError("E_INVALID"))
