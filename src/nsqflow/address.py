"""Addresses of servers: how they are written, checked and mapped.

nsqd's TCP API is at ``host:port``, ``[IPv6]:port`` or the path of a unix socket; an HTTP API at
``host:port`` or a URL. A daemon of our own also listens on ``:port``, which is all interfaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote, unquote

from nsqflow.errors import ConfigError

AddressMap = Mapping[str, str] | Callable[[str], str]

_UNIX = "unix:"
_MAX_PORT = 65535
_HOST_PORT = re.compile(r"(?:\[(?P<v6>[^][/\s\0]+)\]|(?P<host>[^][:/\s\0]+)):(?P<port>[0-9]{1,5})")
_LISTEN = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[^][:/\s\0]*)):(?P<port>[0-9]{1,5})",
    re.ASCII,
)
_HTTP = re.compile(
    r"(?:(?P<scheme>https?)://(?:(?P<credentials>[^@/\s]*)@)?)?"
    r"(?:\[(?P<v6>[0-9a-z:.%_-]+)\]|(?P<host>[0-9a-z._-]+))"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<prefix>/[^?#\s]*)?",
    re.IGNORECASE | re.ASCII,
)
_HTTP_PORTS = {"http": 80, "https": 443}


class TcpAddress(NamedTuple):
    """A host, by name or number, and a port."""

    host: str
    """Empty in a listen address for all interfaces."""
    port: int
    """0 in a listen address for a port that the system chooses."""

    def __str__(self) -> str:
        return join_address(self.host, self.port)


class UnixAddress(NamedTuple):
    """The path of a unix socket."""

    path: str

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAddress:
    """The address of an HTTP API. Its text leaves the credentials out."""

    scheme: str
    host: str
    port: int
    prefix: str = ""
    credentials: str = field(default="", repr=False)

    def __str__(self) -> str:
        if self.scheme == "http" and not self.prefix:
            return self.authority
        return f"{self.scheme}://{self.authority}{self.prefix}"

    @property
    def authority(self) -> str:
        """``host:port``."""
        return join_address(self.host, self.port)


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# nsqd's TCP API


def parse_address(text: str) -> TcpAddress | UnixAddress:
    """Parse the address of an nsqd; raise ``ConfigError`` if it is invalid."""
    if str(text).isprintable() and isinstance(text, str):  # it is shown in logs and errors
        path = text.removeprefix(_UNIX)
        if path.startswith("/") and path.strip("/"):
            return UnixAddress("/" + path.lstrip("/"))
        match = _HOST_PORT.fullmatch(text)
        if match and 1 <= int(match["port"]) <= _MAX_PORT:
            return TcpAddress(match["v6"] or match["host"], int(match["port"]))
    raise ConfigError(
        f"nsqd address {text!r} is invalid: must be host:port or [IPv6]:port with a port from 1 to "
        f"{_MAX_PORT}, or /path/of/a/socket"
    )


def is_address(text: str) -> bool:
    """Return whether ``parse_address`` accepts it."""
    try:
        parse_address(text)
    except ConfigError:
        return False
    return True


def parse_addresses(option: str, given: str | Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of an option, which may be one or several, without duplicates."""
    texts = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(f"{option}={text!r} is invalid: must be one or more addresses, str")
    return tuple(dict.fromkeys(text.strip() for text in texts))


def default_http_address(nsqd: str) -> str | None:
    """Return where the HTTP API of an nsqd is by convention: at the port after that of TCP.

    None for a unix socket and for port 65535.
    """
    address = parse_address(nsqd)
    if not isinstance(address, TcpAddress) or address.port == 65535:
        return None
    return join_address(address.host, address.port + 1)


def map_address(address: str, mapping: AddressMap | None) -> str:
    """Return the address to connect to for ``address``, by the option ``address_map``.

    A mapping's keys are whole addresses, or hosts (then the port stays, unless the value
    has one).
    """
    if mapping is None:
        return address
    if not isinstance(mapping, Mapping):
        try:
            return mapping(address)
        except Exception as error:
            raise ConfigError(f"address_map raised {error!r} for {address!r}") from error
    if address in mapping:
        return mapping[address]
    parsed = parse_address(address)
    if isinstance(parsed, UnixAddress) or parsed.host not in mapping:
        return address
    target = mapping[parsed.host]
    if _HOST_PORT.fullmatch(target) or target.startswith(("/", _UNIX)):
        return target
    return join_address(target.strip("[]"), parsed.port)


# HTTP APIs


def parse_http_address(text: str) -> HttpAddress:
    """Parse ``host:port`` or a URL; raise ``ConfigError`` if it is invalid."""
    if not isinstance(text, str):
        raise ConfigError(f"HTTP address must be a str, not {type(text).__name__}")
    match = _HTTP.fullmatch(text.strip())
    if match is None or not (match["scheme"] or (match["port"] and not match["prefix"])):
        raise _invalid_http_address(text)
    scheme = (match["scheme"] or "http").lower()
    port = int(match["port"] or _HTTP_PORTS[scheme])
    if not 1 <= port <= _MAX_PORT:
        raise _invalid_http_address(text)
    return HttpAddress(
        scheme=scheme,
        host=match["v6"] or match["host"],
        port=port,
        prefix=quote((match["prefix"] or "").rstrip("/"), safe="/%"),
        credentials=unquote(match["credentials"] or ""),
    )


def _invalid_http_address(text: str) -> ConfigError:
    shown = re.sub(r"^((?:\w+://)?).*@", r"\1***@", text, flags=re.DOTALL)
    return ConfigError(
        f"HTTP address {shown!r} is invalid: must be host:port, [IPv6]:port, "
        f"http://host:port/prefix or https://host:port/prefix, with a port from 1 to {_MAX_PORT}"
    )


# Listen addresses of the broker, and the peers it connects to


def parse_listen_address(option: str, text: object) -> TcpAddress | UnixAddress:
    """Parse the listen address of an option; raise ``ConfigError`` if it is invalid."""
    if isinstance(text, str):
        match = _LISTEN.fullmatch(text)
        if match and int(match["port"]) <= _MAX_PORT:
            return TcpAddress(match["v6"] or match["host"], int(match["port"]))
        # A name alone could be a path too, but is more likely meant to be a host.
        if "/" in text and "\0" not in text and not text.endswith("/"):
            return UnixAddress(text)
    raise ConfigError(
        f"{option}={text!r} is invalid: must be host:port, [IPv6]:port or :port with a port from 0 "
        f"to {_MAX_PORT}, or the path of a unix socket, which contains a '/'"
    )


def check_peer_address(option: str, text: object) -> None:
    """Raise ``ConfigError`` unless the option is a TCP address that can be connected to."""
    match = _LISTEN.fullmatch(text) if isinstance(text, str) else None
    if not match or not (match["v6"] or match["host"]) or not 1 <= int(match["port"]) <= _MAX_PORT:
        raise ConfigError(
            f"{option}={text!r} is invalid: must be host:port or [IPv6]:port with a port from 1 to "
            f"{_MAX_PORT}"
        )
