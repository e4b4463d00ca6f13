"""TLS of a server, between the transport of a connection and its protocol.

A loop that is given ``ssl`` tells nobody of a connection before its handshake is done, so those
that never do it could be neither counted nor ended. With this layer the protocol has the
connection from its beginning. ``ssl.SSLObject`` does the cryptography.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from typing import Any, cast

from nsqflow.http.guests import address_of

logger = logging.getLogger("nsqflow.http.server")

_HANDSHAKE_TIMEOUT = 5.0
_READ_SIZE = 64 * 1024


class TlsLayer(asyncio.Transport, asyncio.Protocol):
    """A protocol to the loop, and a transport to ``protocol``, whose client must speak first."""

    def __init__(self, protocol: asyncio.Protocol, context: ssl.SSLContext) -> None:
        super().__init__()
        self._protocol = protocol
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle  # that of the handshake
        self._secure = False
        self._answering: bool | None = None  # though the client has said its last; None: it hasn't

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, and wait for the client's hello."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_HANDSHAKE_TIMEOUT, self._transport.abort)
        self._protocol.connection_made(self)

    def data_received(self, data: bytes) -> None:
        """Go on with the handshake, or hand on what the client says."""
        self._incoming.write(data)
        try:
            if not self._secure:
                self._tls.do_handshake()
                self._secure = True
                self._timer.cancel()
            self._read()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._fail(error)

    def eof_received(self) -> bool:
        """Let the protocol decide whether there is more to say."""
        return self._hear_the_last()

    def pause_writing(self) -> None:
        """Hear no more either: TLS answers some things by itself, without the protocol."""
        self._transport.pause_reading()
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Go on."""
        self._transport.resume_reading()
        self._protocol.resume_writing()  # which may want to hear nothing yet

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave nothing behind."""
        self._timer.cancel()
        self._protocol.connection_lost(exc)

    # What the protocol calls

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the connection."""
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Whether it ends."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Hear no more for a while; what has come already is still handed on."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on."""
        self._transport.resume_reading()

    def can_write_eof(self) -> bool:
        """TLS has no half-closed connections."""
        return False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send."""
        if self._transport.is_closing():
            return
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            self._fail(error)
        else:
            self._flush()

    def close(self) -> None:
        """Send what is unsent, say goodbye without waiting for the client's, and end."""
        if self._transport.is_closing():
            return
        if self._secure:
            with contextlib.suppress(ssl.SSLError):  # it would like to wait
                self._tls.unwrap()
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """End now."""
        self._transport.abort()

    # Private methods

    def _read(self) -> None:
        while self._answering is None and not self._transport.is_closing():
            if data := self._tls.read(_READ_SIZE):
                self._protocol.data_received(data)
            elif not self._hear_the_last():
                self.close()

    def _hear_the_last(self) -> bool:
        """Tell the protocol, once; gives whether it has something to answer."""
        if self._answering is None:
            self._answering = bool(self._protocol.eof_received())
        return self._answering

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._transport.write(data)

    def _fail(self, error: ssl.SSLError) -> None:
        what = "error" if self._secure else "handshake error"
        logger.warning("HTTPS: TLS %s from %s: %s", what, address_of(self._transport), error)
        if self._secure:
            self._transport.abort()
        else:
            self._flush()  # by which the client learns of it, within the time of the handshake
            self._transport.close()
