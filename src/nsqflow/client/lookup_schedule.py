"""When nsqlookupd is polled next.

Regular rounds are an interval apart. After a connection was lost, early rounds come before
them: at once, then 1, 2, 4 ... s apart up to the interval, until the nsqd is connected again.
An nsqd that is not named at the moment may be about to register again, so early rounds go on
until their distance reaches the interval.

While the leaders of a redesigned topic are unsettled, or one that was lost is not connected
again, early rounds come every half second at first, and after a minute less and less often: a
new leader may be named at any time, and messages wait for it.

No I/O, clock or randomness here: ``nsqflow.client.lookup_poller`` passes in times and random
numbers.
"""

from __future__ import annotations

_MIN_GAP = 1.0  # seconds between two early rounds
_LEADER_GAP = 0.5  # ... in search of leaders
_LEADER_ROUNDS = 120  # rounds in search of leaders before their distance grows


class LookupSchedule:
    """The time of the next round, after rounds, losses and connections."""

    def __init__(self, interval: float, jitter: float) -> None:
        self._interval = interval
        self._jitter = jitter
        self._min_gap = min(_MIN_GAP, interval)
        self._gap = 0.0  # from the last early round to the next
        self._missing: set[str] = set()  # nsqd that were lost and are not connected yet
        self._retry = False
        self._leaders = False  # the topic's partitions have leaders, which may move
        self._unsettled = False
        self._searches = 0  # early rounds in search of leaders, in a row
        self._regular_at = float("-inf")
        self._early_at = float("inf")
        self._last = float("-inf")  # when the last round ended
        self._last_early = float("-inf")  # ... and the last early one
        self._is_early = self._is_retry = False  # the current round, or the last one
        self._under_way = False

    @property
    def round_at(self) -> float:
        """When the next round is due."""
        return min(self._regular_at, self._early_at)

    def begin(self) -> bool:
        """Begin a round for all that was reported until now; return whether it is early."""
        self._is_early = self._early_at < self._regular_at
        if self._is_early:
            self._searches += self._leaders
            held = self._leaders and self._searches <= _LEADER_ROUNDS
            self._gap = min(max((1 if held else 2) * self._gap, self._min_gap), self._interval)
        self._early_at = float("inf")
        self._is_retry, self._retry = self._retry, False
        self._under_way = True
        return self._is_early

    def end(self, now: float, random: float) -> None:
        """End the round, and plan the next."""
        self._under_way = False
        self._last = now
        self._regular_at = now + self._interval * (1 + self._jitter * random)
        if self._is_early:
            self._last_early = now
        if self._gap >= self._interval:  # regular rounds are as frequent
            self._missing.clear()
        self._plan(now, random)

    def settle(self, unsettled: bool, now: float, random: float) -> None:
        """Take note of an answer about a redesigned topic, and whether it is unsettled."""
        if not self._leaders:
            self._leaders = True
            self._min_gap = min(_LEADER_GAP, self._interval)
        if unsettled and not self._unsettled:
            self._gap = min(self._gap, self._min_gap)
            self._searches = 0
        self._unsettled = unsettled
        if unsettled:
            self._plan(now, random)
        elif not (self._missing or self._retry):
            self._found()

    def lost(self, address: str, now: float, random: float, *, worked: bool) -> None:
        """Poll early for an nsqd that was lost; at once if its connection ``worked``."""
        self._missing.add(address)
        if worked:
            self._gap = 0.0
            self._searches = 0
        self._plan(now, random)

    def connected(self, address: str) -> None:
        """End the early rounds if no other nsqd is missing."""
        self._missing.discard(address)
        if not (self._missing or self._retry or self._unsettled):
            self._found()

    def retry(self, now: float, random: float) -> None:
        """Poll early after a failure: no nsqd is known, and a publish waits for one."""
        self._retry = True
        if not (self._is_early or self._is_retry):
            self._gap = self._min_gap
        self._plan(now, random)

    def _found(self) -> None:
        self._early_at = float("inf")
        self._searches = 0

    def _plan(self, now: float, random: float) -> None:
        if self._under_way or not (self._missing or self._retry or self._unsettled):
            return
        gap = max(self._gap, self._min_gap)
        last = self._last if self._gap else self._last_early
        # Jittered even if due now: many clients lose the same nsqd at the same time.
        at = max(now, last + gap) + gap * self._jitter * random
        self._early_at = min(self._early_at, at)
