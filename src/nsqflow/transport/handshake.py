"""Opening a connection to nsqd, without I/O: IDENTIFY, TLS, compression, AUTH, SUB.

``handshake()`` is a generator that a connection drives. It yields the next ``HandshakeStep``,
takes the session's next event in return, and raises what prevents the connection:

    steps = handshake(address, settings, session, subscription)
    step = next(steps)
    while True:
        event = ...  # do what the step says
        step = steps.send(event)  # StopIteration: the connection is open
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from nsqflow.address import AddressMap
from nsqflow.errors import (
    ConfigError,
    NsqError,
    RemoteProtocolError,
    ServerError,
    TlsNotGrantedError,
)
from nsqflow.protocol import (
    Auth,
    Authenticated,
    ClientSession,
    CommandFailed,
    Connected,
    Dialect,
    Event,
    IdentifyRequest,
    StartTls,
    Sub,
    Subscribed,
)

if TYPE_CHECKING:
    import ssl

E = TypeVar("E")

SERVER_HEARTBEAT = 30.0
"""Seconds between the heartbeats of an nsqd that was asked for no other interval."""

# IDENTIFY's fields as nsqd names them in a refusal.
_NAMES_IN_REFUSALS = {
    "output buffer size": "output_buffer_size",
    "output buffer timeout": "output_buffer_timeout",
    "msg timeout": "msg_timeout",
}
_FINAL_CODES = ("E_BAD_TOPIC", "E_BAD_CHANNEL", "E_UNAUTHORIZED")


class HandshakeStep(Enum):
    """What the connection must do before it goes on with the handshake."""

    READ = "read"
    """Write what the session has queued, then send the session's next event."""
    AUTH = "auth"
    """The same; AUTH is queued, which is worth a warning on a plaintext connection."""
    START_TLS = "start TLS"
    """Do the TLS handshake, call the session's ``tls_started()``, then send None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """What all connections of one client have in common."""

    identify: IdentifyRequest
    dialect: Dialect = Dialect.CLASSIC
    dial_timeout: float = 10.0
    """Seconds for connecting and the whole handshake."""
    address_map: AddressMap | None = None
    tls: Callable[[], ssl.SSLContext] | None = None
    """Returns the context for TLS; needed if ``identify`` asks for TLS."""
    secret: Callable[[], bytes | None] = field(default=lambda: None, repr=False)
    """Returns the secret for AUTH; called only if nsqd asks for AUTH."""
    optional: frozenset[str] = frozenset()
    """Fields of IDENTIFY that are left out if nsqd refuses their value."""
    option_names: Mapping[str, str] = field(default_factory=dict)
    """The user's names of options where they differ from ours, for errors."""
    redesigned_hint: str = "only classic nsqd are supported"
    """What to do about an nsqd of the redesigned NSQ, for errors."""

    @property
    def read_timeout(self) -> float | None:
        """Seconds without a byte after which nsqd counts as gone: two heartbeats are missing.

        None if heartbeats are disabled.
        """
        interval = self.identify.heartbeat_interval
        if interval == -1:
            return None
        return 2 * (SERVER_HEARTBEAT if interval is None else interval / 1000)

    def option_name(self, name: str) -> str:
        """Return the user's name of an option."""
        return self.option_names.get(name, name)

    def without_refused_option(self, refusal: ServerError) -> ConnectionSettings | None:
        """Return settings without the option that nsqd refused; None if it is not optional."""
        name = self._refused_field(refusal)
        if name not in self.optional:
            return None
        without: dict[str, Any] = {name: None}
        return replace(self, identify=replace(self.identify, **without))

    def describe_refusal(self, refusal: ServerError) -> str:
        """Return nsqd's words, and the option they are about where its limit is known."""
        if self._refused_field(refusal) != "msg_timeout":
            return str(refusal)
        seconds = (self.identify.msg_timeout or 0) / 1000
        option = self.option_name("msg_timeout")
        return f"{refusal} ({option}={seconds:g} must not exceed its -max-msg-timeout)"

    def _refused_field(self, refusal: ServerError) -> str:
        for words, name in _NAMES_IN_REFUSALS.items():
            if words in refusal.text and getattr(self.identify, name) is not None:
                return name
        return ""


class OptionalRefused(ConfigError):
    """nsqd refused an option that can be left out."""

    def __init__(self, text: str, fallback: ConnectionSettings) -> None:
        super().__init__(text)
        self.fallback = fallback
        """Settings without it, for the next connection."""


def handshake(
    address: str,
    settings: ConnectionSettings,
    session: ClientSession,
    subscription: Sub | None = None,
) -> Generator[HandshakeStep, Event | None, None]:
    """Negotiate, authenticate if nsqd asks for it, and subscribe if there is a subscription."""
    event = yield from _expect(address, settings, StartTls, Connected)
    if isinstance(event, StartTls):
        if event.pending:
            raise RemoteProtocolError(f"{address}: bytes between IDENTIFY's response and TLS")
        yield HandshakeStep.START_TLS
        yield from _expect(address, settings, Connected)
    reply = session.reply
    if reply.dialect is not settings.dialect:
        raise _wrong_dialect(address, settings, reply.version)
    if reply.auth_required:
        secret = settings.secret()
        if secret is None:
            raise ConfigError(f"{address} asks for AUTH: set {settings.option_name('auth_secret')}")
        session.send(Auth(secret))
        yield from _expect(address, settings, Authenticated, step=HandshakeStep.AUTH)
    if subscription is not None:
        if reply.max_rdy_count < 1:
            raise RemoteProtocolError(
                f"{address}: max_rdy_count={reply.max_rdy_count} is invalid: must be >= 1"
            )
        session.send(subscription)
        yield from _expect(address, settings, Subscribed)


def _wrong_dialect(address: str, settings: ConnectionSettings, version: str) -> NsqError:
    if settings.dialect is Dialect.CLASSIC:
        return ConfigError(
            f"{address} is an nsqd of the redesigned NSQ (version {version}): "
            f"{settings.redesigned_hint}"
        )
    return RemoteProtocolError(
        f"{address} is a classic nsqd (version {version}), and nsqlookupd names it as the leader "
        "of a partition"
    )


def _expect(
    address: str,
    settings: ConnectionSettings,
    *expected: type[E],
    step: HandshakeStep = HandshakeStep.READ,
) -> Generator[HandshakeStep, Event | None, E]:
    """Wait for one of these events; ignore heartbeats and other events of the negotiation."""
    while True:
        event = yield step
        if isinstance(event, CommandFailed):
            raise refusal_error(address, settings, event)
        if isinstance(event, expected):
            return event
        step = HandshakeStep.READ


def refusal_error(address: str, settings: ConnectionSettings, event: CommandFailed) -> NsqError:
    """Return the error for a command that nsqd refused."""
    # A redesigned nsqd with too many clients says so in an error without a code.
    if event.command != "IDENTIFY" or not event.error.code.startswith("E_"):
        return event.error
    text = f"{address} refused the options: {settings.describe_refusal(event.error)}"
    fallback = settings.without_refused_option(event.error)
    return ConfigError(text) if fallback is None else OptionalRefused(text, fallback)


def is_final(error: BaseException) -> bool:
    """Return whether another attempt can't help, as the request itself was refused."""
    if isinstance(error, ServerError):
        return error.code in _FINAL_CODES or error.code.startswith("E_AUTH")
    return isinstance(error, ConfigError | TlsNotGrantedError)
