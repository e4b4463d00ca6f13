"""The servers of a command line, and how to connect to them."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

import typer

from nsqflow.address import parse_address, parse_http_address
from nsqflow.cli.config_file import read_settings
from nsqflow.cli.terminal import escape
from nsqflow.cli.trust import UntrustedFile, without_secrets
from nsqflow.client.options import ClientOptions
from nsqflow.config.options import create
from nsqflow.config.security import Security
from nsqflow.errors import ConfigError, NsqError

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
        help="A TOML file that names servers, certificates, a secret. [NSQFLOW_CONFIG, else "
        "~/.config/nsqflow/config.toml, and the servers of ./nsqflow.toml]",
    ),
]

SERVER_OPTIONS = {
    "lookupd": LookupdOption,
    "nsqd": NsqdOption,
    "nsqd_http": NsqdHttpOption,
    "config": ConfigOption,
}

_DEFAULT = "127.0.0.1:4150"
_POLL_INTERVAL = 5.0  # seconds: a new topic is shown soon


@dataclass(frozen=True, slots=True, kw_only=True)
class CliServers:
    """Either the nsqlookupd or the nsqd to use, and how to connect to them."""

    lookupd: tuple[str, ...] = field(default=(), repr=False)  # a URL may have a password in it
    nsqd: tuple[str, ...] = ()
    nsqd_http: tuple[str, ...] = field(default=(), repr=False)
    origin: str = "the default"
    """The option, variable or file that names them."""
    files: tuple[Path, ...] = ()
    """The config files that were read; a later one overrides an earlier one."""
    untrusted: UntrustedFile | None = None
    """The config file that names them, if it is not trusted: they get no secret then."""
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
        *,
        trusted_only: bool = False,
    ) -> Self:
        """Return the servers set by options, else by the environment, else by the config files."""
        given = {"lookupd": lookupd, "nsqd": nsqd, "nsqd_http": nsqd_http}
        options = {name: _split(name, texts) for name, texts in given.items() if texts}
        settings = read_settings(options, config, trusted_only=trusted_only)
        values = settings.values
        found = {name: values.get(name, ()) for name in given}
        if not any(found.values()):
            found["nsqd"] = (_DEFAULT,)
        _check(found, settings.origins)
        key = "lookupd" if found["lookupd"] else "nsqd"
        untrusted = UntrustedFile.of(settings, key)
        if untrusted is not None:
            values = without_secrets(values)
        security = create(Security, {k: v for k, v in values.items() if k != "auth_secret"})
        https = any(
            url.lower().startswith("https:") for url in (*found["lookupd"], *found["nsqd_http"])
        )
        # Otherwise these settings belong to the servers of another file.
        if untrusted is None or security.tls or https:
            security.check_given(values.keys() - {"auth_secret"}, https=https)
        tls = security.http_context() if security.tls or https else None
        secret = values.get("auth_secret")
        return cls(
            **found,
            origin=settings.origins.get(key, "the default"),
            files=settings.files,
            untrusted=untrusted,
            tls=tls if security.tls else None,
            https=tls,
            secret=security.secret() if secret is None else os.fsencode(secret),
            address_map=values.get("address_map"),
            timeout=values.get("timeout", 5.0),
        )

    def __str__(self) -> str:
        kind = "nsqlookupd" if self.lookupd else "nsqd"
        # As text, an address has no password.
        names = self.nsqd or [str(parse_http_address(text)) for text in self.lookupd]
        return escape(f"{kind} {', '.join(names)}")  # an untrusted file may have named them

    def explain(self, error: NsqError) -> NsqError:
        """Return the error, with a hint if it may come from a secret that was not sent."""
        return error if self.untrusted is None else self.untrusted.explain(error)

    def client_options(self) -> ClientOptions:
        """Return the options for a ``Producer`` or a ``Consumer``; add ``nsqd`` and ``lookupd``."""
        return ClientOptions(
            tls=self.tls,
            lookupd_tls=self.https,
            auth_secret=self.secret,
            address_map=self.address_map,
            lookupd_poll_interval=_POLL_INTERVAL,
            lookupd_poll_timeout=self.timeout,
            dial_timeout=self.timeout,
        )


def _split(name: str, texts: list[str]) -> tuple[str, ...]:
    parts = [part.strip() for text in texts for part in text.split(",")]
    # For example from an unset shell variable: the default server must not be used instead.
    if not any(parts):
        raise ConfigError(f"--{name.replace('_', '-')} is empty: must be HOST:PORT")
    return tuple(filter(None, parts))


def _check(found: Mapping[str, tuple[str, ...]], origins: Mapping[str, str]) -> None:
    lookupd, nsqd, nsqd_http = found["lookupd"], found["nsqd"], found["nsqd_http"]
    if lookupd and nsqd:
        raise ConfigError(f"both {origins['lookupd']} and {origins['nsqd']} are given: give one")
    if nsqd_http and not nsqd:
        raise ConfigError(f"{origins['nsqd_http']} without --nsqd: it belongs to --nsqd")
    if nsqd_http and len(nsqd_http) != len(nsqd):
        raise ConfigError(
            f"{origins['nsqd_http']} has {len(nsqd_http)} addresses for {len(nsqd)} nsqd: "
            "give one for each, in the same order"
        )
    for text in (*lookupd, *nsqd_http):
        parse_http_address(text)
    for text in nsqd:
        parse_address(text)
