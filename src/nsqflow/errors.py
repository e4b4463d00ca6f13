"""Every public exception of nsqflow, in one tree.

    NsqError
    ├── ConfigError (also ValueError)      an invalid option or argument
    ├── ProtocolError
    │   ├── LocalProtocolError             the caller asked for what the protocol forbids
    │   └── RemoteProtocolError            the peer broke the protocol
    │       └── TlsNotGrantedError         TLS was requested and the server has none
    ├── NetworkError                       no connection, or a lost one
    │   └── NoResponseError                an HTTP request was sent and got no usable response
    ├── RequestTimeout (also TimeoutError) time ran out and nothing was sent
    ├── BufferFullError                    max_pending bytes are pending: nothing was queued
    ├── DiscoveryError                     nsqlookupd gave no usable answer
    ├── PublishUncertain                   sent and never answered: stored, or not
    ├── PrecedingPublishFailed             not sent, as the publish before it has failed
    ├── OrderViolation                     an ordered partition went backwards
    ├── BlockedMessageError                a message blocks its ordered partition
    ├── AdminError                         a request over HTTP was refused
    ├── StorageError                       the embedded broker cannot use its disk
    ├── SpoolError                         the spool of a Spark query cannot be used
    ├── SourceInUseError                   another Spark query has the spool or the channel
    ├── DataLossError                      a Spark query may have lost messages
    ├── JavaStartError                     the JVM ended while Spark was starting
    ├── SparkError                         Spark failed
    ├── SparkExitedError                   Spark or its JVM has exited by itself
    ├── PipelineFailed                     queries of a pipeline have failed
    └── ServerError                        an error frame; one class for each code

``nsqflow.protocol.Dialect`` knows which of them close the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Ranges:
    """The results of a ``publish_many`` that failed, as ranges of indexes of its bodies."""

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
    """The root: ``except NsqError`` catches every error that nsqflow raises on purpose."""

    ranges: Ranges | None = None
    """Set where ``publish_many`` raised it."""


class ConfigError(NsqError, ValueError):
    """An invalid option, name or argument; the text has its name, its value and what is allowed."""


class ProtocolError(NsqError):
    """A rule of the NSQ protocol was broken."""


class LocalProtocolError(ProtocolError):
    """The caller asked for something the protocol forbids; nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what the protocol forbids; the connection cannot be used any more.

    ``code`` is the E_* code that a server answers with before it closes; it is empty in a
    client, which does not answer.
    """

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text, code)
        self.text = text
        self.code = code

    def __str__(self) -> str:
        return f"{self.code} {self.text}".strip()


class TlsNotGrantedError(RemoteProtocolError):
    """TLS was requested and the server does not offer it; nothing more was sent."""


class NetworkError(NsqError):
    """No connection could be made, or one was lost."""


class NoResponseError(NetworkError):
    """An HTTP request was sent and got no usable response: it may have had its effect."""


class RequestTimeout(NsqError, TimeoutError):
    """Time ran out before the request was sent; it certainly had no effect."""


class BufferFullError(NsqError):
    """``send`` found ``max_pending`` bytes pending; the message was not queued."""


class DiscoveryError(NsqError):
    """nsqlookupd could not be reached, or its answer could not be used."""


class PublishUncertain(NsqError):
    """The message was sent and no answer came: nsqd may or may not have stored it."""


class PrecedingPublishFailed(NsqError):
    """The message was not sent: one before it in the same partition has failed."""


class OrderViolation(NsqError):
    """An ordered partition delivered an older message after a newer one."""


class BlockedMessageError(NsqError):
    """A message of an ordered partition fails again and again, and ``on_blocked`` says stop."""


class AdminError(NsqError):
    """nsqd or nsqlookupd refused a request over HTTP, or its answer cannot be used.

    ``status`` is the HTTP status.
    """

    def __init__(self, status: int, message: str, where: str = "") -> None:
        super().__init__(status, message, where)
        self.status = status
        self.message = message
        self.where = where
        """The address and path of the request."""

    def __str__(self) -> str:
        return f"{self.where}: {self.status} {self.message}"


class StorageError(NsqError):
    """The embedded broker cannot read its stored messages, or store new ones."""


class SpoolError(NsqError):
    """The spool of a Spark query is missing, damaged, or belongs to another query."""


class SourceInUseError(NsqError):
    """Another Spark query has the spool or reads the channel: each would get a part of it."""


class DataLossError(NsqError):
    """Messages may be lost; with ``failOnDataLoss=false`` it is a warning instead."""


class JavaStartError(NsqError):
    """The JVM ended while Spark was starting."""


class SparkError(NsqError):
    """Spark failed."""


class SparkExitedError(NsqError):
    """Spark, or the JVM that it runs in, has exited by itself."""


class PipelineFailed(NsqError):
    """Queries of a pipeline have ended because of errors."""

    def __init__(self, failures: Mapping[str, str]) -> None:
        super().__init__(dict(failures))
        self.failures = dict(failures)
        """The reason of each failed sink, by its name."""

    def __str__(self) -> str:
        return "; ".join(f"sink {name}: {why}" for name, why in self.failures.items())


SERVER_ERRORS: dict[str, type[ServerError]] = {}
"""The class of each known code."""


class ServerError(NsqError):
    """nsqd answered with an error frame; known codes have a class of their own."""

    retriable: ClassVar[bool] = False
    """The same call may succeed if it is made again."""

    stale_route: ClassVar[bool] = False
    """The address is out of date: ask nsqlookupd again before the next attempt."""

    def __init_subclass__(
        cls, *, code: str = "", retriable: bool = False, stale_route: bool = False
    ) -> None:
        cls.retriable, cls.stale_route = retriable, stale_route
        if code:
            SERVER_ERRORS[code] = cls

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    def __str__(self) -> str:
        return f"{self.code} {self.text}".strip()

    @staticmethod
    def from_frame(data: bytes) -> ServerError:
        """Parse an error frame: a code, optionally followed by a space and a text."""
        code, _, text = data.decode("utf-8", "backslashreplace").partition(" ")
        return SERVER_ERRORS.get(code, ServerError)(code, text)


# The request was invalid.


class InvalidCommandError(ServerError, code="E_INVALID", retriable=True):
    """E_INVALID: a command unknown, malformed, or not allowed in this state.

    It may succeed on a new connection, by the redesigned NSQ's retry table.
    """


class BadBodyError(ServerError, code="E_BAD_BODY"):
    """E_BAD_BODY: the size or the content of a command's body is invalid."""


