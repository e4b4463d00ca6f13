"""A client of a redesigned nsqd that is nothing but a socket: whole frames, byte for byte.

It uses no code of the client, so that what a real server was seen to send judges the broker alone.
Expected bytes are written in hex, as they were recorded; ``??`` is a byte that is the server's
choice, and spaces and bars mean nothing.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, Self

from nsqflow.broker import BackgroundBroker
from tests.fixtures.servers import PATIENCE

MAGIC = b"  V2"
PROBE_TOPIC = "probe"

RESPONSE, ERROR, MESSAGE = 0, 1, 2

_HEAD = struct.Struct(">qHQQ")
_POSITION = struct.Struct(">QI")
_RECEIPT = struct.Struct(">2sQQQI")


class Delivered(NamedTuple):
    """What a frame with a message says."""

    timestamp: int
    attempts: int
    internal_id: int
    trace_id: int
    body: bytes
    offset: int | None = None
    size: int | None = None
    headers: bytes | None = None
    """Of an extended topic; empty if the message has none."""

    @property
    def id(self) -> bytes:
        """The id as FIN, REQ and TOUCH take it."""
        return struct.pack(">QQ", self.internal_id, self.trace_id)


class Receipt(NamedTuple):
    """The answer to PUB_TRACE."""

    ok: bytes
    internal_id: int
    trace_id: int
    offset: int
    size: int


class Codec(Protocol):
    """A compression of both directions."""

    def encode(self, data: bytes) -> bytes:
        """Return the bytes to send."""

    def decode(self, data: bytes) -> bytes:
        """Return what is complete in all that was received."""


class Wire:
    """A connection; every wait ends after PATIENCE."""

    def __init__(self, address: str, *, magic: bytes = MAGIC) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self._received = bytearray()
        self._codec: Codec | None = None
        self.send(magic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self.socket.close()

    # Bytes

    def send(self, *data: bytes) -> None:
        """Send bytes."""
        sent = b"".join(data)
        self.socket.sendall(self._codec.encode(sent) if self._codec else sent)

    def frame(self) -> bytes:
        """Return the next frame, from its size on."""
        size = int.from_bytes(self._take(4), "big")
        return size.to_bytes(4, "big") + self._take(size)

    def ask(self, *data: bytes) -> bytes:
        """Send bytes and return the next frame."""
        self.send(*data)
        return self.frame()

    def expect_closed(self) -> None:
        """Wait until the server closes the connection; nothing else may come."""
        # The server may close before it has read everything: then it is a reset.
        with contextlib.suppress(ConnectionResetError):
            while data := self.socket.recv(65536):
                self._received += data
        assert bytes(self._received) == b""

    def arrived(self) -> list[bytes]:
        """Return the frames that the server has sent by now.

        A publish is answered after all that was sent before, and the second one after all that
        the first turn of the server's loop has set off.
        """
        frames = []
        for _ in range(2):
            self.send(f"PUB {PROBE_TOPIC}\n".encode(), sized(b"are you there?"))
            while (received := self.frame()) != OK:
                frames.append(received)
        return frames

    def expect_open(self) -> None:
        """Check that commands still count, and that nothing came which the test did not read."""
        assert self.arrived() == []

    def leave(self) -> None:
        """Have the server close the connection; the channel has noticed when this returns."""
        self.send(b"LEAVE\n")
        while int.from_bytes((received := self.frame())[4:8], "big") != ERROR:
            pass
        assert code_of(received) == "E_INVALID"
        self.expect_closed()

    # Commands

    def identify(self, **values: Any) -> dict[str, Any]:
        """Send IDENTIFY and return the reply."""
        reply = json.loads(data_of(self.ask(identify(values))))
        assert isinstance(reply, dict)
        return reply

    def subscribe(self, line: str, rdy: int = 1) -> None:
        """Send a SUB of any kind, which must succeed, and RDY."""
        assert self.ask(f"{line}\n".encode()) == OK
        if rdy:
            self.rdy(rdy)

    def publish_all(self, *bodies: bytes, topic: str = "t_part", partition: int = 0) -> None:
        """Publish messages, which must succeed."""
        assert self.ask(batch(f"MPUB {topic} {partition}", *bodies)) == OK

    def rdy(self, count: int) -> None:
        """Send RDY."""
        self.send(b"RDY %d\n" % count)

    def message(self, *, positioned: bool = False, extended: bool = False) -> Delivered:
        """Wait for a message, in the layout of the subscription."""
        return read_message(self.frame(), positioned=positioned, extended=extended)

    def bodies(self, count: int, *, finish: bool = False) -> list[bytes]:
        """Wait for messages of a plain subscription; return their bodies."""
        bodies = []
        for _ in range(count):
            message = self.message()
            bodies.append(message.body)
            if finish:
                self.send(fin(message.id))
        return bodies

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Begin TLS; the server confirms it."""
        assert not self._received
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
        assert self.frame() == OK

    def start_compression(self, codec: Codec) -> None:
        """Begin to compress; the server confirms it, compressed already."""
        received, self._codec = bytes(self._received), codec
        self._received = bytearray(codec.decode(received))
        assert self.frame() == OK

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            if not (data := self.socket.recv(65536)):
                raise EOFError(bytes(self._received))
            self._received += self._codec.decode(data) if self._codec else data
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken


Connect = Callable[[], Wire]


