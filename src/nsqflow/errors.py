"""Every exception of nsqflow, in one tree.

    NsqError
    ├── ConfigError (also ValueError)      an option or argument that no server would take
    ├── ProtocolError
    │   ├── LocalProtocolError             this side was asked to break a rule of the protocol
    │   └── RemoteProtocolError            the other side broke one
    │       └── TlsNotGrantedError         it does no TLS, and TLS was asked for
    ├── NetworkError                       no connection, or one that was lost
    ├── RequestTimeout (also TimeoutError) time ran out and nothing was sent
    ├── DiscoveryError                     nsqlookupd gave no usable answer
    ├── PublishUncertain                   sent and never answered: stored, or not
    ├── OrderViolation                     an ordered partition went backwards
    └── ServerError                        an error frame; one class for each code

Whether an error closes the connection is not a fact of its code alone but of the
server's dialect and of the command, so it is asked of ``nsqflow.protocol.Dialect``.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Ranges:
    """What became of a ``publish_many`` that failed: which of its bodies, by index."""

    accepted: tuple[range, ...]
    refused: tuple[range, ...]
    """Certainly not stored."""
    uncertain: tuple[range, ...]

    def __str__(self) -> str:
        return "; ".join(
            f"{name}: {', '.join(f'{r.start} to {r.stop - 1}' for r in ranges) or 'none'}"
            for name, ranges in zip(self.__slots__, astuple(self), strict=True)
        )


class NsqError(Exception):
    """The root: ``except NsqError`` catches all that nsqflow raises on purpose."""

    ranges: Ranges | None = None
    """Set where ``publish_many`` raised it."""


class ConfigError(NsqError, ValueError):
    """An option, name or argument that can't work; says which, its value and the range."""


class ProtocolError(NsqError):
    """A rule of the NSQ protocol was broken."""


class LocalProtocolError(ProtocolError):
    """The caller asked for something the protocol forbids; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what the protocol forbids; the connection is of no more use.

    ``code`` is the E_* code a server answers with before it closes; a client has
    nobody to answer and leaves it empty.
    """

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text, code)
        self.text = text
        self.code = code

    def __str__(self) -> str:
        return f"{self.code} {self.text}".strip()


class TlsNotGrantedError(RemoteProtocolError):
    """TLS was asked for and the server does not do it; not a byte more was sent."""


class NetworkError(NsqError):
    """No connection could be made, or one was lost."""


class RequestTimeout(NsqError, TimeoutError):
    """Time ran out before the request was sent; it certainly had no effect."""


class DiscoveryError(NsqError):
    """nsqlookupd could not be asked, or its answer could not be used."""


class PublishUncertain(NsqError):
    """The message was sent and no answer came: nsqd may or may not have stored it."""


class OrderViolation(NsqError):
    """An ordered partition delivered an older message after a newer one."""


class ServerError(NsqError):
    """nsqd answered with an error frame.

    Raised as the class of its code where the code is known, else as this class.
    """

    retriable: ClassVar[bool] = False
    """The same call may succeed if it is made again."""

    stale_route: ClassVar[bool] = False
    """The address is out of date: ask nsqlookupd again before the next try."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.code} {self.text}".strip()

    @staticmethod
    def from_frame(data: bytes) -> ServerError:
        """Read an error frame: a code, then maybe a space, then maybe a text."""
        code, _, text = data.decode("utf-8", "backslashreplace").partition(" ")
        return SERVER_ERRORS.get(code, ServerError)(code, text)


# The request itself was wrong.


class InvalidCommandError(ServerError):
    """E_INVALID: a command unknown, malformed, or not allowed in this state."""

    retriable = True  # on a new connection, says the redesigned NSQ's own retry table


class BadBodyError(ServerError):
    """E_BAD_BODY: the size or the content of a command's body."""


class BadMessageError(ServerError):
    """E_BAD_MESSAGE: an empty message, or one above the server's max-msg-size."""


class BadTopicError(ServerError):
    """E_BAD_TOPIC: not a valid topic name."""


class BadChannelError(ServerError):
    """E_BAD_CHANNEL: not a valid channel name."""


class BadPartitionError(ServerError):
    """E_BAD_PARTITION: not a number, or missing where the topic is ordered."""


class BadProtocolError(ServerError):
    """E_BAD_PROTOCOL: the first four bytes named no protocol this server speaks."""


class IdentifyFailedError(ServerError):
    """E_IDENTIFY_FAILED: the features asked for can't be had together."""


# The request was right and could not be done.


class PublishFailedError(ServerError):
    """E_PUB_FAILED: the message was not stored."""

    retriable = True


class MultiPublishFailedError(ServerError):
    """E_MPUB_FAILED: the batch was not stored, or only its beginning: nsqd does not tell."""

    retriable = True


class DeferredPublishFailedError(ServerError):
    """E_DPUB_FAILED: the deferred message was not stored."""

    retriable = True


