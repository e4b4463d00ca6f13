"""The buffer of received bytes, and the decoder of frames.

    | size: int32 | type: int32 | data: size - 4 bytes |

Integers are big-endian; ``size`` counts everything after itself.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from nsqflow.errors import LocalProtocolError, RemoteProtocolError

# Offsets into a buffer go into 32-bit arrays (see columns).
MAX_BUFFERED = 2**31 - 1

# Pieces queued before they are joined: a piece of one byte takes forty bytes of memory.
MAX_PIECES = 1024

_INT32 = Struct(">i")


class ReceiveBuffer:
    """Received bytes that are not parsed yet.

    The parser reads one contiguous piece, ``data`` from ``pos`` on; later pieces are queued. They
    are joined once the bytes that the parser ``need``s have arrived. So a large frame that arrives
    in small pieces is copied once, and whole frames are not copied at all.
    """

    __slots__ = ("_available", "_need", "_parts", "_pieces", "data", "pos")

    def __init__(self) -> None:
        self.data: bytes = b""  # the contiguous piece
        self.pos: int = 0  # bytes before it are consumed
        self._parts: list[bytes] = []  # the pieces after it
        self._pieces: int = 0  # how many of those are not joined yet
        self._available: int = 0  # unconsumed bytes, in all pieces, as of the last feed
        self._need: int = 1

    def __len__(self) -> int:
        return len(self.data) - self.pos + sum(map(len, self._parts))

    def feed(self, data: bytes) -> None:
        """Add what was received."""
        if not data:
            return
        available = self._available if self._parts else len(self.data) - self.pos
        if available + len(data) > MAX_BUFFERED:
            raise LocalProtocolError(
                f"{available + len(data)} bytes are buffered: must be at most {MAX_BUFFERED}"
            )
        if available:
            self._parts.append(data)
            self._pieces += 1
            if self._pieces == MAX_PIECES:
                self._parts[-MAX_PIECES:] = [b"".join(self._parts[-MAX_PIECES:])]
                self._pieces = 0
        else:
            self.data, self.pos = data, 0
        self._available = available + len(data)

    def need(self, size: int) -> None:
        """Make ``ready`` return False until there are ``size`` unconsumed bytes."""
        self._need = size

    def ready(self) -> bool:
        """Return whether the needed bytes have arrived, and make them contiguous."""
        if self._parts:
            if self._available < self._need:
                return False
            self.data = self._join()
            self.pos = 0
        if len(self.data) - self.pos < self._need:
            if self.pos == len(self.data):
                self.data, self.pos = b"", 0  # keep no memory for an idle connection
            return False
        self._need = 1
        return True

    def take(self, size: int) -> bytes:
        """Consume ``size`` bytes of the contiguous piece."""
        start = self.pos
        self.pos = start + size
        return self.data[start : self.pos]

    def drain(self) -> bytes:
        """Consume and return all bytes, for another parser."""
        data = self._join()
        self.data, self.pos, self._need = b"", 0, 1
        return data

    def _join(self) -> bytes:
        data = b"".join((self.data[self.pos :], *self._parts))
        self._parts.clear()
        self._pieces = 0
        return data

    # If not enough bytes have arrived, these return None and set what they need.

    def read(self, size: int, skip: int = 0) -> bytes | None:
        """Consume ``skip`` bytes and ``size`` more; return the latter."""
        if len(self.data) - self.pos < skip + size:
            self.need(skip + size)
            return None
        self.pos += skip
        return self.take(size)

    def read_line(self, max_size: int, skip: int = 0) -> bytes | None:
        """Consume and return a line; its newline comes after the first ``skip`` bytes."""
        start = self.pos
        end = self.data.find(b"\n", start + skip)
        size = (end if end >= 0 else len(self.data)) - start
        if size >= max_size:
            raise RemoteProtocolError(f"line of more than {max_size} bytes")
        if end < 0:
            self.need(max(size, skip) + 1)
            return None
        self.pos = end + 1
        return self.data[start:end]

    def peek_int32(self, at: int = 0) -> int | None:
        """Return the number ``at`` bytes from here, without consuming it."""
        if len(self.data) - self.pos < at + 4:
            self.need(at + 4)
            return None
        number: int = _INT32.unpack_from(self.data, self.pos + at)[0]
        return number


FRAME_HEADER = Struct(">ii")
FRAME_HEADER_SIZE = FRAME_HEADER.size

_MESSAGE = 2  # FrameType.MESSAGE, as a byte
_MESSAGE_HEAD = Struct(">ii26s")  # with the header of all messages, see messages
_POSITIONED_HEAD = Struct(">ii38s")  # ... and the position that follows it in some layouts

# A server's --max-msg-size is 1 MiB by default, and clients do not learn it. This limit recognizes
# servers that are not nsqd: "HTTP" reads as a size of 1.2 GB, a TLS alert as 352 MB.
DEFAULT_MAX_FRAME_SIZE = 64 * 1024 * 1024


# Responses.
OK = b"OK"
HEARTBEAT = b"_heartbeat_"
CLOSE_WAIT = b"CLOSE_WAIT"


class FrameType(IntEnum):
    """The type of a frame."""

    RESPONSE = 0
    ERROR = 1
    MESSAGE = 2


class Frame(NamedTuple):
    """One response or error."""

    type: FrameType
    data: bytes


class MessageRun(NamedTuple):
    """The messages of consecutive frames, as positions in one piece of received bytes."""

    data: bytes
    bounds: list[int]
    """Where each frame begins, and finally where the last one ends."""
    headers: list[bytes]
    """The header of each message: 26 bytes, or 38 with its position."""


def encode_frame(type: FrameType, data: bytes) -> bytes:
    """Return ``data`` as a frame, as a server sends it."""
    return FRAME_HEADER.pack(len(data) + 4, type) + data


class FrameDecoder:
    """Turns received bytes into frames, however the network has split them."""

    __slots__ = ("_max_frame_size", "buffer", "min_message_size", "positioned")

    def __init__(self, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE) -> None:
        self.buffer = ReceiveBuffer()
        # A smaller message would be shorter than its header; a session raises it for longer
        # layouts.
        self.min_message_size = _MESSAGE_HEAD.size - FRAME_HEADER_SIZE
        self.positioned = False
        """The header of each message is followed by its position."""
        self._max_frame_size = max_frame_size

    def next(self) -> Frame | MessageRun | None:
        """Return the next complete frame, or all complete messages that come next."""
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
        # The hot loop runs once per message, so it only finds where messages end and copies their
        # headers. An incomplete or invalid message is left for next() to check.
        buffer = self.buffer
        data, pos = buffer.data, buffer.pos
        # No frame that ends before this is too large; a valid one that ends after it begins the
        # next run.
        limit = min(len(data), pos + 4 + self._max_frame_size)
        head = _POSITIONED_HEAD if self.positioned else _MESSAGE_HEAD
        last = limit - head.size
        smallest = self.min_message_size + 4
        unpack = head.unpack_from
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
        # Checked before the body arrives, or we would buffer it forever; and before the type
        # arrives, because a TLS alert has only seven bytes.
        if not 4 <= size <= self._max_frame_size:
            raise RemoteProtocolError(
                f"frame of {size} bytes: must be 4 to {self._max_frame_size} "
                "(is this the TCP port of an nsqd?)"
            )

    def _check_kind(self, kind: int, size: int) -> None:
        if not 0 <= kind <= 2:
            raise RemoteProtocolError(
                f"frame of unknown type {kind}: must be 0 to 2 (is this the TCP port of an nsqd?)"
            )
        if kind == FrameType.MESSAGE and size < self.min_message_size + 4:
            raise RemoteProtocolError(
                f"message of {size - 4} bytes: its header has {self.min_message_size}"
            )
