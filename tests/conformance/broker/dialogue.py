r"""Dialogues in raw bytes: what is said to a server, and exactly what must come back.

    "a negative size": (
        b"PUB {topic}\n" + size(-1),
        error("E_BAD_MESSAGE PUB invalid message body size -1"),
        CLOSED,
    )

Bytes are sent, and all else is expected, in this order. ``{topic}`` stands for a topic that no
other dialogue has, ``{id}`` for the id of the message that came last. A dialogue that does not end
with ``CLOSED`` must leave a connection on which nothing more comes and commands still count.
"""

from __future__ import annotations

import json
import re
import select
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

import pytest

from tests.fixtures.servers import PATIENCE, Server

MAGIC = b"  V2"
LOOKUP_MAGIC = b"  V1"

# No server has such a command, so in every state the answer is the same: it is refused by name.
PROBE = b"PROBE\n"


@dataclass(frozen=True)
class Frame:
    """A frame of nsqd: 0 is a response, 1 an error, 2 a message."""

    type: int
    data: bytes


@dataclass(frozen=True)
class Delivery:
    """A message; which id and which time it carries is the server's choice."""

    body: bytes
    attempts: int = 1


@dataclass(frozen=True)
class Agreed:
    """A response in JSON that has at least these values."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class Reply:
    """What nsqlookupd says: data without a type."""

    data: bytes


class Turn(Enum):
    """What is neither said nor heard."""

    CLOSED = "the server closes the connection"
    HANG_UP = "we say that nothing more will come, and listen on"


CLOSED, HANG_UP = Turn.CLOSED, Turn.HANG_UP

Step = bytes | Frame | Delivery | Agreed | Reply | Turn
Dialogue = Sequence[Step]
Table = Mapping[str, Dialogue]


def response(text: str) -> Frame:
    return Frame(0, text.encode())


def error(text: str) -> Frame:
    return Frame(1, text.encode())


def agreed(**values: Any) -> Agreed:
    return Agreed(values)


OK = response("OK")


def size(number: int) -> bytes:
    """The four bytes in front of a body."""
    return struct.pack(">i", number)


def sized(body: bytes) -> bytes:
    """A body with its size in front."""
    return size(len(body)) + body


def several(*bodies: bytes) -> bytes:
    """The body of an MPUB, with its size in front."""
    return sized(size(len(bodies)) + b"".join(map(sized, bodies)))


def identify(**values: Any) -> bytes:
    """Magic and IDENTIFY, with these values only."""
    return MAGIC + b"IDENTIFY\n" + sized(json.dumps(values).encode())


def negotiate(**values: Any) -> bytes:
    """Magic and an IDENTIFY with feature negotiation."""
    return identify(feature_negotiation=True, **values)


def table(dialogues: Table) -> pytest.MarkDecorator:
    """Run a test once for each dialogue."""
    return pytest.mark.parametrize("dialogue", dialogues.values(), ids=dialogues)


class Line:
    """A plain connection to a server; every wait ends after PATIENCE at the latest."""

    def __init__(self, server: Server) -> None:
        self._socket = server.connect()
        self._socket.settimeout(PATIENCE)
        self._received = bytearray()
        host, port = self._socket.getsockname()[:2]
        self.address = f"{host}:{port}"  # as the server sees it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hang_up(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def take(self) -> bytes:
        """The next thing that comes, without its size; raises EOFError at the end of the line."""
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def arrives_within(self, timeout: float) -> bool:
        """Whether there is something to hear already, or soon."""
        return bool(self._received or select.select([self._socket], [], [], timeout)[0])

    def expect_end(self) -> None:
        """Wait until the server closes the connection, saying nothing more."""
        try:
            data = self.take()
        except EOFError:
            return
        raise AssertionError(f"still there: {data!r}")

    def _exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            try:
                data = self._socket.recv(65536)
            except ConnectionResetError:  # it closed without reading all that we had sent
                data = b""
            if not data:
                assert not self._received, f"closed within {bytes(self._received)!r}"
                raise EOFError
            self._received += data
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken


@dataclass(frozen=True)
class Message:
    """A message as it is on the wire."""

    timestamp: int
    attempts: int
    id: bytes
    body: bytes


class Client(Line):
    """A client of nsqd that has said nothing yet, or its IDENTIFY."""

    def __init__(self, server: Server, start: bytes = b"") -> None:
        super().__init__(server)
        self.say(start)

    def hear(self) -> Frame:
        """The next frame, whatever it is."""
        data = self.take()
        return Frame(struct.unpack(">i", data[:4])[0], data[4:])

    def expect(self, frame: Frame) -> None:
        assert self.hear() == frame

    def subscribe(self, topic: str, channel: str = "ch", ready: int = 1) -> None:
        """Subscribe on a connection on which nothing but this is going on."""
        self.say(b"SUB %s %s\n" % (topic.encode(), channel.encode()))
        self.expect(OK)
        self.say(b"RDY %d\n" % ready)

    def publish(self, topic: str, *bodies: bytes) -> None:
        self.say(b"MPUB %s\n" % topic.encode() + several(*bodies))
        self.expect(OK)

    def message(self) -> Message:
        """The next frame, which must be a message."""
        frame = self.hear()
        assert frame.type == 2, frame
        timestamp, attempts, id = struct.unpack(">qH16s", frame.data[:26])
        return Message(timestamp, attempts, id, frame.data[26:])

    def finish(self, *messages: Message) -> None:
        self.say(b"".join(b"FIN %s\n" % message.id for message in messages))

    def expect_nothing(self) -> None:
        """Check that nothing else arrives; the connection cannot be used afterwards."""
        self.say(PROBE)
        self.expect(error("E_INVALID invalid command PROBE"))
        self.expect_end()


def hold(server: Server, topic: str, dialogue: Dialogue) -> None:
    """Have a dialogue with nsqd."""
    id = b""
    with Client(server) as client:
        for step in dialogue:
            match step:
                case bytes():
                    client.say(_filled(step, topic, id))
                case Frame():
                    expected = _filled(step.data, topic, id)
                    assert client.hear() == Frame(step.type, expected)
                case Delivery():
                    message = client.message()
                    id = message.id
                    assert Delivery(message.body, message.attempts) == step
                    assert re.fullmatch(rb"[0-9a-f]{16}", id)
                case Agreed():
                    frame = client.hear()
                    assert frame.type == 0, frame
                    assert json.loads(frame.data).items() >= step.values.items()
                case Turn.HANG_UP:
                    client.hang_up()
                case Turn.CLOSED:
                    client.expect_end()
                    return
                case _:
                    raise AssertionError(f"nsqd sends no {step}")
        client.expect_nothing()


def hold_with_lookupd(server: Server, topic: str, dialogue: Dialogue) -> None:
    """Have a dialogue with nsqlookupd."""
    with Line(server) as line:
        for step in dialogue:
            match step:
                case bytes():
                    line.say(_filled(step, topic))
                case Reply():
                    assert line.take() == _filled(step.data, topic)
                case Agreed():
                    assert json.loads(line.take()).items() >= step.values.items()
                case Turn.HANG_UP:
                    line.hang_up()
                case Turn.CLOSED:
                    line.expect_end()
                    return
                case _:
                    raise AssertionError(f"nsqlookupd sends no {step}")
        line.say(PROBE)
        assert line.take() == b"E_INVALID invalid command PROBE"
        line.expect_end()


def _filled(data: bytes, topic: str, id: bytes = b"") -> bytes:
    return data.replace(b"{topic}", topic.encode()).replace(b"{id}", id)
