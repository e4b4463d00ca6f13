"""Counters and state of a consumer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Messages since the consumer was started."""

    received: int = 0
    finished: int = 0
    requeued: int = 0
    failed: int = 0
    """Handlers that raised."""
    gave_up: int = 0
    """Given up: delivered more than ``max_attempts`` times."""
    expired: int = 0
    """Timed out in the client before they were handed out; nsqd delivers them again."""
    late: int = 0
    """Answered after their deadline."""
    refused: int = 0
    """Answers that nsqd refused: E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED."""
    orphaned: int = 0
    """Answered after their connection was lost; nsqd delivers them again."""
    blocked: int = 0
    """Deliveries of messages that block an ordered partition."""
    order_violations: int = 0
    """Messages of an ordered partition that were older than the one before them."""


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """One nsqd of a consumer."""

    nsqd: str
    partition: int | None
    """The partition that it is a leader of; None on the classic NSQ."""
    connected: bool
    rdy: int
    in_flight: int
    received: int
    finished: int
    failures: int
    """Consecutive failed attempts to connect."""


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """The state of a consumer."""

    counts: Counts
    connections: tuple[ConnectionStats, ...]
    outstanding: int
    """Messages handed to user code and not answered."""
    queued: int
    """Messages that have arrived and were not handed out yet."""
    max_in_flight: int
    backoff_level: int
    paused: bool


@dataclass(frozen=True, slots=True)
class DrainResult:
    """What became of the messages of a consumer, from start to close."""

    handled: int = 0
    """Finished."""
    requeued: int = 0
    """Requeued by handlers, or never handed out."""
    abandoned: int = 0
    """Not answered when ``drain_timeout`` expired; requeued by ``close()``."""
