"""Frames: how the bytes from nsqd are cut into pieces.

    | size: int32 | type: int32 | data: size - 4 bytes |

Integers are big-endian; ``size`` counts everything after itself.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol.buffer import ReceiveBuffer

FRAME_HEADER = Struct(">ii")
FRAME_HEADER_SIZE = FRAME_HEADER.size

_MESSAGE = 2  # FrameType.MESSAGE, as a byte
_MESSAGE_HEAD = Struct(">ii26s")  # with what all messages begin with, see messages

# A server's --max-msg-size is 1 MiB unless raised and is not told to clients. This bound is
# there to recognise what is no nsqd at all: "HTTP" reads as a size of 1.2 GB, a TLS alert
# as 352 MB.
DEFAULT_MAX_FRAME_SIZE = 64 * 1024 * 1024


# What a response may say.
OK = b"OK"
HEARTBEAT = b"_heartbeat_"
CLOSE_WAIT = b"CLOSE_WAIT"


class FrameType(IntEnum):
    """What a frame's data is."""

    RESPONSE = 0
    ERROR = 1
    MESSAGE = 2


class Frame(NamedTuple):
    """One response or error."""

    type: FrameType
    data: bytes


class MessageRun(NamedTuple):
    """The messages of consecutive frames, as places in one piece of received bytes."""

    data: bytes
    bounds: list[int]
    """Where each frame begins, and behind them where the last one ends."""
    headers: list[bytes]
    """The 26 bytes that each message begins with."""


def encode_frame(type: FrameType, data: bytes) -> bytes:
    """Put ``data`` into a frame, as a server sends it."""
    return FRAME_HEADER.pack(len(data) + 4, type) + data


class FrameDecoder:
    """Turns received bytes into frames, wherever the network cut them."""

    __slots__ = ("_max_frame_size", "buffer", "min_message_size")

    def __init__(self, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE) -> None:
        self.buffer = ReceiveBuffer()
        # A message below it is too short to hold its own header; more where its layout has more.
        self.min_message_size = _MESSAGE_HEAD.size - FRAME_HEADER_SIZE
        self._max_frame_size = max_frame_size

    def next(self) -> Frame | MessageRun | None:
        """Return what comes next and is complete: all messages in a row, or one frame."""
        buffer = self.buffer
        if not buffer.ready():
            return None
        at = buffer.pos + 7  # the last byte of the type
        if at < len(buffer.data) and buffer.data[at] == _MESSAGE:
            run = self._message_run()
            if run.headers:
                return run
        size = buffer.peek_int32()
        if size is None:
            return None
        self._check_size(size)
        kind = buffer.peek_int32(4)
        if kind is None:
            return None
        self._check_kind(kind, size)
        data = buffer.read(size - 4, skip=FRAME_HEADER_SIZE)
        return None if data is None else Frame(FrameType(kind), data)

    def _message_run(self) -> MessageRun:
        # The hot loop: it runs once for each message there is, so it finds their ends and
        # takes their headers along, no more. What is no whole and proper message is left
        # for next() to look at.
        buffer = self.buffer
        data, pos = buffer.data, buffer.pos
        # No frame that ends before this is too large; one that is allowed and ends behind it
        # is the first of the next run.
        limit = min(len(data), pos + 4 + self._max_frame_size)
        last = limit - _MESSAGE_HEAD.size
        smallest = self.min_message_size + 4
        unpack = _MESSAGE_HEAD.unpack_from
        bounds: list[int] = [pos]
        headers: list[bytes] = []
        add_bound, add_header = bounds.append, headers.append
        while pos <= last:
            size, kind, header = unpack(data, pos)
            end = pos + 4 + size
            if kind != 2 or size < smallest or end > limit:
                break
            add_bound(end)
            add_header(header)
            pos = end
        buffer.pos = pos
        return MessageRun(data, bounds, headers)

    def _check_size(self, size: int) -> None:
        # Before the body arrives: we would wait for it, and keep it, for ever. Even before
        # the type does: a TLS alert has seven bytes in all.
        if not 4 <= size <= self._max_frame_size:
            raise RemoteProtocolError(
                f"frame of {size} bytes; 4 to {self._max_frame_size} are allowed "
                "(is this the TCP port of an nsqd?)"
            )

    def _check_kind(self, kind: int, size: int) -> None:
        if not 0 <= kind <= 2:
            raise RemoteProtocolError(f"frame of type {kind}; 0 to 2 are known")
        if kind == FrameType.MESSAGE and size < self.min_message_size + 4:
            raise RemoteProtocolError(
                f"message of {size - 4} bytes; its header alone has {self.min_message_size}"
            )
