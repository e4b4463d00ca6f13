"""The division of a consumer's RDY: which connection should have how much, and why.

It says what should be; how fast that may come true without too many messages in flight is
for the plan in ``rdy`` to see to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Protocol, TypeVar

from nsqflow.client.allowance import Allowance, Standing
from nsqflow.client.shares import even_shares, lent_shares

T = TypeVar("T")

BOOTSTRAP = 1.0
"""Seconds without another new connection after which new ones get their share."""

SHORT_TURN = 0.25
"""Seconds of a turn where prefetch allows fewer messages than ``max_in_flight``."""

_PROBES = 4  # this part of the window is lent to connections that don't use what they have


class Chance(Protocol):
    """What is needed of ``random.Random``."""

    def sample(self, population: Sequence[T], k: int) -> list[T]:
        """Pick ``k`` different ones."""
        ...


class Throttle(Enum):
    """How much of its RDY a consumer uses."""

    FULL = "full"
    STOPPED = "stopped"
    TESTING = "testing"


class Division:
    """What each connection should have, as time goes on and messages come or don't."""

    def __init__(
        self, random: Chance, interval: float, idle_timeout: float, turn_timeout: float
    ) -> None:
        self.throttle = Throttle.FULL
        self._random = random
        self._interval = interval
        self._idle_timeout = idle_timeout
        self._turn_timeout = turn_timeout
        self._tester: Allowance | None = None
        self.probes = 0  # what connections have on top of the window, so that they are found
        self._ranks: dict[Allowance, int] = {}  # by when they last had a turn
        self._bootstrap_ends = -math.inf
        self._redistributed_at = -math.inf

    def added(self, now: float) -> None:
        """Give all that are new another second to start."""
        self._bootstrap_ends = now + BOOTSTRAP

    def decide(
        self, allowances: Sequence[Allowance], capacity: int, window: float, now: float
    ) -> None:
        """Set what each should have if all together may have ``capacity``, and ``window``."""
        limit = int(min(capacity, window))
        self.probes = 0
        if self.throttle is not Throttle.TESTING:
            self._tester = None  # each test draws its connection anew
        if self.throttle is Throttle.STOPPED:
            _stop(allowances, Standing.STOPPED)
        elif capacity <= 0:
            _stop(allowances, Standing.CROWDED_OUT)
        elif limit <= 0:
            _stop(allowances, Standing.PREFETCH)
        elif self.throttle is Throttle.TESTING:
            self._test(allowances, now)
        elif limit < capacity:
            self._follow_window(allowances, limit, now)
        elif limit < len(allowances):
            self._take_turns(allowances, limit, now)
        else:
            self._share(allowances, limit, now)

    def next_review(self, allowances: Sequence[Allowance], capacity: int, window: float) -> float:
        """When time alone will make another decision, infinity if never; always to come."""
        limit = min(capacity, window)
        if self.throttle is Throttle.STOPPED or limit <= 0 or not allowances:
            return math.inf
        if self.throttle is Throttle.TESTING:
            return self._test_ends() if len(allowances) > 1 else math.inf
        if limit < capacity:
            return self._window_ends(allowances, int(limit))
        redistribution = self._redistributed_at + self._interval
        if limit < len(allowances):
            turns = [self._turn_ends(each) for each in allowances if each.on_turn]
            return max(redistribution, min(turns))
        lending = redistribution if 1 < len(allowances) < limit else math.inf
        starting = any(each.starting for each in allowances)
        return min(lending, self._bootstrap_ends) if starting else lending

    # One tests for all

    def _test(self, allowances: Sequence[Allowance], now: float) -> None:
        if self._tester not in allowances or now >= self._test_ends():
            others = [each for each in allowances if each is not self._tester]
            for each in self._random.sample(others, min(1, len(others))):
                each.quiet_since = now  # it may have had nothing to bring for long
                self._tester = each
        for each in allowances:
            each.wanted = int(each is self._tester)
            each.standing = Standing.TESTED if each.wanted else Standing.STOPPED

    def _test_ends(self) -> float:
        return self._tester.quiet_since + self._idle_timeout if self._tester else math.inf

    # Few for many

    def _take_turns(self, allowances: Sequence[Allowance], capacity: int, now: float) -> None:
        if self._redistribution_is_due(now):
            self._pass_turns(allowances, now)
        on = [each for each in allowances if each.on_turn]
        off = [each for each in allowances if not each.on_turn]
        for each in self._random.sample(on, max(0, len(on) - capacity)):
            each.on_turn = False
        for each in self._random.sample(off, max(0, capacity - len(on))):
            each.begin_turn(now)
        for each in allowances:
            each.lending = each.borrowing = False
            each.wanted = each.share = int(each.on_turn)
            each.standing = Standing.ON_TURN if each.on_turn else Standing.OFF_TURN

    def _pass_turns(self, allowances: Sequence[Allowance], now: float) -> None:
        over = [each for each in allowances if each.on_turn and now >= self._turn_ends(each)]
        off = [each for each in allowances if not each.on_turn]
        count = min(len(over), len(off))
        for each in self._random.sample(over, count):
            each.on_turn = False
        for each in self._random.sample(off, count):
            each.begin_turn(now)

    def _turn_ends(self, each: Allowance) -> float:
        if not each.rdy:  # still waits for room
            return math.inf
        return min(each.quiet_since + self._idle_timeout, each.held_since + self._turn_timeout)

    # Less than all may have, by prefetch

    def _follow_window(self, allowances: Sequence[Allowance], limit: int, now: float) -> None:
        """Give the window to connections that use all they have.

        The others get a little on top of it, in turns, so that their messages are found.
        """
        if self._redistribution_is_due(now, SHORT_TURN):
            for each in allowances:
                each.borrowing = each.take_busy()
                if each.rdy:
                    each.held_since = now  # it had its turn
            by_turn = sorted(allowances, key=lambda each: each.held_since)
            self._ranks = {each: rank for rank, each in enumerate(by_turn)}
        last = len(self._ranks)
        order = sorted(allowances, key=lambda each: self._ranks.get(each, last))
        busy = [each for each in order if each.borrowing and limit > 1]
        others = [each for each in order if not (each.borrowing and limit > 1)]
        if busy:
            _share_out(busy, limit)
            self.probes = min(len(others), max(1, limit // _PROBES))
        _share_out(others, self.probes or limit)
        for each in allowances:
            each.on_turn = each.lending = False
            each.starting = each.starting and now < self._bootstrap_ends
            each.wanted = min(each.share, 1) if each.starting else each.share
            each.standing = Standing.STARTING if each.starting else Standing.PREFETCH

    def _window_ends(self, allowances: Sequence[Allowance], limit: int) -> float:
        """When the window is divided again."""
        ends = math.inf
        if len(allowances) > max(limit, 1) or (
            len(allowances) > 1 and any(each.in_flight for each in allowances)
        ):
            ends = self._redistributed_at + SHORT_TURN
        starting = any(each.starting for each in allowances)
        return min(ends, self._bootstrap_ends) if starting else ends

    # Enough for all

    def _share(self, allowances: Sequence[Allowance], capacity: int, now: float) -> None:
        if self._redistribution_is_due(now):
            self._choose_lenders(allowances, now)
        limits = [each.limit for each in allowances]
        shares = even_shares(capacity, limits)
        lenders = [i for i, each in enumerate(allowances) if each.lending]
        borrowers = [i for i, each in enumerate(allowances) if each.borrowing]
        lent = lent_shares(shares, limits, lenders, borrowers)
        for each, share, wanted in zip(allowances, shares, lent, strict=True):
            each.on_turn = False
            each.starting = each.starting and now < self._bootstrap_ends
            each.share = share
            each.wanted = 1 if each.starting else wanted
            each.standing = _standing(each)

    def _choose_lenders(self, allowances: Sequence[Allowance], now: float) -> None:
        for each in allowances:
            each.borrowing = each.take_busy()
            each.lending = not each.borrowing and each.is_idle(now, self._interval)

    def _redistribution_is_due(self, now: float, interval: float | None = None) -> bool:
        due = now >= self._redistributed_at + (interval or self._interval)
        if due:
            self._redistributed_at = now
        return due


def _share_out(allowances: Sequence[Allowance], count: int) -> None:
    """Share evenly, as far as the servers allow."""
    shares = even_shares(count, [each.limit for each in allowances])
    for each, share in zip(allowances, shares, strict=True):
        each.share = share


def _stop(allowances: Sequence[Allowance], standing: Standing) -> None:
    for each in allowances:
        each.wanted = 0
        each.standing = standing


def _standing(each: Allowance) -> Standing:
    if each.starting:
        return Standing.STARTING
    if each.wanted == each.share:
        return Standing.SHARING
    return Standing.LENDING if each.wanted < each.share else Standing.BORROWING
