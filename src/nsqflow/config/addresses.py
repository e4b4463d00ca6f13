"""Kinds of option values that are addresses: of nsqd, of HTTP APIs, and of the daemons."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nsqflow.address import (
    TcpAddress,
    check_peer_address,
    is_address,
    parse_address,
    parse_addresses,
    parse_http_address,
    parse_listen_address,
)
from nsqflow.config.kinds import Kind, Text, matching

_HOST = re.compile(r"[0-9a-zA-Z.:%_-]+")


def nsqd_address(text: str) -> str:
    """Validate an nsqd's TCP address; a unix socket is invalid, as other machines cannot use it."""
    address = parse_address(text) if is_address(text) else None
    if not isinstance(address, TcpAddress) or not _HOST.fullmatch(address.host):
        raise ValueError(text)
    return str(address)


def http_address(text: str) -> str:
    """Validate the address of an HTTP API; errors do not show its password."""
    parse_http_address(text)
    return text


@dataclass(frozen=True)
class Addresses(Kind):
    """One address or several, as a tuple without duplicates."""

    allowed: str
    parse_one: Callable[[str], object]
    """Raises ``ConfigError`` for an invalid address."""

    def check(self, name: str, value: Any) -> tuple[str, ...]:
        """Check each address."""
        addresses = parse_addresses(name, value)
        for address in addresses:
            self.parse_one(address)
        return addresses

    def __str__(self) -> str:
        return self.allowed


class PeerAddress(Text):
    """A TCP address that a daemon connects to."""

    def check(self, name: str, value: Any) -> Any:
        """Check it."""
        check_peer_address(name, value)
        return value


@dataclass(frozen=True)
class ListenAddress(Kind):
    """An address that a daemon listens on."""

    label = "string"

    optional: bool = False
    """Whether it may be empty: the daemon does not listen then."""

    def check(self, name: str, value: Any) -> Any:
        """Check it."""
        if value != "" or not self.optional:
            parse_listen_address(name, value)
        return value


NSQD = Text("host:port or [IPv6]:port with a port from 1 to 65535", nsqd_address)
HTTP = Text("host:port or a URL", http_address)
HOST = Text("the name of a host, without a port", matching(r"[0-9A-Za-z_.-]{1,255}"))
