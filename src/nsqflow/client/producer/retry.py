"""What to do about a publish that a redesigned nsqd refused: the retry table.

An invalid message is never sent again. After an error about the leader of a partition, the batch is
sent again once nsqlookupd was asked for the new leader, until the caller's timeout. An error more
than a second after the write is uncertain: a leader that waits for its followers answers with the
same codes.
"""

from __future__ import annotations

from enum import Enum

from nsqflow.errors import ServerError

RETRY_DELAY = 0.5  # seconds until a publish is sent again after E_PUB_TOO_MUCH_WAITING
_UNCERTAIN_AFTER = 1.0  # seconds from the write to the error
_MAX_MISSING = 2  # refreshed routes after which a topic counts as missing

_RETRIED = (
    "E_FAILED_ON_NOT_LEADER",
    "E_FAILED_ON_NOT_WRITABLE",
    "E_PUB_FAILED",
    "E_MPUB_FAILED",
    "E_TOPIC_NOT_EXIST",
)


class RetryDecision(Enum):
    """What becomes of a refused batch."""

    FAIL = "fail"
    RETRY = "retry"
    """Send it again after the next lookup of the route."""
    RETRY_LATER = "retry later"
    """The same, and not before ``RETRY_DELAY`` is over."""
    UNCERTAIN = "uncertain"
    """It may have been stored."""


def decide_retry(error: ServerError, *, refusals: int, seconds: float) -> RetryDecision:
    """Return what to do after an error.

    ``refusals`` is how often this batch got the same code before; ``seconds`` is the time since it
    was written.
    """
    if error.code in _RETRIED:
        if seconds > _UNCERTAIN_AFTER:
            return RetryDecision.UNCERTAIN
        missing = error.code == "E_TOPIC_NOT_EXIST" and refusals >= _MAX_MISSING
        return RetryDecision.FAIL if missing else RetryDecision.RETRY
    if error.code == "E_INVALID":  # once: it closes the connection, so the next one is fresh
        return RetryDecision.FAIL if refusals else RetryDecision.RETRY
    if error.code == "E_PUB_TOO_MUCH_WAITING":
        return RetryDecision.RETRY_LATER
    return RetryDecision.FAIL
