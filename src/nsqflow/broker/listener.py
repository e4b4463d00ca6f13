"""Listening on a TCP port or a unix socket, with TLS or without."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nsqflow.address import TcpAddress, UnixAddress, join_address, parse_listen_address

logger = logging.getLogger(__name__)

_BACKLOG = 4096  # many clients reconnect at once when a server comes back
_HANDSHAKE_TIMEOUT = 5.0  # seconds
_MAX_HANDSHAKES = 100
_ACCEPT_RETRY = 1.0  # seconds until accepting is tried again, e.g. after too many open files

ProtocolFactory = Callable[[], asyncio.Protocol]


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket of a daemon."""

    server: Acceptor
    address: str
    """``host:port``, or the path of the socket."""
    port: int
    """-1 for a unix socket."""

    def close(self) -> None:
        """Accept no more connections; those that exist stay open."""
        self.server.close()
        if self.port == -1:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address)


class Acceptor:
    """Accepts connections, with TLS or without.

    A server of asyncio has no limit for unfinished TLS handshakes, and a protocol learns of a
    connection only after its handshake: clients that never finish one could use up all open files.
    Here, when ``_MAX_HANDSHAKES`` are unfinished, a new one replaces the oldest. And such a server
    leaves the socket open of a connection that it accepts while it is closed.
    """

    def __init__(
        self, sock: socket.socket, factory: ProtocolFactory, context: ssl.SSLContext | None = None
    ) -> None:
        self._socket = sock
        self._factory = factory
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._new: dict[asyncio.Task[None], socket.socket] = {}  # no protocol yet; the oldest first
        self._retry: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        self._start()

    @property
    def handshake_count(self) -> int:
        """The number of unfinished handshakes."""
        return len(self._new)

    def close(self) -> None:
        """Stop listening, and drop connections that have no protocol yet."""
        if self._retry is not None:
            self._retry.cancel()
        if self._socket.fileno() != -1:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        while self._new:
            self._drop_oldest()

    def _start(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        try:
            connection, peer = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            logger.error("failed to accept a connection: %s", error)
            self._loop.remove_reader(self._socket)
            self._retry = self._loop.call_later(_ACCEPT_RETRY, self._start)
            return
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            # asyncio sets it only where a socket names its protocol, and this one does not. Without
            # it the end of what is written may wait for the client's next acknowledgement.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None and len(self._new) >= _MAX_HANDSHAKES:
            self._drop_oldest()
        task = self._loop.create_task(self._connect(connection, peer))
        self._new[task] = connection
        task.add_done_callback(lambda done: self._new.pop(done, None))

    def _drop_oldest(self) -> None:
        task = next(iter(self._new))
        connection = self._new.pop(task)
        task.cancel()
        # If the task has not started, nothing else closes the socket.
        task.add_done_callback(lambda _: connection.close())

    async def _connect(self, connection: socket.socket, peer: Any) -> None:
        timeout = None if self._context is None else _HANDSHAKE_TIMEOUT
        try:
            await self._loop.connect_accepted_socket(
                self._factory, connection, ssl=self._context, ssl_handshake_timeout=timeout
            )
        except OSError as error:  # ssl.SSLError is one
            client = join_address(*peer[:2]) if isinstance(peer, tuple) else "@"
            # With an error of another kind the client is gone, or too slow.
            level = logging.WARNING if isinstance(error, ssl.SSLError) else logging.DEBUG
            logger.log(level, "HTTPS: TLS handshake with %s failed: %s", client, error)


async def listen(
    option: str, text: str, factory: ProtocolFactory, tls: ssl.SSLContext | None = None
) -> Listener:
    """Listen on the address ``text`` of an option; an ``OSError`` names both."""
    address = parse_listen_address(option, text)
    try:
        return await _listen(address, factory, tls)
    except OSError as error:
        number = error.errno or errno.EINVAL  # a path that is too long has none
        raise OSError(number, f"{option} {text}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOTSOCK:
        return "a file or folder with that name is not a socket"
    if error.errno and error.errno > 0:  # those of getaddrinfo have other numbers
        return os.strerror(error.errno)
    return error.strerror or str(error)


async def _listen(
    address: TcpAddress | UnixAddress, factory: ProtocolFactory, tls: ssl.SSLContext | None
) -> Listener:
    if isinstance(address, UnixAddress):
        sock = _unix_socket(address.path)
        return Listener(Acceptor(sock, factory, tls), address.path, -1)
    sock = await _tcp_socket(*address) if address.host else _socket_for_all_interfaces(address.port)
    host, port = sock.getsockname()[:2]
    return Listener(
        Acceptor(sock, factory, tls), join_address(host if address.host else "0.0.0.0", port), port
    )


async def _tcp_socket(host: str, port: int) -> socket.socket:
    # As in Go: one socket even if the host has several addresses, and IPv4 first. With several
    # sockets, a port that the system chooses would not be one port.
    family, *_, address = min(await _resolve(host, port), key=lambda it: it[0] != socket.AF_INET)
    return socket.create_server(address, family=family)


async def _resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    kind, flags = socket.SOCK_STREAM, socket.AI_NUMERICHOST
    try:
        return socket.getaddrinfo(host, port, type=kind, flags=flags)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "no host can have this name") from None
    except socket.gaierror:  # a name: resolving it may block, so a thread does it
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=kind)


def _socket_for_all_interfaces(port: int) -> socket.socket:
    # One socket for both families: with two, a port that the system chooses would be two ports.
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _unix_socket(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_leftover(path)
        sock.bind(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_leftover(path: str) -> None:
    """Remove the socket of a server that was killed, but not one that a process listens on."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK), path)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # connecting to a full accept queue would block
        if probe.connect_ex(path) == errno.ECONNREFUSED:
            os.unlink(path)
