"""RDY: how many messages each connection of one consumer may have in flight.

One promise holds at every moment: no RDY is raised beyond ``max_in_flight``, where each
connection counts with its charge and messages of lost connections that are still in
someone's hands (orphans) count too. The charge is the RDY last sent; for ``settle`` seconds
after it was lowered it is the one before, because nsqd may not have read the new one yet, and
then it is what is still in flight. Lowering needs no room and is done at once.

Within that promise:

- connections share evenly; a new one has RDY 1 until it brought a message or until no other
  was added for a second, so that a start does not shuffle RDY about;
- idle connections lend all but 1 to busy ones, and have it back with their first message;
- where there are more connections than messages allowed, they take turns at RDY 1;
- a throttle stops them all, or all but one that tests whether messages succeed again;
- the window of ``prefetch`` bounds what they have together. Messages that timed out in user
  code count like orphans: nsqd does not count them any more, and would send others.

Nothing here sends or waits: the owner tells what happens, sends what ``changes`` gives and
calls it again after every event and at ``next_review``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Generic, TypeVar

from nsqflow.client.allowance import Allowance, AllowanceState, Standing
from nsqflow.client.division import Chance, Division, Throttle
from nsqflow.errors import ConfigError, RemoteProtocolError

__all__ = ["AllowanceState", "Chance", "RdyPlan", "Standing", "Throttle", "needs_refresh"]

K = TypeVar("K", bound=Hashable)

_SHORTEST = 0.001  # of the times that come again: below it the owner would do nothing else


def needs_refresh(last_rdy: int, in_flight: int) -> bool:
    """Whether less than a quarter of a connection's RDY remains, or nothing.

    nsqd counted RDY down until 2014 and wanted it sent again; it is a cap since, so this is
    no more than a reason to look whether another RDY is wanted.
    """
    remains = last_rdy - in_flight
    return remains <= 0 or remains * 4 < last_rdy


class RdyPlan(Generic[K]):
    """The RDY of every connection of one consumer."""

    def __init__(
        self,
        max_in_flight: int,
        *,
        random: Chance,
        redistribute_interval: float = 5.0,
        low_rdy_idle_timeout: float = 10.0,
        low_rdy_timeout: float = 30.0,
        settle: float = 0.5,
    ) -> None:
        self._division = Division(
            random,
            _checked("rdy_redistribute_interval", redistribute_interval),
            _checked("low_rdy_idle_timeout", low_rdy_idle_timeout),
            _checked("low_rdy_timeout", low_rdy_timeout),
        )
        self._settle = _checked("settle", settle, least=0)
        self._allowances: dict[K, Allowance] = {}
        self._orphans = 0
        self._window = math.inf
        self._review_at = math.inf
        self._short_of_room = False
        self.dirty = False  # something happened that changes() has to look at
        self.set_max_in_flight(max_in_flight)

    # What happens

    def add(self, key: K, max_rdy_count: int, now: float) -> None:
        """A connection is ready for its first RDY."""
        if key in self._allowances:
            raise ValueError(f"connection {key!r} was added before")
        if max_rdy_count < 1:
            raise RemoteProtocolError(f"max_rdy_count of {key} is {max_rdy_count}; 1 or more")
        self._allowances[key] = Allowance(max_rdy_count)
        self._division.added(now)
        self.dirty = True

    def remove(self, key: K, in_hands: int) -> None:
        """A connection is lost; so many of its messages are still being handled."""
        _check_count("messages in hands", in_hands, self._allowances[key].in_flight)
        del self._allowances[key]
        self._orphans += in_hands
        self.dirty = True

    def received(self, key: K, count: int, now: float) -> None:
        """A connection brought messages."""
        allowance = self._allowances[key]
        if allowance.receive(count, now):
            self.dirty = True
        elif self._window < self._max_in_flight and allowance.in_flight >= allowance.rdy:
            self.dirty = True  # it may get more of the window of prefetch

    def answered(self, key: K, count: int) -> None:
        """Messages of a connection were finished or requeued."""
        allowance = self._allowances[key]
        _check_count("messages answered", count, allowance.in_flight)
        # Below its RDY an answer makes no room: the server may bring the next one for it.
        if self._short_of_room and allowance.in_flight > allowance.rdy:
            self.dirty = True
        allowance.in_flight -= count

    def expired(self, key: K, count: int) -> None:
        """Messages of a connection timed out in user code: they count as orphans from now on."""
        _check_count("messages expired", count, self._allowances[key].in_flight)
        self._allowances[key].in_flight -= count
        self._orphans += count
        self.dirty = True

    def orphans_answered(self, count: int) -> None:
        """Orphans were answered."""
        _check_count("orphans answered", count, self._orphans)
        self._orphans -= count
        self.dirty = True

    def set_max_in_flight(self, max_in_flight: int) -> None:
        """Allow so many messages from now on."""
        if max_in_flight < 1:
            raise ConfigError(f"max_in_flight is {max_in_flight}; 1 or more")
        self._max_in_flight = max_in_flight
        self.dirty = True

    @property
    def window(self) -> float:
        """How many messages prefetch allows; may be set."""
        return self._window

    @window.setter
    def window(self, window: float) -> None:
        if window != self._window:
            self._window = window
            self.dirty = True

    @property
    def throttle(self) -> Throttle:
        """How much of its RDY the consumer uses; may be set."""
        return self._division.throttle

    @throttle.setter
    def throttle(self, throttle: Throttle) -> None:
        if throttle is not self._division.throttle:
            self._division.throttle = throttle
            self.dirty = True

    # What to do

    def changes(self, now: float) -> dict[K, int]:
        """The RDY to send now, where it differs from what was sent last."""
        if now < self._review_at and not self.dirty:
            return {}
        capacity = self._max_in_flight - self._orphans
        allowances = list(self._allowances.values())
        before = [each.rdy for each in allowances]
        self._division.decide(allowances, capacity, self._window, now)
        self._send(allowances, capacity, now)
        self._review_at = min(
            self._division.next_review(allowances, capacity, self._window),
            self._room_comes(allowances, now),
        )
        self.dirty = False
        pairs = zip(self._allowances.items(), before, strict=True)
        return {key: each.rdy for (key, each), rdy in pairs if each.rdy != rdy}

    def next_review(self, now: float) -> float | None:
        """When to call ``changes`` again even if nothing happens; None if there is no need."""
        if self.dirty:
            return now
        return None if self._review_at == math.inf else self._review_at

    # What is

    @property
    def max_in_flight(self) -> int:
        """How many messages are allowed."""
        return self._max_in_flight

    @property
    def orphans(self) -> int:
        """How many messages of lost connections are still in someone's hands."""
        return self._orphans

    def is_starved(self) -> bool:
        """Whether some connection has as good as all that its RDY allows in flight."""
        return any(allowance.is_starved() for allowance in self._allowances.values())

    def state(self, key: K) -> AllowanceState:
        """What one connection has, what it should have, and why."""
        return self._allowances[key].state()

    # Private methods

    def _send(self, allowances: list[Allowance], capacity: int, now: float) -> None:
        for each in allowances:
            if each.rdy > each.wanted:
                each.send(each.wanted, now, self._settle)
        room = capacity - sum(each.charge(now) for each in allowances)
        window = self._window + self._division.probes
        ahead = window - sum(max(each.rdy, each.in_flight) for each in allowances)
        # One for each comes before more for some: who has none would not even wake up.
        for most in (1, self._max_in_flight):
            for each in allowances:
                if each.rdy < min(each.wanted, most):
                    used = max(each.rdy, each.in_flight)
                    # Prefetch is no promise: a lowered RDY that has yet to settle is room for it.
                    rdy = min(each.wanted, most, max(each.rdy, used + ahead))
                    room -= self._raise(each, int(rdy), room, now)
                    ahead -= max(each.rdy, each.in_flight) - used
        self._short_of_room = any(each.rdy < each.wanted for each in allowances)

    def _raise(self, each: Allowance, rdy: int, room: int, now: float) -> int:
        """Raise one connection as far as there is room; return how much that took."""
        charge = each.charge(now)
        rdy = min(rdy, charge + room)
        if rdy > each.rdy and room >= 0:
            each.send(rdy, now, self._settle)
        return each.charge(now) - charge

    def _room_comes(self, allowances: list[Allowance], now: float) -> float:
        """When time will make room that is missed; answers make it at any time."""
        if not self._short_of_room:
            return math.inf
        settling = (each.settles_at for each in allowances if each.settles_at > now)
        return min(settling, default=math.inf)


def _checked(name: str, seconds: float, least: float = _SHORTEST) -> float:
    if not least <= seconds < math.inf:
        raise ConfigError(f"{name} is {seconds}; {least} or more seconds")
    return seconds


def _check_count(what: str, count: int, most: int) -> None:
    if not 0 <= count <= most:
        raise ValueError(f"{count} {what}; 0 to {most} are possible")
