"""A client's connection to nsqd."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, cast

from nsqflow.broker.nsqd.command_handler import SubscribedClient
from nsqflow.broker.nsqd.identify import ClientSettings
from nsqflow.broker.nsqd.output import (
    Answer,
    ConnectionTimers,
    HeartbeatTimer,
    OutputBuffer,
    ResponseQueue,
)
from nsqflow.broker.tls import common_name
from nsqflow.errors import RemoteProtocolError
from nsqflow.http.connection_limit import address_of
from nsqflow.protocol import (
    Command,
    Dialect,
    IdentifyReply,
    IdentifyRequest,
    ServerSession,
    ServerState,
    StartTls,
)

if TYPE_CHECKING:
    from nsqflow.broker.auth import AuthState
    from nsqflow.broker.nsqd.server import NsqdServer


class PeerInfo:
    """The peer of a connection: its address and TLS."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self.ip = str(peer[0]) if isinstance(peer, tuple) else ""
        """The host; empty for a unix socket."""
        self.address = address_of(transport)
        """``host:port``; "@" for a unix socket, as Go writes it."""
        self._tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")

    @property
    def tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self._tls is not None

    @property
    def tls_version(self) -> str:
        """The TLS version, as Go's nsqd writes it."""
        return (self._tls.version() or "").replace("TLSv", "TLS") if self._tls else ""

    @property
    def tls_cipher(self) -> str:
        """OpenSSL's name of the cipher suite."""
        cipher = self._tls.cipher() if self._tls else None
        return cipher[0] if cipher else ""

    @property
    def common_name(self) -> str:
        """The common name in the peer's certificate."""
        return common_name(self._tls) if self._tls else ""


_log = logging.getLogger("nsqflow.broker.nsqd")

_TLS_TIMEOUT = 5.0  # seconds for the handshake
_CLOSE_TIMEOUT = 5.0  # seconds for a client to read the last response
_MAX_UNSENT = 1024 * 1024  # bytes; while more are unsent, nothing is read


