"""Snappy and deflate, as streams of bytes on a connection.

Both sides are bounded: a decompressor gives out at most a ``WINDOW`` of bytes at a time
and keeps the rest of its input until it is asked again, so that a few bytes which
expand to gigabytes cost time, not memory.

Snappy is the framing format: chunks of ``| type: uint8 | length: uint24 little-endian |``,
the first of them the stream identifier. cramjam decodes whole chunks only, so they are
cut here; it checks their checksums. Deflate is raw, without a zlib header.
"""

from __future__ import annotations

import zlib
from typing import Protocol

from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol.buffer import ReceiveBuffer

WINDOW = 256 * 1024

_STREAM_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_MAX_CHUNK = 65536  # uncompressed bytes, says the format
_MAX_COMPRESSED = 32 + _MAX_CHUNK + _MAX_CHUNK // 6  # snappy::MaxCompressedLength


class Compressor(Protocol):
    """The sending half."""

    def compress(self, data: bytes) -> bytes:
        """Return what goes onto the wire, complete: the peer can read all of ``data``."""


class Decompressor(Protocol):
    """The receiving half."""

    def feed(self, data: bytes) -> None:
        """Take what the wire gave."""

    def read(self) -> bytes:
        """Return some of what it says; nothing once more input is needed."""


class DeflateCompressor:
    """The sending half of a deflate connection."""

    def __init__(self, level: int = 6) -> None:
        self._stream = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)

    def compress(self, data: bytes) -> bytes:
        """Return what goes onto the wire."""
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)


class DeflateDecompressor:
    """The receiving half of a deflate connection."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        self._input = b""
        self._more = False  # the stream may hold output that did not fit the window

    def feed(self, data: bytes) -> None:
        """Take what the wire gave."""
        self._input += data

    def read(self) -> bytes:
        """Return some of what it says; nothing once more input is needed."""
        if not self._input and not self._more:
            return b""
        try:
            data = self._stream.decompress(self._input, WINDOW)
        except zlib.error as error:
            raise RemoteProtocolError(f"deflate stream is broken: {error}") from None
        self._input = self._stream.unconsumed_tail
        self._more = len(data) == WINDOW or self._stream.eof
        if not data and self._stream.eof:
            # No peer ends its stream; what follows could be anything.
            raise RemoteProtocolError("deflate stream has ended")
        return data


class SnappyCompressor:
    """The sending half of a snappy connection."""

    def __init__(self) -> None:
        from cramjam import snappy

        self._compress = snappy.compress
        self._begun = False

    def compress(self, data: bytes) -> bytes:
        """Return what goes onto the wire."""
        chunks = bytes(self._compress(data))
        if self._begun:
            return chunks[len(_STREAM_IDENTIFIER) :]
        self._begun = bool(chunks)  # nothing becomes nothing, not even the identifier
        return chunks


class SnappyDecompressor:
    """The receiving half of a snappy connection."""

    def __init__(self) -> None:
        from cramjam import DecompressionError, snappy

        self._decompress = snappy.decompress
        self._error: type[Exception] = DecompressionError
        self._buffer = ReceiveBuffer()
        self._skip = 0  # bytes of a chunk to be passed over that have not arrived yet
        self._identifier = b""  # put before each piece once the stream has shown its own

    def feed(self, data: bytes) -> None:
        """Take what the wire gave."""
        self._buffer.feed(data)

    def read(self) -> bytes:
        """Return some of what it says; nothing once more input is needed."""
        data = b""
        while not data:  # a stream identifier says nothing
            chunks: list[bytes] = []
            room = WINDOW
            while room > 0 and (chunk := self._chunk()) is not None:
                chunks.append(chunk)
                room -= _expansion(chunk)
            if not chunks:
                break
            try:
                data = bytes(self._decompress(self._identifier + b"".join(chunks)))
            except self._error as error:
                raise RemoteProtocolError(f"snappy stream is broken: {error}") from None
            self._identifier = _STREAM_IDENTIFIER
        return data

    def _chunk(self) -> bytes | None:
        """Return the next chunk that matters, whole, or ask for more."""
        buffer = self._buffer
        while buffer.ready():
            if self._skip:
                self._skip -= len(buffer.take(min(self._skip, len(buffer))))
                continue
            header = buffer.peek_int32()
            if header is None:
                break
            kind, *rest = header.to_bytes(4, "big", signed=True)
            length = int.from_bytes(rest, "little")
            if 0x80 <= kind <= 0xFE:  # padding, and what is reserved to be passed over
                buffer.take(4)
                self._skip = length
                continue
            if length > 4 + _MAX_COMPRESSED:
                raise RemoteProtocolError(
                    f"snappy chunk of {length} bytes; at most {4 + _MAX_COMPRESSED} are allowed"
                )
            return buffer.read(4 + length)
        return None


def _expansion(chunk: bytes) -> int:
    """Tell how many bytes a chunk says it holds; cramjam holds it to at most 65536."""
    if chunk[0] != 0 or len(chunk) < 11:
        return len(chunk)
    # A compressed chunk: header, checksum, then the size as a varint of up to three bytes.
    size = shift = 0
    for byte in chunk[8:11]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return min(size, _MAX_CHUNK)