class TooMuchWaitingError(ServerError):
    """E_PUB_TOO_MUCH_WAITING: too many publishes queue for this partition."""

    retriable = True


class SubscribeFailedError(ServerError):
    """E_SUB_FAILED: the channel is full or going away."""

    retriable = True


class FinishFailedError(ServerError):
    """E_FIN_FAILED: the message is no longer in flight on this connection."""


class RequeueFailedError(ServerError):
    """E_REQ_FAILED: the message is no longer in flight on this connection."""


class TouchFailedError(ServerError):
    """E_TOUCH_FAILED: the message is no longer in flight on this connection."""


# Who may do what.


class AuthDisabledError(ServerError):
    """E_AUTH_DISABLED: AUTH was sent to a server that does not ask for it."""


class AuthFailedError(ServerError):
    """E_AUTH_FAILED: the secret was refused, or the auth server gave no answer."""


class AuthFirstError(ServerError):
    """E_AUTH_FIRST: the command needs AUTH before it."""


class AuthError(ServerError):
    """E_AUTH_ERROR: the server could not answer AUTH."""


class UnauthorizedError(ServerError):
    """E_UNAUTHORIZED: the secret gives no right to this topic or channel."""


# Redesigned NSQ: where a partition lives, and how it may be read.


class NotLeaderError(ServerError):
    """E_FAILED_ON_NOT_LEADER: this node does not lead the partition, or can't now."""

    retriable = True
    stale_route = True


class NotWritableError(ServerError):
    """E_FAILED_ON_NOT_WRITABLE: the partition takes no writes now, as while its leader moves."""

    retriable = True
    stale_route = True


class TopicNotExistError(ServerError):
    """E_TOPIC_NOT_EXIST: no such topic, or none of the partition on this node (any more)."""

    retriable = True
    stale_route = True


class OrderedSubscribeRequiredError(ServerError):
    """E_SUB_ORDER_IS_MUST: an ordered topic must be read with SUB_ORDERED."""


class ExtendNeededError(ServerError):
    """E_SUB_EXTEND_NEED: the topic has extended messages; IDENTIFY must say extend_support."""


class ExtendForbiddenError(ServerError):
    """E_SUB_EXTEND_FORBIDDON (sic): the topic has no extended messages; don't ask for them."""


class ChannelNotRegisteredError(ServerError):
    """E_SUB_CHANNEL_NOT_REGISTERED: the channel must be created before it is read."""


class ExtNotSupportedError(ServerError):
    """E_EXT_NOT_SUPPORT: headers published to a topic that has none."""


class InvalidHeaderError(ServerError):
    """E_INVALID_JSON_HEADER: headers that are not a JSON object."""


class InvalidTraceIdError(ServerError):
    """INVALID_TRACE_ID: a trace id in the headers that is not a decimal string."""


SERVER_ERRORS: dict[str, type[ServerError]] = {
    "E_INVALID": InvalidCommandError,
    "E_BAD_BODY": BadBodyError,
    "E_BAD_MESSAGE": BadMessageError,
    "E_BAD_TOPIC": BadTopicError,
    "E_BAD_CHANNEL": BadChannelError,
    "E_BAD_PARTITION": BadPartitionError,
    "E_BAD_PROTOCOL": BadProtocolError,
    "E_IDENTIFY_FAILED": IdentifyFailedError,
    "E_PUB_FAILED": PublishFailedError,
    "E_MPUB_FAILED": MultiPublishFailedError,
    "E_DPUB_FAILED": DeferredPublishFailedError,
    "E_PUB_TOO_MUCH_WAITING": TooMuchWaitingError,
    "E_SUB_FAILED": SubscribeFailedError,
    "E_FIN_FAILED": FinishFailedError,
    "E_REQ_FAILED": RequeueFailedError,
    "E_TOUCH_FAILED": TouchFailedError,
    "E_AUTH_DISABLED": AuthDisabledError,
    "E_AUTH_FAILED": AuthFailedError,
    "E_AUTH_FIRST": AuthFirstError,
    "E_AUTH_ERROR": AuthError,
    "E_UNAUTHORIZED": UnauthorizedError,
    "E_FAILED_ON_NOT_LEADER": NotLeaderError,
    "E_FAILED_ON_NOT_WRITABLE": NotWritableError,
    "E_TOPIC_NOT_EXIST": TopicNotExistError,
    "E_SUB_ORDER_IS_MUST": OrderedSubscribeRequiredError,
    "E_SUB_EXTEND_NEED": ExtendNeededError,
    "E_SUB_EXTEND_FORBIDDON": ExtendForbiddenError,
    "E_SUB_CHANNEL_NOT_REGISTERED": ChannelNotRegisteredError,
    "E_EXT_NOT_SUPPORT": ExtNotSupportedError,
    "E_INVALID_JSON_HEADER": InvalidHeaderError,
    "INVALID_TRACE_ID": InvalidTraceIdError,
}
"""The class of each code that a server is known to send."""