def create_topics(broker: BackgroundBroker) -> None:
    """Create the topics that were used for the recordings, and the one of ``expect_open``."""
    broker.create_topic("t_part", partitions=2)
    broker.create_topic("t_order", partitions=2, ordered=True)
    broker.create_topic("t_ext", partitions=2, extended=True)
    broker.create_topic(PROBE_TOPIC)


def request(address: str, method: str, path: str) -> tuple[int, bytes]:
    """Send an HTTP request; return status and body."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def channel_stats(broker: BackgroundBroker) -> dict[str, Any]:
    """Return what nsqd counts of the only channel of ``t_part``, partition 0."""
    path = "/stats?format=json&topic=t_part&partition=0"
    status, body = request(broker.nsqd_http_addresses[0], "GET", path)
    assert status == 200
    [topic] = json.loads(body)["data"]["topics"]
    [channel] = topic["channels"]
    assert isinstance(channel, dict)
    return channel


# What is sent


def numbered(count: int) -> list[bytes]:
    """Return bodies of six bytes, each with its number."""
    return [b"%06d" % number for number in range(count)]


def sized(body: bytes) -> bytes:
    """Return a body with its size before it."""
    return len(body).to_bytes(4, "big") + body


def identify(values: Mapping[str, Any]) -> bytes:
    """Return an IDENTIFY."""
    return b"IDENTIFY\n" + sized(json.dumps({"feature_negotiation": True, **values}).encode())


def pub(topic: str, body: bytes, partition: object = 0) -> bytes:
    """Return a PUB."""
    return f"PUB {topic} {partition}\n".encode() + sized(body)


def pub_trace(topic: str, trace: int, body: bytes, partition: object = 0) -> bytes:
    """Return a PUB_TRACE."""
    return f"PUB_TRACE {topic} {partition}\n".encode() + sized(trace.to_bytes(8, "big") + body)


def extended(headers: bytes, body: bytes) -> bytes:
    """Return the body of an extended message."""
    return len(headers).to_bytes(2, "big") + headers + body


def pub_ext(topic: str, headers: bytes, body: bytes, partition: object = 0) -> bytes:
    """Return a PUB_EXT."""
    return f"PUB_EXT {topic} {partition}\n".encode() + sized(extended(headers, body))


def batch(line: str, *bodies: bytes) -> bytes:
    """Return an MPUB of any kind."""
    data = len(bodies).to_bytes(4, "big") + b"".join(map(sized, bodies))
    return f"{line}\n".encode() + sized(data)


def fin(id: bytes) -> bytes:
    """Return a FIN."""
    return b"FIN " + id + b"\n"


def req(id: bytes, delay: object = 0) -> bytes:
    """Return a REQ."""
    return b"REQ " + id + f" {delay}\n".encode()


def touch(id: bytes) -> bytes:
    """Return a TOUCH."""
    return b"TOUCH " + id + b"\n"


# What is received


def frame(kind: int, data: bytes) -> bytes:
    """Return a frame."""
    return sized(kind.to_bytes(4, "big") + data)


def error(text: str) -> bytes:
    """Return the frame of an error."""
    return frame(ERROR, text.encode())


def data_of(received: bytes, kind: int = RESPONSE) -> bytes:
    """Return what is in a frame, which must be of this kind."""
    assert int.from_bytes(received[4:8], "big") == kind, received
    return received[8:]


def code_of(received: bytes) -> str:
    """Return the code of an error."""
    return data_of(received, ERROR).decode().split(" ")[0]


def read_receipt(received: bytes) -> Receipt:
    """Return what a receipt says."""
    receipt = Receipt(*_RECEIPT.unpack(data_of(received)))
    assert receipt.ok == b"OK"
    return receipt


def read_message(received: bytes, *, positioned: bool = False, extended: bool = False) -> Delivered:
    """Return what a message says; a frame does not show its layout."""
    data = data_of(received, MESSAGE)
    timestamp, attempts, internal_id, trace_id = _HEAD.unpack(data[: _HEAD.size])
    data = data[_HEAD.size :]
    headers: bytes | None = None
    if extended:
        version, data = data[0], data[1:]
        headers = b""
        if version:
            assert version == 4
            length = int.from_bytes(data[:2], "big")
            headers, data = data[2 : 2 + length], data[2 + length :]
    offset = size = None
    if positioned:
        offset, size = _POSITION.unpack(data[: _POSITION.size])
        data = data[_POSITION.size :]
    return Delivered(timestamp, attempts, internal_id, trace_id, data, offset, size, headers)


def unhex(text: str) -> bytes:
    """Return the bytes that were recorded as hex."""
    return bytes.fromhex(text.replace("|", " "))


def masked(received: bytes, pattern: str) -> str:
    """Return bytes in hex, masked where the pattern is: equal to ``hexed(pattern)`` if they fit."""
    wanted, found = hexed(pattern).split(), received.hex(" ").split()
    mask = [*wanted, *[""] * len(found)]
    return " ".join(
        "??" if expected == "??" else byte for byte, expected in zip(found, mask, strict=False)
    )


def hexed(pattern: str) -> str:
    """Return a pattern with one space between its bytes."""
    return " ".join(re.findall(r"[0-9a-f]{2}|\?\?", pattern))


OK = frame(RESPONSE, b"OK")
CLOSE_WAIT = frame(RESPONSE, b"CLOSE_WAIT")
HEARTBEAT = frame(RESPONSE, b"_heartbeat_")
