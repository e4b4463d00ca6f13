"""Which servers ``format("nsq")`` talks to, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from nsqflow.address import default_http_address
from nsqflow.config.addresses import HTTP, NSQD
from nsqflow.config.kinds import Boolean, List
from nsqflow.config.options import camel_case, check_exactly_one, create, option
from nsqflow.config.security import Security
from nsqflow.errors import ConfigError

STREAM, BATCH, SINK = "stream", "batch", "sink"
SCOPES = (STREAM, BATCH, SINK)
SOURCE = (STREAM, BATCH)

_HTTP_LIST = List(HTTP, secret=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The addresses of the servers: of nsqlookupd, or of the nsqd themselves."""

    # A URL may contain a password.
    lookupd: tuple[str, ...] = option(
        (),
        _HTTP_LIST,
        "HTTP addresses of nsqlookupd, which knows the nsqd; give either this or `nsqd`",
        secret=True,
    )
    nsqd: tuple[str, ...] = option(
        (), List(NSQD), "TCP addresses of the nsqd, where there is no nsqlookupd"
    )
    nsqd_http: tuple[str, ...] = option(
        (),
        _HTTP_LIST,
        "HTTP addresses of the nsqd, as many as in `nsqd` and in the same order; by default the "
        "same hosts with the TCP port + 1",
        scopes=SOURCE,
        secret=True,
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the options that are set; raise ``ConfigError`` if they contradict each other."""
        servers = create(cls, given)
        check_exactly_one(lookupd=servers.lookupd, nsqd=servers.nsqd)
        if servers.nsqd_http and len(servers.nsqd_http) != len(servers.nsqd):
            raise ConfigError(
                f"nsqdHttp has {len(servers.nsqd_http)} addresses and nsqd {len(servers.nsqd)}: "
                "give one for each nsqd"
            )
        return servers

    def with_http(self) -> Self:
        """Return them with default HTTP addresses of the nsqd, if none are given."""
        if self.nsqd_http:
            return self
        return replace(self, nsqd_http=tuple(_http_address_of(nsqd) for nsqd in self.nsqd))

    @property
    def use_https(self) -> bool:
        """Whether an HTTP API uses TLS."""
        return any(text.lower().startswith("https:") for text in (*self.lookupd, *self.nsqd_http))


def _http_address_of(nsqd: str) -> str:
    address = default_http_address(nsqd)
    if address is None:
        raise ConfigError(f"nsqd {nsqd!r} has no port + 1: give its HTTP address in nsqdHttp")
    return HTTP.parse("nsqd", address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access(Security):
    """How to talk to an nsqd: TLS, AUTH and compression."""

    snappy: bool = option(False, Boolean(), "compress the traffic with nsqd with snappy")
    deflate: bool = option(False, Boolean(), "compress it with deflate; not together with `snappy`")

    @classmethod
    def of(cls, given: Mapping[str, Any], servers: ServerOptions) -> Self:
        """Return the options that are set; raise ``ConfigError`` if they contradict each other."""
        access = create(cls, given)
        if access.snappy and access.deflate:
            raise ConfigError("both snappy and deflate are set: choose one of them")
        access.check_given(given, https=servers.use_https)
        return access

    @staticmethod
    def name_of(field: str) -> str:
        """Return the name by which users know a field."""
        return camel_case(field)
