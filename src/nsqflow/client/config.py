"""Options: their defaults and ranges, checked before anything is connected.

What only a server can judge (its own limits are its operator's choice) is left to it: if
it refuses, its words come back in a ``ConfigError``.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

import nsqflow
from nsqflow.client.address import AddressMap, parse_address, parse_addresses
from nsqflow.client.allowed_addresses import AllowedAddresses
from nsqflow.client.options import OnEvent, OnGivingUp
from nsqflow.errors import ConfigError
from nsqflow.protocol import Dialect, IdentifyRequest, is_valid_name

if TYPE_CHECKING:
    from nsqflow.client.message import Message

C = TypeVar("C", bound="ClientConfig")

MEBIBYTE = 1024 * 1024


def number(
    default: float | None,
    low: float,
    high: float | None = None,
    *,
    above: bool = False,
    disabled: bool = False,
    whole: bool = False,
) -> Any:
    """Declare an option that is a number: its default and its range.

    ``above``: ``low`` itself is not allowed. ``disabled``: -1 is, and switches it off.
    """
    check = NumberCheck(low, high, above, disabled, whole, optional=default is None)
    return field(default=default, metadata={"check": check})


def in_digits(value: float) -> str:
    """Write a number as people do, without an exponent."""
    return str(int(value)) if value == int(value) else f"{value:g}"


@dataclass(frozen=True, slots=True)
class NumberCheck:
    """The range of a number."""

    low: float
    high: float | None
    above: bool
    disabled: bool
    whole: bool
    optional: bool

    def __call__(self, name: str, value: object) -> None:
        """Raise ``ConfigError`` for a value out of the range."""
        if value is None and self.optional:
            return
        kinds = int if self.whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not self._holds(value):
            raise ConfigError(f"{name} {value!r}; allowed is {self}")

    def _holds(self, value: float) -> bool:
        if self.disabled and value == -1:
            return True
        # (Not isfinite: a whole number may be too large for a float.)
        if not self.low <= value < inf or (self.above and value == self.low):
            return False
        return self.high is None or value <= self.high

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        low = f"above {in_digits(self.low)}" if self.above else f"of {in_digits(self.low)}"
        high = " or more" if self.high is None else f" to {in_digits(self.high)}"
        words = f"{kind} {low}{'' if self.above and self.high is None else high}"
        words += ", or -1 (disabled)" if self.disabled else ""
        return words + (", or None (the server's default)" if self.optional else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What a ``Producer`` and a ``Consumer`` take."""

    nsqd: tuple[str, ...] = ()
    lookupd: tuple[str, ...] = field(default=(), repr=False)  # a URL may have a password in it
    lookupd_poll_interval: float = number(60.0, 0, above=True)
    lookupd_poll_jitter: float = number(0.3, 0, 1)
    lookupd_poll_timeout: float = number(5.0, 0, above=True)
    lookupd_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    lookupd_tls: ssl.SSLContext | None = None
    reconnect_delay: float = number(1.0, 0, above=True)
    max_reconnect_delay: float = number(60.0, 0, above=True)
    dial_timeout: float = number(5.0, 0, above=True)
    heartbeat_interval: float | None = number(None, 1, disabled=True)
    output_buffer_size: int | None = number(None, 64, disabled=True, whole=True)
    output_buffer_timeout: float | None = number(None, 0.001, disabled=True)
    msg_timeout: float | None = number(None, 1)
    sample_rate: int | None = number(None, 0, 99, whole=True)
    tls: bool | ssl.SSLContext | None = None
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = number(6, 1, 9, whole=True)
    auth_secret: str | bytes | None = field(default=None, repr=False)
    client_id: str | None = None
    hostname: str | None = None
    user_agent: str | None = None
    address_map: AddressMap | None = None
    allowed_addresses: Sequence[str] | None = None
    dialect: str | None = None
    on_event: OnEvent | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            check = f.metadata.get("check") or _CHECKS.get(str(f.type))
            if check is not None:
                check(f.name, getattr(self, f.name))
        self._check_servers()
        self._check_features()

    @classmethod
    def of(cls: type[C], owner: str, nsqd: Any, lookupd: Any, options: Mapping[str, Any]) -> C:
        """Read what the caller of ``owner`` gave."""
        known = {f.name for f in fields(cls)} - {"nsqd", "lookupd"}
        for name in options:
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"{owner} has no option {name!r}{hint}")
        return cls(
            nsqd=parse_addresses("nsqd", nsqd),
            lookupd=parse_addresses("lookupd", lookupd),
            **options,
        )

    def _check_servers(self) -> None:
        if bool(self.nsqd) == bool(self.lookupd):
            given = "both" if self.nsqd else "neither"
            raise ConfigError(f"{given} of nsqd and lookupd; give one of the two, not empty")
        for address in self.nsqd:
            parse_address(address)
        self._check_lookupd()
        if self.max_reconnect_delay < self.reconnect_delay:
            raise ConfigError(
                f"max_reconnect_delay {self.max_reconnect_delay:g} below reconnect_delay "
                f"{self.reconnect_delay:g}"
            )
        for name, value in self.lookupd_headers.items():
            check_header(name, value)
        if self.dialect not in (None, "classic"):
            raise ConfigError(f"dialect {self.dialect!r}; allowed is 'classic' or None")

    def _check_lookupd(self) -> None:
        if self.lookupd:
            from nsqflow.http.client import parse_http_address  # direct connections do without

            for address in self.lookupd:
                parse_http_address(address)

    def _check_features(self) -> None:
        if self.snappy and self.deflate:
            raise ConfigError("snappy and deflate can't be had together; choose one")
        if self.tls not in (None, True, False) and not isinstance(self.tls, ssl.SSLContext):
            raise ConfigError(f"tls {self.tls!r}; allowed is True or an ssl.SSLContext")
        if not isinstance(self.auth_secret, str | bytes | None):
            raise ConfigError("auth_secret is neither str nor bytes")
        if not (isinstance(self.address_map, Mapping | None) or callable(self.address_map)):
            raise ConfigError(
                f"address_map {self.address_map!r}; allowed is a mapping or a function"
            )

    @property
    def secret(self) -> bytes | None:
        """The secret for AUTH."""
        secret = self.auth_secret
        return secret.encode() if isinstance(secret, str) else secret

    @property
    def wire_dialect(self) -> Dialect:
        """What is spoken to the servers."""
        return Dialect.CLASSIC

    def ssl_context(self) -> ssl.SSLContext | None:
        """How TLS is done; verified unless the caller's own context says otherwise."""
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        return ssl.create_default_context() if self.tls else None

    def identify(self) -> IdentifyRequest:
        """Say to nsqd who this is and what it asks for."""
        host = self.hostname or socket.gethostname()
        return IdentifyRequest(
            client_id=self.client_id or host.partition(".")[0],
            hostname=host,
            user_agent=self.user_agent or f"nsqflow/{nsqflow.__version__}",
            heartbeat_interval=_milliseconds(self.heartbeat_interval),
            output_buffer_size=self.output_buffer_size,
            output_buffer_timeout=_milliseconds(self.output_buffer_timeout),
            msg_timeout=_milliseconds(self.msg_timeout),
            sample_rate=self.sample_rate,
            tls_v1=bool(self.tls),
            snappy=self.snappy,
            deflate=self.deflate,
            deflate_level=self.deflate_level if self.deflate else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """What a ``Producer`` takes."""

    publish_timeout: float = number(30.0, 0, above=True)
    max_msg_size: int = number(MEBIBYTE, 1, 2**31 - 9, whole=True)
    max_body_size: int = number(5 * MEBIBYTE, 9, 2**31 - 1, whole=True)
    max_pending: int = number(64 * MEBIBYTE, 1, whole=True)
    connections_per_nsqd: int = number(1, 1, 1000, whole=True)
    retry_uncertain: bool = False

    def __post_init__(self) -> None:
        # (super() without arguments does not work in a dataclass with slots.)
        super(ProducerConfig, self).__post_init__()
        if self.max_body_size < self.max_msg_size + 8:
            raise ConfigError(
                f"max_body_size {self.max_body_size}; {self.max_msg_size + 8} or more, "
                "so that one message of max_msg_size fits"
            )
        if self.max_pending < self.max_body_size:
            raise ConfigError(
                f"max_pending {self.max_pending}; max_body_size {self.max_body_size} or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """What a ``Consumer`` takes."""

    max_in_flight: int = number(200, 1, whole=True)
    max_attempts: int = number(5, 0, 65534, whole=True)
    dead_letter: str | os.PathLike[str] | Callable[[Message, BaseException | None], Any] | None = (
        None
    )
    on_giving_up: OnGivingUp | None = None
    default_requeue_delay: float = number(90.0, 0, 10**9)
    max_requeue_delay: float = number(900.0, 0, 10**9)
    max_backoff_duration: float = number(120.0, 0)
    backoff_multiplier: float = number(1.0, 0, above=True)
    rdy_redistribute_interval: float = number(5.0, 0, above=True)
    low_rdy_idle_timeout: float = number(10.0, 0, above=True)
    low_rdy_timeout: float = number(30.0, 0, above=True)

    def __post_init__(self) -> None:
        super(ConsumerConfig, self).__post_init__()
        if self.heartbeat_interval == -1:
            raise ConfigError("heartbeat_interval -1; nsqd lets nobody subscribe without them")
        letter = self.dead_letter
        if isinstance(letter, str):
            valid = is_path(letter) or is_valid_name(letter)
        else:
            valid = isinstance(letter, os.PathLike | None) or callable(letter)
        if not valid:
            raise ConfigError(f"dead_letter {letter!r}; allowed is a topic, a path or a callable")


def check_header(name: object, value: object) -> None:
    """Raise unless both are text of one line; the value is not shown, it may be a secret."""
    texts = [text for text in (name, value) if isinstance(text, str)]
    if len(texts) < 2 or any("\r" in text or "\n" in text for text in texts):
        raise ConfigError(f"lookupd_headers {name!r}; name and value must be text of one line")


def is_path(text: str) -> bool:
    """Tell a file's name from a topic's: no topic has a slash."""
    return "/" in text or os.sep in text


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} {value!r}; allowed is True or False")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str | None):
        raise ConfigError(f"{name} {value!r}; allowed is text, or None")


def _check_allowed(_: str, value: object) -> None:
    if value is not None:
        AllowedAddresses(value)


def _check_callback(name: str, value: object) -> None:
    if not (value is None or callable(value)):
        raise ConfigError(f"{name} {value!r}; allowed is a function, or None")


# For options whose type says all there is to check.
_CHECKS: dict[str, Callable[[str, object], None]] = {
    "bool": _check_flag,
    "str | None": _check_text,
    "Sequence[str] | None": _check_allowed,
    "OnEvent | None": _check_callback,
    "OnGivingUp | None": _check_callback,
}


def _milliseconds(seconds: float | None) -> int | None:
    if seconds is None or seconds == -1:
        return None if seconds is None else -1
    return round(seconds * 1000)
