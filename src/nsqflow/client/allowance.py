"""An allowance: what one connection was allowed by RDY, and what it made of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

BUSY = 0.85
"""The part of its RDY from which on a connection counts as starved for more."""


class Standing(Enum):
    """Why a connection should have the RDY it should have."""

    SHARING = "has its even share"
    STARTING = "is new: has 1 until its first message, or until no more connections come"
    LENDING = "is idle: has lent what it does not need to busy connections"
    BORROWING = "is busy: has borrowed from idle connections"
    ON_TURN = "has one of the few there are, until its time is over"
    OFF_TURN = "waits for its turn: there are more connections than max_in_flight allows"
    TESTED = "is the one connection that tests whether messages succeed again"
    STOPPED = "is paused or backing off"
    CROWDED_OUT = (
        "waits: messages of lost connections, and messages that timed out in user code, "
        "are all that max_in_flight allows"
    )
    PREFETCH = "has its part of what the handlers are expected to start in time (prefetch)"


@dataclass(frozen=True, slots=True)
class AllowanceState:
    """One connection's allowance, to be read."""

    standing: Standing
    rdy: int
    """As last sent."""
    wanted: int
    """As it will be sent once there is room."""
    share: int
    """Its even share, before lending."""
    in_flight: int
    max_rdy_count: int
    last_message_at: float | None
    settles_at: float | None
    """A lower RDY was sent, and till then the server may go by the one before."""

    @property
    def waits_for_room(self) -> bool:
        """Others still have, or hold messages of, what it should get."""
        return self.wanted > self.rdy


@dataclass(slots=True, eq=False)
class Allowance:
    """The account of one connection."""

    limit: int
    rdy: int = 0
    in_flight: int = 0
    wanted: int = 0
    share: int = 0
    standing: Standing = Standing.STARTING
    last_message_at: float | None = None
    quiet_since: float = -math.inf
    """The last message, or the time when one became possible."""
    held_since: float = -math.inf
    """When its turn began."""
    settles_at: float = -math.inf
    starting: bool = True
    lending: bool = False
    borrowing: bool = False
    on_turn: bool = False
    _was_busy: bool = False
    _rdy_before: int = 0

    def charge(self, now: float) -> int:
        """How many messages the server may still bring, or has brought and not got answered."""
        charge = max(self.rdy, self.in_flight)
        return max(charge, self._rdy_before) if now < self.settles_at else charge

    def send(self, rdy: int, now: float, settle: float) -> None:
        """Account for another RDY."""
        if rdy < self.rdy:
            settling = now < self.settles_at
            self._rdy_before = max(self.rdy, self._rdy_before) if settling else self.rdy
            self.settles_at = now + settle
        elif not self.rdy:
            self.quiet_since = self.held_since = now
        self.rdy = rdy

    def receive(self, count: int, now: float) -> bool:
        """Account for messages; return whether their coming changes what it should have."""
        self.in_flight += count
        self.last_message_at = self.quiet_since = now
        if self._at_its_share():
            self._was_busy = True
        woken = self.starting or self.lending
        self.starting = self.lending = False
        return woken

    def begin_turn(self, now: float) -> None:
        """Let it have one of the few RDY there are."""
        self.on_turn = True
        self.quiet_since = self.held_since = now

    def is_starved(self) -> bool:
        """Whether it would bring more if it was allowed to, and is not about to be."""
        return self.in_flight > 0 and self.in_flight >= BUSY * self.rdy and self.rdy >= self.wanted

    def is_idle(self, now: float, timeout: float) -> bool:
        """Whether it brought nothing for so long, though it was allowed to."""
        quiet = self.rdy > 0 and not self.in_flight and not self.starting
        return quiet and now >= self.quiet_since + timeout

    def take_busy(self) -> bool:
        """Whether it could have used more than its share since this was asked last."""
        busy = self._was_busy or self._at_its_share()
        self._was_busy = False
        return busy

    def state(self) -> AllowanceState:
        """Return all there is to say about it."""
        return AllowanceState(
            standing=self.standing,
            rdy=self.rdy,
            wanted=self.wanted,
            share=self.share,
            in_flight=self.in_flight,
            max_rdy_count=self.limit,
            last_message_at=self.last_message_at,
            settles_at=None if self.settles_at == -math.inf else self.settles_at,
        )

    # Private methods

    def _at_its_share(self) -> bool:
        # Of its share, not of its RDY: one message is no demand where RDY happens to be 1, and
        # with a loan it is no less busy than it was without.
        return self.in_flight > 0 and self.in_flight >= BUSY * self.share
