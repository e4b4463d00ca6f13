"""What a consumer counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Messages, since the consumer began."""

    received: int = 0
    finished: int = 0
    requeued: int = 0
    failed: int = 0
    """Handlers that raised."""
    gave_up: int = 0
    """Delivered more than ``max_attempts`` times."""
    expired: int = 0
    """Timed out while they waited in the client; never handed out, nsqd delivers them again."""
    late: int = 0
    """Answered after their deadline."""
    refused: int = 0
    """Answers that nsqd did not take: E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED."""
    orphaned: int = 0
    """Answered when their connection was lost already; nsqd delivers them again."""


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """One nsqd of a consumer."""

    nsqd: str
    connected: bool
    rdy: int
    in_flight: int
    received: int
    finished: int
    failures: int
    """Vain attempts to connect, in a row."""


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """A consumer at one moment."""

    counts: Counts
    connections: tuple[ConnectionStats, ...]
    in_hands: int
    """Messages that were handed to user code and not answered."""
    waiting: int
    """Messages that have arrived and were not handed out yet."""
    max_in_flight: int
    backoff_level: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Drained:
    """What became of the messages of a consumer, from its start to the end of its close."""

    handled: int = 0
    """Finished."""
    requeued: int = 0
    """Sent back to nsqd: by their handlers, or because user code never had them."""
    abandoned: int = 0
    """Not answered when ``drain_timeout`` expired; requeued by ``close()``."""
