"""RDY: how many messages each connection of one consumer may have in flight.

One invariant always holds: no RDY is raised beyond ``max_in_flight``. Against that limit each
connection counts with its charge, and so do messages of lost connections that user code still
holds (orphans). The charge is the RDY last sent; for ``settle`` seconds after RDY was lowered
it is the previous RDY, because nsqd may not have read the new one yet, and after that it is
what is still in flight. RDY is lowered at once, and raised as far as the limit allows.

Within that limit:

- connections share evenly; a new one has RDY 1 until its first message arrives or until no
  other connection was added for a second, so that a start does not shift RDY back and forth;
- idle connections lend all but 1 to busy ones, and get it back with their first message;
- if there are more connections than messages allowed, they take turns at RDY 1;
- ``flow_state`` stops all connections, or all but one that tests whether messages succeed again;
- the window of ``prefetch`` limits what they have together. Messages that timed out in user
  code count like orphans: nsqd does not count them any more and would send others.

Nothing here sends or waits: the coordinator reports events, sends what ``pending_updates``
returns and calls it again after every event and at ``next_update_at``. Which connection should
have how much is decided by ``rdy_policy``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from nsqflow.client.consumer.rdy_policy import FlowState, RdyPolicy, RdyReason, Sampler

K = TypeVar("K", bound=Hashable)

_BUSY = 0.85  # the part of its RDY at which a connection counts as starved


def needs_refresh(last_rdy: int, in_flight: int) -> bool:
    """Return whether less than a quarter of a connection's RDY remains, or none.

    For nsqd, RDY is a limit and need not be sent again. This only decides when the consumer must
    check whether another RDY is due.
    """
    remains = last_rdy - in_flight
    return remains <= 0 or remains * 4 < last_rdy


@dataclass(slots=True, eq=False)
class ConnectionRdy:
    """The RDY and the messages in flight of one connection."""

    limit: int
    """The server's ``max_rdy_count``."""
    rdy: int = 0
    """As last sent."""
    in_flight: int = 0
    wanted: int = 0
    """The RDY that is sent once ``max_in_flight`` allows."""
    share: int = 0
    """Its even share, before lending."""
    reason: RdyReason = RdyReason.STARTING
    last_message_at: float | None = None
    quiet_since: float = -math.inf
    """The time of the last message, or since when one has been possible."""
    held_since: float = -math.inf
    """Since when it has its turn."""
    settles_at: float = -math.inf
    """Until when the server may still apply the RDY from before it was lowered."""
    starting: bool = True
    lending: bool = False
    borrowing: bool = False
    on_turn: bool = False
    held: bool = False
    """It gets nothing, while the others do."""
    usable: int = 0
    """How many messages it is known to use; its limit if it used all that its share allowed."""
    _peak: int = 0  # most messages in flight after one arrived, since the last redistribution
    _rdy_before: int = 0

    def charge(self, now: float) -> int:
        """Return how many messages may be in flight: allowed by RDY, or unanswered."""
        charge = max(self.rdy, self.in_flight)
        return max(charge, self._rdy_before) if now < self.settles_at else charge

    def send(self, rdy: int, now: float, settle: float) -> None:
        """Record an RDY that is sent."""
        if rdy < self.rdy:
            settling = now < self.settles_at
            self._rdy_before = max(self.rdy, self._rdy_before) if settling else self.rdy
            self.settles_at = now + settle
        elif not self.rdy:
            self.quiet_since = self.held_since = now
        self.rdy = rdy

    def receive(self, count: int, now: float) -> bool:
        """Count messages; return whether their arrival changes the RDY it should have."""
        self.in_flight += count
        self.last_message_at = self.quiet_since = now
        if self.in_flight > self._peak:
            self._peak = self.in_flight
        woken = self.starting or self.lending
        self.starting = self.lending = False
        return woken

    def begin_turn(self, now: float) -> None:
        """Begin its turn at RDY 1."""
        self.on_turn = True
        self.quiet_since = self.held_since = now

    def is_starved(self) -> bool:
        """Return whether RDY keeps it from sending more and is not about to be raised."""
        return self.in_flight > 0 and self.in_flight >= _BUSY * self.rdy and self.rdy >= self.wanted

    def is_idle(self, now: float, timeout: float) -> bool:
        """Return whether no message came for ``timeout`` seconds though RDY allowed it."""
        quiet = self.rdy > 0 and not self.in_flight and not self.starting
        return quiet and now >= self.quiet_since + timeout

    def take_busy(self) -> bool:
        """Return whether it could have used more than its share since the last call."""
        # Compared with its share, not its RDY: one message at RDY 1 is no demand, and a
        # connection with a loan is as busy as it was without. RDY counts while it is too low.
        share = min(self.share, self.rdy) if self.is_short else self.share
        peak, self._peak = self._peak, 0
        used = max(peak, self.in_flight)
        if 0 < share <= peak:
            self.usable = self.limit
        elif 0 < share <= used:  # nothing could arrive: what it can use is as before
            self.usable = max(self.usable, used)
        else:
            self.usable = used
        return 0 < _BUSY * share <= used

    @property
    def is_short(self) -> bool:
        """Whether it waits for RDY that other connections still have or use."""
        return self.wanted > self.rdy