class BadMessageError(ServerError, code="E_BAD_MESSAGE"):
    """E_BAD_MESSAGE: an empty message, or one above the server's max-msg-size."""


class BadTopicError(ServerError, code="E_BAD_TOPIC"):
    """E_BAD_TOPIC: not a valid topic name."""


class BadChannelError(ServerError, code="E_BAD_CHANNEL"):
    """E_BAD_CHANNEL: not a valid channel name."""


class BadPartitionError(ServerError, code="E_BAD_PARTITION"):
    """E_BAD_PARTITION: not a number, or missing where the topic is ordered."""


class BadProtocolError(ServerError, code="E_BAD_PROTOCOL"):
    """E_BAD_PROTOCOL: the first four bytes named no protocol this server speaks."""


class IdentifyFailedError(ServerError, code="E_IDENTIFY_FAILED"):
    """E_IDENTIFY_FAILED: the requested features exclude each other."""


# The request was valid and failed.


class PublishFailedError(ServerError, code="E_PUB_FAILED", retriable=True):
    """E_PUB_FAILED: the message was not stored."""


class MultiPublishFailedError(ServerError, code="E_MPUB_FAILED", retriable=True):
    """E_MPUB_FAILED: the batch was not stored, or only its beginning: nsqd does not say."""


class DeferredPublishFailedError(ServerError, code="E_DPUB_FAILED", retriable=True):
    """E_DPUB_FAILED: the deferred message was not stored."""


