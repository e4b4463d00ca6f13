"""Addresses of nsqd: ``host:port``, ``[v6]:port``, or the path of a unix socket."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from nsqflow.errors import ConfigError
from nsqflow.protocol.lookup import join_address

AddressMap = Mapping[str, str] | Callable[[str], str]

_UNIX = "unix:"
_HOST_PORT = re.compile(r"(?:\[(?P<v6>[^][/\s\0]+)\]|(?P<host>[^][:/\s\0]+)):(?P<port>[0-9]{1,5})")


class TcpAddress(NamedTuple):
    """A host, by name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return join_address(self.host, self.port)


class UnixAddress(NamedTuple):
    """The path of a unix socket."""

    path: str

    def __str__(self) -> str:
        return self.path


def parse_address(text: str) -> TcpAddress | UnixAddress:
    """Read an address; raise ``ConfigError`` that says what is allowed."""
    if isinstance(text, str):
        path = text.removeprefix(_UNIX)
        if path.startswith("/") and path.strip("/"):
            return UnixAddress("/" + path.lstrip("/"))
        match = _HOST_PORT.fullmatch(text)
        if match and 1 <= int(match["port"]) <= 65535:
            return TcpAddress(match["v6"] or match["host"], int(match["port"]))
    raise ConfigError(
        f"nsqd address {text!r}; allowed are host:port, [IPv6]:port with a port of 1 to 65535, "
        "and /path/of/a/socket"
    )


def is_address(text: str) -> bool:
    """Return whether ``parse_address`` can read it."""
    try:
        parse_address(text)
    except ConfigError:
        return False
    return True


def parse_addresses(what: str, given: str | Iterable[str]) -> tuple[str, ...]:
    """Read one address or several, as callers write them; each is kept once."""
    texts = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(f"{what} {text!r}; allowed is one address or several, as text")
    return tuple(dict.fromkeys(text.strip() for text in texts))


def map_address(address: str, mapping: AddressMap | None) -> str:
    """Tell where to connect for ``address``, which may be known by another name here.

    A mapping's keys are whole addresses, or hosts (then the port stays, unless the value
    names one).
    """
    if mapping is None:
        return address
    if not isinstance(mapping, Mapping):
        return _call(mapping, address)
    if address in mapping:
        return mapping[address]
    parsed = parse_address(address)
    if isinstance(parsed, UnixAddress) or parsed.host not in mapping:
        return address
    target = mapping[parsed.host]
    if _HOST_PORT.fullmatch(target) or target.startswith(("/", _UNIX)):
        return target
    return join_address(target.strip("[]"), parsed.port)


def _call(mapping: Callable[[str], str], address: str) -> str:
    try:
        return mapping(address)
    except Exception as error:
        raise ConfigError(f"address_map raised {error!r} for {address!r}") from error
