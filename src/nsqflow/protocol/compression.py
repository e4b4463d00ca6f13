"""Snappy and deflate compression of a connection.

A decompressor returns about ``WINDOW`` bytes at a time and keeps the rest of its input for later
calls, so that a few bytes that expand to gigabytes take time, but no memory. If the input is
damaged, everything before the damage is returned first; then reading raises.

Snappy is the framing format: chunks of ``| type: uint8 | length: uint24 little-endian |``,
the first of them the stream identifier. cramjam decodes whole chunks only, so they are
cut here; it checks their checksums. Deflate is raw, without a zlib header.
"""

from __future__ import annotations

import zlib
from typing import Any

from nsqflow.errors import RemoteProtocolError
from nsqflow.protocol.frames import ReceiveBuffer

WINDOW = 256 * 1024

_STREAM_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_MAX_CHUNK = 65536  # uncompressed bytes, by the format's specification
_MAX_COMPRESSED = 32 + _MAX_CHUNK + _MAX_CHUNK // 6  # snappy::MaxCompressedLength


class DeflateCompressor:
    """The sending half of a deflate connection."""

    def __init__(self, level: int = 6) -> None:
        self._stream = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)

    def compress(self, data: bytes) -> bytes:
        """Return the bytes to send."""
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)


class DeflateDecompressor:
    """The receiving half of a deflate connection."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        self._input = b""
        self._more = False  # the stream may hold output that did not fit into the window
        self._broken = ""  # why, once everything before the damage was returned

    def feed(self, data: bytes) -> None:
        """Add compressed bytes."""
        self._input += data

    def read(self) -> bytes:
        """Return some decompressed bytes; none once more input is needed."""
        if not self._input and not self._more:
            return b""
        data = b"" if self._broken else self._decompress()
        if not data and self._stream.eof:
            # Peers never end their stream; what follows could be anything.
            raise RemoteProtocolError("deflate stream has ended")
        if not data and self._broken:
            raise RemoteProtocolError(f"deflate stream is damaged: {self._broken}")
        return data

    def _decompress(self) -> bytes:
        before = self._stream.copy()  # zlib returns nothing after an error
        try:
            data = self._stream.decompress(self._input, WINDOW)
        except zlib.error as error:
            self._broken = str(error)
            return self._salvage(before)
        self._input = self._stream.unconsumed_tail
        self._more = len(data) == WINDOW or self._stream.eof
        return data

    def _salvage(self, before: Any) -> bytes:
        """Return the output of the longest input that decodes without the error."""
        good, bad = 0, len(self._input)
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                before.copy().decompress(self._input[:middle], WINDOW)
                good = middle
            except zlib.error:
                bad = middle
        data: bytes = before.decompress(self._input[:good], WINDOW)
        return data


class SnappyCompressor:
    """The sending half of a snappy connection."""

    def __init__(self) -> None:
        from cramjam import snappy

        self._compress = snappy.compress
        self._begun = False

    def compress(self, data: bytes) -> bytes:
        """Return the bytes to send."""
        chunks = bytes(self._compress(data))
        if self._begun:
            return chunks[len(_STREAM_IDENTIFIER) :]
        self._begun = bool(chunks)  # no input: no output, not even the identifier
        return chunks


class SnappyDecompressor:
    """The receiving half of a snappy connection."""

    def __init__(self) -> None:
        from cramjam import DecompressionError, snappy

        self._decode = snappy.decompress
        self._error: type[Exception] = DecompressionError
        self._buffer = ReceiveBuffer()
        self._skip = 0  # bytes of a skipped chunk that have not arrived yet
        self._identifier = b""  # put before each piece after the stream's own identifier was read
        self._broken = ""  # why, once everything before the damaged chunk was returned

    def feed(self, data: bytes) -> None:
        """Add compressed bytes."""
        self._buffer.feed(data)

    def read(self) -> bytes:
        """Return some decompressed bytes; none once more input is needed."""
        data = b""
        while not data:  # a stream identifier has no content
            if self._broken:
                raise RemoteProtocolError(f"snappy stream is damaged: {self._broken}")
            chunks = self._chunks()
            if not chunks and not self._broken:
                break
            try:
                data = self._decompress(b"".join(chunks)) if chunks else b""
            except self._error:
                data = self._salvage(chunks)
        return data

    def _decompress(self, chunks: bytes) -> bytes:
        data = bytes(self._decode(self._identifier + chunks))
        self._identifier = _STREAM_IDENTIFIER
        return data

    def _salvage(self, chunks: list[bytes]) -> bytes:
        """Return the output of the chunks before the damaged one."""
        data = b""
        for chunk in chunks:  # pragma: no branch (one of them is damaged)
            try:
                data += self._decompress(chunk)
            except self._error as error:
                self._broken = str(error)
                break
        return data

    def _chunks(self) -> list[bytes]:
        """Return complete chunks, up to about a window of output."""
        chunks: list[bytes] = []
        left = WINDOW
        while left > 0 and (chunk := self._chunk()) is not None:
            chunks.append(chunk)
            left -= _expansion(chunk)
        return chunks

    def _chunk(self) -> bytes | None:
        """Return the next complete chunk, without padding; None if more input is needed."""
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
            if 0x80 <= kind <= 0xFE:  # padding and reserved types, which are skipped
                buffer.take(4)
                self._skip = length
                continue
            if length > 4 + _MAX_COMPRESSED:
                self._broken = f"chunk of {length} bytes: must be at most {4 + _MAX_COMPRESSED}"
                return None
            return buffer.read(4 + length)
        return None


def _expansion(chunk: bytes) -> int:
    """Return the uncompressed size that a chunk announces; cramjam limits it to 65536."""
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


Compressor = DeflateCompressor | SnappyCompressor
Decompressor = DeflateDecompressor | SnappyDecompressor
