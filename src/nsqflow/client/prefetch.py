"""Prefetch: how many messages a consumer asks for ahead of its readers.

A message that waits too long in the client times out there, and nsqd counts an attempt that
user code never saw. So the window, the number of messages that may be in flight, follows
the readers (handlers, threads, iterating code):

- without demand it is 0, and again once no reader has asked for longer than half of
  ``msg_timeout``: nsqd frees a place when a message times out, and would push it again;
- as long as nothing is measured it is one message per reader, and then at most a few times
  what the readers have handled since they started or last stalled: full within a few round
  trips where they are fast;
- from then on it is what the readers hold, and what they are expected to start within a
  quarter of ``msg_timeout`` at the measured rate. They may take half of ``msg_timeout``: so
  there is time if they become slower.

The time is an argument, and nothing here waits. Time in which readers wait for messages
does not count for the rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

_GROWTH = 3  # messages ahead for each one handled since the start or the last stall
_UNMEASURED = 10  # messages ahead for a reader that has waited for the first one in vain
_UNMEASURED_AFTER = 1.0  # seconds of such waiting
_RAISE, _LOWER = 1.25, 0.75  # smaller changes than these are not worth a command
_REMEMBERED = 64.0  # messages that count for the rate, and less if they take long


class Limit(Enum):
    """Why the window is as wide as it is."""

    MAX_IN_FLIGHT = "max_in_flight"
    RATE = "the rate of the handlers"
    NO_DEMAND = "no demand"
    STALLED = "a stall"


@dataclass(slots=True)
class Readers:
    """What the readers of a consumer are doing at one moment."""

    total: int = 1
    """How many there are, 1 or more."""
    free: int = 0
    """Those that wait for a message."""
    gathering: int = 0
    """The messages that batches are being gathered for."""
    stuck: int = 0
    """Those that are busy with a message that has timed out."""
    chunk: int = 1
    """The messages that a reader takes at a time."""
    outstanding: int = 0
    """Messages in user code that have not timed out."""
    handed: int = 0
    """Messages handed out since the start."""
    idle: float = 0.0
    """Seconds that readers have waited since the start, summed over all of them."""
    handed_at: float = -math.inf
    """When the last message was handed out."""
    oldest_deadline: float = math.inf
    """When the message that waits longest times out."""


class Prefetch:
    """The window of one consumer."""

    def __init__(self, max_in_flight: int, msg_timeout: float = 60.0) -> None:
        self.max_in_flight = max_in_flight
        self.msg_timeout = msg_timeout
        self.window = 0
        self.limit = Limit.NO_DEMAND
        self.next_update_at = math.inf
        """When ``update`` is due even if nothing happens."""
        self._handled = 0.0  # of late: both fade with the busy time that passes
        self._busy = 0.0
        self._pending = 0.0  # busy time since the last one was handled
        self._readers = 1
        self._completed = 0
        self._proven_from = 0
        self._unmeasured = 0
        self._stalled: int | None = None  # messages handed out until then
        self._idle = 0.0
        self._measured_at: float | None = None
        self._free_since: float | None = None
        self._free_now = self._free_before = 0
        self._free_counted = -math.inf

    @property
    def rate(self) -> float | None:
        """Messages per second that the readers handle while they are busy; None if unknown."""
        if not self._handled:
            return None
        if self._pending * self._handled <= self._busy:
            return self._handled / self._busy if self._busy > 0 else math.inf
        # What they are at takes longer than before.
        return (self._handled + self._readers) / (self._busy + self._pending)

    def update(self, readers: Readers, now: float) -> int:
        """Return the window; call it after every event and at ``next_update_at``."""
        self._count_readers(readers, now)
        self._measure(readers, now)
        self._await_first(readers, now)
        target = self._target(readers, now)
        needed = min(self.max_in_flight, readers.outstanding + _demand(readers))
        if (
            not target
            or target >= self.max_in_flight
            or target < _LOWER * self.window
            or target >= _RAISE * self.window
            or self.window < needed
        ):
            self.window = target
        self.window = min(self.window, self.max_in_flight)
        self._plan_update(readers, now)
        return self.window

    # Private methods

    def _count_readers(self, readers: Readers, now: float) -> None:
        """Know of as many readers as were free together lately: iterating code is not counted."""
        if now >= self._free_counted + self.msg_timeout:
            self._free_before, self._free_now = self._free_now, 0
            self._free_counted = now
        self._free_now = max(self._free_now, readers.free)
        readers.total = max(readers.total, self._free_now, self._free_before)
        self._readers = readers.total

    def _measure(self, readers: Readers, now: float) -> None:
        # What busy readers hold is not handled yet.
        completed = readers.handed - (readers.total - readers.free) * readers.chunk
        completed = max(self._completed, completed)
        if self._measured_at is not None and readers.handed:
            # Threads add to the idle time when they please: no more than the time that passed.
            idle = max(0.0, readers.idle - self._idle) / readers.total
            self._pending += max(0.0, now - self._measured_at - idle)
        if completed > self._completed:
            self._add_sample(completed - self._completed)
        self._completed = completed
        self._idle = readers.idle
        self._measured_at = now

    def _add_sample(self, handled: int) -> None:
        fade = math.exp(-8 * self._pending / self.msg_timeout)
        self._handled = self._handled * fade + handled
        self._busy = self._busy * fade + self._pending
        self._pending = 0.0
        if self._handled > _REMEMBERED:
            self._busy *= _REMEMBERED / self._handled
            self._handled = _REMEMBERED

    def _await_first(self, readers: Readers, now: float) -> None:
        """Allow a few more while nothing comes: then one round trip serves a small burst."""
        if readers.free < readers.total:
            self._free_since = None
        elif self._free_since is None:
            self._free_since = now
        elif now >= self._free_since + _UNMEASURED_AFTER:
            self._unmeasured = _UNMEASURED

    def _target(self, readers: Readers, now: float) -> int:
        demand = _demand(readers)
        if not demand and readers.handed_at == -math.inf:
            return self._stop(Limit.NO_DEMAND)
        if self._is_stalled(readers, now):
            self._stalled = readers.handed
            return self._stop(Limit.STALLED)
        self._stalled = None
        held = max(readers.total - readers.stuck, readers.outstanding + demand)
        target = held + self._ahead()
        if target >= self.max_in_flight:
            self.limit = Limit.MAX_IN_FLIGHT
            return self.max_in_flight
        self.limit = Limit.RATE
        return target

    def _is_stalled(self, readers: Readers, now: float) -> bool:
        if not _demand(readers) and now >= readers.handed_at + self.msg_timeout / 2:
            return True
        if now >= readers.oldest_deadline - self.msg_timeout / 4:
            return True
        # That a message which waited is dropped at its deadline ends no stall.
        waiting = not _demand(readers) or readers.oldest_deadline < math.inf
        return self._stalled == readers.handed and waiting

    def _stop(self, limit: Limit) -> int:
        """Ask for nothing, and start small afterwards."""
        self.limit = limit
        self._proven_from = self._completed
        self._unmeasured = 0
        return 0

    def _ahead(self) -> int:
        """Return how many messages may wait for readers that are busy."""
        proven = max(self._unmeasured, _GROWTH * (self._completed - self._proven_from))
        rate = self.rate
        if rate is None or rate == math.inf:
            return proven
        # One that waits may have to do so until a reader has handled the one before, and is
        # then handled itself: both in time.
        spare = 0.75 * self.msg_timeout - 2 * self._readers / rate
        if spare < 0:
            return 0
        startable = max(int(rate * self.msg_timeout / 4), 1)
        return min(proven, startable, 1 + int(rate * spare))

    def _plan_update(self, readers: Readers, now: float) -> None:
        half = self.msg_timeout / 2
        times = [math.inf]
        if _demand(readers):
            times.append(now + half)
            if self._free_since is not None and now < self._free_since + _UNMEASURED_AFTER:
                times.append(self._free_since + _UNMEASURED_AFTER)
        elif self.window:
            times.append(readers.handed_at + half)
        if self.window:
            times.append(readers.oldest_deadline - self.msg_timeout / 4)
        self.next_update_at = min(times)


def _demand(readers: Readers) -> int:
    return max(readers.free, readers.gathering)
