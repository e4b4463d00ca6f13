"""When an nsqd is dialled again.

    connected --lost--> at once --failed--> first delay --failed--> twice that, up to the limit

A connection that did not last counts as a failure, so a peer that accepts and closes is not
dialled in a tight loop. A publish that finds no connection requests a dial before the planned
one, and again while it waits; ``TriggerLimit`` limits how often.

No I/O, clock or randomness here: ``nsqflow.client.reconnect`` passes in times and random
numbers.
"""

from __future__ import annotations

from collections.abc import Container

TRIGGER_GAP = 1.0
"""Minimum seconds between two dials of one nsqd that publishes trigger."""

_JITTER = 0.25  # a delay is shortened by up to this fraction
_MAX_FIRST_JITTER = 0.5  # seconds over which the clients of a restarted nsqd come back
_MAX_DOUBLINGS = 62  # 2.0 to a larger power could overflow


def reconnect_delay(failures: int, first: float, longest: float, random: float) -> float:
    """Return the seconds to wait after ``failures`` in a row: doubling, with jitter."""
    delay = min(longest, first * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
    return delay * (1 - _JITTER * random)


class ReconnectSchedule:
    """Decides when to dial one nsqd after losses, failures and triggers."""

    __slots__ = ("_first", "_longest", "_planned_at", "_planned_failures", "dial_at", "failures")

    def __init__(self, first: float, longest: float) -> None:
        self.failures = 0  # in a row
        self.dial_at = 0.0
        self._first = first
        self._longest = longest
        self._planned_failures = 0  # failures of planned dials: only they lengthen the delay
        self._planned_at: float | None = None  # while a triggered dial comes before it

    def lasted(self, seconds: float) -> bool:
        """Return whether a connection of ``seconds`` counts as one that worked."""
        return seconds >= self._first

    def lost(self, now: float, random: float, *, worked: bool) -> None:
        """Plan the dial after a loss: at once if the connection ``worked``."""
        if not worked:
            self.failed(now, random)
            return
        self.failures = self._planned_failures = 0
        self._planned_at = None
        self.dial_at = now + min(self._first, _MAX_FIRST_JITTER) * random

    def failed(self, now: float, random: float) -> None:
        """Plan the dial after a failed one; a triggered one leaves the plan as it was."""
        self.failures += 1
        planned, self._planned_at = self._planned_at, None
        if planned is not None and planned > now:
            self.dial_at = planned
            return
        self._planned_failures += 1
        delay = reconnect_delay(self._planned_failures, self._first, self._longest, random)
        self.dial_at = now + delay

    def trigger(self, now: float) -> None:
        """Dial now instead of waiting for the planned dial."""
        if now < self.dial_at:
            self._planned_at = self.dial_at
            self.dial_at = now


class TriggerLimit:
    """Grants one triggered dial per second and nsqd."""

    __slots__ = ("_granted_at",)

    def __init__(self) -> None:
        self._granted_at: dict[str, float] = {}

    def grant(self, address: str, now: float) -> bool:
        """Return whether a dial may be triggered now, and count it."""
        if now < self._granted_at.get(address, float("-inf")) + TRIGGER_GAP:
            return False
        self._granted_at[address] = now
        return True

    def keep(self, addresses: Container[str]) -> None:
        """Forget all other addresses."""
        self._granted_at = {a: at for a, at in self._granted_at.items() if a in addresses}
