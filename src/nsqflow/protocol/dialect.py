"""The two dialects of NSQ, and how they differ on the wire.

A client cannot find out by trying: classic nsqd accepts ``PUB t 0`` and ``SUB t c 0`` and silently
ignores the partition. The dialect follows from nsqlookupd's answer (see ``lookup``), or from the
version in the reply to IDENTIFY.
"""

from __future__ import annotations

from enum import Enum

# Errors about one message; the connection stays open in both dialects.
MESSAGE_ERRORS = {"E_FIN_FAILED": "FIN", "E_REQ_FAILED": "REQ", "E_TOUCH_FAILED": "TOUCH"}

_ONE_PUBLISH = frozenset({"PUB", "MPUB", "PUB_TRACE", "MPUB_TRACE", "PUB_EXT"})

# Redesigned: errors after which the connection stays usable, by command. MPUB_EXT is not listed on
# purpose: when it fails, the server does not read the rest of its body, and reads the next command
# from the middle of it.
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
    """The dialect of a server."""

    CLASSIC = "classic"
    """nsqio's nsqd, measured at 1.3.0."""

    REDESIGNED = "redesigned"
    """Youzan's nsqd with partitions and leaders, measured at 0.3.7-HA.1.13.0."""

    def closes(self, code: str, command: str | None, *, subscribed: bool = False) -> bool:
        """Return whether the server closes the connection after this error.

        ``command`` is the name of the command that the error answers, if there is one. An unknown
        code is assumed to close: if that is wrong, it costs a reconnect; the opposite mistake would
        leave commands unanswered forever. On a subscribed connection, the errors about a leader or
        a partition that is not writable close too: they may answer a FIN, and then the server
        closes.
        """
        if code in MESSAGE_ERRORS:
            return False
        if self is Dialect.CLASSIC or (subscribed and code in _ANSWER_FIN_TOO):
            return True
        return command not in _REDESIGNED_SURVIVORS.get(code, ())


def dialect_of_version(version: str) -> Dialect:
    """Return the dialect of a server, by the version in its reply to IDENTIFY."""
    return Dialect.REDESIGNED if "-HA" in version else Dialect.CLASSIC
