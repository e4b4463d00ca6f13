"""Recognizes loopback addresses."""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address


def is_loopback(number: str) -> bool:
    """Return whether this is an IP address of the loopback interface; False for a host name."""
    try:
        address = ip_address(number.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def resolves_to_loopback(host: str) -> bool:
    """Return whether all addresses of a host are loopback addresses; may query DNS.

    A host can be written as ``localhost``, ``127.1``, ``0x7f000001``, or by its own name.
    """
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(is_loopback(str(sockaddr[0])) for *_, sockaddr in found)
