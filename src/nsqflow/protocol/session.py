"""What the two sides of a connection share: bytes in, events out, bytes to send.

A session does no I/O. Whoever drives it does, at each read:

    session.receive_data(data)
    while events := session.events():
        ...
    transport.write(session.data_to_send())

Call ``events()`` until it returns nothing: a compressed stream is unpacked a window at a
time, so that what is in memory stays bounded however much a few bytes expand. When the
peer breaks the protocol, all events before that come out first, and can be answered; then
``events()`` raises, and goes on raising.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from nsqflow.errors import LocalProtocolError, RemoteProtocolError, ServerError
from nsqflow.protocol.buffer import ReceiveBuffer
from nsqflow.protocol.compression import (
    Compressor,
    Decompressor,
    DeflateCompressor,
    DeflateDecompressor,
    SnappyCompressor,
    SnappyDecompressor,
)

E = TypeVar("E")


class Session(Generic[E]):
    """Buffers, compression and the upgrade to TLS; the subclass parses."""

    def __init__(self, buffer: ReceiveBuffer) -> None:
        self._buffer = buffer  # clear bytes that wait to be parsed
        self._out: list[bytes] = []  # clear bytes that wait to be sent
        self._wire: list[bytes] = []  # bytes as they go onto the wire, before those
        self._compressor: Compressor | None = None
        self._decompressor: Decompressor | None = None
        self._awaiting_tls = False
        self._paused = False  # parsing waits for a call
        self._held: list[E] = []  # events that came of a call, for the next events()
        # Why nothing more is read. It takes effect with the next call of events(): what was
        # read before it is dealt with as if it had not come yet.
        self._last: RemoteProtocolError | ServerError | None = None
        self._stopped = False
        self._eof = False  # no more bytes will come

    # Public methods

    @property
    def compressed(self) -> bool:
        """What arrives is compressed, so that a few bytes may hold any number of events."""
        return self._decompressor is not None

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Take what the transport gave; then ask for ``events()``."""
        if self._awaiting_tls:
            raise LocalProtocolError("TLS handshake pending: these bytes belong to it")
        if self._last is None and not self._stopped:
            (self._decompressor or self._buffer).feed(bytes(data))  # bytes are not copied

    def receive_eof(self) -> None:
        """Take that the transport will give nothing more; then ask for ``events()``."""
        self._eof = True

    def events(self) -> list[E]:
        """Return what has happened; an empty list once more bytes are needed."""
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
        """Return the bytes to write to the transport, and forget them."""
        self._encode()
        wire, self._wire = self._wire, []
        return wire[0] if len(wire) == 1 else b"".join(wire)

    def tls_started(self) -> None:
        """Say that the TLS handshake which ``StartTls`` asked for is done."""
        if not self._awaiting_tls:
            raise LocalProtocolError("no TLS handshake was pending")
        self._awaiting_tls = self._paused = False
        self._tls_started()

    # Private methods

    @property
    def _reading(self) -> bool:
        """What arrived may be parsed on."""
        return not self._paused and self._last is None

    def _collect(self, events: list[E]) -> None:
        """Add what can be parsed, at most a window of what is compressed."""
        try:
            self._parse(events)
            while not events and self._unpack():
                self._parse(events)
            if self._eof and not events and self._reading:
                self._check_end()
        except RemoteProtocolError as error:
            self._last = error

    def _parse(self, events: list[E]) -> None:
        """Add the events in the clear bytes; raise ``RemoteProtocolError``."""
        raise NotImplementedError

    def _end(self, error: RemoteProtocolError | ServerError) -> None:
        """Do what is to be done when the connection has come to an end."""
        raise NotImplementedError

    def _check_end(self) -> None:
        """Raise ``RemoteProtocolError`` if the peer left off where it must be told so."""

    def _tls_started(self) -> None:
        """Go on with the negotiation, if it is this side's turn."""

    def _stop(self) -> None:
        """Take nothing more in: the connection has come to an end."""
        self._stopped = True
        self._buffer.drain()
        self._decompressor = None

    def _encode(self) -> None:
        """Turn what waits to be sent into what goes onto the wire."""
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._wire.append(self._compressor.compress(data) if self._compressor else data)

    def _read_magic(self, expected: bytes) -> bool:
        """Consume the four bytes that a connection begins with, once they are here."""
        magic = self._buffer.read(4) if self._buffer.ready() else None
        if magic not in (None, expected):
            raise RemoteProtocolError("", "E_BAD_PROTOCOL")
        return magic is not None

    def _unpack(self) -> bool:
        """Turn some compressed bytes into clear ones."""
        if self._decompressor is None or not self._reading:
            return False
        data = self._decompressor.read()
        self._buffer.feed(data)
        return bool(data)

    def _await_tls(self) -> bytes:
        """Stop parsing; return the bytes that are TLS already."""
        self._awaiting_tls = self._paused = True
        return self._buffer.drain()

    def _compress(self, method: str, level: int) -> None:
        """Switch both directions: what was queued before goes out as it is."""
        self._encode()
        if method == "snappy":
            self._compressor, self._decompressor = SnappyCompressor(), SnappyDecompressor()
        else:
            # A redesigned server that was told no level answers 0 and compresses all the same.
            level = level if 1 <= level <= 9 else 6
            self._compressor, self._decompressor = DeflateCompressor(level), DeflateDecompressor()
        self._decompressor.feed(self._buffer.drain())
