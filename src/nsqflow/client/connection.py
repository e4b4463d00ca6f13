"""One connection to one nsqd: moves bytes between a socket and a ``ClientSession``.

It negotiates (TLS, compression, AUTH) when it is opened, tells its owner what arrives
afterwards, and notices a peer that has fallen silent. Commands are queued in the session;
``flush()`` writes all of them at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from typing import cast

from nsqflow.client.config import ClientConfig
from nsqflow.client.dialling import dial
from nsqflow.client.owner import Owner
from nsqflow.client.silence import Silence
from nsqflow.errors import (
    ConfigError,
    NetworkError,
    NsqError,
    ProtocolError,
    RemoteProtocolError,
    ServerError,
    TlsNotGrantedError,
)
from nsqflow.protocol import (
    AnswerFailed,
    Auth,
    Authenticated,
    ClientSession,
    CloseWait,
    Command,
    CommandFailed,
    CompressionRefused,
    Connected,
    Dialect,
    Event,
    IdentifyReply,
    MessageBatch,
    Published,
    StartTls,
    Sub,
    Subscribed,
)

logger = logging.getLogger(__name__)

_LAST_WORDS = 64 * 1024  # bytes read at a time
_GONE = 1.0  # seconds in which a transport that was aborted calls back, at the very latest
# Seconds after which unpacking a compressed stream lets others have their turn. The clock is
# looked at between windows of 256 KiB, so a slice can take longer by one of them.
_SLICE = 0.01
_FINAL_CODES = ("E_BAD_TOPIC", "E_BAD_CHANNEL", "E_UNAUTHORIZED")


class Connection(asyncio.Protocol):
    """A connection; made new for each attempt."""

    def __init__(
        self, address: str, config: ClientConfig, owner: Owner, tls: ssl.SSLContext | None
    ) -> None:
        self.address = address
        self.session = ClientSession(config.identify(), dialect=config.wire_dialect)
        self.can_write = True
        self.error: NsqError | None = None  # why it ended
        self.command_refused = False  # nsqd closed it over a command that it refused
        self._config = config
        self._owner = owner
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._milestones: asyncio.Queue[Event | NsqError] = asyncio.Queue()
        self._handshake: list[bytes] | None = None  # while it lasts: what came inside TLS
        self._opened = False
        self._finishing = False
        self._aborted = False
        self._rest: asyncio.Handle | None = None  # a turn of the loop to unpack more in
        self._lost = False  # the transport is gone, which is reported after the rest
        self._cause: Exception | None = None
        self._ended = self._loop.create_future()
        self._silence = Silence(self._fell_silent)

    # Public methods

    @property
    def reply(self) -> IdentifyReply:
        """What nsqd granted."""
        return self.session.reply

    @property
    def closed(self) -> bool:
        """It takes nothing more: it is lost, or never began; what came may still be unpacked."""
        return self._transport is None or self._lost or self._over

    async def open(self, subscription: Sub | None = None) -> None:
        """Connect, negotiate, and subscribe if asked to; nothing is left behind on failure."""
        try:
            await self._open(subscription)
            if self.error is not None:  # nsqd took us in and closed in one breath
                raise self.error
        except BaseException:
            await self.drop()
            raise
        self._opened = True
        self._silence.watch(self._config.heartbeat_interval)

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
        """Wait for the answer to CLS."""
        await self._milestone(CloseWait)

    async def finish(self, timeout: float) -> None:
        """Write all there is, then close; wait until nsqd has read it, as far as it tells."""
        transport = self._transport
        if transport is None or self._over:
            return
        self.flush()
        self._finishing = True  # a heartbeat that comes now is not answered any more
        if self._lost:
            pass  # what came before is still unpacked
        elif transport.can_write_eof():
            # Half a close: nsqd reads to the end, then closes its side, which we see.
            transport.write_eof()
        else:
            transport.close()
        await asyncio.wait([self._ended], timeout=timeout)
        await self.drop()

    async def drop(self) -> None:
        """Drop the connection at once, and wait until its socket is closed."""
        self.abort()
        if self._transport is not None:
            # (In the midst of a TLS handshake asyncio closes it without a word.)
            gone = _GONE if self._handshake is None else 0
            await asyncio.wait([self._ended], timeout=gone)

    async def wait_ended(self) -> NsqError:
        """Wait until it has ended; tell why."""
        await asyncio.shield(self._ended)
        return self.error or NetworkError(f"{self.address}: closed")

    def abort(self, error: NsqError | None = None) -> None:
        """Drop the connection at once."""
        if self.error is None:
            self.error = error
        self._silence.cancel()
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport: the socket's, and later the one of TLS."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """Parse what came, tell the owner, answer heartbeats."""
        self._silence.last_read = now = self._loop.time()
        try:
            self.session.receive_data(data)
        except ProtocolError as error:
            if self._handshake is None:
                self._break_off(error)
            else:
                self._handshake.append(data)
            return
        if self._rest is None:  # else it comes after what is unpacked first
            self._hand_on(now)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner that it is over."""
        self._silence.cancel()
        self._lost, self._cause = True, exc
        if exc is not None and self.error is None:
            self._read_last_words()
        self._finishing = True  # nothing can be written any more
        if self._rest is None or self._aborted:
            self._end()

    def pause_writing(self) -> None:
        """Hold back: the other side does not keep up."""
        self.can_write = False

    def resume_writing(self) -> None:
        """Go on."""
        self.can_write = True
        self._owner.writable()

    @property
    def _over(self) -> bool:
        """Its owner hears nothing more of it."""
        return self._ended.done() or self.error is not None

    # Private methods: what arrives

    def _hand_on(self, now: float) -> None:
        """Handle what has arrived; of a compressed stream as much as fits into a slice."""
        session, owner = self.session, self._owner
        try:
            while events := session.events():
                for event in events:
                    if type(event) is MessageBatch:
                        owner.messages_received(event)
                    else:
                        self._handle(event)
                    if self._aborted:  # by the owner, or over this event
                        return
                # A peer may pack gigabytes into what is read at once: others get their turn.
                if session.compressed and self._loop.time() - now >= _SLICE:
                    self._yield()
                    break
        except ProtocolError as error:
            self._break_off(error)
        else:
            self.flush()

    def _yield(self) -> None:
        """Go on in a later turn of the loop, and read nothing meanwhile."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._rest = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Unpack the next slice; after the last one read on, or report the end."""
        self._rest = None
        if not self._aborted:
            self._silence.last_read = now = self._loop.time()  # silent it is not
            try:
                self._hand_on(now)
            except Exception as error:  # as a transport does where data_received raises
                self.abort(NetworkError(f"{self.address}: {error}"))
                self._loop.call_exception_handler({"message": "reading failed", "exception": error})
        if self._rest is not None:
            return
        if self._lost:
            self._end()
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _end(self) -> None:
        if self.error is None:
            self.error = NetworkError(f"{self.address}: {self._cause or 'closed by nsqd'}")
        self._milestones.put_nowait(self.error)
        if not self._ended.done():
            self._ended.set_result(None)
            if self._opened:
                self._owner.connection_lost(self.error)

    # Private methods

    async def _open(self, subscription: Sub | None) -> None:
        seconds = self._config.dial_timeout
        try:
            async with asyncio.timeout(seconds):
                self._server_name = await dial(self, self.address, self._config.address_map)
                await self._negotiate()
                if subscription is not None:
                    await self._subscribe(subscription)
        except TimeoutError:
            text = f"{self.address}: not ready within the dial_timeout of {seconds:g} s"
            raise NetworkError(text) from None
        except (OSError, UnicodeError) as error:  # of TLS too, or a name that DNS can't have
            raise NetworkError(f"{self.address}: {error}") from error

    async def _negotiate(self) -> None:
        self.flush()
        event = await self._milestone(StartTls, Connected)
        if isinstance(event, StartTls):
            await self._start_tls(event)
            event = await self._milestone(Connected)
        assert isinstance(event, Connected)
        if event.reply.dialect is Dialect.REDESIGNED:
            raise ConfigError(
                f"{self.address} is an nsqd of the redesigned NSQ (version "
                f"{event.reply.version}): its topics are found through lookupd="
            )
        if event.reply.auth_required:
            await self._authenticate()

    async def _start_tls(self, event: StartTls) -> None:
        if event.pending:
            raise RemoteProtocolError(f"{self.address}: bytes between IDENTIFY's answer and TLS")
        assert self._tls is not None
        assert self._transport is not None
        self._handshake = []
        transport = await self._loop.start_tls(
            self._transport, self, self._tls, server_hostname=self._server_name
        )
        assert transport is not None
        self._transport = transport
        self.session.tls_started()
        # With TLS 1.2 the server's first word may come in one piece with its last of the handshake.
        early, self._handshake = self._handshake, None
        for data in early:
            self.data_received(data)

    async def _authenticate(self) -> None:
        secret = self._config.secret
        if secret is None:
            raise ConfigError(f"{self.address} asks for AUTH, and there is no auth_secret")
        self.send(Auth(secret))
        await self._milestone(Authenticated)

    async def _subscribe(self, subscription: Sub) -> None:
        most = self.reply.max_rdy_count
        if most < 1:
            raise RemoteProtocolError(f"{self.address}: max_rdy_count of {most}; 1 or more")
        self.send(subscription)
        await self._milestone(Subscribed)

    async def _milestone(self, *expected: type[Event]) -> Event:
        while True:
            event = await self._milestones.get()
            if isinstance(event, Exception):
                raise event
            if isinstance(event, expected):
                return event

    def _handle(self, event: Event) -> None:
        if type(event) is Published:
            self._owner.published(event.receipt)
        elif type(event) is AnswerFailed:
            self._owner.answer_failed(event)
        elif type(event) is CommandFailed:
            self._command_failed(event)
        elif type(event) is CompressionRefused:
            logger.warning("%s does not do %s; going on without", self.address, event.method)
        elif type(event) in (StartTls, Connected, Authenticated, Subscribed, CloseWait):
            self._milestones.put_nowait(event)

    def _command_failed(self, event: CommandFailed) -> None:
        if self._opened:
            self._owner.command_failed(event)
        if event.closes:
            self.command_refused = event.command is not None
            self._break(self._in_words(event))

    def _in_words(self, event: CommandFailed) -> NsqError:
        if event.command == "IDENTIFY":
            # An option that this server does not take; its text says which.
            return ConfigError(f"{self.address} refused the options: {event.error}")
        return event.error

    def _read_last_words(self) -> None:
        """Read what has arrived before a write failed: an error frame says why nsqd closed."""
        transport = self._transport
        if transport is None or transport.get_extra_info("ssl_object") is not None:
            return
        self._finishing = True
        with contextlib.suppress(OSError):
            while data := os.read(transport.get_extra_info("socket").fileno(), _LAST_WORDS):
                self.data_received(data)

    def _fell_silent(self, seconds: float) -> None:
        self._break(NetworkError(f"{self.address}: silent for {seconds:.0f} s, heartbeats missing"))

    def _break_off(self, error: ProtocolError) -> None:
        error.add_note(f"from {self.address}")
        self._break(error)

    def _break(self, error: NsqError) -> None:
        """End it: nothing sensible can follow."""
        if self.error is None:
            self.error = error
        self._aborted = True
        self._milestones.put_nowait(self.error)
        if self._transport is not None:
            self._transport.abort()


def is_final(error: BaseException) -> bool:
    """Tell whether trying again can't help: the request itself is refused."""
    if isinstance(error, ServerError):
        return error.code in _FINAL_CODES or error.code.startswith("E_AUTH")
    return isinstance(error, ConfigError | TlsNotGrantedError)
