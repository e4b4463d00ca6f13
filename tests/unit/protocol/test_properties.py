"""What holds for every stream: how the network cuts it makes no difference."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol import (
    ClientSession,
    Cls,
    Dialect,
    Event,
    Fin,
    FrameType,
    IdentifyReply,
    IdentifyRequest,
    Message,
    Mpub,
    MpubExt,
    MpubTrace,
    Nop,
    Pub,
    PubTrace,
    Rdy,
    Req,
    ServerSession,
    Sub,
    SubscribeMode,
    Touch,
    encode_frame,
    encode_messages,
)

from .pair import flatten, subscribed_pair

IDS = st.binary(min_size=16, max_size=16)
BODIES = st.binary(min_size=1, max_size=300)
METHODS = [None, "snappy", "deflate"]

MESSAGES = st.builds(
    Message, st.integers(-(2**63), 2**63 - 1), st.integers(0, 65535), IDS, st.binary(max_size=300)
)
FROM_SERVER = st.one_of(
    st.lists(MESSAGES, min_size=1, max_size=5).map(encode_messages),
    st.sampled_from([b"OK", b"_heartbeat_", b"CLOSE_WAIT", b""]).map(
        lambda data: encode_frame(FrameType.RESPONSE, data)
    ),
    st.sampled_from(
        [b"E_FIN_FAILED FIN 0123456789abcdef failed", b"E_REQ_FAILED ", b"E_INVALID", b"?"]
    ).map(lambda data: encode_frame(FrameType.ERROR, data)),
    st.binary(max_size=20),
)
FROM_CLIENT = st.one_of(
    st.builds(Fin, IDS),
    st.builds(Req, IDS, st.integers(0, 10**6)),
    st.builds(Touch, IDS),
    st.builds(Rdy, st.integers(0, 2600)),
    st.builds(Pub, st.just("t"), BODIES, st.none() | st.integers(0, 9)),
    st.builds(Mpub, st.just("t"), st.lists(BODIES, min_size=1), st.none()),
    st.builds(PubTrace, st.just("t"), st.integers(0, 2**64 - 1), BODIES, st.integers(0, 9)),
    st.builds(MpubTrace, st.just("t"), st.lists(st.tuples(st.integers(0, 9), BODIES), min_size=1)),
    st.builds(
        MpubExt, st.just("t"), st.lists(st.tuples(st.binary(max_size=9), BODIES), min_size=1)
    ),
    st.just(Cls()),
    st.just(Nop()),
).map(lambda command: command.encode()) | st.binary(max_size=20)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(bounds)]


PLACES = st.lists(st.integers(0, 10**6), max_size=8)


def asked(method: str | None) -> IdentifyRequest:
    return IdentifyRequest(snappy=method == "snappy", deflate=method == "deflate")


def compressed(stream: bytes, method: str | None) -> bytes:
    """Return the stream as a server sends it after the OK that compression begins with."""
    pair = subscribed_pair(asked(method))
    pair.server._out.append(stream)
    return pair.server.data_to_send()


def client_outcome(pieces: list[bytes], method: str | None) -> tuple[list[object], str]:
    """Return all that a client makes of what is on the wire, and the error it ends with."""
    pair = subscribed_pair(asked(method))
    events: list[Event] = []
    for piece in pieces:
        pair.client.receive_data(piece)
        try:
            while more := pair.client.events():
                events += more
        except RemoteProtocolError as error:
            return comparable(events), str(error)
    return comparable(events), ""


def comparable(events: list[Event]) -> list[object]:
    """Put into words what is no message: exceptions are equal to nothing but themselves."""
    return [each if isinstance(each, Message) else repr(each) for each in flatten(events)]


def server_outcome(pieces: list[bytes], dialect: Dialect) -> tuple[list[object], bytes]:
    """Return all that a server makes of the stream, and what it says."""
    server = ServerSession(dialect=dialect)
    events: list[object] = []
    for piece in pieces:
        server.receive_data(piece)
        try:
            while more := server.events():
                events += more
        except RemoteProtocolError as error:
            return events, server.data_to_send() + str(error).encode()
    return events, server.data_to_send()


@pytest.mark.parametrize("method", METHODS)
@given(
    frames=st.lists(FROM_SERVER, max_size=12),
    places=PLACES,
    broken=st.none() | st.tuples(st.integers(0, 10**6), st.integers(1, 255)),
)
def test_a_client_sees_the_same_however_the_stream_is_cut(
    method: str | None, frames: list[bytes], places: list[int], broken: tuple[int, int] | None
) -> None:
    wire = bytearray(compressed(b"".join(frames), method))
    if broken and wire:
        wire[broken[0] % len(wire)] ^= broken[1]
    whole = client_outcome([bytes(wire)], method)
    assert client_outcome(cut(bytes(wire), places), method) == whole
    singly = [bytes([byte]) for byte in wire]
    assert client_outcome(singly, method) == whole


@pytest.mark.parametrize("dialect", Dialect)
@given(commands=st.lists(FROM_CLIENT, max_size=12), places=PLACES)
def test_a_server_sees_the_same_however_the_stream_is_cut(
    dialect: Dialect, commands: list[bytes], places: list[int]
) -> None:
    stream = b"  V2" + Sub("t", "c").encode() + b"".join(commands)
    assert server_outcome(cut(stream, places), dialect) == server_outcome([stream], dialect)


@pytest.mark.parametrize("dialect", Dialect)
@given(commands=st.lists(FROM_CLIENT, max_size=6))
def test_a_server_sees_the_same_byte_by_byte(dialect: Dialect, commands: list[bytes]) -> None:
    stream = b"  V2" + Sub("t", "c").encode() + b"".join(commands)
    singly = [stream[i : i + 1] for i in range(len(stream))]
    assert server_outcome(singly, dialect) == server_outcome([stream], dialect)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", SubscribeMode)
@given(messages=st.lists(MESSAGES, max_size=20))
def test_messages_arrive_as_they_were_sent(
    method: str | None, kind: SubscribeMode, messages: list[Message]
) -> None:
    pair = subscribed_pair(asked(method), dialect=Dialect.REDESIGNED, kind=kind)
    if kind is not SubscribeMode.PLAIN:
        for i, message in enumerate(messages):
            message.offset, message.size = i, 30 + len(message.body)
    pair.server.send_messages(messages)
    assert flatten(pair.take_client_events()) == messages


@given(data=st.binary(max_size=200), dialect=st.sampled_from(Dialect))
def test_arbitrary_bytes_raise_only_the_documented_error(data: bytes, dialect: Dialect) -> None:
    for session in (ClientSession(dialect=dialect), ServerSession(dialect=dialect)):
        session.receive_data(data)
        with suppress(RemoteProtocolError):
            while session.events():
                pass


def test_identify_replies_that_are_json_of_the_wrong_shape_are_refused() -> None:
    for reply in (b"[]", b"null", b"7", b'"OK"', b"{", b"[" * 100_000, b'{"max_rdy_count":"5"}'):
        client = ClientSession()
        client.receive_data(encode_frame(FrameType.RESPONSE, reply))
        with pytest.raises(RemoteProtocolError, match="answer to IDENTIFY"):
            client.events()
    assert IdentifyReply.decode(b'{"max_rdy_count":null}').max_rdy_count == 2500
