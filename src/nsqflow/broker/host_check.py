"""Refuses HTTP requests that come from a web page.

A page in a browser on this machine can reach a broker on the loopback interface. It can't read
responses, but it can send a POST, which publishes or deletes; the browser then sends the page's
``Origin``. With a host name that it makes resolve to 127.0.0.1 (DNS rebinding) it can read
responses too; the browser then sends that name as the ``Host``. Programs send no ``Origin``, and
the ``Host`` that they were given.
"""

from __future__ import annotations

import logging
import re
import socket
from dataclasses import dataclass
from ipaddress import ip_address

from nsqflow.address import TcpAddress, parse_listen_address
from nsqflow.broker.http_api import refusal
from nsqflow.broker.options import DaemonOptions
from nsqflow.http.server import Handler, Request, Response
from nsqflow.loopback import resolves_to_loopback

_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65535
# As browsers and programs send it: an IPv6 zone may be escaped.
_HOST = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)(?:%[\w.-]+)?\]|(?P<name>[\w.-]+))(?::(?P<port>[0-9]{1,5})?)?",
    re.ASCII,
)
_MAX_SHOWN = 100  # characters of a header in an error


@dataclass(frozen=True, slots=True)
class HostCheck:
    """The host names that a request may have; None allows all."""

    names: frozenset[str] | None

    @classmethod
    def of(cls, options: DaemonOptions, listen_address: str) -> HostCheck:
        """Return the check for a daemon's HTTP API at ``listen_address``."""
        address = parse_listen_address("http_address", listen_address)
        loopback = isinstance(address, TcpAddress) and resolves_to_loopback(address.host)
        if not loopback and not options.allowed_host:
            return cls(None)
        own = ("localhost", socket.gethostname(), options.broadcast_address)
        # Not the empty name: that is what a malformed Host is read as.
        return cls(frozenset(map(_normal, (*own, *options.allowed_host))) - {""})

    def reason_to_refuse(self, request: Request) -> str | None:
        """Return why a request is refused, or None if it is not."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if origin is not None and not _same_origin(origin, host):
            return (
                f"Origin {_shown(origin)} is not allowed: web pages of other hosts have no access"
            )
        if host and not self._allows(host):
            return f"Host {_shown(host)} is not allowed: add it with -allowed-host"
        return None

    def _allows(self, host: str) -> bool:
        if self.names is None:
            return True
        name, _ = _split(host)
        return name in self.names or _is_ip(name)


def checked(handler: Handler, check: HostCheck, logger: logging.Logger) -> Handler:
    """Wrap a handler: respond with 403 to requests that ``check`` refuses."""

    async def handle(request: Request) -> Response:
        if reason := check.reason_to_refuse(request):
            logger.warning("HTTP: 403 %s %r: %s", request.method, request.path, reason)
            return refusal(403, reason)
        return await handler(request)

    return handle


def _same_origin(origin: str, host: str) -> bool:
    scheme, _, page = origin.partition("://")
    default = _PORTS.get(scheme.lower())
    if default is None:
        return False
    (name, port), (page_name, page_port) = _split(host), _split(page)
    return bool(name) and (name, port or default) == (page_name, page_port or default)


def _split(host: str) -> tuple[str, int | None]:
    """Return name and port of a Host header; an empty name if it is invalid."""
    match = _HOST.fullmatch(host)
    if match is None or int(match["port"] or 0) > _MAX_PORT:
        return "", None
    name = match["v6"] or match["name"]
    return _normal(name), int(match["port"]) if match["port"] else None


def _normal(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_ip(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")