class ClientConnection(asyncio.Protocol):
    """One connection: reads commands, has them executed, sends responses and messages."""

    dialect: ClassVar[Dialect] = Dialect.CLASSIC
    max_silence: ClassVar[int] = 2
    """The number of heartbeat intervals for which a client may send nothing."""

    def __init__(self, nsqd: NsqdServer) -> None:
        self.nsqd = nsqd
        self.session = ServerSession(
            dialect=self.dialect,
            limits=nsqd.limits,
            tls_required=nsqd.options.tls_required != "",
            gather_fins=True,
        )
        self.settings = ClientSettings.default(nsqd.options)
        self.responses = ResponseQueue()
        self.connect_time = nsqd.now() // 10**9
        self.pub_counts: dict[str, int] = {}
        self.authorization: AuthState | None = None
        self.secret = b""
        self.snappy = self.deflate = False
        self.identify: IdentifyRequest | None = None  # once it was accepted
        self.peer: PeerInfo
        self.writable = True
        """The transport accepts more data."""
        self._timers = ConnectionTimers()
        self.output = OutputBuffer(
            self.session, self.settings, self._timers, lambda: nsqd.faults.delay
        )
        self._heartbeat = HeartbeatTimer(
            self._timers, self._send_heartbeat, self._on_timeout, self.max_silence
        )
        self._commands = nsqd.command_handler(self)
        self._events: deque[Command | StartTls] = deque()
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = (
            None  # a command that waits for the auth server or for TLS
        )
        self._tls_pending: list[bytes] | None = None  # data received during the TLS handshake
        self._eof = False  # the client sends no more
        self._closing = False  # the connection is being closed
        self._closed = asyncio.Event()

    def __str__(self) -> str:
        return self.peer.address

    @property
    def subscriber(self) -> SubscribedClient | None:
        """The subscription, if there is one."""
        return self._commands.subscriber

    # Called by asyncio, and closing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        self._attach(transport)
        if not self.nsqd.accepts_client():
            self.abort()
            return
        self.nsqd.clients.add(self)
        _log.info("TCP: new client(%s)", self)
        self._heartbeat.start(self.settings.heartbeat_interval)

    def data_received(self, data: bytes) -> None:
        """Parse and execute commands."""
        if self._tls_pending is not None:
            self._tls_pending.append(data)
        elif not self._closing:
            self.session.receive_data(data)
            self._process()

    def eof_received(self) -> bool:
        """Close after pending responses are sent."""
        self._eof = True
        if self._tls_pending is None:
            self.session.receive_eof()
            self._process()
        waits = self.responses or self._task or self.output.has_delayed
        return bool(waits) and not self.peer.tls  # TLS has no half-closed connections

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up."""
        if self._closed.is_set():
            return
        self._end()
        self.output.detach()
        self.responses.clear()
        self._timers.cancel_all()
        if self._task is not None:
            self._task.cancel()
        self._commands.leave()
        self.nsqd.clients.discard(self)
        self.nsqd.pump()
        self._closed.set()
        _log.info("PROTOCOL(V2): [%s] exiting ioloop%s", self, f": {error}" if error else "")

    def pause_writing(self) -> None:
        """Send no messages to a client that does not read."""
        self.writable = False
        self._commands.block(True)
        self._watch_writes(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Continue: the client reads again."""
        self.writable = True
        self._timers.cancel("write")
        self._commands.block(False)
        self._process()

    def abort(self) -> None:
        """Close without sending what is buffered."""
        self._end()
        self._transport.abort()

    def close(self) -> None:
        """Close after everything is sent."""
        if self._closing:
            return
        self.output.flush()
        self._end()
        self._timers.cancel_all()
        self.output.when_written(self._close_transport)

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        await self._closed.wait()

    # For commands

    def respond(self, data: bytes = b"OK") -> None:
        """Respond to a command that succeeded."""
        self.responses.send_in_order(lambda: self.session.send_response(data))

    def respond_later(self) -> Callable[[Answer], None]:
        """Reserve the position of a response; return the function that sends it."""
        pending = self.responses.reserve()

        def respond(answer: Answer) -> None:
            self.responses.resolve(pending, answer)
            if len(self.responses) == 0:
                self._process()

        return respond

    def fail_in_order(self, code: str, text: str) -> None:
        """Respond with an error and close, when it is this response's turn."""
        self.session.fail(code, text)
        self.responses.clear()  # nothing follows an error that closes the connection

    def fail(self, code: str, text: str) -> None:
        """Respond with an error and close the connection."""
        _log.error("[%s] - %s %s", self, code, text)
        self._events.clear()
        self.responses.send_in_order(lambda: self.fail_in_order(code, text))

    def send(self, messages: Any) -> None:
        """Send what the engine delivers: here, a sequence of messages."""
        assert self.subscriber is not None
        self.output.send_messages(messages, more=self.subscriber.capacity > 0)

    def identified(self, settings: ClientSettings, reply: IdentifyReply) -> None:
        """Apply the negotiated settings."""
        self.identify = self.session.identify
        self.settings = self.output.settings = settings
        if self.session.identify.feature_negotiation:
            self.snappy, self.deflate = reply.snappy, reply.deflate
        self.responses.send_in_order(lambda: self.session.accept_identify(reply))
        self._heartbeat.start(settings.heartbeat_interval)

    async def start_tls(self, event: StartTls) -> None:
        """Upgrade the connection to TLS."""
        assert self.nsqd.tls is not None
        self.output.flush()
        if event.pending:
            # The client did not wait for the response to IDENTIFY; nsqd loses these bytes too.
            self.abort()
            return
        self._tls_pending = []
        error: Exception | None = None
        transport = None
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self._transport,
                self,
                self.nsqd.tls,
                server_side=True,
                ssl_handshake_timeout=_TLS_TIMEOUT,
            )
        except (OSError, ssl.SSLError) as failure:
            _log.error("[%s] - TLS handshake failed: %s", self, failure)
            error = failure
        if transport is None or transport.is_closing() or self._closing:
            # asyncio does not call connection_lost() if a connection ends during the handshake.
            self.abort()
            self.connection_lost(error)
            return
        self._attach(transport)
        self.responses.send_in_order(self.session.tls_started)
        pending, self._tls_pending = self._tls_pending, None
        self.session.receive_data(b"".join(pending))

    # Private methods

    def _attach(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.peer = PeerInfo(transport)
        self.output.attach(self._transport)

    def _process(self) -> None:
        """Parse and execute what was received, as far as possible now, and send responses."""
        try:
            while self._task is None and not self._closing:
                # While responses are pending nothing is parsed: an error in it must not overtake
                # them.
                if not self._events and not self.responses:
                    self._events.extend(self.session.events())
                if not self._events:
                    break
                self._heartbeat.reset()
                if (pending := self._commands.run(self._events)) is not None:
                    self._wait_for(pending)
        except RemoteProtocolError as error:
            _log.error("[%s] - %s", self, error)
        failed = self.session.state is ServerState.FAILED
        if not self.responses and (failed or (self._eof and self._task is None)):
            self.close()
        elif not self._closing:
            if self.responses.unflushed:
                self.responses.unflushed = False
                self.output.flush()
            self._update_reading()

    def _wait_for(self, pending: Coroutine[Any, Any, None]) -> None:
        async def wait() -> None:
            try:
                await pending
            finally:
                self._task = None
            self._process()

        self._task = asyncio.get_running_loop().create_task(wait())

    def _update_reading(self) -> None:
        """Pause or resume reading: what can't be processed now stays in the network."""
        unsent = self._transport.get_write_buffer_size()
        paused = bool(self._task or self.responses or unsent > _MAX_UNSENT)
        if paused != self._heartbeat.suspended:
            self._heartbeat.suspend(paused)
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    def _close_transport(self) -> None:
        self._transport.close()
        # A client that never reads must not prevent closing.
        self._timers.set("close", _CLOSE_TIMEOUT, self.abort)

    def _end(self) -> None:
        self._closing = True
        self._commands.close()

    def _send_heartbeat(self) -> None:
        if self._tls_pending is None:  # else it would be plain text during the handshake
            self.session.send_heartbeat()
            self.output.flush()

    def _on_timeout(self) -> None:
        _log.error("client(%s) - failed to read command - i/o timeout", self)
        self.close()

    def _watch_writes(self, unsent: int) -> None:
        """Close the connection if the client reads nothing for a heartbeat interval."""

        def check() -> None:
            left = self._transport.get_write_buffer_size()
            if left < unsent:
                self._watch_writes(left)
            else:
                _log.error("client(%s) - failed to write - i/o timeout", self)
                self.abort()

        if interval := self.settings.heartbeat_interval:
            self._timers.set("write", interval, check)
