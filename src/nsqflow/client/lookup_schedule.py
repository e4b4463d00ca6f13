"""When nsqlookupd is asked next.

Ordinary rounds are an interval apart. When a connection was lost, early rounds go before
them: at once, then 1, 2, 4 ... s apart up to the interval, until the nsqd is connected again.
One that is not named for the time being may be about to register again, so it does not end
them: they end by reaching the interval.

No I/O, clock or randomness here: ``nsqflow.client.poller`` passes in time and chance.
"""

from __future__ import annotations

from nsqflow.errors import ConfigError

_MIN_GAP = 1.0  # seconds between two early rounds, whatever is lost meanwhile


class LookupSchedule:
    """The time of the next round, after rounds, losses and connections."""

    def __init__(self, interval: float, jitter: float) -> None:
        if not 0 < interval < float("inf"):
            raise ConfigError(f"lookupd poll interval {interval!r}; allowed are seconds above 0")
        if not 0 <= jitter <= 1:
            raise ConfigError(f"lookupd poll jitter {jitter!r}; allowed is 0 to 1")
        self._interval = interval
        self._jitter = jitter
        self._min_gap = min(_MIN_GAP, interval)
        self._gap = 0.0  # from the last early round to the next
        self._missing: set[str] = set()  # nsqd that were lost and are not connected again
        self._retry = False
        self._ordinary_at = float("-inf")
        self._early_at = float("inf")
        self._last = float("-inf")  # when the last round ended
        self._last_early = float("-inf")  # ... and the last early one
        self._is_early = self._is_retry = False  # the last one, or the one under way
        self._under_way = False

    @property
    def round_at(self) -> float:
        """When the next round is due."""
        return min(self._ordinary_at, self._early_at)

    def begin(self) -> bool:
        """Begin a round, which serves all that was reported until now; return if it is early."""
        self._is_early = self._early_at < self._ordinary_at
        if self._is_early:
            self._gap = min(max(2 * self._gap, self._min_gap), self._interval)
        self._early_at = float("inf")
        self._is_retry, self._retry = self._retry, False
        self._under_way = True
        return self._is_early

    def end(self, now: float, chance: float) -> None:
        """End the round, and plan the next."""
        self._under_way = False
        self._last = now
        self._ordinary_at = now + self._interval * (1 + self._jitter * chance)
        if self._is_early:
            self._last_early = now
        if self._gap >= self._interval:  # ordinary rounds are as frequent
            self._missing.clear()
        self._plan(now, chance)

    def lost(self, address: str, now: float, chance: float, *, worked: bool) -> None:
        """Ask early for an nsqd that was lost; at once if its connection ``worked``."""
        self._missing.add(address)
        if worked:
            self._gap = 0.0
        self._plan(now, chance)

    def connected(self, address: str) -> None:
        """End the early rounds if no other nsqd is missing."""
        self._missing.discard(address)
        if not (self._missing or self._retry):
            self._early_at = float("inf")

    def retry(self, now: float, chance: float) -> None:
        """Ask early after a failure: no nsqd is known, and a publish waits for one."""
        self._retry = True
        if not (self._is_early or self._is_retry):
            self._gap = self._min_gap
        self._plan(now, chance)

    def _plan(self, now: float, chance: float) -> None:
        if self._under_way or not (self._missing or self._retry):
            return
        gap = max(self._gap, self._min_gap)
        last = self._last if self._gap else self._last_early
        # Jittered even if it could be now: many clients lose the same nsqd at the same time.
        at = max(now, last + gap) + gap * self._jitter * chance
        self._early_at = min(self._early_at, at)
