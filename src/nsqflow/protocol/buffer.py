"""Bytes that arrived and were not cut yet.

A buffer has one contiguous piece, ``data`` from ``pos`` on, for the parser to look at, and
a queue of later pieces. They are joined only once as many bytes are there as the parser
said it ``need``s, so a large frame that arrives in small pieces is copied once, and a
read that holds only whole frames not at all.
"""

from __future__ import annotations

from struct import Struct

from nsqflow.errors import LocalProtocolError, RemoteProtocolError

# Offsets into a buffer go into 32-bit arrays (see columns).
MAX_BUFFERED = 2**31 - 1

# So many pieces are made one while more are waited for: a piece of one byte takes forty.
MAX_PIECES = 1024

_INT32 = Struct(">i")


class ReceiveBuffer:
    """What was received, in order, as one piece as far as the parser needs it."""

    __slots__ = ("_available", "_need", "_parts", "_pieces", "data", "pos")

    def __init__(self) -> None:
        self.data: bytes = b""  # the contiguous piece
        self.pos: int = 0  # what stands before it was consumed
        self._parts: list[bytes] = []  # what came after it
        self._pieces: int = 0  # how many of those were not made one yet
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
                f"{available + len(data)} bytes fed and not read; at most {MAX_BUFFERED}"
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
        """Say that nothing can be done before ``size`` unconsumed bytes are here."""
        self._need = size

    def ready(self) -> bool:
        """Tell whether what was needed is here, and make it contiguous."""
        if self._parts:
            if self._available < self._need:
                return False
            self.data = self._join()
            self.pos = 0
        if len(self.data) - self.pos < self._need:
            if self.pos == len(self.data):
                self.data, self.pos = b"", 0  # an idle connection keeps nothing
            return False
        self._need = 1
        return True

    def take(self, size: int) -> bytes:
        """Consume ``size`` bytes of the contiguous piece."""
        start = self.pos
        self.pos = start + size
        return self.data[start : self.pos]

    def drain(self) -> bytes:
        """Consume all there is, for another parser to read."""
        data = self._join()
        self.data, self.pos, self._need = b"", 0, 1
        return data

    def _join(self) -> bytes:
        data = b"".join((self.data[self.pos :], *self._parts))
        self._parts.clear()
        self._pieces = 0
        return data

    # What is read here returns None, and says what it needs, if not all of it has arrived.

    def read(self, size: int, skip: int = 0) -> bytes | None:
        """Consume ``skip`` bytes and ``size`` more; return the latter."""
        if len(self.data) - self.pos < skip + size:
            self.need(skip + size)
            return None
        self.pos += skip
        return self.take(size)

    def read_line(self, max_size: int, skip: int = 0) -> bytes | None:
        """Consume up to a newline that stands behind the first ``skip`` bytes; leave it out."""
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
        """Look at the number ``at`` bytes from here."""
        if len(self.data) - self.pos < at + 4:
            self.need(at + 4)
            return None
        number: int = _INT32.unpack_from(self.data, self.pos + at)[0]
        return number
