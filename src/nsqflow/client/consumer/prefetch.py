"""Prefetch: how many messages a consumer requests ahead of its readers.

A message that waits too long in the client times out there, and nsqd counts an attempt that
user code never saw. So the window, the number of messages that may be in flight, follows
the readers (handlers, threads, iterating code):

- without demand it is 0, and also after no reader has asked for half of ``msg_timeout``: when
  a message times out, nsqd would otherwise send it again;
- until a rate is measured it is one message per reader, then at most a few times what the
  readers have handled since they started or last stalled. Fast readers reach the full window
  within a few round trips;
- after that it is what the readers hold, plus what they are expected to start within a
  quarter of ``msg_timeout`` at the measured rate. The deadline leaves time if they slow down.

The time is an argument, and nothing here waits. The time that readers wait for messages does
not count towards the rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

_GROWTH = 3  # messages ahead for each one handled since the start or the last stall
_UNMEASURED = 10  # messages ahead once readers have waited for the first message ...
_UNMEASURED_AFTER = 1.0  # ... this many seconds
_RAISE, _LOWER = 1.25, 0.75  # smaller changes are not worth an RDY command
_SAMPLE_SIZE = 64.0  # messages that count for the rate; fewer if they take long


class PrefetchLimit(Enum):
    """What limits the window."""

    MAX_IN_FLIGHT = "max_in_flight"
    RATE = "the rate of the handlers"
    NO_DEMAND = "no demand"
    STALLED = "a stall"


@dataclass(slots=True)
class ReaderState:
    """What the readers of a consumer are doing at one moment."""

    total: int = 1
    """The number of readers, 1 or more."""
    free: int = 0
    """Readers that wait for a message."""
    gathering: int = 0
    """Messages wanted by batches that are being collected."""
    stuck: int = 0
    """Readers that are busy with a message that has timed out."""
    chunk: int = 1
    """Messages that a reader takes at a time."""
    outstanding: int = 0
    """Messages in user code that have not timed out."""
    handed: int = 0
    """Messages handed out since the start."""
    idle: float = 0.0
    """Seconds that readers have waited since the start, summed over all of them."""
    handed_at: float = -math.inf
    """When the last message was handed out."""
    oldest_deadline: float = math.inf
    """The deadline of the message that has waited longest."""


class Prefetch:
    """Computes the window of one consumer."""

    def __init__(self, max_in_flight: int, msg_timeout: float = 60.0) -> None:
        self.max_in_flight = max_in_flight
        self.msg_timeout = msg_timeout
        self.window = 0
        self.limit = PrefetchLimit.NO_DEMAND
        self.next_update_at = math.inf
        """When ``update`` is due even if nothing happens."""
        self._handled = 0.0  # recent messages and busy seconds: both decay with busy time
        self._busy = 0.0
        self._pending = 0.0  # busy seconds since the last message was handled
        self._readers = 1
        self._completed = 0
        self._proven_from = 0
        self._unmeasured = 0
        self._stalled: int | None = None  # messages handed out when the stall began
        self._idle = 0.0
        self._measured_at: float | None = None
        self._free_since: float | None = None
        self._free_now = self._free_before = 0
        self._free_counted = -math.inf

    @property
    def rate(self) -> float | None:
        """Messages per second that busy readers handle; None if unknown."""
        if not self._handled:
            return None
        if self._pending * self._handled <= self._busy:
            return self._handled / self._busy if self._busy > 0 else math.inf
        # The messages being handled take longer than those before.
        return (self._handled + self._readers) / (self._busy + self._pending)

    def update(self, readers: ReaderState, now: float) -> int:
        """Return the window; call this after every event and at ``next_update_at``."""
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

    def _count_readers(self, readers: ReaderState, now: float) -> None:
        """Infer the number of readers: iterating code counts only while it waits."""
        if now >= self._free_counted + self.msg_timeout:
            self._free_before, self._free_now = self._free_now, 0
            self._free_counted = now
        self._free_now = max(self._free_now, readers.free)
        readers.total = max(readers.total, self._free_now, self._free_before)
        self._readers = readers.total

    def _measure(self, readers: ReaderState, now: float) -> None:
        # Messages held by busy readers are not handled yet.
        completed = readers.handed - (readers.total - readers.free) * readers.chunk
        completed = max(self._completed, completed)
        if self._measured_at is not None and readers.handed:
            # Threads report idle time with delay: it never exceeds the time that passed.
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
        if self._handled > _SAMPLE_SIZE:
            self._busy *= _SAMPLE_SIZE / self._handled
            self._handled = _SAMPLE_SIZE

    def _await_first(self, readers: ReaderState, now: float) -> None:
        """Allow a few more while nothing arrives: one round trip then serves a small burst."""
        if readers.free < readers.total:
            self._free_since = None
        elif self._free_since is None:
            self._free_since = now
        elif now >= self._free_since + _UNMEASURED_AFTER:
            self._unmeasured = _UNMEASURED

    def _target(self, readers: ReaderState, now: float) -> int:
        demand = _demand(readers)
        if not demand and readers.handed_at == -math.inf:
            return self._stop(PrefetchLimit.NO_DEMAND)
        if self._is_stalled(readers, now):
            self._stalled = readers.handed
            return self._stop(PrefetchLimit.STALLED)
        self._stalled = None
        held = max(readers.total - readers.stuck, readers.outstanding + demand)
        target = held + self._ahead()
        if target >= self.max_in_flight:
            self.limit = PrefetchLimit.MAX_IN_FLIGHT
            return self.max_in_flight
        self.limit = PrefetchLimit.RATE
        return target

    def _is_stalled(self, readers: ReaderState, now: float) -> bool:
        if not _demand(readers) and now >= readers.handed_at + self.msg_timeout / 2:
            return True
        if now >= readers.oldest_deadline - self.msg_timeout / 4:
            return True
        # Dropping an expired message does not end a stall.
        waiting = not _demand(readers) or readers.oldest_deadline < math.inf
        return self._stalled == readers.handed and waiting

    def _stop(self, limit: PrefetchLimit) -> int:
        """Close the window, and start small afterwards."""
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
        # A queued message waits until a reader has handled the one before; both must be
        # handled in time.
        spare = 0.75 * self.msg_timeout - 2 * self._readers / rate
        if spare < 0:
            return 0
        startable = max(int(rate * self.msg_timeout / 4), 1)
        return min(proven, startable, 1 + int(rate * spare))

    def _plan_update(self, readers: ReaderState, now: float) -> None:
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


def _demand(readers: ReaderState) -> int:
    return max(readers.free, readers.gathering)
