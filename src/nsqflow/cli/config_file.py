"""Settings of the command: the environment and the config files.

Each key of a file has its variable: ``tls_ca_file`` is ``NSQFLOW_TLS_CA_FILE``. A variable
overrides the files; the command line overrides both.

The command line, variables, the user's config file and a file that one of them names are trusted. A
``nsqflow.toml`` in the current folder may come with a checked-out repository, so it may only set
servers and a timeout, nothing that reads or sends the user's data.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsqflow.config.kinds import Kind, List, Text, invalid
from nsqflow.config.kinds import Path as PathKind
from nsqflow.config.numbers import Number
from nsqflow.config.options import OptionTable, did_you_mean, option
from nsqflow.config.security import Security
from nsqflow.errors import ConfigError

_PREFIX = "NSQFLOW_"
_HERE = Path("nsqflow.toml")
_MAX_FILE = 1024 * 1024

# Setting one key of a group unsets the others, so that addresses of different sources are not
# mixed.
_TOGETHER = (
    frozenset({"lookupd", "nsqd", "nsqd_http"}),
    frozenset({"auth_secret", "auth_secret_file", "auth_secret_env"}),
)
# What a file in the current folder may set.
_UNTRUSTED = frozenset({"lookupd", "nsqd", "nsqd_http", "timeout"})


class _AddressTable(Kind):
    """A mapping of addresses."""

    def load(self, name: str, value: Any) -> dict[str, str]:
        """Return a table of texts; a variable has FROM=TO,..."""
        pairs = value
        if isinstance(value, str) and all("=" in pair for pair in value.split(",")):
            pairs = dict(pair.strip().split("=", 1) for pair in value.split(","))
        if not isinstance(pairs, dict) or not all(isinstance(to, str) for to in pairs.values()):
            raise invalid(name, value, self)
        return pairs

    def __str__(self) -> str:
        return "a table of addresses or hosts to others (FROM=TO,...)"


_ADDRESS = Text("host:port")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressSettings:
    """The keys that name servers; those for TLS and AUTH are in ``Security``."""

    # A URL may contain a password.
    lookupd: tuple[str, ...] = option(
        (), List(_ADDRESS, secret=True), "HTTP addresses of nsqlookupd", secret=True
    )
    nsqd: tuple[str, ...] = option((), List(_ADDRESS), "TCP addresses of nsqd")
    nsqd_http: tuple[str, ...] = option(
        (), List(_ADDRESS, secret=True), "HTTP addresses of the nsqd", secret=True
    )
    address_map: Mapping[str, str] | None = option(
        None, _AddressTable(), "the addresses to connect to instead"
    )
    timeout: float = option(
        5.0, Number(0, 3600, above=True), "seconds to connect, and to answer a request"
    )


# A secret itself must not be in a file.
_KEYS = {
    one.name: one.kind
    for one in OptionTable(AddressSettings, Security)
    if one.name != "auth_secret"
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of all sources, and the origin of each."""

    values: Mapping[str, Any] = field(repr=False)  # a secret may be among them
    origins: Mapping[str, str]
    """The option, variable or file that each value comes from."""
    files: tuple[Path, ...]
    """The config files that were read; a later one overrides an earlier one."""
    found: Path | None
    """The file that is not trusted, because it was found in the current folder and not named."""

    def is_trusted(self, key: str) -> bool:
        """Return whether a value comes from a trusted source."""
        return self.found is None or self.origins.get(key) != str(self.found)


def read_settings(
    options: Mapping[str, Any], config: Path | None = None, *, trusted_only: bool = False
) -> Settings:
    """Return the settings of the command line, the variables and the config files.

    With ``trusted_only`` a file in the current folder is not read unless it is named.
    """
    named = config or os.environ.get(f"{_PREFIX}CONFIG")
    trusted = Path(named) if named else _existing(_home_file())
    found = None if named or trusted_only else _existing(_HERE)
    layers = [
        _of_file(trusted, frozenset(_KEYS)) if trusted else {},
        _of_file(found, _UNTRUSTED) if found else {},
        _of_environment(),
        {name: (f"--{name.replace('_', '-')}", value) for name, value in options.items()},
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for group in _TOGETHER:
            if not group.isdisjoint(layer):
                values = {name: value for name, value in values.items() if name not in group}
        values |= {name: value for name, (_, value) in layer.items()}
        origins |= {name: origin for name, (origin, _) in layer.items()}
    files = tuple(file for file in (trusted, found) if file)
    return Settings(values, {name: origins[name] for name in values}, files, found)


def _home_file() -> Path:
    # The XDG specification says to ignore a relative path.
    root = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(root) if os.path.isabs(root) else Path("~/.config").expanduser()
    # With a relative HOME, a file of the current folder would count as the user's own.
    return (home if home.is_absolute() else Path("/")) / "nsqflow" / "config.toml"


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None


def _of_file(path: Path, allowed: frozenset[str]) -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    for key, value in _load(path).items():
        if key not in _KEYS:
            raise ConfigError(f"{path}: unknown key {key!r}; {_hint(key)}")
        if key not in allowed:
            raise ConfigError(
                f"{path}: {key} is not allowed in a file that was not named; "
                f"if you trust the file, use --config {path}"
            )
        value = _KEYS[key].load(f"{path}: {key}", value)
        is_path = isinstance(_KEYS[key], PathKind)
        found[key] = str(path), str(path.parent / value) if is_path else value
    return found


def _of_environment() -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    for key, kind in _KEYS.items():
        name = _PREFIX + key.upper()
        if text := os.environ.get(name):
            found[key] = name, kind.load(name, text)
    if secret := os.environ.get(f"{_PREFIX}AUTH_SECRET"):
        found["auth_secret"] = f"{_PREFIX}AUTH_SECRET", secret
    return found


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(f"config file {str(path)!r}: {error.strerror}") from None
    if len(text) > _MAX_FILE:
        raise ConfigError(f"config file {str(path)!r}: more than {_MAX_FILE} bytes")
    try:
        return tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:  # which includes tomllib's own error
        raise ConfigError(f"config file {str(path)!r} is not TOML: {error}") from None


def _hint(key: str) -> str:
    if key == "auth_secret":
        return "a secret must not be in this file: set auth_secret_file or auth_secret_env"
    return did_you_mean(key, _KEYS) or f"known: {', '.join(_KEYS)}"
