"""Backoff: how long a consumer pauses after failures, and how it resumes.

    FULL --failure--> BLOCKED --time--> TESTING --success, level 0--> FULL
                         ^                 |
                         +--any other result, level up or down

The coordinator reports results and follows the phase: normal RDY while FULL, RDY 0 on all
connections while BLOCKED, RDY 1 on one connection while TESTING. Results of messages that were
in flight when it blocked do not count: there is one result per timeout.
"""

from __future__ import annotations

from enum import Enum


class BackoffPhase(Enum):
    """How much a consumer may receive after its failures."""

    FULL = "full"
    BLOCKED = "blocked"
    TESTING = "testing"


class Backoff:
    """The backoff level of one consumer, and until when it is blocked."""

    __slots__ = ("_durations", "level", "until")

    def __init__(self, max_duration: float, multiplier: float) -> None:
        self._durations = _durations(max_duration, multiplier)
        self.level = 0
        self.until: float | None = None

    def duration(self, level: int) -> float:
        """Return the seconds of blocking at a level; 0 if backoff is disabled."""
        return self._durations[min(level, len(self._durations) - 1)]

    def phase(self, now: float) -> BackoffPhase:
        """Return the phase at ``now``."""
        if self.until is None:
            return BackoffPhase.FULL
        return BackoffPhase.BLOCKED if now < self.until else BackoffPhase.TESTING

    def failed(self, now: float) -> bool:
        """Count one or more failures; return whether the level changed."""
        top = len(self._durations) - 1
        if not top or self.phase(now) is BackoffPhase.BLOCKED:
            return False
        self._block(min(self.level + 1, top), now)
        return True

    def succeeded(self, now: float) -> bool:
        """Count one or more successes; return whether the level changed."""
        if self.until is None or now < self.until:  # nearly always
            return False
        self._block(self.level - 1, now)
        return True

    # Private methods

    def _block(self, level: int, now: float) -> None:
        self.level = level
        self.until = now + self.duration(level) if level else None


def _durations(max_duration: float, multiplier: float) -> list[float]:
    """Return the seconds of each level, up to the first that reaches the maximum.

    Level 0 has none. The levels end with the list, so no power can overflow.
    """
    durations = [0.0]
    while durations[-1] < max_duration:
        multiplier *= 2
        durations.append(min(max_duration, multiplier))
    return durations
