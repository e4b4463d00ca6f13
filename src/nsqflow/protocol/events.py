"""The events of a ``ClientSession``.

The event for messages is ``messages.MessageBatch``: all that arrived consecutively.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nsqflow.errors import ServerError
from nsqflow.protocol.identify import AuthReply, IdentifyReply
from nsqflow.protocol.messages import MessageBatch, Receipt


@dataclass(frozen=True, slots=True)
class StartTls:
    """Do the TLS handshake now, then call ``tls_started()`` and continue with decrypted data.

    Send ``data_to_send()`` first. ``pending`` has already arrived and belongs to the handshake.
    """

    pending: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class TlsStarted:
    """The server's first response inside TLS was read."""


@dataclass(frozen=True, slots=True)
class CompressionStarted:
    """The server's first compressed response was read; everything after it is compressed."""

    method: str
    """``snappy`` or ``deflate``."""


@dataclass(frozen=True, slots=True)
class CompressionRefused:
    """The server does not grant this compression; the connection continues without it."""

    method: str


@dataclass(frozen=True, slots=True)
class Connected:
    """Negotiation is complete; some servers require AUTH next."""

    reply: IdentifyReply


@dataclass(frozen=True, slots=True)
class Authenticated:
    """AUTH was accepted."""

    reply: AuthReply


@dataclass(frozen=True, slots=True)
class Subscribed:
    """SUB was accepted; messages arrive once RDY is above 0."""


@dataclass(frozen=True, slots=True)
class Published:
    """The oldest unanswered publish is stored."""

    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The server sent a heartbeat; the session has answered it."""


@dataclass(frozen=True, slots=True)
class CloseWait:
    """CLS was accepted; the server has processed every FIN, REQ and TOUCH sent before it.

    Only messages that the server had already sent may follow.
    """


@dataclass(frozen=True, slots=True)
class AnswerFailed:
    """A FIN, REQ or TOUCH failed: it was too late, or for another client's message."""

    command: str
    id: bytes | None
    """None if the server's text does not contain it."""
    error: ServerError


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """The server answered with an error."""

    error: ServerError
    command: str | None
    """The command it answers: the oldest unanswered one, if there is any."""
    closes: bool
    """Whether the server closes the connection; other commands are never answered then."""


Event = (
    StartTls
    | TlsStarted
    | CompressionStarted
    | CompressionRefused
    | Connected
    | Authenticated
    | Subscribed
    | Published
    | Heartbeat
    | MessageBatch
    | CloseWait
    | AnswerFailed
    | CommandFailed
)
