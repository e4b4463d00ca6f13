"""Which connection of a consumer should have how much RDY, and why.

``RdyPolicy`` sets what each connection should have; ``RdyDistributor`` in ``rdy`` decides how
fast it gets there without too many messages in flight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from nsqflow.client.consumer.rdy import ConnectionRdy

T = TypeVar("T")

BOOTSTRAP = 1.0
"""Seconds without another new connection after which new ones get their shares."""

SHORT_TURN = 0.25
"""Seconds of a turn while prefetch allows fewer messages than ``max_in_flight``."""

_PROBE_DIVISOR = 4  # a quarter of the window goes to connections that are not busy


class RdyReason(Enum):
    """Why a connection should have the RDY it should have."""

    SHARING = "has its even share"
    STARTING = "is new: has 1 until its first message, or until no more connections come"
    LENDING = "is idle: has lent what it does not need to busy connections"
    BORROWING = "is busy: has borrowed from idle connections"
    ON_TURN = "has RDY 1 until its turn ends: there are more connections than max_in_flight allows"
    OFF_TURN = "waits for its turn: there are more connections than max_in_flight allows"
    TESTED = "is the one connection that tests whether messages succeed again"
    STOPPED = "is paused or backing off"
    CROWDED_OUT = (
        "waits: messages of lost connections, and messages that timed out in user code, "
        "are all that max_in_flight allows"
    )
    HELD = "waits: its partition backs off"
    PREFETCH = "has its share of what the handlers can start in time (prefetch)"


class FlowState(Enum):
    """Whether messages flow: FULL, STOPPED, or one at a time (TESTING)."""

    FULL = "full"
    STOPPED = "stopped"
    TESTING = "testing"


class Sampler(Protocol):
    """The method of ``random.Random`` that the policy uses."""

    def sample(self, population: Sequence[T], k: int) -> list[T]:
        """Pick ``k`` different elements."""
        ...


class RdyPolicy:
    """Decides what RDY each connection should have."""

    def __init__(
        self, random: Sampler, interval: float, idle_timeout: float, turn_timeout: float
    ) -> None:
        self.flow_state = FlowState.FULL
        self._random = random
        self._interval = interval
        self._idle_timeout = idle_timeout
        self._turn_timeout = turn_timeout
        self._tester: ConnectionRdy | None = None
        self.probes = 0  # RDY beyond the window, to find messages of idle connections
        self._ranks: dict[ConnectionRdy, int] = {}  # by when they last had a turn
        self._bootstrap_ends = -math.inf
        self._redistributed_at = -math.inf

    def added(self, now: float) -> None:
        """Restart the second that new connections have to start."""
        self._bootstrap_ends = now + BOOTSTRAP

    def decide(
        self, connections: Sequence[ConnectionRdy], capacity: int, window: float, now: float
    ) -> None:
        """Set the wanted RDY of each, within ``capacity`` and the ``window`` of prefetch."""
        limit = int(min(capacity, window))
        self.probes = 0
        if self.flow_state is not FlowState.TESTING:
            self._tester = None  # each test draws its connection again
        if self.flow_state is FlowState.STOPPED:
            _stop(connections, RdyReason.STOPPED)
        elif capacity <= 0:
            _stop(connections, RdyReason.CROWDED_OUT)
        elif limit <= 0:
            _stop(connections, RdyReason.PREFETCH)
        elif self.flow_state is FlowState.TESTING:
            self._test(connections, now)
        elif limit < capacity:
            self._follow_window(connections, limit, now)
        elif limit < len(connections):
            self._take_turns(connections, limit, now)
        else:
            self._share(connections, limit, now)

    def next_update_at(
        self, connections: Sequence[ConnectionRdy], capacity: int, window: float
    ) -> float:
        """Return when the decision changes by time alone; infinity if it does not."""
        limit = min(capacity, window)
        if self.flow_state is FlowState.STOPPED or limit <= 0 or not connections:
            return math.inf
        if self.flow_state is FlowState.TESTING:
            return self._test_ends() if len(connections) > 1 else math.inf
        if limit < capacity:
            return self._window_ends(connections, int(limit))
        redistribution = self._redistributed_at + self._interval
        if limit < len(connections):
            turns = [self._turn_ends(each) for each in connections if each.on_turn]
            return max(redistribution, min(turns))
        lending = redistribution if 1 < len(connections) < limit else math.inf
        starting = any(each.starting for each in connections)
        return min(lending, self._bootstrap_ends) if starting else lending

    # Testing with one connection

    def _test(self, connections: Sequence[ConnectionRdy], now: float) -> None:
        if self._tester not in connections or now >= self._test_ends():
            others = [each for each in connections if each is not self._tester]
            for each in self._random.sample(others, min(1, len(others))):
                each.quiet_since = now  # it may have been quiet for long
                self._tester = each
        for each in connections:
            each.wanted = int(each is self._tester)
            each.reason = RdyReason.TESTED if each.wanted else RdyReason.STOPPED

    def _test_ends(self) -> float:
        return self._tester.quiet_since + self._idle_timeout if self._tester else math.inf

    # Turns: more connections than messages allowed

    def _take_turns(self, connections: Sequence[ConnectionRdy], capacity: int, now: float) -> None:
        if self._redistribution_is_due(now):
            self._pass_turns(connections, now)
        on = [each for each in connections if each.on_turn]
        off = [each for each in connections if not each.on_turn]
        for each in self._random.sample(on, max(0, len(on) - capacity)):
            each.on_turn = False
        for each in self._random.sample(off, max(0, capacity - len(on))):
            each.begin_turn(now)
        for each in connections:
            each.lending = each.borrowing = False
            each.wanted = each.share = int(each.on_turn)
            each.reason = RdyReason.ON_TURN if each.on_turn else RdyReason.OFF_TURN

    def _pass_turns(self, connections: Sequence[ConnectionRdy], now: float) -> None:
        over = [each for each in connections if each.on_turn and now >= self._turn_ends(each)]
        off = [each for each in connections if not each.on_turn]
        count = min(len(over), len(off))
        for each in self._random.sample(over, count):
            each.on_turn = False
        for each in self._random.sample(off, count):
            each.begin_turn(now)

    def _turn_ends(self, each: ConnectionRdy) -> float:
        if not each.rdy:  # its RDY was not sent yet
            return math.inf
        return min(each.quiet_since + self._idle_timeout, each.held_since + self._turn_timeout)

    # A window of prefetch below max_in_flight

    def _follow_window(self, connections: Sequence[ConnectionRdy], limit: int, now: float) -> None:
        """Divide the window among connections that use all they have.

        The others get a little beyond it, in turns, so that their messages are found.
        """
        if self._redistribution_is_due(now, SHORT_TURN):
            for each in connections:
                each.borrowing = each.take_busy()
                if each.rdy:
                    each.held_since = now  # it had its turn
            by_turn = sorted(connections, key=lambda each: each.held_since)
            self._ranks = {each: rank for rank, each in enumerate(by_turn)}
        last = len(self._ranks)
        order = sorted(connections, key=lambda each: self._ranks.get(each, last))
        busy = [each for each in order if each.borrowing and limit > 1]
        others = [each for each in order if not (each.borrowing and limit > 1)]
        if busy:
            left = limit - sum(each.in_flight for each in others)
            _share_out(busy, left, [min(each.limit, each.usable) for each in busy])
            self.probes = min(len(others), max(1, limit // _PROBE_DIVISOR))
            for rank, each in enumerate(others):
                one_more = min(each.limit, each.usable + 1)
                each.share = one_more if rank < self.probes else 0
        else:
            _share_out(others, limit, [each.limit for each in others])
        for each in connections:
            each.on_turn = each.lending = False
            each.starting = each.starting and now < self._bootstrap_ends
            each.wanted = min(each.share, 1) if each.starting else each.share
            each.reason = RdyReason.STARTING if each.starting else RdyReason.PREFETCH

    def _window_ends(self, connections: Sequence[ConnectionRdy], limit: int) -> float:
        """Return when the window is divided again."""
        ends = math.inf
        if len(connections) > max(limit, 1) or (
            len(connections) > 1 and any(each.in_flight for each in connections)
        ):
            ends = self._redistributed_at + SHORT_TURN
        starting = any(each.starting for each in connections)
        return min(ends, self._bootstrap_ends) if starting else ends

    # Shares: enough for all

    def _share(self, connections: Sequence[ConnectionRdy], capacity: int, now: float) -> None:
        if self._redistribution_is_due(now):
            self._choose_lenders(connections, now)
        limits = [each.limit for each in connections]
        shares = even_shares(capacity, limits)
        lenders = [i for i, each in enumerate(connections) if each.lending]
        borrowers = [i for i, each in enumerate(connections) if each.borrowing]
        lent = lent_shares(shares, limits, lenders, borrowers)
        for each, share, wanted in zip(connections, shares, lent, strict=True):
            each.on_turn = False
            each.starting = each.starting and now < self._bootstrap_ends
            each.share = share
            each.wanted = 1 if each.starting else wanted
            each.reason = _reason(each)

    def _choose_lenders(self, connections: Sequence[ConnectionRdy], now: float) -> None:
        for each in connections:
            each.borrowing = each.take_busy()
            each.lending = not each.borrowing and each.is_idle(now, self._interval)

    def _redistribution_is_due(self, now: float, interval: float | None = None) -> bool:
        due = now >= self._redistributed_at + (interval or self._interval)
        if due:
            self._redistributed_at = now
        return due


def _share_out(connections: Sequence[ConnectionRdy], count: int, usable: Sequence[int]) -> None:
    """Share ``count`` evenly as far as it is usable, and what is left evenly, too."""
    shares = even_shares(count, usable)
    spare = [each.limit - share for each, share in zip(connections, shares, strict=True)]
    extra = even_shares(count - sum(shares), spare)
    for each, *parts in zip(connections, shares, extra, strict=True):
        each.share = sum(parts)


def _stop(connections: Sequence[ConnectionRdy], reason: RdyReason) -> None:
    for each in connections:
        each.wanted = 0
        each.reason = reason


def _reason(each: ConnectionRdy) -> RdyReason:
    if each.starting:
        return RdyReason.STARTING
    if each.wanted == each.share:
        return RdyReason.SHARING
    return RdyReason.LENDING if each.wanted < each.share else RdyReason.BORROWING


def even_shares(capacity: int, limits: Sequence[int]) -> list[int]:
    """Divide the capacity as evenly as the limits allow, all of it if they do.

    The remainder goes one by one to the first that can take it.
    """
    left = max(0, min(capacity, sum(limits)))
    takers = len(limits)
    for limit in sorted(limits):
        if limit * takers >= left:
            break
        left -= limit
        takers -= 1
    level, rest = divmod(left, takers) if takers else (0, 0)
    shares = []
    for limit in limits:
        extra = 1 if rest and limit > level else 0
        rest -= extra
        shares.append(min(limit, level + extra))
    return shares


def lent_shares(
    shares: Sequence[int], limits: Sequence[int], lenders: Sequence[int], borrowers: Sequence[int]
) -> list[int]:
    """Return the shares after lenders lent all above 1, as far as borrowers can take it.

    Lenders and borrowers are indexes of ``shares``.
    """
    spare = [max(0, shares[i] - 1) for i in lenders]
    loans = even_shares(sum(spare), [limits[i] - shares[i] for i in borrowers])
    kept = even_shares(sum(spare) - sum(loans), spare)
    lent = list(shares)
    for i, loan in zip(borrowers, loans, strict=True):
        lent[i] += loan
    for i, had, keeps in zip(lenders, spare, kept, strict=True):
        lent[i] -= had - keeps
    return lent
