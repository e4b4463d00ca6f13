"""One blocking connection to one nsqd, for code that has a thread of its own.

A Spark task pulls, writes and answers in turns, so it needs no event loop: here is a socket, a
``ClientSession``, and waiting that always has an end.
"""

from __future__ import annotations

import logging
import select
import socket
from collections import deque
from collections.abc import Iterable
from time import monotonic
from typing import TypeVar

from nsqflow.client.address import TcpAddress, parse_address
from nsqflow.errors import (
    BadBodyError,
    ConfigError,
    NetworkError,
    NsqError,
    RemoteProtocolError,
    ServerError,
)
from nsqflow.protocol import (
    Auth,
    Authenticated,
    ClientSession,
    Command,
    CommandFailed,
    CompressionRefused,
    Connected,
    Dialect,
    Event,
    Heartbeat,
    IdentifyReply,
    IdentifyRequest,
    StartTls,
    Sub,
    Subscribed,
)
from nsqflow.spark.access import Access
from nsqflow.spark.identify import ask_for_less, identify
from nsqflow.spark.tls import tls_context

logger = logging.getLogger(__name__)

E = TypeVar("E")

_READ_SIZE = 256 * 1024  # larger ones are no faster, and leave larger buffers behind


class Link:
    """One blocking connection to one nsqd; ``open`` makes it."""

    def __init__(self, address: str, request: IdentifyRequest) -> None:
        self.address = address
        self.session = ClientSession(request)
        self._socket: socket.socket | None = None
        self._unsent: deque[memoryview] = deque()
        self._error: NsqError | None = None  # why it is of no more use
        # What a socket raises that has nothing for us now; one with TLS has words of its own.
        self._not_now: tuple[type[OSError], ...] = (BlockingIOError,)

    @classmethod
    def open(
        cls,
        address: str,
        access: Access,
        *,
        topic: str | None = None,
        channel: str | None = None,
        msg_timeout: float | None = None,
        output_buffer_timeout: float | None = None,
        timeout: float = 10.0,
    ) -> Link:
        """Connect, negotiate, and subscribe if a topic and a channel are given.

        Raises ``NetworkError``, ``ServerError``, ``RemoteProtocolError`` or ``ConfigError``,
        which name the address; nothing is left behind then.
        """
        deadline = monotonic() + timeout
        subscription = None if topic is None or channel is None else Sub(topic, channel)
        request = identify(access, msg_timeout, output_buffer_timeout)
        while True:
            link = cls(address, request)
            try:
                link._open(access, subscription, deadline)
                return link
            except BadBodyError as error:
                link.close()
                request = ask_for_less(request, error, address)
            except BaseException:
                link.close()
                raise

    # Public methods

    @property
    def reply(self) -> IdentifyReply:
        """What nsqd granted."""
        return self.session.reply

    def send(self, *commands: Command) -> None:
        """Queue commands and write them."""
        self._raise_error()
        for command in commands:
            self.session.send(command)
        self.flush()

    def write(self) -> bool:
        """Write what the socket takes, without waiting; tell whether that was all.

        If it fails, ``receive()`` says why.
        """
        if data := self.session.data_to_send():
            self._unsent.append(memoryview(data))
        while self._unsent and self._error is None:
            assert self._socket is not None
            piece = self._unsent[0]
            try:
                sent = self._socket.send(piece)
            except self._not_now:
                return False
            except OSError as error:
                self._read_last_words(error)
                return False
            if sent < len(piece):
                self._unsent[0] = piece[sent:]
            else:
                self._unsent.popleft()
        return not self._unsent

    def flush(self, timeout: float = 30.0) -> None:
        """Write all that the session has queued.

        While the socket takes no more, what arrives is read: nsqd may be unable to read on
        before somebody takes what it has written. The events of that come with the next
        ``receive()``, also after this has raised ``NetworkError``.
        """
        deadline = monotonic() + timeout
        while not self.write():
            self._raise_error()
            if monotonic() >= deadline:
                size = sum(map(len, self._unsent))
                text = f"{self.address}: {size} bytes not taken within {timeout:g} s"
                self._error = NetworkError(text)
                raise self._error
            self._wait(deadline)
            self._read()
        self._raise_error()

    def receive(self, timeout: float) -> list[Event]:
        """Return the events that are there, or wait for some; nothing once time is up.

        Heartbeats are answered here, and not told. A lost connection raises ``NetworkError``,
        behind the events that came before; one that nsqd closes over an error gives its
        ``CommandFailed`` first, and then raises that error.
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
        """Have ``poll`` look for something to read, or for room if something is unsent."""
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

    def _open(self, access: Access, subscription: Sub | None, deadline: float) -> None:
        try:
            server_name = self._dial(deadline)
            self.flush(_left(deadline))
            event = self._milestone(deadline, StartTls, Connected)
            if isinstance(event, StartTls):
                self._start_tls(event, access, server_name, deadline)
                self._milestone(deadline, Connected)
        except (OSError, UnicodeError) as error:  # of TLS too, or a name that DNS can't have
            raise NetworkError(f"{self.address}: {error}") from error
        if self.reply.dialect is Dialect.REDESIGNED:
            raise ConfigError(
                f"{self.address} is an nsqd of the redesigned NSQ (version "
                f"{self.reply.version}): only classic ones can be used here"
            )
        if self.reply.auth_required:
            self._authenticate(access, deadline)
        if subscription is not None:
            self._subscribe(subscription, deadline)

    def _dial(self, deadline: float) -> str:
        """Connect the socket; return the name that the server's certificate must have."""
        target = parse_address(self.address)
        assert isinstance(target, TcpAddress)  # the options take no others
        self._socket = socket.create_connection(target, _left(deadline))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket.setblocking(False)
        return target.host

    def _start_tls(
        self, event: StartTls, access: Access, server_name: str, deadline: float
    ) -> None:
        import ssl  # most connections do without

        if event.pending:
            raise RemoteProtocolError(f"{self.address}: bytes between IDENTIFY's answer and TLS")
        context = tls_context(access)
        assert self._socket is not None
        self._socket.settimeout(_left(deadline))
        self._socket = context.wrap_socket(self._socket, server_hostname=server_name)
        self._socket.setblocking(False)
        self._not_now = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self.session.tls_started()

    def _authenticate(self, access: Access, deadline: float) -> None:
        secret = access.secret()
        if secret is None:
            raise ConfigError(
                f"{self.address} asks for AUTH; give authSecretFile, authSecretEnv or authSecret"
            )
        self.send(Auth(secret))
        self._milestone(deadline, Authenticated)

    def _subscribe(self, subscription: Sub, deadline: float) -> None:
        most = self.reply.max_rdy_count
        if most < 1:
            raise RemoteProtocolError(f"{self.address}: max_rdy_count of {most}; 1 or more")
        self.send(subscription)
        self._milestone(deadline, Subscribed)

    def _milestone(self, deadline: float, *expected: type[E]) -> E:
        """Wait for the one thing that may come next."""
        while events := self.receive(_left(deadline)):
            for event in events:
                if isinstance(event, CommandFailed):
                    raise self._named(event.error)
                if isinstance(event, CompressionRefused):
                    logger.warning(
                        "%s does not do %s; going on without", self.address, event.method
                    )
                if isinstance(event, expected):
                    return event
        raise NetworkError(f"{self.address}: no answer in time while connecting")

    # Private methods: bytes

    def _events(self) -> list[Event]:
        """Return what the session has, and write the answers to heartbeats that it gave."""
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
            self._error = self._named(last.error)
        return [event for event in events if not isinstance(event, Heartbeat)]

    def _read(self) -> bool:
        """Give the session what the socket has; tell whether anything came, be it the end."""
        if self._error is not None:
            return True
        assert self._socket is not None
        size = 0
        while size < _READ_SIZE:
            try:
                data = self._socket.recv(_READ_SIZE)
            except self._not_now:
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

    def _read_last_words(self, error: OSError) -> None:
        """Read what arrived before a write failed: an error frame says why nsqd closed."""
        while self._error is None and self._read():
            pass
        self._error = NetworkError(f"{self.address}: {error}")

    def _wait(self, deadline: float) -> None:
        wait_for_any([self], deadline - monotonic())

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _named(self, error: ServerError) -> ServerError:
        return type(error)(error.code, f"{error.text} (from {self.address})".lstrip())


def wait_for_any(links: Iterable[Link], timeout: float) -> None:
    """Wait until one of them has something to read, or room for what is unsent."""
    poll = select.poll()
    for link in links:
        link.register(poll)
    poll.poll(max(0, 1000 * timeout))


def _left(deadline: float) -> float:
    # (A socket's timeout of 0 would mean not to wait at all, and raise another error.)
    return max(0.001, deadline - monotonic())
