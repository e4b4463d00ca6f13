"""What comes from an nsqd, frame by frame, up to the end of the connection."""

from __future__ import annotations

import asyncio
import struct
from typing import NamedTuple

from tests.fixtures.servers import PATIENCE
from tests.unit.broker.nsqd.running import Speaker, sized


class Frame(NamedTuple):
    """A frame: 0 is a response, 1 an error, 2 a message."""

    type: int
    data: bytes


class Message(NamedTuple):
    """What a message is known by."""

    id: bytes
    attempts: int
    body: bytes


OK = Frame(0, b"OK")
HEARTBEAT = Frame(0, b"_heartbeat_")


def error(text: str) -> Frame:
    return Frame(1, text.encode())


def pub(topic: str, body: bytes) -> bytes:
    """A PUB, to be sent."""
    return b"PUB %s\n" % topic.encode() + sized(body)


def frames_in(data: bytes) -> list[Frame]:
    """The frames of which bytes are made, and of nothing else."""
    frames: list[Frame] = []
    while data:
        size, type = struct.unpack(">ii", data[:8])
        assert len(data) >= 4 + size, "half a frame"
        frames.append(Frame(type, data[8 : 4 + size]))
        data = data[4 + size :]
    return frames


async def hear(speaker: Speaker) -> Frame:
    """The next frame."""
    async with asyncio.timeout(PATIENCE):
        head = await speaker.reader.readexactly(4)
        return frames_in(head + await speaker.reader.readexactly(struct.unpack(">i", head)[0]))[0]


async def hear_out(speaker: Speaker) -> list[Frame]:
    """All frames until nsqd closes the connection, which it must do in good order."""
    async with asyncio.timeout(PATIENCE):
        return frames_in(await speaker.reader.read())


async def hear_message(speaker: Speaker) -> Message:
    """The next frame, which must be a message."""
    frame = await hear(speaker)
    assert frame.type == 2, frame
    attempts, id = struct.unpack(">H16s", frame.data[8:26])
    return Message(id, attempts, frame.data[26:])
