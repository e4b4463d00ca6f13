"""Which servers a command line means, and how they are talked to."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from nsqflow.cli.settings import read_settings
from nsqflow.client.address import TcpAddress, map_address, parse_address
from nsqflow.client.options import ClientOptions
from nsqflow.errors import ConfigError
from nsqflow.http.client import parse_http_address
from nsqflow.protocol.lookup import join_address

LookupdOption = Annotated[
    list[str] | None,
    typer.Option(
        "--lookupd",
        metavar="HOST:PORT",
        help="An nsqlookupd, by its HTTP address; may be repeated. [NSQFLOW_LOOKUPD]",
    ),
]
NsqdOption = Annotated[
    list[str] | None,
    typer.Option(
        "--nsqd",
        metavar="HOST:PORT",
        help="An nsqd, by its TCP address; may be repeated. [NSQFLOW_NSQD, else 127.0.0.1:4150]",
    ),
]
NsqdHttpOption = Annotated[
    list[str] | None,
    typer.Option(
        "--nsqd-http",
        metavar="HOST:PORT",
        help="The HTTP address of each --nsqd, where that is not the port above. "
        "[NSQFLOW_NSQD_HTTP]",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A TOML file that names servers, certificates, a secret. "
        "[NSQFLOW_CONFIG, else ./nsqflow.toml, else ~/.config/nsqflow/config.toml]",
    ),
]

_DEFAULT = "127.0.0.1:4150"
_OF_TLS = ("tls_ca_file", "tls_cert_file", "tls_key_file", "tls_verify")
_POLL_INTERVAL = 5.0  # seconds: who looks on sees a new topic soon
_MAX_SECRET = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The nsqlookupd to ask, or the nsqd themselves; one of the two is empty."""

    lookupd: tuple[str, ...] = field(default=(), repr=False)  # a URL may have a password in it
    nsqd: tuple[str, ...] = ()
    nsqd_http: tuple[str, ...] = field(default=(), repr=False)
    origin: str = "the default"
    """The option, variable or file that named them."""
    config: Path | None = None
    """The config file that was read."""
    tls: ssl.SSLContext | None = None
    """For nsqd; None without TLS."""
    https: ssl.SSLContext | None = None
    """For HTTP APIs whose address is https."""
    secret: bytes | None = field(default=None, repr=False)
    address_map: Mapping[str, str] | None = None
    timeout: float = 5.0

    @classmethod
    def of(
        cls,
        lookupd: list[str] | None,
        nsqd: list[str] | None,
        nsqd_http: list[str] | None,
        config: Path | None,
    ) -> Self:
        """Take what the options say, else the environment, else the config file."""
        given = {"lookupd": lookupd, "nsqd": nsqd, "nsqd_http": nsqd_http}
        said = {name: _split(name, texts) for name, texts in given.items() if texts}
        settings = read_settings(said, config)
        values = settings.values
        found = {name: values.get(name, ()) for name in given}
        if not any(found.values()):
            found["nsqd"] = (_DEFAULT,)
        _check(found, settings.origins)
        key = "lookupd" if found["lookupd"] else "nsqd"
        tls = _tls_context(values, found)
        return cls(
            **found,
            origin=settings.origins.get(key, "the default"),
            config=settings.file,
            tls=tls if values.get("tls") else None,
            https=tls,
            secret=_secret(values),
            address_map=values.get("address_map"),
            timeout=values.get("timeout", 5.0),
        )

    def __str__(self) -> str:
        kind = "nsqlookupd" if self.lookupd else "nsqd"
        # As text an address is without its password.
        names = self.nsqd or [str(parse_http_address(text)) for text in self.lookupd]
        return f"{kind} {', '.join(names)}"

    def client_options(self) -> ClientOptions:
        """How a ``Producer`` or a ``Consumer`` reaches them; add ``nsqd`` and ``lookupd``."""
        return ClientOptions(
            tls=self.tls,
            lookupd_tls=self.https,
            auth_secret=self.secret,
            address_map=self.address_map,
            lookupd_poll_interval=_POLL_INTERVAL,
            lookupd_poll_timeout=self.timeout,
            dial_timeout=self.timeout,
        )

    def http_addresses(self) -> list[tuple[str, str]]:
        """Each nsqd that was named, by its TCP and its HTTP address."""
        beside = self.nsqd_http or [_port_above(address) for address in self.nsqd]
        return list(zip(self.nsqd, beside, strict=True))

    def mapped(self, address: str) -> str:
        """Where to find what calls itself ``address``, which may have another name here."""
        return map_address(address, self.address_map)


