"""What a ``ClientSession`` reports: frozen, and nothing in them to be parsed again.

The messages' own event is ``messages.MessageBatch``: all that arrived in a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nsqflow.errors import ServerError
from nsqflow.protocol.identify import AuthReply, IdentifyReply
from nsqflow.protocol.messages import MessageBatch, Receipt


@dataclass(frozen=True, slots=True)
class StartTls:
    """Begin the TLS handshake now, then call ``tls_started()`` and go on with clear text.

    Send what ``data_to_send()`` holds first. ``pending`` arrived already and belongs to
    the handshake.
    """

    pending: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class TlsStarted:
    """The server's first word inside TLS was read."""


@dataclass(frozen=True, slots=True)
class CompressionStarted:
    """The server's first compressed word was read; all from here on is compressed."""

    method: str
    """``snappy`` or ``deflate``."""


@dataclass(frozen=True, slots=True)
class CompressionRefused:
    """The server does not compress this way; the connection goes on without."""

    method: str


@dataclass(frozen=True, slots=True)
class Connected:
    """Negotiation is over: publish, subscribe, or authenticate if the server asks for it."""

    reply: IdentifyReply


@dataclass(frozen=True, slots=True)
class Authenticated:
    """AUTH was accepted."""

    reply: AuthReply


@dataclass(frozen=True, slots=True)
class Subscribed:
    """SUB was accepted; messages come once RDY is above 0."""


@dataclass(frozen=True, slots=True)
class Published:
    """The oldest publish that was unanswered is stored."""

    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The server asked for a sign of life; the session has answered."""


@dataclass(frozen=True, slots=True)
class CloseWait:
    """CLS was accepted, and every FIN, REQ and TOUCH sent before it was dealt with.

    Of messages at most those follow that were on their way already.
    """


@dataclass(frozen=True, slots=True)
class AnswerFailed:
    """FIN, REQ or TOUCH came too late or for a message of somebody else; all else goes on."""

    command: str
    id: bytes | None
    """None where the server's words name none."""
    error: ServerError


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """The server answered with an error."""

    error: ServerError
    command: str | None
    """The command it answers: the oldest that was unanswered, if there was any."""
    closes: bool
    """The server closes the connection; what else was unanswered stays so."""


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
