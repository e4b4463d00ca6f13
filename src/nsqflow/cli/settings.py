"""What the command line does not say: the environment and the config file.

Each key of the file has its variable: ``tls_ca_file`` is ``NSQFLOW_TLS_CA_FILE``. A variable wins
over the file, and the command line over both.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from nsqflow.errors import ConfigError

_PREFIX = "NSQFLOW_"
_HERE = Path("nsqflow.toml")
_MAX_FILE = 1024 * 1024

# Of these, whoever says one says all: an address that is added to those of a file would surprise.
_TOGETHER = (
    frozenset({"lookupd", "nsqd", "nsqd_http"}),
    frozenset({"auth_secret", "auth_secret_file", "auth_secret_env"}),
)


def _addresses(value: object) -> tuple[str, ...]:
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError
    if not (addresses := tuple(text.strip() for text in texts if text.strip())):
        raise ValueError
    return addresses


def _flag(value: object) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in known:
        raise ValueError
    return known[value.lower()]


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _seconds(value: object) -> float:
    seconds = float(value) if isinstance(value, str | int | float) else 0.0
    if isinstance(value, bool) or not 0 < seconds <= 3600:
        raise ValueError
    return seconds


def _mapping(value: object) -> dict[str, str]:
    if isinstance(value, str):
        value = dict(pair.strip().split("=", 1) for pair in value.split(","))
    if not isinstance(value, dict) or not all(isinstance(to, str) for to in value.values()):
        raise ValueError
    return value


class _Kind(NamedTuple):
    read: Callable[[object], Any]
    allowed: str


_ADDRESSES = _Kind(_addresses, "one address or several")
_FLAG = _Kind(_flag, "true or false")
_TEXT = _Kind(_text, "text that is not empty")
_PATH = _Kind(_text, "the path of a file")
_KEYS: dict[str, _Kind] = {
    "lookupd": _ADDRESSES,
    "nsqd": _ADDRESSES,
    "nsqd_http": _ADDRESSES,
    "tls": _FLAG,
    "tls_ca_file": _PATH,
    "tls_cert_file": _PATH,
    "tls_key_file": _PATH,
    "tls_verify": _FLAG,
    "auth_secret_file": _PATH,
    "auth_secret_env": _TEXT,
    "address_map": _Kind(_mapping, "a table from addresses or hosts to others (FROM=TO,...)"),
    "timeout": _Kind(_seconds, "a number of seconds above 0, up to 3600"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What was said, and by whom."""

    values: Mapping[str, Any] = field(repr=False)  # a secret may be among them
    origins: Mapping[str, str]
    """For each value the option, variable or file that it comes from."""
    file: Path | None
    """The config file that was read."""


def read_settings(options: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Put together what is said on the command line, by variables, and by the config file."""
    file = _find_file(config)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    said = {name: (f"--{name.replace('_', '-')}", value) for name, value in options.items()}
    for layer in (_of_file(file) if file else {}, _of_environment(), said):
        for group in _TOGETHER:
            if not group.isdisjoint(layer):
                values = {name: value for name, value in values.items() if name not in group}
        values |= {name: value for name, (_, value) in layer.items()}
        origins |= {name: origin for name, (origin, _) in layer.items()}
    return Settings(values, {name: origins[name] for name in values}, file)


def _find_file(config: Path | None) -> Path | None:
    named = config or os.environ.get(f"{_PREFIX}CONFIG")
    if named:
        return Path(named)
    # The XDG specification asks for a relative one to be ignored.
    root = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(root) if os.path.isabs(root) else Path("~/.config").expanduser()
    return next(filter(Path.is_file, (_HERE, home / "nsqflow" / "config.toml")), None)


def _of_file(path: Path) -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    for key, value in _load(path).items():
        if key not in _KEYS:
            raise ConfigError(f"{path}: no key {key!r}; {_hint(key)}")
        value = _read(f"{path}: {key}", key, value)
        found[key] = str(path), str(path.parent / value) if _KEYS[key] is _PATH else value
    return found


def _of_environment() -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {}
    for key in _KEYS:
        name = _PREFIX + key.upper()
        if text := os.environ.get(name):
            found[key] = name, _read(name, key, text)
    if secret := os.environ.get(f"{_PREFIX}AUTH_SECRET"):
        found["auth_secret"] = f"{_PREFIX}AUTH_SECRET", secret
    return found


def _read(where: str, key: str, value: object) -> Any:
    try:
        return _KEYS[key].read(value)
    except ValueError:
        # An address may have a password in it.
        shown = "" if key in ("lookupd", "nsqd_http") else f" {value!r}"
        raise ConfigError(f"{where}{shown}; allowed is {_KEYS[key].allowed}") from None


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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {str(path)!r} is not TOML: {error}") from None


def _hint(key: str) -> str:
    if key == "auth_secret":
        return "a secret is not for this file: name it by auth_secret_file or auth_secret_env"
    near = get_close_matches(key, _KEYS, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(_KEYS)}"