class TooMuchWaitingError(ServerError, code="E_PUB_TOO_MUCH_WAITING", retriable=True):
    """E_PUB_TOO_MUCH_WAITING: too many publishes are queued for this partition."""


class SubscribeFailedError(ServerError, code="E_SUB_FAILED", retriable=True):
    """E_SUB_FAILED: the channel has its maximum of consumers, or is being deleted."""


class FinishFailedError(ServerError, code="E_FIN_FAILED"):
    """E_FIN_FAILED: the message is no longer in flight on this connection."""


class RequeueFailedError(ServerError, code="E_REQ_FAILED"):
    """E_REQ_FAILED: the message is no longer in flight on this connection."""


class TouchFailedError(ServerError, code="E_TOUCH_FAILED"):
    """E_TOUCH_FAILED: the message is no longer in flight on this connection."""


# Authorization.


class AuthDisabledError(ServerError, code="E_AUTH_DISABLED"):
    """E_AUTH_DISABLED: AUTH was sent to a server that does not require it."""


class AuthFailedError(ServerError, code="E_AUTH_FAILED"):
    """E_AUTH_FAILED: the secret was refused, or the auth server did not answer."""


class AuthFirstError(ServerError, code="E_AUTH_FIRST"):
    """E_AUTH_FIRST: the command needs AUTH before it."""


class AuthError(ServerError, code="E_AUTH_ERROR"):
    """E_AUTH_ERROR: the server could not answer AUTH."""


class UnauthorizedError(ServerError, code="E_UNAUTHORIZED"):
    """E_UNAUTHORIZED: the secret does not allow this topic or channel."""


# Redesigned NSQ: where a partition is, and how it can be read.


class NotLeaderError(ServerError, code="E_FAILED_ON_NOT_LEADER", retriable=True, stale_route=True):
    """E_FAILED_ON_NOT_LEADER: this node does not lead the partition, or cannot now."""


class NotWritableError(
    ServerError, code="E_FAILED_ON_NOT_WRITABLE", retriable=True, stale_route=True
):
    """E_FAILED_ON_NOT_WRITABLE: the partition accepts no writes, as while its leader moves."""


class TopicNotExistError(ServerError, code="E_TOPIC_NOT_EXIST", retriable=True, stale_route=True):
    """E_TOPIC_NOT_EXIST: no such topic, or this node does not have the partition (any more)."""


class OrderedSubscribeRequiredError(ServerError, code="E_SUB_ORDER_IS_MUST"):
    """E_SUB_ORDER_IS_MUST: an ordered topic must be read with SUB_ORDERED."""


class ExtendNeededError(ServerError, code="E_SUB_EXTEND_NEED"):
    """E_SUB_EXTEND_NEED: the topic has headers; IDENTIFY must set extend_support."""


class ExtendForbiddenError(ServerError, code="E_SUB_EXTEND_FORBIDDON"):
    """E_SUB_EXTEND_FORBIDDON (sic): the topic has no extended messages; don't request them."""


class ChannelNotRegisteredError(ServerError, code="E_SUB_CHANNEL_NOT_REGISTERED"):
    """E_SUB_CHANNEL_NOT_REGISTERED: the channel must be created before it is read."""


class ExtNotSupportedError(ServerError, code="E_EXT_NOT_SUPPORT"):
    """E_EXT_NOT_SUPPORT: headers were published to a topic without headers."""


class InvalidHeaderError(ServerError, code="E_INVALID_JSON_HEADER"):
    """E_INVALID_JSON_HEADER: the headers are not a JSON object."""


class InvalidTraceIdError(ServerError, code="INVALID_TRACE_ID"):
    """INVALID_TRACE_ID: the trace id in the headers is not a decimal string."""


def copy_error(error: NsqError) -> NsqError:
    """Return an equal exception: one raised in several tasks would collect their tracebacks."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    for note in getattr(error, "__notes__", ()):
        copy.add_note(note)
    return copy
