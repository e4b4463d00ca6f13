"""Listening on a TCP port or a unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass

from nsqflow.broker.address import TcpAddress, UnixAddress, parse_listen_address
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
        return await _open(address, factory, tls)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise OSError(error.errno, f"{option} {text}: {reason}") from error


async def _open(
    address: TcpAddress | UnixAddress,
    factory: Callable[[], asyncio.Protocol],
    tls: ssl.SSLContext | None,
) -> Listening:
    loop = asyncio.get_running_loop()
    if isinstance(address, UnixAddress):
        sock = _unix_socket(address.path)
        unix = await loop.create_unix_server(factory, sock=sock, ssl=tls, backlog=_BACKLOG)
        return Listening(unix, address.path, -1)
    if address.host:
        server = await loop.create_server(factory, *address, ssl=tls, backlog=_BACKLOG)
    else:
        server = await loop.create_server(
            factory, sock=_everywhere(address.port), ssl=tls, backlog=_BACKLOG
        )
    return Listening(server, *_bound(server, address))


def _bound(server: asyncio.Server, address: TcpAddress) -> tuple[str, int]:
    host, port = server.sockets[0].getsockname()[:2]
    return join_address(host if address.host else "0.0.0.0", port), port


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
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(path) == errno.ECONNREFUSED:
            os.unlink(path)
