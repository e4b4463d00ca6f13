"""Random and mutated streams: whatever comes, a session raises the documented error or nothing.

Each stream is made from its own number, so a failure names what makes it again:
``NSQFLOW_FUZZ_FIRST=<number> ./dev fuzz 1``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import product
from random import Random

import pytest

from nsqflow.errors import LocalProtocolError, RemoteProtocolError
from nsqflow.protocol import (
    Auth,
    ClientSession,
    Cls,
    Command,
    Dialect,
    Dpub,
    Fin,
    FrameType,
    IdentifyReply,
    IdentifyRequest,
    Layout,
    Limits,
    Message,
    MessageBatch,
    Mpub,
    MpubExt,
    MpubTrace,
    Nop,
    Pub,
    PubExt,
    PubTrace,
    Rdy,
    Receipt,
    Req,
    ServerSession,
    Sub,
    SubscribeMode,
    Touch,
    encode_frame,
    encode_messages,
)
from nsqflow.protocol.compression import (
    WINDOW,
    Compressor,
    DeflateCompressor,
    SnappyCompressor,
)

MAX_FRAME = 32 * 1024
LIMITS = Limits(max_msg_size=MAX_FRAME, max_body_size=MAX_FRAME, max_line_size=1024)
# One unfinished frame, what one turn of unpacking adds, and a snappy chunk on top.
MAX_HELD = MAX_FRAME + 2 * WINDOW

METHODS = ("plain", "snappy", "deflate")
KINDS = tuple(product(("client", "server"), Dialect, METHODS))

ID = bytes(range(16))
ANSWERS = (Fin(ID), Req(ID, 100), Touch(ID), Rdy(7), Nop())


def frame(kind: FrameType, data: bytes) -> bytes:
    return encode_frame(kind, data)


def server_stream(random: Random, layout: Layout) -> bytes:
    """What a server might say to a subscribed client that publishes, too."""
    messages = [
        Message(
            random.getrandbits(63),
            random.randrange(65536),
            random.randbytes(16),
            random.randbytes(random.randrange(200)),
            random.choice((0, 4)),
            b"{}",
            random.getrandbits(40),
            random.getrandbits(16),
        )
        for _ in range(random.randrange(1, 6))
    ]
    pieces = [
        frame(FrameType.RESPONSE, b"OK"),
        frame(FrameType.RESPONSE, b"_heartbeat_"),
        frame(FrameType.RESPONSE, Receipt(1, 2, 3, 4).encode()),
        frame(FrameType.RESPONSE, b"CLOSE_WAIT"),
        frame(FrameType.ERROR, b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"),
        frame(FrameType.ERROR, b"E_FAILED_ON_NOT_LEADER "),
        encode_messages(messages, layout),
        encode_messages(messages[:1], layout),
    ]
    # SUB is answered first, or nothing after it would be parsed.
    return pieces[0] + b"".join(random.choices(pieces, k=random.randrange(1, 8)))


def client_stream(random: Random, dialect: Dialect) -> bytes:
    """What a client might say, once it has identified itself."""
    body = random.randbytes(random.randrange(1, 200))
    commands: list[Command] = [Pub("t", body), Mpub("t", [body, b"x"]), Auth(body), *ANSWERS]
    if dialect is Dialect.CLASSIC:
        commands += (Dpub("t", 10, body), Sub("t", "c"))
    else:
        commands += (
            *(Pub("t", body, 1), PubTrace("t", 1, body, 1), PubExt("t", b"{}", body, 1)),
            *(MpubTrace("t", [(1, body)]), MpubExt("t", [(b"", body), (b"{}", body)])),
            *(Sub("t", "c", 1, kind) for kind in SubscribeMode),
        )
    chosen = random.choices(commands, k=random.randrange(1, 10))
    if random.random() < 0.7:
        chosen[len(chosen) // 2 :] = [Sub("t", "c"), *random.choices(ANSWERS, k=4), Cls()]
    return b"".join(command.encode() for command in chosen)


def mutate(random: Random, data: bytes) -> bytes:
    """Break some of it, in one of the ways that bytes get broken."""
    for _ in range(random.choice((0, 1, 1, 2, 5))):
        at = random.randrange(len(data) + 1)
        length = random.choice((1, 1, 2, 4, 30))
        way = random.randrange(6)
        if way == 0:  # other bytes
            data = data[:at] + random.randbytes(length) + data[at + length :]
        elif way == 1:  # more bytes
            data = data[:at] + random.randbytes(length) + data[at:]
        elif way == 2:  # fewer bytes
            data = data[:at] + data[at + length :]
        elif way == 3:  # the same again
            data = data[:at] + data[max(0, at - length) :]
        elif way == 4:  # a number at its edge
            edge = random.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, MAX_FRAME + 1))
            data = data[:at] + edge.to_bytes(4, "big") + data[at + 4 :]
        else:  # one bit
            flipped = bytearray(data or b"\0")
            flipped[at % len(flipped)] ^= 1 << random.randrange(8)
            data = bytes(flipped)
    return data


def cuts(random: Random, data: bytes) -> list[bytes]:
    """Cut it anywhere, now and then into single bytes."""
    if len(data) < 400 and random.random() < 0.1:
        return [data[i : i + 1] for i in range(len(data))]
    places = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(5)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def damage(random: Random, clear: bytes, compress: Callable[[bytes], bytes]) -> bytes:
    """Break the clear bytes, or what became of them, or make them up altogether."""
    if random.random() < 0.1:
        clear = random.randbytes(random.randrange(300))
    if random.random() < 0.5:
        return compress(mutate(random, clear))
    return mutate(random, compress(clear))


def compressor(method: str) -> Compressor | None:
    if method == "plain":
        return None
    return SnappyCompressor() if method == "snappy" else DeflateCompressor()


def read_all(session: ClientSession | ServerSession) -> None:
    for _ in range(10_000):
        events = session.events()
        assert len(session._buffer) <= MAX_HELD
        if not events:
            return
        for event in events:
            # What came out can be answered, whatever comes after it.
            if isinstance(session, ServerSession):
                session.send_response()
            elif isinstance(event, MessageBatch):
                assert len(event.columns()) == len(event.messages()) == len(event)
                session.finish(message.id for message in event.messages())
        session.data_to_send()
    raise AssertionError("events without an end")


def fuzz_client(random: Random, dialect: Dialect, method: str) -> None:
    extended = dialect is Dialect.REDESIGNED and random.random() < 0.5
    kind = SubscribeMode.PLAIN if dialect is Dialect.CLASSIC else random.choice([*SubscribeMode])
    asked = IdentifyRequest(
        snappy=method == "snappy",
        deflate=method == "deflate",
        extend_support=True if extended else None,
    )
    session = ClientSession(asked, dialect=dialect, max_frame_size=MAX_FRAME)
    stream = compressor(method)
    compress = stream.compress if stream else bytes
    reply = IdentifyReply(snappy=asked.snappy, deflate=asked.deflate).encode()
    if random.random() < 0.05:
        reply = mutate(random, reply)
    session.receive_data(frame(FrameType.RESPONSE, reply))
    if stream:
        session.receive_data(compress(frame(FrameType.RESPONSE, b"OK")))
    read_all(session)
    try:
        session.send(Sub("t", "c", None if dialect is Dialect.CLASSIC else 0, kind))
        session.send(Pub("t", b"x"))
    except LocalProtocolError:
        assert session.state.value != "connected"
    layout = Layout(extended=extended, positioned=kind is not SubscribeMode.PLAIN)
    for piece in cuts(random, damage(random, server_stream(random, layout), compress)):
        session.receive_data(piece)
        read_all(session)


def fuzz_server(random: Random, dialect: Dialect, method: str) -> None:
    session = ServerSession(dialect=dialect, limits=LIMITS)
    stream = compressor(method)
    compress = stream.compress if stream else bytes
    snappy, deflate = method == "snappy", method == "deflate"
    body = IdentifyRequest(snappy=snappy, deflate=deflate).encode(dialect)
    if random.random() < 0.05:
        body = mutate(random, body)
    session.receive_data(b"  V2IDENTIFY\n" + len(body).to_bytes(4, "big") + body)
    read_all(session)
    if session._identifying and (session.identify.snappy, session.identify.deflate) == (
        snappy,
        deflate,
    ):
        session.accept_identify(IdentifyReply(snappy=snappy, deflate=deflate))
    for piece in cuts(random, damage(random, client_stream(random, dialect), compress)):
        session.receive_data(piece)
        read_all(session)


def run_stream(number: int) -> str:
    side, dialect, method = KINDS[number % len(KINDS)]
    random = Random(number)
    try:
        (fuzz_client if side == "client" else fuzz_server)(random, dialect, method)
    except RemoteProtocolError:
        return "refused"
    except Exception as error:
        raise AssertionError(f"stream {number} ({side}, {dialect}, {method}): {error!r}") from error
    return "read"


def run_streams(first: int, count: int) -> dict[str, int]:
    outcomes = {"read": 0, "refused": 0}
    for number in range(first, first + count):
        outcomes[run_stream(number)] += 1
        if number % 1000 == 999 and sys.stderr.isatty():
            print(f"\r{number - first + 1:,} of {count:,} streams", end="", file=sys.stderr)
    return outcomes


def test_some_thousands_of_broken_streams_raise_only_the_documented_error() -> None:
    outcomes = run_streams(0, 3000)
    assert sum(outcomes.values()) == 3000
    assert min(outcomes.values()) > 300  # both what is broken and what is whole was tried


@pytest.mark.fuzz
def test_a_million_broken_streams_raise_only_the_documented_error() -> None:
    first = int(os.environ.get("NSQFLOW_FUZZ_FIRST", "0"))
    count = int(os.environ.get("NSQFLOW_FUZZ_STREAMS", "1000000"))
    outcomes = run_streams(first, count)
    print(f"\n{count:,} streams from {first:,} on: {outcomes}", file=sys.stderr)
    assert sum(outcomes.values()) == count
