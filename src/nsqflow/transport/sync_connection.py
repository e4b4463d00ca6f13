"""A blocking connection to one nsqd, for code that has a thread of its own.

A Spark task pulls, writes and answers in turn and needs no event loop: this is a socket and a
``ClientSession``, and every wait has a timeout.
"""

from __future__ import annotations

import logging
import select
import socket
from collections import deque
from collections.abc import Iterable
from time import monotonic

from nsqflow.address import TcpAddress, map_address, parse_address
from nsqflow.errors import NetworkError, NsqError, RemoteProtocolError, ServerError
from nsqflow.protocol import (
    ClientSession,
    Command,
    CommandFailed,
    CompressionRefused,
    Event,
    Heartbeat,
    IdentifyReply,
    Sub,
)
from nsqflow.transport.handshake import (
    ConnectionSettings,
    HandshakeStep,
    OptionalRefused,
    handshake,
)
from nsqflow.transport.plaintext import warn_of_plaintext_auth

logger = logging.getLogger(__name__)

_READ_SIZE = 256 * 1024  # larger reads are no faster, and keep larger buffers


class SyncConnection:
    """A blocking connection to one nsqd; ``open`` creates it."""

    def __init__(self, address: str, settings: ConnectionSettings) -> None:
        self.address = address
        self.session = ClientSession(settings.identify, dialect=settings.dialect)
        self._settings = settings
        self._socket: socket.socket | None = None
        self._unsent: deque[memoryview] = deque()
        self._replies: deque[Event] = deque()  # events that the handshake has not handled yet
        self._error: NsqError | None = None  # why it can no longer be used
        # What a non-blocking socket raises instead of waiting; TLS sockets raise others.
        self._would_block: tuple[type[OSError], ...] = (BlockingIOError,)

    @classmethod
    def open(
        cls,
        address: str,
        settings: ConnectionSettings,
        subscription: Sub | None = None,
        *,
        timeout: float | None = None,
    ) -> SyncConnection:
        """Connect, negotiate, and subscribe if asked to, within ``timeout`` or ``dial_timeout``.

        Raises ``NetworkError``, ``ServerError``, ``RemoteProtocolError`` or ``ConfigError``,
        which name the address, and leaves no socket open then.
        """
        deadline = monotonic() + (settings.dial_timeout if timeout is None else timeout)
        while True:
            connection = cls(address, settings)
            try:
                connection._open(subscription, deadline)
                return connection
            except OptionalRefused as refused:
                connection.close()
                settings = refused.fallback
            except BaseException:
                connection.close()
                raise

    # Public methods

    @property
    def reply(self) -> IdentifyReply:
        """Nsqd's reply to IDENTIFY."""
        return self.session.reply

    def send(self, *commands: Command) -> None:
        """Queue commands and write them."""
        self._raise_error()
        for command in commands:
            self.session.send(command)
        self.flush()

    def write(self) -> bool:
        """Write what the socket accepts without waiting; return whether that was all.

        If it fails, ``receive()`` raises the reason.
        """
        if data := self.session.data_to_send():
            self._unsent.append(memoryview(data))
        while self._unsent and self._error is None:
            assert self._socket is not None
            piece = self._unsent[0]
            try:
                sent = self._socket.send(piece)
            except self._would_block:
                return False
            except OSError as error:
                self._read_pending_error(error)
                return False
            if sent < len(piece):
                self._unsent[0] = piece[sent:]
            else:
                self._unsent.popleft()
        return not self._unsent

    def flush(self, timeout: float = 30.0) -> None:
        """Write all that the session has queued.

        While the socket accepts no more, what arrives is read: nsqd may stop reading until its
        own output is read. Those events are returned by the next ``receive()``, even if this
        raises ``NetworkError``.
        """
        deadline = monotonic() + timeout
        while not self.write():
            self._raise_error()
            if monotonic() >= deadline:
                size = sum(map(len, self._unsent))
                text = f"{self.address}: {size} bytes not accepted within {timeout:g} s"
                self._error = NetworkError(text)
                raise self._error
            self._wait(deadline)
            self._read()
        self._raise_error()

    def receive(self, timeout: float) -> list[Event]:
        """Return the events that have arrived, or wait for some; none after ``timeout``.

        Heartbeats are answered and left out. If the connection is lost, this raises
        ``NetworkError`` once the events before it were returned; if nsqd closes it with an error,
        the last event is its ``CommandFailed``, and the next call raises that error.
        """
        deadline = monotonic() + timeout
        late = False
        while not (events := self._events()) and not late:
            self._raise_error()
            if not self._read():
                self._wait(deadline)
            self.write()
            late = monotonic() >= deadline
        return events

    def register(self, poll: select.poll) -> None:
        """Have ``poll`` wait until this can be read, or written if something is unsent."""
        if self._socket is not None:
            poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))

    def close(self) -> None:
        """Close the connection; what nsqd has not read yet may be lost."""
        if self._error is None:
            self._error = NetworkError(f"{self.address}: closed on this side")
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._unsent.clear()

    # Private methods: opening

    def _open(self, subscription: Sub | None, deadline: float) -> None:
        try:
            server_name = self._dial(deadline)
            self._shake_hands(subscription, server_name, deadline)
        except (OSError, UnicodeError) as error:  # of TLS too, or a name that DNS can't have
            raise NetworkError(f"{self.address}: {error}") from error

    def _dial(self, deadline: float) -> str:
        """Connect the socket; return the name that the server's certificate must have."""
        target = parse_address(map_address(self.address, self._settings.address_map))
        if isinstance(target, TcpAddress):
            self._socket = socket.create_connection(target, _left(deadline))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            server_name = target.host
        else:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(_left(deadline))
            self._socket.connect(target.path)
            server_name = "localhost"
        self._socket.setblocking(False)
        return server_name

    def _shake_hands(self, subscription: Sub | None, server_name: str, deadline: float) -> None:
        steps = handshake(self.address, self._settings, self.session, subscription)
        event: Event | None = None
        while True:
            try:
                step = steps.send(event)
            except StopIteration:
                return
            except ServerError as error:
                raise self._with_address(error) from None
            if step is HandshakeStep.START_TLS:
                self._start_tls(server_name, deadline)
                event = None
                continue
            if step is HandshakeStep.AUTH and self._settings.tls is None:
                warn_of_plaintext_auth(self.address, self._peer())
            event = self._next_reply(deadline)

    def _next_reply(self, deadline: float) -> Event:
        if not self._replies:
            self.flush(_left(deadline))
            self._replies.extend(self.receive(_left(deadline)))
        if not self._replies:
            raise NetworkError(f"{self.address}: no response in time while connecting")
        event = self._replies.popleft()
        if isinstance(event, CompressionRefused):
            logger.warning(
                "%s does not support %s; continuing without compression", self.address, event.method
            )
        return event

    def _start_tls(self, server_name: str, deadline: float) -> None:
        import ssl  # most connections need no TLS

        assert self._settings.tls is not None
        assert self._socket is not None
        context = self._settings.tls()
        self._socket.settimeout(_left(deadline))
        self._socket = context.wrap_socket(self._socket, server_hostname=server_name)
        self._socket.setblocking(False)
        self._would_block = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self.session.tls_started()

    def _peer(self) -> object:
        assert self._socket is not None
        try:
            return self._socket.getpeername()
        except OSError:  # nsqd has closed it; sending fails with the reason
            return None

    # Private methods: bytes

    def _events(self) -> list[Event]:
        """Return the session's events, and write its answers to heartbeats."""
        try:
            events = self.session.events()
        except RemoteProtocolError as error:
            self._error = type(error)(f"{self.address}: {error.text}", error.code)
            return []
        if not events:
            return events
        self.write()
        last = events[-1]
        if isinstance(last, CommandFailed) and last.closes:
            self._error = self._with_address(last.error)
        return [event for event in events if not isinstance(event, Heartbeat)]

    def _read(self) -> bool:
        """Pass received bytes to the session; return whether there were any, or the end."""
        if self._error is not None:
            return True
        assert self._socket is not None
        size = 0
        while size < _READ_SIZE:
            try:
                data = self._socket.recv(_READ_SIZE)
            except self._would_block:
                return size > 0
            except OSError as error:
                self._error = NetworkError(f"{self.address}: {error}")
                return True
            if not data:
                self._error = NetworkError(f"{self.address}: closed by nsqd")
                return True
            self.session.receive_data(data)
            size += len(data)
        return True

    def _read_pending_error(self, error: OSError) -> None:
        """Read what arrived before a write failed: an error frame says why nsqd closed."""
        while self._error is None and self._read():
            pass
        self._error = NetworkError(f"{self.address}: {error}")

    def _wait(self, deadline: float) -> None:
        wait_for_any([self], deadline - monotonic())

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _with_address(self, error: ServerError) -> ServerError:
        return type(error)(error.code, f"{error.text} (from {self.address})".lstrip())


def wait_for_any(connections: Iterable[SyncConnection], timeout: float) -> None:
    """Wait until one of them can be read, or written if something is unsent."""
    poll = select.poll()
    for connection in connections:
        connection.register(poll)
    poll.poll(max(0, 1000 * timeout))


def _left(deadline: float) -> float:
    # A socket with timeout 0 would not wait, and raise a different error.
    return max(0.001, deadline - monotonic())
