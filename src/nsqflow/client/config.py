"""The options of producers and consumers, checked before anything is connected.

Values that depend on a server's limits are checked by the server: if it refuses them, its error
message is part of the ``ConfigError``.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import nsqflow
from nsqflow.address import AddressMap, parse_address, parse_http_address
from nsqflow.client.allowed_addresses import AllowedAddresses
from nsqflow.client.options import OnEvent
from nsqflow.config.addresses import Addresses
from nsqflow.config.kinds import CALLBACK, Boolean, Choice, Instance, Kind, Text
from nsqflow.config.numbers import Integer, Number
from nsqflow.config.options import check_exactly_one, check_options, did_you_mean, option
from nsqflow.errors import ConfigError
from nsqflow.protocol import Dialect, IdentifyRequest
from nsqflow.transport.handshake import ConnectionSettings

C = TypeVar("C", bound="ClientConfig")

_POSITIVE = Number(0, above=True)
_BOOLEAN = Boolean()
_TEXT = Text(optional=True)
_PYNSQ_HINTS = {
    "nsqd_tcp_addresses": "did you mean 'nsqd'?",
    "lookupd_http_addresses": "did you mean 'lookupd'?",
}


class _AllowedAddresses(Kind):
    """The option ``allowed_addresses``."""

    def check(self, name: str, value: Any) -> Any:
        """Check each entry."""
        if value is not None:
            AllowedAddresses(value)
        return value

    def __str__(self) -> str:
        return "hosts and networks, or None"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The options of both a ``Producer`` and a ``Consumer``."""

    nsqd: tuple[str, ...] = option(
        (),
        Addresses("one address or several", parse_address),
        "addresses of nsqd: `host:port`, `[v6]:port` or the path of a unix socket",
    )
    # A URL may contain a password.
    lookupd: tuple[str, ...] = option(
        (),
        Addresses("one address or several", parse_http_address),
        "HTTP addresses of nsqlookupd: `host:port` or an `http(s)://` URL; pass either these or "
        "`nsqd`",
        secret=True,
    )
    lookupd_poll_interval: float = option(
        60.0,
        _POSITIVE,
        "seconds between two polls of nsqlookupd; after a lost connection it is polled at once, "
        "then after 1, 2, 4 ... s up to this, until nsqd is connected again",
    )
    lookupd_poll_jitter: float = option(
        0.3, Number(0, 1), "each poll is delayed by a random part of the interval, up to this"
    )
    lookupd_poll_timeout: float = option(5.0, _POSITIVE, "seconds for one nsqlookupd to answer")
    lookupd_headers: Mapping[str, str] = option(
        dict,
        Instance(
            "a mapping of names to values", lambda value: isinstance(value, Mapping), secret=True
        ),
        "HTTP headers sent to nsqlookupd",
        secret=True,
    )
    lookupd_tls: ssl.SSLContext | None = option(
        None,
        Kind(),
        "an `ssl.SSLContext` for `https://` nsqlookupd; by default they are verified with the "
        "system's certificates",
    )
    reconnect_delay: float = option(
        1.0,
        _POSITIVE,
        "a lost connection to an nsqd given directly is reopened at once; if that fails, after "
        "this many seconds, doubling with each failure, with jitter. A publish that finds no "
        "connection dials at once, at most once a second. A connection that lasted less than this "
        "counts as a failure",
    )
    max_reconnect_delay: float = option(60.0, _POSITIVE, "the longest such delay, in seconds")
    dial_timeout: float = option(5.0, _POSITIVE, "seconds to connect and negotiate")
    heartbeat_interval: float | None = option(
        None,
        Number(1, disabled=True, optional=True),
        "seconds between heartbeats; a peer that is silent for twice as long is disconnected "
        "(nsqd's default: 30)",
    )
    output_buffer_size: int | None = option(
        None,
        Integer(64, disabled=True, optional=True),
        "bytes that nsqd buffers before it sends them (nsqd's default: 16384)",
    )
    output_buffer_timeout: float | None = option(
        None,
        Number(0.001, disabled=True, optional=True),
        "seconds after which nsqd sends what it has buffered (nsqd's default: 0.25); nsqd accepts "
        "0.025 or more unless configured otherwise",
    )
    msg_timeout: float | None = option(
        None,
        Number(1, optional=True),
        "seconds to answer a message, after which nsqd delivers it again (nsqd's default: 60)",
    )
    sample_rate: int | None = option(
        None, Integer(0, 99, optional=True), "percent of the messages to receive; 0: all"
    )
    tls: bool | ssl.SSLContext | None = option(
        None,
        Instance(
            "True, False, None or an ssl.SSLContext",
            lambda value: value in (None, True, False) or isinstance(value, ssl.SSLContext),
        ),
        "use TLS; if the server does not offer it, connecting fails before another byte is sent",
    )
    snappy: bool = option(
        False, _BOOLEAN, "compress with snappy; if not granted: a warning, and no compression"
    )
    deflate: bool = option(False, _BOOLEAN, "compress with deflate; not together with `snappy`")
    deflate_level: int = option(6, Integer(1, 9), "1 is fast, 9 is small; nsqd may limit it")
    auth_secret: str | bytes | None = option(
        None,
        Instance(
            "str or bytes, or None",
            lambda value: isinstance(value, str | bytes | None),
            secret=True,
        ),
        "sent (AUTH) only to a server that requires it; never logged. Without TLS, and not on "
        "loopback, a warning is logged: it is sent in clear text",
        secret=True,
    )
    client_id: str | None = option(
        None, _TEXT, "shown in nsqd's statistics; by default the host's short name"
    )
    hostname: str | None = option(None, _TEXT, "shown there too; by default the host's name")
    user_agent: str | None = option(None, _TEXT, "shown there too; by default `nsqflow/VERSION`")
    address_map: AddressMap | None = option(
        None,
        Instance(
            "a mapping or a function, or None",
            lambda value: isinstance(value, Mapping | None) or callable(value),
        ),
        "the addresses to connect to instead: a mapping from `host:port` or `host`, or a function; "
        "for NAT, Docker, Kubernetes",
    )
    allowed_addresses: Sequence[str] | None = option(
        None,
        _AllowedAddresses(),
        "which of the nsqd that nsqlookupd lists are dialled: host names, IP addresses and "
        'networks, such as `["nsqd1.example", "10.0.0.0/8"]`; a host name matches the same name, a '
        "network matches IP addresses, both as nsqlookupd lists them (before `address_map`). The "
        "others are logged once, and `explain()` lists them. None: all. An nsqd given directly is "
        "always dialled",
    )
    dialect: str | None = option(
        None,
        Choice("classic", "redesigned", optional=True),
        "`classic` or `redesigned`: refuse servers and topics of the other NSQ. None: detected for "
        "each topic by what nsqlookupd answers",
    )
    on_event: OnEvent | None = option(
        None,
        CALLBACK,
        "a function called with each event (`nsqflow.ClientEvent`): connected, connect_failed, "
        "disconnected, backoff, resumed, expired, answer_failed, answer_late, gave_up, "
        "lookup_failed, uncertain, leader_changed, blocked, order_violation",
    )

    def __post_init__(self) -> None:
        check_options(self)
        check_exactly_one(nsqd=self.nsqd, lookupd=self.lookupd)
        if self.max_reconnect_delay < self.reconnect_delay:
            raise ConfigError(
                f"max_reconnect_delay={self.max_reconnect_delay:g} is invalid: must be >= "
                f"reconnect_delay ({self.reconnect_delay:g})"
            )
        for name, value in self.lookupd_headers.items():
            check_header(name, value)
        if self.snappy and self.deflate:
            raise ConfigError("both snappy and deflate are set: choose one of them")
        if self.dialect == "redesigned" and self.nsqd:
            raise ConfigError(
                "dialect='redesigned' is invalid together with nsqd: its leaders move, so pass "
                "lookupd"
            )

    @classmethod
    def of(cls: type[C], owner: str, nsqd: Any, lookupd: Any, options: Mapping[str, Any]) -> C:
        """Return the config for the arguments of ``owner``, a producer or a consumer."""
        known = {f.name for f in fields(cls)} - {"nsqd", "lookupd"}
        for name in options:
            if name not in known:
                hint = _PYNSQ_HINTS.get(name) or did_you_mean(name, known)
                raise TypeError(f"{owner} has no option {name!r}" + (f"; {hint}" if hint else ""))
        return cls(nsqd=nsqd, lookupd=lookupd, **options)

    @property
    def secret(self) -> bytes | None:
        """The secret for AUTH."""
        secret = self.auth_secret
        return secret.encode() if isinstance(secret, str) else secret

    def ssl_context(self) -> ssl.SSLContext | None:
        """The context for TLS; it verifies servers unless the caller's own context does not."""
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        return ssl.create_default_context() if self.tls else None

    def dialect_error(self, topic: str, dialect: Dialect | None) -> ConfigError | None:
        """Return the error for a topic of the dialect that the option ``dialect`` excludes."""
        if dialect is None or self.dialect in (None, dialect.value):
            return None
        return ConfigError(
            f"dialect={self.dialect!r} is invalid for topic {topic!r}: nsqlookupd names it as a "
            f"topic of the {dialect.value} NSQ"
        )

    def connection_settings(self, dialect: Dialect = Dialect.CLASSIC) -> ConnectionSettings:
        """Return the settings for all connections of one client to servers of a dialect."""
        context = self.ssl_context()
        return ConnectionSettings(
            identify=self.identify(),
            dialect=dialect,
            dial_timeout=self.dial_timeout,
            address_map=self.address_map,
            tls=None if context is None else lambda: context,
            secret=lambda: self.secret,
            redesigned_hint="pass lookupd= to find the leaders of its topics",
        )

    def identify(self) -> IdentifyRequest:
        """Return the IDENTIFY request that these options make."""
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


def check_header(name: object, value: object) -> None:
    """Raise unless both are text of one line; the value is not shown, as it may be a secret."""
    texts = [text for text in (name, value) if isinstance(text, str)]
    if len(texts) < 2 or any("\r" in text or "\n" in text for text in texts):
        raise ConfigError(
            f"lookupd_headers {name!r} is invalid: name and value must be text of one line"
        )


def _milliseconds(seconds: float | None) -> int | None:
    if seconds is None or seconds == -1:
        return None if seconds is None else -1
    return round(seconds * 1000)