class RdyDistributor(Generic[K]):
    """The RDY of every connection of one consumer."""

    def __init__(
        self,
        max_in_flight: int,
        *,
        random: Sampler,
        redistribute_interval: float = 5.0,
        low_rdy_idle_timeout: float = 10.0,
        low_rdy_timeout: float = 30.0,
        settle: float = 0.5,
    ) -> None:
        self._policy = RdyPolicy(
            random, redistribute_interval, low_rdy_idle_timeout, low_rdy_timeout
        )
        self._settle = settle
        self._connections: dict[K, ConnectionRdy] = {}
        self.orphans = 0  # unanswered messages of lost connections, and timed out ones
        self._window = math.inf
        self._update_at = math.inf
        self._short = False
        self.dirty = False  # an event may change what pending_updates() returns
        self.set_max_in_flight(max_in_flight)

    # Events

    def add(self, key: K, max_rdy_count: int, now: float) -> None:
        """Add a connection that is ready for its first RDY."""
        self._connections[key] = ConnectionRdy(max_rdy_count)
        self._policy.added(now)
        self.dirty = True

    def remove(self, key: K, outstanding: int) -> None:
        """Remove a lost connection; ``outstanding`` of its messages are still being handled."""
        _check_count("outstanding messages", outstanding, self._connections[key].in_flight)
        del self._connections[key]
        self.orphans += outstanding
        self.dirty = True

    def received(self, key: K, count: int, now: float) -> None:
        """Count messages that arrived on a connection."""
        connection = self._connections[key]
        if connection.receive(count, now):
            self.dirty = True
        elif self._window < self.max_in_flight and connection.in_flight >= connection.rdy:
            self.dirty = True  # it may get more of the window of prefetch

    def answered(self, key: K, count: int) -> None:
        """Count messages of a connection that were finished or requeued."""
        connection = self._connections[key]
        _check_count("messages answered", count, connection.in_flight)
        # At or below its RDY an answer frees nothing: the server may send the next message.
        if self._short and connection.in_flight > connection.rdy:
            self.dirty = True
        connection.in_flight -= count

    def expired(self, key: K, count: int) -> None:
        """Count messages of a connection that timed out in user code as orphans."""
        _check_count("messages expired", count, self._connections[key].in_flight)
        self._connections[key].in_flight -= count
        self.orphans += count
        self.dirty = True

    def hold(self, key: K, held: bool) -> None:
        """Stop one connection while the others go on, or let it go on too."""
        if self._connections[key].held is not held:
            self._connections[key].held = held
            self.dirty = True

    def orphans_answered(self, count: int) -> None:
        """Count orphans that were answered."""
        _check_count("orphans answered", count, self.orphans)
        self.orphans -= count
        self.dirty = True

    def set_max_in_flight(self, max_in_flight: int) -> None:
        """Change the limit."""
        self.max_in_flight = max_in_flight
        self.dirty = True

    @property
    def window(self) -> float:
        """The number of messages that prefetch allows; may be set."""
        return self._window

    @window.setter
    def window(self, window: float) -> None:
        if window != self._window:
            self._window = window
            self.dirty = True

    @property
    def flow_state(self) -> FlowState:
        """Whether messages flow, are stopped, or are tested one by one; may be set."""
        return self._policy.flow_state

    @flow_state.setter
    def flow_state(self, flow_state: FlowState) -> None:
        if flow_state is not self._policy.flow_state:
            self._policy.flow_state = flow_state
            self.dirty = True

    # Decisions

    def pending_updates(self, now: float) -> dict[K, int]:
        """Return the RDY to send now, for each connection where it changes."""
        if now < self._update_at and not self.dirty:
            return {}
        capacity = self.max_in_flight - self.orphans
        connections = list(self._connections.values())
        before = [each.rdy for each in connections]
        active = self._active(connections)
        self._policy.decide(active, capacity, self._window, now)
        self._send(connections, capacity, now)
        self._update_at = min(
            self._policy.next_update_at(active, capacity, self._window),
            self._next_settled(connections, now),
        )
        self.dirty = False
        pairs = zip(self._connections.items(), before, strict=True)
        return {key: each.rdy for (key, each), rdy in pairs if each.rdy != rdy}

    def next_update_at(self, now: float) -> float | None:
        """Return when to call ``pending_updates`` even if nothing happens; None: never."""
        if self.dirty:
            return now
        return None if self._update_at == math.inf else self._update_at

    # State

    def is_starved(self) -> bool:
        """Return whether some connection has nearly all that its RDY allows in flight."""
        return any(connection.is_starved() for connection in self._connections.values())

    def state(self, key: K) -> ConnectionRdy:
        """Return what one connection has, what it should have, and why."""
        return self._connections[key]

    # Private methods

    @staticmethod
    def _active(connections: list[ConnectionRdy]) -> list[ConnectionRdy]:
        """Stop those that are held; return the others."""
        active = [each for each in connections if not each.held]
        if len(active) < len(connections):
            for each in connections:
                if each.held:
                    each.wanted, each.on_turn, each.reason = 0, False, RdyReason.HELD
        return active

    def _send(self, connections: list[ConnectionRdy], capacity: int, now: float) -> None:
        for each in connections:
            if each.rdy > each.wanted:
                each.send(each.wanted, now, self._settle)
        available = capacity - sum(each.charge(now) for each in connections)
        window = self._window + self._policy.probes
        ahead = window - sum(max(each.rdy, each.in_flight) for each in connections)
        # RDY 1 for each comes before more for some: a connection at 0 sends nothing.
        for limit in (1, self.max_in_flight):
            for each in connections:
                if each.rdy < min(each.wanted, limit):
                    used = max(each.rdy, each.in_flight)
                    # The window is no hard limit: a lowered RDY need not settle to be given away.
                    rdy = min(each.wanted, limit, max(each.rdy, used + ahead))
                    available -= self._raise(each, int(rdy), available, now)
                    ahead -= max(each.rdy, each.in_flight) - used
        self._short = any(each.rdy < each.wanted for each in connections)

    def _raise(self, each: ConnectionRdy, rdy: int, available: int, now: float) -> int:
        """Raise one connection as far as ``available`` allows; return how much that took."""
        charge = each.charge(now)
        rdy = min(rdy, charge + available)
        if rdy > each.rdy and available >= 0:
            each.send(rdy, now, self._settle)
        return each.charge(now) - charge

    def _next_settled(self, connections: list[ConnectionRdy], now: float) -> float:
        """Return when a lowered RDY settles that others wait for."""
        if not self._short:
            return math.inf
        settling = (each.settles_at for each in connections if each.settles_at > now)
        return min(settling, default=math.inf)


def _check_count(name: str, count: int, maximum: int) -> None:
    if not 0 <= count <= maximum:
        raise ValueError(f"{count} {name}: must be 0 to {maximum}")
