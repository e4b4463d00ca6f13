"""Which servers there are: nsqlookupd, which know the nsqd, or the nsqd themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from nsqflow.client.address import TcpAddress, parse_address
from nsqflow.errors import ConfigError
from nsqflow.protocol.lookup import join_address
from nsqflow.spark.table import ANYWHERE, SOURCE, make, option
from nsqflow.spark.values import HTTP, NSQD, http_address


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The nsqlookupd to ask, or the nsqd themselves."""

    # Not shown, because a URL may have a password in it.
    lookupd: tuple[str, ...] = option(
        "lookupd",
        ANYWHERE,
        HTTP,
        "HTTP addresses of nsqlookupd, which knows the nsqd; either this or `nsqd` is given",
        absent=(),
        secret=True,
    )
    nsqd: tuple[str, ...] = option(
        "nsqd",
        ANYWHERE,
        NSQD,
        "TCP addresses of the nsqd, where there is no nsqlookupd",
        absent=(),
    )
    nsqd_http: tuple[str, ...] = option(
        "nsqdHttp",
        SOURCE,
        HTTP,
        "HTTP addresses of the nsqd, as many as in `nsqd` and in the same order; without it, "
        "the same hosts with the TCP port + 1",
        absent=(),
        secret=True,
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Take what is given; one of the two ways to find the nsqd must be."""
        servers = make(cls, given)
        if bool(servers.lookupd) == bool(servers.nsqd):
            which = "both" if servers.nsqd else "neither"
            raise ConfigError(f"{which} of lookupd and nsqd; give one of the two")
        if servers.nsqd_http and len(servers.nsqd_http) != len(servers.nsqd):
            raise ConfigError(
                f"nsqdHttp has {len(servers.nsqd_http)} and nsqd {len(servers.nsqd)} addresses; "
                "allowed is one for each"
            )
        return servers

    def with_http(self) -> Self:
        """Fill in where the HTTP APIs of the nsqd are, if nobody said so."""
        if self.nsqd_http:
            return self
        return replace(self, nsqd_http=tuple(_http_beside(address) for address in self.nsqd))

    @property
    def use_https(self) -> bool:
        """Whether an HTTP API is reached over TLS."""
        return any(text.lower().startswith("https:") for text in (*self.lookupd, *self.nsqd_http))


def _http_beside(nsqd: str) -> str:
    address = parse_address(nsqd)
    assert isinstance(address, TcpAddress)
    if address.port == 65535:
        raise ConfigError(f"nsqd {nsqd!r} has no port + 1; give its HTTP address in nsqdHttp")
    return http_address(join_address(address.host, address.port + 1))
