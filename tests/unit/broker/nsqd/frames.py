"""Reading frames from an nsqd."""

from __future__ import annotations

import asyncio
import struct
from typing import NamedTuple

from tests.fixtures.servers import PATIENCE
from tests.unit.broker.nsqd.running import RawClient, sized


class Frame(NamedTuple):
    """A frame: 0 is a response, 1 an error, 2 a message."""

    type: int
    data: bytes


class Message(NamedTuple):
    """The parts of a message that tests compare."""

    id: bytes
    attempts: int
    body: bytes


OK = Frame(0, b"OK")
HEARTBEAT = Frame(0, b"_heartbeat_")


def error(text: str) -> Frame:
    return Frame(1, text.encode())


def pub(topic: str, body: bytes) -> bytes:
    """Encode a PUB."""
    return b"PUB %s\n" % topic.encode() + sized(body)


def frames_in(data: bytes) -> list[Frame]:
    """Split bytes into frames; fail if something is left."""
    frames: list[Frame] = []
    while data:
        size, type = struct.unpack(">ii", data[:8])
        assert len(data) >= 4 + size, "incomplete frame"
        frames.append(Frame(type, data[8 : 4 + size]))
        data = data[4 + size :]
    return frames


async def receive(raw: RawClient) -> Frame:
    """Return the next frame."""
    async with asyncio.timeout(PATIENCE):
        head = await raw.reader.readexactly(4)
        return frames_in(head + await raw.reader.readexactly(struct.unpack(">i", head)[0]))[0]


async def receive_all(raw: RawClient) -> list[Frame]:
    """Return all frames until nsqd closes the connection without a reset."""
    async with asyncio.timeout(PATIENCE):
        return frames_in(await raw.reader.read())


async def receive_message(raw: RawClient) -> Message:
    """Return the next frame, which must be a message."""
    frame = await receive(raw)
    assert frame.type == 2, frame
    attempts, id = struct.unpack(">H16s", frame.data[8:26])
    return Message(id, attempts, frame.data[26:])
