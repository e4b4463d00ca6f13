"""The option ``allowed_addresses``: which of the nsqd that nsqlookupd names are dialled."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from nsqflow.address import TcpAddress, parse_address
from nsqflow.errors import ConfigError

logger = logging.getLogger(__name__)

_MAX_LOGGED = 100  # addresses: nsqlookupd may name any number of them
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z)({_LABEL}\.)*{_LABEL}")
_LOOKS_LIKE_IP = re.compile(r"(.*\.)?[0-9]+")  # host names do not end in a number


class AllowedAddresses:
    """Hosts by name, and networks."""

    def __init__(self, given: object) -> None:
        """Parse the option; raise ``ConfigError`` for a value that is not a host or network."""
        entries = [given] if isinstance(given, str) else given
        if not isinstance(entries, Collection) or isinstance(entries, bytes) or not entries:
            raise _invalid(given, "must be one or more hosts or networks, as strings")
        self._hosts: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in entries:
            try:
                self._add(entry)
            except ValueError:
                reason = f"{entry!r} must be a host name, an IP address or a network such as "
                raise _invalid(given, reason + "'10.0.0.0/8'") from None

    def allow(self, address: str) -> bool:
        """Return whether a ``host:port`` that nsqlookupd names may be dialled."""
        try:
            parsed = parse_address(address)
        except ConfigError:
            return False
        if not isinstance(parsed, TcpAddress):
            return False
        literal = _literal(parsed.host)
        if literal is None:
            return parsed.host.lower() in self._hosts
        return any(literal in network for network in self._networks)

    def _add(self, entry: object) -> None:
        if not isinstance(entry, str):
            raise ValueError(entry)
        host = entry.lower()
        if "/" in entry or ":" in entry or _LOOKS_LIKE_IP.fullmatch(host):
            self._networks.append(ip_network(entry))
        elif _HOST.fullmatch(host):
            self._hosts.add(host)
        else:
            raise ValueError(entry)


class AddressFilter:
    """Filters out looked-up nsqd that are not allowed, and logs each of them once."""

    def __init__(self, allowed: Collection[str] | None) -> None:
        self._allowed = None if allowed is None else AllowedAddresses(allowed)
        self._logged: set[str] = set()

    def allow(self, address: str) -> bool:
        """Return whether a ``host:port`` may be dialled."""
        return not self.split((address,))[1]

    def split(self, addresses: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the addresses that may be dialled, and those that may not."""
        if self._allowed is None:
            return tuple(dict.fromkeys(addresses)), ()
        verdicts = {address: self._allowed.allow(address) for address in addresses}
        refused = tuple(address for address, allowed in verdicts.items() if not allowed)
        for address in refused:
            self._log(address)
        return tuple(address for address, allowed in verdicts.items() if allowed), refused

    def _log(self, address: str) -> None:
        if address in self._logged or len(self._logged) > _MAX_LOGGED:
            return
        self._logged.add(address)
        if len(self._logged) > _MAX_LOGGED:
            logger.warning("more than %d nsqd are outside allowed_addresses", _MAX_LOGGED)
        else:
            logger.warning("%s is not dialled: it is outside allowed_addresses", address)


def first_few(addresses: Collection[str], count: int = 5) -> str:
    """Return the first addresses as text, and how many more there are."""
    text = ", ".join(sorted(addresses)[:count])
    return text if len(addresses) <= count else f"{text} and {len(addresses) - count} more"


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _invalid(given: object, reason: str) -> ConfigError:
    return ConfigError(f"allowed_addresses={given!r} is invalid: {reason}")
