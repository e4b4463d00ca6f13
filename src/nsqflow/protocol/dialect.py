"""The two dialects of NSQ, and what differs between them on the wire.

A client never finds out by trying: classic nsqd takes ``PUB t 0`` and ``SUB t c 0`` and
silently ignores the partition. The dialect is decided from nsqlookupd's answer, see
``lookup``, or from the version in the IDENTIFY reply.
"""

from __future__ import annotations

from enum import Enum

# Taken as failures of one message; the connection goes on in either dialect.
MESSAGE_ERRORS = {"E_FIN_FAILED": "FIN", "E_REQ_FAILED": "REQ", "E_TOUCH_FAILED": "TOUCH"}

_ONE_PUBLISH = frozenset({"PUB", "MPUB", "PUB_TRACE", "MPUB_TRACE", "PUB_EXT"})

# Redesigned: what leaves the connection usable, after which commands. MPUB_EXT is nowhere
# here on purpose: when it fails the server leaves the rest of its body unread, and the
# next command is read out of the middle of it.
_REDESIGNED_SURVIVORS: dict[str, frozenset[str]] = {
    "E_FAILED_ON_NOT_LEADER": _ONE_PUBLISH,
    "E_FAILED_ON_NOT_WRITABLE": _ONE_PUBLISH,
    "E_PUB_FAILED": _ONE_PUBLISH,
    "E_MPUB_FAILED": _ONE_PUBLISH,
    "E_EXT_NOT_SUPPORT": frozenset({"PUB_EXT"}),
    "E_INVALID_JSON_HEADER": frozenset({"PUB_EXT"}),
    "INVALID_TRACE_ID": frozenset({"PUB_EXT"}),
}


_ANSWER_FIN_TOO = ("E_FAILED_ON_NOT_LEADER", "E_FAILED_ON_NOT_WRITABLE")


class Dialect(Enum):
    """Which server is spoken to."""

    CLASSIC = "classic"
    """nsqio's nsqd, measured at 1.3.0."""

    REDESIGNED = "redesigned"
    """Youzan's nsqd with partitions and leaders, measured at 0.3.7-HA.1.13.0."""

    def closes(self, code: str, command: str | None, *, subscribed: bool = False) -> bool:
        """Tell whether the server closes the connection after this error.

        ``command`` is the name of the command that the error answers, if it answers one.
        A code that nobody knows is taken as closing: a wrong "closes" costs a reconnect,
        a wrong "goes on" leaves commands unanswered for ever. So are a lost leader and a
        partition closed for writing on a subscribed connection: they may answer a FIN, which
        nothing tells, and after that the server closes.
        """
        if code in MESSAGE_ERRORS:
            return False
        if self is Dialect.CLASSIC or (subscribed and code in _ANSWER_FIN_TOO):
            return True
        return command not in _REDESIGNED_SURVIVORS.get(code, ())


def dialect_of_version(version: str) -> Dialect:
    """Tell the dialect from the version in an IDENTIFY reply, its only sign there."""
    return Dialect.REDESIGNED if "-HA" in version else Dialect.CLASSIC
