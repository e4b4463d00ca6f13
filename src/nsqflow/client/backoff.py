"""Backoff: how long a consumer holds back after failures, and how it comes back.

    FULL --failure--> BLOCKED --time--> TESTING --success, level 0--> FULL
                         ^                 |
                         +--any other result, level up or down

The consumer tells its results and follows the phase: RDY as usual while FULL, RDY 0
everywhere while BLOCKED, RDY 1 on one connection while TESTING. What was in flight when
it blocked still has its results; they say nothing about the test to come, so they don't
count: one result per timeout.
"""

from __future__ import annotations

import math
from enum import Enum

from nsqflow.errors import ConfigError


class Phase(Enum):
    """What a consumer may do as far as its failures go."""

    FULL = "full"
    BLOCKED = "blocked"
    TESTING = "testing"


class Backoff:
    """The level of backoff of one consumer, and the time until which it is blocked."""

    __slots__ = ("_durations", "level", "until")

    def __init__(self, max_duration: float, multiplier: float) -> None:
        self._durations = _durations(max_duration, multiplier)
        self.level = 0
        self.until: float | None = None

    def duration(self, level: int) -> float:
        """Seconds of blocking at a level; 0 where backoff is switched off."""
        return self._durations[min(level, len(self._durations) - 1)]

    def phase(self, now: float) -> Phase:
        """What the consumer may do now."""
        if self.until is None:
            return Phase.FULL
        return Phase.BLOCKED if now < self.until else Phase.TESTING

    def failed(self, now: float) -> bool:
        """Count one or more failures; return whether they made a difference."""
        top = len(self._durations) - 1
        if not top or self.phase(now) is Phase.BLOCKED:
            return False
        self._block(min(self.level + 1, top), now)
        return True

    def succeeded(self, now: float) -> bool:
        """Count one or more successes; return whether they made a difference."""
        if self.until is None or now < self.until:  # first and short: it is nearly always so
            return False
        self._block(self.level - 1, now)
        return True

    # Private methods

    def _block(self, level: int, now: float) -> None:
        self.level = level
        self.until = now + self.duration(level) if level else None


def _durations(max_duration: float, multiplier: float) -> list[float]:
    """The seconds of each level up to the one that reaches the maximum; level 0 has none.

    A list has no powers to overflow: the levels end where it does.
    """
    if not 0 <= max_duration < math.inf:
        raise ConfigError(f"max_backoff_duration is {max_duration}; 0 (none) or more seconds")
    if not 0 < multiplier < math.inf:
        raise ConfigError(f"backoff_multiplier is {multiplier}; more than 0 seconds")
    durations = [0.0]
    while durations[-1] < max_duration:
        multiplier *= 2
        durations.append(min(max_duration, multiplier))
    return durations
