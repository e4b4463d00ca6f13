"""An asyncio connection to one nsqd: moves bytes between a socket and a ``ClientSession``.

``open()`` connects and runs the handshake. From then on the connection reports what arrives to
its ``ConnectionHandler``, and closes when nsqd falls silent. Commands are queued in the session;
``flush()`` writes all of them at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Any, cast

from nsqflow.address import join_address
from nsqflow.errors import NetworkError, NsqError, ProtocolError
from nsqflow.protocol import (
    AnswerFailed,
    Authenticated,
    ClientSession,
    CloseWait,
    Command,
    CommandFailed,
    CompressionRefused,
    Connected,
    Event,
    IdentifyReply,
    MessageBatch,
    Published,
    StartTls,
    Sub,
    Subscribed,
)
from nsqflow.transport.dial import dial
from nsqflow.transport.handler import ConnectionHandler, ReadTimeout
from nsqflow.transport.handshake import ConnectionSettings, HandshakeStep, handshake, refusal_error
from nsqflow.transport.plaintext import warn_of_plaintext_auth

logger = logging.getLogger(__name__)

_READ_SIZE = 64 * 1024  # bytes, for what is left in the socket after a failed write
_ABORT_TIMEOUT = 1.0  # seconds for an aborted transport to call connection_lost
_SLICE = 0.01  # seconds of decompressing, and one window of 256 KiB, before other tasks run


class Connection(asyncio.Protocol):
    """One connection; each attempt to connect needs a new one."""

    def __init__(
        self, address: str, settings: ConnectionSettings, handler: ConnectionHandler
    ) -> None:
        self.address = address
        self.session = ClientSession(settings.identify, dialect=settings.dialect)
        self.can_write = True
        self.error: NsqError | None = None  # why it ended
        self.command_refused = False  # nsqd closed it because of a refused command
        self._settings, self._handler = settings, handler
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._replies: asyncio.Queue[Event | NsqError] = asyncio.Queue()  # to handshake and CLS
        self._early_data: list[bytes] | None = None  # received inside TLS during its handshake
        self._opened = False
        self._finishing = False
        self._aborted = False
        self._deferred: asyncio.Handle | None = None  # the next slice of decompressing
        self._lost = False  # the transport is closed; reported after the last slice is processed
        self._cause: Exception | None = None
        self._ended = self._loop.create_future()
        self._read_timeout = ReadTimeout(self._read_timed_out)

    # Public methods

    @property
    def reply(self) -> IdentifyReply:
        """Nsqd's reply to IDENTIFY."""
        return self.session.reply

    @property
    def local_address(self) -> str:
        """Our end of the connection: ``host:port``, empty for a unix socket."""
        name = self._transport and self._transport.get_extra_info("sockname")
        return join_address(name[0], name[1]) if isinstance(name, tuple) else ""

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent; received data may still be decompressed."""
        return self._transport is None or self._lost or self._over

    async def open(self, subscription: Sub | None = None) -> None:
        """Connect, negotiate, and subscribe if asked to; on failure, close the socket."""
        try:
            await self._open(subscription)
            if self.error is not None:  # nsqd closed the connection right after its last reply
                raise self.error
        except BaseException:
            await self.drop()
            raise
        self._opened = True
        if (timeout := self._settings.read_timeout) is not None:
            self._read_timeout.start(timeout)

    def send(self, command: Command) -> None:
        """Queue a command and write it."""
        self.session.send(command)
        self.flush()

    def flush(self) -> None:
        """Write what the session has queued, in one piece."""
        data = self.session.data_to_send()
        if data and self._transport is not None and not self._finishing:
            self._transport.write(data)

    async def close_wait(self) -> None:
        """Wait for the response to CLS."""
        while not isinstance(await self._next_reply(), CloseWait):
            pass

    async def finish(self, timeout: float) -> None:
        """Write what is queued, close, and wait until nsqd has read it, if that can be detected."""
        transport = self._transport
        if transport is None or self._over:
            return
        self.flush()
        self._finishing = True  # heartbeats are no longer answered
        if not self._lost:  # else data that arrived before is still being decompressed
            # Half-close: nsqd reads to the end, then closes its side, which we notice.
            transport.write_eof() if transport.can_write_eof() else transport.close()
        await asyncio.wait([self._ended], timeout=timeout)
        await self.drop()

    async def drop(self) -> None:
        """Close at once, and wait until the socket is closed."""
        self.abort()
        if self._transport is not None:
            # During a TLS handshake asyncio closes it without calling back.
            timeout = _ABORT_TIMEOUT if self._early_data is None else 0
            await asyncio.wait([self._ended], timeout=timeout)

    async def wait_ended(self) -> NsqError:
        """Wait until the connection has ended; return why."""
        await asyncio.shield(self._ended)
        return self.error or NetworkError(f"{self.address}: closed")

    def abort(self, error: NsqError | None = None) -> None:
        """Close at once."""
        if self.error is None:
            self.error = error
        self._read_timeout.cancel()
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport: the socket's, and later that of TLS."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, pass it to the handler, answer heartbeats."""
        self._read_timeout.last_read = now = self._loop.time()
        try:
            self.session.receive_data(data)
        except ProtocolError as error:
            if self._early_data is None:
                self._fail_protocol(error)
            else:
                self._early_data.append(data)
            return
        if self._deferred is None:  # else data that arrived before is decompressed first
            self._process(now)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end to the handler."""
        self._read_timeout.cancel()
        self._lost, self._cause = True, exc
        if exc is not None and self.error is None:
            self._read_pending_error()
        self._finishing = True  # nothing can be written any more
        if self._deferred is None or self._aborted:
            self._end()

    def pause_writing(self) -> None:
        """Stop writing: nsqd does not keep up."""
        self.can_write = False

    def resume_writing(self) -> None:
        """Continue writing."""
        self.can_write = True
        self._handler.writable()

    # Private methods: opening

    async def _open(self, subscription: Sub | None) -> None:
        seconds = self._settings.dial_timeout
        try:
            async with asyncio.timeout(seconds):
                server_name = await dial(self, self.address, self._settings.address_map)
                await self._shake_hands(subscription, server_name)
        except TimeoutError:
            text = f"{self.address}: not ready within the dial_timeout of {seconds:g} s"
            raise NetworkError(text) from None
        except (OSError, UnicodeError) as error:  # of TLS too, or a name that DNS can't have
            raise NetworkError(f"{self.address}: {error}") from error

    async def _shake_hands(self, subscription: Sub | None, server_name: str) -> None:
        steps = handshake(self.address, self._settings, self.session, subscription)
        event: Event | None = None
        while True:
            try:
                step = steps.send(event)
            except StopIteration:
                return
            if step is HandshakeStep.START_TLS:
                event = None
                await self._start_tls(server_name)
                continue
            if step is HandshakeStep.AUTH and not self._get_info("ssl_object"):
                warn_of_plaintext_auth(self.address, self._get_info("peername"))
            self.flush()
            event = await self._next_reply()

    async def _start_tls(self, server_name: str) -> None:
        assert self._settings.tls is not None
        assert self._transport is not None
        self._early_data = []
        transport = await self._loop.start_tls(
            self._transport, self, self._settings.tls(), server_hostname=server_name
        )
        assert transport is not None
        self._transport = transport
        self.session.tls_started()
        # With TLS 1.2, nsqd's first response may arrive together with the end of the handshake.
        early, self._early_data = self._early_data, None
        for data in early:
            self.data_received(data)

    def _get_info(self, name: str) -> Any:
        return None if self._transport is None else self._transport.get_extra_info(name)

    async def _next_reply(self) -> Event:
        event = await self._replies.get()
        if isinstance(event, Exception):
            raise event
        return event

    # Private methods: receiving

    def _process(self, now: float) -> None:
        """Handle received data; of a compressed stream, one slice."""
        session, handler = self.session, self._handler
        try:
            while events := session.events():
                for event in events:
                    if type(event) is MessageBatch:
                        handler.messages_received(event)
                    else:
                        self._handle(event)
                    if self._aborted:  # by the handler, or because of this event
                        return
                # A peer may pack gigabytes into one read: let other tasks run.
                if session.compressed and self._loop.time() - now >= _SLICE:
                    self._defer()
                    break
        except ProtocolError as error:
            self._fail_protocol(error)
        else:
            self.flush()

    def _defer(self) -> None:
        """Continue in a later iteration of the loop, and read nothing meanwhile."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._deferred = self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        """Decompress the next slice; after the last one, resume reading or report the end."""
        self._deferred = None
        if not self._aborted:
            self._read_timeout.last_read = now = self._loop.time()
            try:
                self._process(now)
            except Exception as error:  # as a transport does if data_received raises
                self.abort(NetworkError(f"{self.address}: {error}"))
                self._loop.call_exception_handler({"message": "reading failed", "exception": error})
        if self._deferred is not None:
            return
        if self._lost:
            self._end()
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _handle(self, event: Event) -> None:
        if type(event) is Published:
            self._handler.published(event.receipt)
        elif type(event) is AnswerFailed:
            self._handler.answer_failed(event)
        elif type(event) is CommandFailed:
            self._command_failed(event)
        elif type(event) is CompressionRefused:
            logger.warning(
                "%s does not support %s; continuing without compression", self.address, event.method
            )
        elif type(event) in (StartTls, Connected, Authenticated, Subscribed, CloseWait):
            self._replies.put_nowait(event)

    def _command_failed(self, event: CommandFailed) -> None:
        if self._opened:
            self._handler.command_failed(event)
        if event.closes:
            self.command_refused = event.command is not None
            self._fail(refusal_error(self.address, self._settings, event))

    # Private methods: closing

    @property
    def _over(self) -> bool:
        """Whether the handler gets no more calls."""
        return self._ended.done() or self.error is not None

    def _read_pending_error(self) -> None:
        """Read what arrived before a write failed: an error frame says why nsqd closed."""
        if self._transport is None or self._get_info("ssl_object") is not None:
            return
        self._finishing = True
        with contextlib.suppress(OSError):
            while data := os.read(self._get_info("socket").fileno(), _READ_SIZE):
                self.data_received(data)

    def _read_timed_out(self, seconds: float) -> None:
        self._fail(NetworkError(f"{self.address}: silent for {seconds:.0f} s, heartbeats missing"))

    def _fail_protocol(self, error: ProtocolError) -> None:
        error.add_note(f"from {self.address}")
        self._fail(error)

    def _fail(self, error: NsqError) -> None:
        """Close because of an error."""
        if self.error is None:
            self.error = error
        self._aborted = True
        self._replies.put_nowait(self.error)
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        if self.error is None:
            self.error = NetworkError(f"{self.address}: {self._cause or 'closed by nsqd'}")
        self._replies.put_nowait(self.error)
        if not self._ended.done():
            self._ended.set_result(None)
            if self._opened:
                self._handler.connection_lost(self.error)
