"""Checks that the NSQ servers of a pipeline are reachable before Spark is started."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from nsqflow.address import parse_http_address
from nsqflow.errors import NetworkError
from nsqflow.pipelines.model import Source
from nsqflow.spark.server_options import ServerOptions

_CONNECT_TIMEOUT = 3.0  # seconds
_ANSWER_TIMEOUT = 1.0
_MAX_CONCURRENT = 16
_HTTP_PORTS = {"nsqlookupd": 4161, "nsqd": 4151}


def unreachable_error(source: Source) -> NetworkError | None:
    """Return the error if no server of a source is reachable; None if one is.

    The driver uses their HTTP APIs, so this connects to those.
    """
    if source.files is not None:
        return None
    servers = ServerOptions(lookupd=source.lookupd, nsqd=source.nsqd, nsqd_http=source.nsqd_http)
    kind, addresses = "nsqlookupd", servers.lookupd
    if not addresses:
        kind, addresses = "nsqd", servers.with_http().nsqd_http
    errors = _connect_all(addresses)
    if None in errors or not errors:
        return None
    named = f" (the HTTP API of nsqd {', '.join(source.nsqd)})" * (kind == "nsqd")
    if any("not with HTTP" in error for error in errors if error):
        named += f"; {kind}'s HTTP port is {_HTTP_PORTS[kind]} by default"
    text = f"no {kind} is reachable: {'; '.join(filter(None, errors))}{named}"
    return NetworkError(source.ref.document.hide(text))


def _connect_all(addresses: Sequence[str]) -> list[str | None]:
    with ThreadPoolExecutor(_MAX_CONCURRENT, "nsqflow-connect") as pool:
        return [*pool.map(_connect, addresses)]


def _connect(text: str) -> str | None:
    """Return why connecting to a server fails; None if it succeeds."""
    address = parse_http_address(text)
    try:
        with socket.create_connection((address.host, address.port), _CONNECT_TIMEOUT) as connection:
            if address.scheme == "http" and not _speaks_http(connection):
                return f"{address}: it answers, but not with HTTP"
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        return f"{address}: {reason}"
    return None


def _speaks_http(connection: socket.socket) -> bool:
    """Return False if the server answers in another protocol; a slow one is not waited for."""
    connection.settimeout(_ANSWER_TIMEOUT)
    try:
        connection.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
        answer = connection.recv(16)
    except TimeoutError:
        return True
    except ConnectionError:  # nsqd's TCP port closes before it has read everything
        return False
    return not answer or answer.startswith(b"HTTP/")
