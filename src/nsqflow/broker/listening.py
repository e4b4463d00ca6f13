"""Listening on a TCP port or a unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nsqflow.broker.address import TcpAddress, UnixAddress, parse_listen_address
from nsqflow.http.tls_layer import TlsLayer
from nsqflow.protocol.lookup import join_address

_BACKLOG = 4096  # many connect at once when a server comes back


@dataclass(frozen=True, slots=True)
class Listening:
    """A server's open door."""

    server: asyncio.Server
    address: str
    """``host:port``, or the path of the socket."""
    port: int
    """-1 for a unix socket."""

    def close(self) -> None:
        """Let nobody in any more; who is in stays."""
        self.server.close()
        if self.port == -1:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address)


async def listen(
    option: str,
    text: str,
    factory: Callable[[], asyncio.Protocol],
    tls: ssl.SSLContext | None = None,
) -> Listening:
    """Open the door that an option names; raises ``OSError`` that names it too."""
    address = parse_listen_address(option, text)
    try:
        return await _open(address, factory if tls is None else lambda: TlsLayer(factory(), tls))
    except OSError as error:
        number = error.errno or errno.EINVAL  # a path that is too long has none
        raise OSError(number, f"{option} {text}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOTSOCK:
        return "there is a file or folder of that name which is no socket"
    if error.errno and error.errno > 0:  # those of getaddrinfo have other numbers
        return os.strerror(error.errno)
    return error.strerror or str(error)


async def _open(
    address: TcpAddress | UnixAddress, factory: Callable[[], asyncio.Protocol]
) -> Listening:
    loop = asyncio.get_running_loop()
    if isinstance(address, UnixAddress):
        sock = _unix_socket(address.path)
        unix = await loop.create_unix_server(factory, sock=sock, backlog=_BACKLOG)
        return Listening(unix, address.path, -1)
    sock = await _tcp_socket(*address) if address.host else _everywhere(address.port)
    host, port = sock.getsockname()[:2]
    server = await loop.create_server(factory, sock=sock, backlog=_BACKLOG)
    return Listening(server, join_address(host if address.host else "0.0.0.0", port), port)


async def _tcp_socket(host: str, port: int) -> socket.socket:
    # As Go does, one socket however many addresses the host has, and rather one of IPv4: with
    # several, a port that the system chooses would be several.
    family, *_, address = min(await _resolve(host, port), key=lambda it: it[0] != socket.AF_INET)
    return socket.create_server(address, family=family)


async def _resolve(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    kind, flags = socket.SOCK_STREAM, socket.AI_NUMERICHOST
    try:
        return socket.getaddrinfo(host, port, type=kind, flags=flags)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "no host can have this name") from None
    except socket.gaierror:  # a name; that can take a while, and a thread
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=kind)


def _everywhere(port: int) -> socket.socket:
    # One socket for both families: with two, a port that the system chooses would be two.
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
    """Remove the socket of a server that was killed; never one that somebody listens on."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK), path)
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # one whose queue is full would have us wait
        if probe.connect_ex(path) == errno.ECONNREFUSED:
            os.unlink(path)