def _split(name: str, texts: list[str]) -> tuple[str, ...]:
    parts = [part.strip() for text in texts for part in text.split(",")]
    # As of a variable of the shell that is not set: who meant some server must not get another.
    if not any(parts):
        raise ConfigError(f"--{name.replace('_', '-')} names no server; give it HOST:PORT")
    return tuple(filter(None, parts))


def _check(found: Mapping[str, tuple[str, ...]], origins: Mapping[str, str]) -> None:
    lookupd, nsqd, nsqd_http = found["lookupd"], found["nsqd"], found["nsqd_http"]
    if lookupd and nsqd:
        raise ConfigError(f"both {origins['lookupd']} and {origins['nsqd']}; give one of the two")
    if nsqd_http and not nsqd:
        raise ConfigError(f"{origins['nsqd_http']} without --nsqd; it names the HTTP side of these")
    if nsqd_http and len(nsqd_http) != len(nsqd):
        raise ConfigError(
            f"{origins['nsqd_http']} has {len(nsqd_http)} addresses for {len(nsqd)} nsqd; "
            "give one for each, in the same order"
        )
    for text in (*lookupd, *nsqd_http):
        parse_http_address(text)
    for text in nsqd:
        parse_address(text)


def _port_above(nsqd: str) -> str:
    address = parse_address(nsqd)
    if not isinstance(address, TcpAddress) or address.port == 65535:
        raise ConfigError(f"where is the HTTP API of nsqd {nsqd}? say --nsqd-http")
    return join_address(address.host, address.port + 1)


def _tls_context(
    values: Mapping[str, Any], found: Mapping[str, tuple[str, ...]]
) -> ssl.SSLContext | None:
    urls = (*found["lookupd"], *found["nsqd_http"])
    authorities, certificate = values.get("tls_ca_file"), values.get("tls_cert_file")
    key = values.get("tls_key_file")
    if not values.get("tls") and not any(url.lower().startswith("https:") for url in urls):
        if said := [name for name in _OF_TLS if name in values]:
            raise ConfigError(f"{said[0]} without tls; set tls = true, or nothing is encrypted")
        return None
    if key and not certificate:
        raise ConfigError("tls_key_file without tls_cert_file; a key needs its certificate")
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate:
            # Without a password given, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(certificate, key, password="")
    except OSError as error:  # of which ssl's own are a kind
        files = ", ".join(name for name in (authorities, certificate, key) if name)
        reason = getattr(error, "reason", None) or error.strerror or error
        raise ConfigError(f"certificates {files}: {reason}; allowed are PEM files") from None
    if not values.get("tls_verify", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _secret(values: Mapping[str, Any]) -> bytes | None:
    if "auth_secret_file" in values and "auth_secret_env" in values:
        raise ConfigError("both auth_secret_file and auth_secret_env; give one of the two")
    if "auth_secret" in values:
        return os.fsencode(values["auth_secret"])
    if name := values.get("auth_secret_env"):
        if not (text := os.environ.get(name)):
            raise ConfigError(
                f"auth_secret_env {name!r}; there is no such variable, or it is empty"
            )
        return os.fsencode(text)
    if path := values.get("auth_secret_file"):
        return _secret_of_file(path)
    return None


def _secret_of_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            secret = file.read(_MAX_SECRET + 1).rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"auth_secret_file {path!r}: {error.strerror}") from None
    if not 0 < len(secret) <= _MAX_SECRET:
        raise ConfigError(f"auth_secret_file {path!r}; allowed are 1 to {_MAX_SECRET} bytes")
    return secret
