"""The common part of both sides of a connection: takes bytes, returns events and bytes to send.

A session does no I/O. On each read, its connection does:

    session.receive_data(data)
    while events := session.events():
        ...
    transport.write(session.data_to_send())

Call ``events()`` until it returns nothing: a compressed stream is decompressed one window at a
time, so that memory stays limited however much a few bytes expand. If the peer breaks the protocol,
all events before that are returned first, and can be answered; then ``events()`` raises, and so
does every later call.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from nsqflow.errors import LocalProtocolError, RemoteProtocolError, ServerError
from nsqflow.protocol.compression import (
    Compressor,
    Decompressor,
    DeflateCompressor,
    DeflateDecompressor,
    SnappyCompressor,
    SnappyDecompressor,
)
from nsqflow.protocol.frames import ReceiveBuffer

E = TypeVar("E")


class Session(Generic[E]):
    """Buffers, compression and the upgrade to TLS; subclasses parse."""

    def __init__(self, buffer: ReceiveBuffer) -> None:
        self._buffer = buffer  # decompressed bytes to be parsed
        self._out: list[bytes] = []  # bytes to be compressed and sent
        self._wire: list[bytes] = []  # bytes to be sent before those, compressed if necessary
        self._compressor: Compressor | None = None
        self._decompressor: Decompressor | None = None
        self._awaiting_tls = False
        self._paused = False  # parsing waits for a call of the connection
        self._held: list[E] = []  # events caused by a call, for the next events()
        # Why nothing more is read. It takes effect with the next call of events(), so that events
        # before it are handled first.
        self._last: RemoteProtocolError | ServerError | None = None
        self._stopped = False
        self._eof = False  # no more bytes will arrive

    # Public methods

    @property
    def compressed(self) -> bool:
        """Whether input is compressed, so that a few bytes may hold any number of events."""
        return self._decompressor is not None

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Add received bytes; then call ``events()``."""
        if self._awaiting_tls:
            raise LocalProtocolError("TLS handshake pending: these bytes are part of it")
        if self._last is None and not self._stopped:
            (self._decompressor or self._buffer).feed(bytes(data))  # bytes are not copied

    def receive_eof(self) -> None:
        """Record the end of input; then call ``events()``."""
        self._eof = True

    def events(self) -> list[E]:
        """Return the next events; an empty list if more bytes are needed."""
        events, self._held = self._held, []
        if self._last is None and not self._stopped:
            self._collect(events)
        if events or self._last is None:
            return events
        if not self._stopped:
            self._stop()
            self._end(self._last)
        if isinstance(self._last, RemoteProtocolError):
            raise self._last
        return []

    def data_to_send(self) -> bytes:
        """Return the bytes to write, and clear them."""
        self._encode()
        wire, self._wire = self._wire, []
        return wire[0] if len(wire) == 1 else b"".join(wire)

    def tls_started(self) -> None:
        """Continue after the TLS handshake that ``StartTls`` requested."""
        if not self._awaiting_tls:
            raise LocalProtocolError("no TLS handshake was pending")
        self._awaiting_tls = self._paused = False
        self._tls_started()

    # Private methods

    @property
    def _reading(self) -> bool:
        """Whether parsing may continue."""
        return not self._paused and self._last is None

    def _collect(self, events: list[E]) -> None:
        """Add the events that can be parsed, from at most a window of compressed input."""
        try:
            self._parse(events)
            while not events and self._unpack():
                self._parse(events)
            if self._eof and not events and self._reading:
                self._check_end()
        except RemoteProtocolError as error:
            self._last = error

    def _parse(self, events: list[E]) -> None:
        """Add the events in the buffer; raise ``RemoteProtocolError`` for invalid input."""
        raise NotImplementedError

    def _end(self, error: RemoteProtocolError | ServerError) -> None:
        """Clean up after the end of the connection."""
        raise NotImplementedError

    def _check_end(self) -> None:
        """Raise ``RemoteProtocolError`` if the input ended where the peer gets an error."""

    def _tls_started(self) -> None:
        """Continue the negotiation, if it is this side's turn."""

    def _stop(self) -> None:
        """Read nothing more: the connection has ended."""
        self._stopped = True
        self._buffer.drain()
        self._decompressor = None

    def _encode(self) -> None:
        """Move queued bytes to those to be sent, compressed if necessary."""
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._wire.append(self._compressor.compress(data) if self._compressor else data)

    def _read_magic(self, expected: bytes) -> bool:
        """Consume the four bytes that begin a connection; return whether they have arrived."""
        magic = self._buffer.read(4) if self._buffer.ready() else None
        if magic not in (None, expected):
            raise RemoteProtocolError("", "E_BAD_PROTOCOL")
        return magic is not None

    def _unpack(self) -> bool:
        """Decompress some input into the buffer; return whether there was any."""
        if self._decompressor is None or not self._reading:
            return False
        data = self._decompressor.read()
        self._buffer.feed(data)
        return bool(data)

    def _await_tls(self) -> bytes:
        """Stop parsing; return the bytes that already belong to TLS."""
        self._awaiting_tls = self._paused = True
        return self._buffer.drain()

    def _compress(self, method: str, level: int) -> None:
        """Compress both directions from now on; what was queued before is sent uncompressed."""
        self._encode()
        if method == "snappy":
            self._compressor, self._decompressor = SnappyCompressor(), SnappyDecompressor()
        else:
            # A redesigned server that got no level replies 0, but compresses.
            level = level if 1 <= level <= 9 else 6
            self._compressor, self._decompressor = DeflateCompressor(level), DeflateDecompressor()
        self._decompressor.feed(self._buffer.drain())
