"""What a channel has to deliver: its cursor in the log, and what is out of the log's order.

Everything before the *cursor* is finished. After it lie *stretches* of finished messages; a channel
with too many of them reads no further, for any consumer. Messages that were delivered before come
first: requeued ones, deferred ones when they are due, and those whose delay is so long that nsqd
stores them apart from the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nsqflow.broker.redesigned.engine.log import PartitionLog


class FinishedWindow:
    """The cursor, and the finished messages after it."""

    __slots__ = ("cursor", "finished", "stretches")

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        """The index of the oldest message that is not finished."""
        self.finished: set[int] = set()
        """The indexes after the cursor that are finished."""
        self.stretches = 0
        """How many disjoint stretches they are."""

    def __contains__(self, index: int) -> bool:
        return index < self.cursor or index in self.finished

    def finish(self, indexes: Sequence[int]) -> bool:
        """Finish messages, each given once; return whether the cursor has moved."""
        begin = cursor = self.cursor
        finished = self.finished
        end = begin + len(indexes)
        if indexes and not finished and (min(indexes), max(indexes) + 1) == (begin, end):
            self.cursor = end  # nearly always, in whatever order they are
            return True
        for index in indexes:
            if index == cursor:
                cursor += 1
                if cursor in finished:
                    self.stretches -= 1
                    while cursor in finished:
                        finished.remove(cursor)
                        cursor += 1
            elif index > cursor and index not in finished:
                self.stretches += 1 - (index - 1 in finished) - (index + 1 in finished)
                finished.add(index)
        self.cursor = cursor
        return cursor != begin

    def move(self, cursor: int) -> None:
        """Move the cursor and forget what is finished after it."""
        self.cursor = cursor
        self.finished.clear()
        self.stretches = 0


class Waiting(NamedTuple):
    """A message that waits until a time."""

    due: int
    attempts: int


class LogReader:
    """What is to be delivered, in the order in which it is."""

    def __init__(
        self, log: PartitionLog, max_confirm_win: int, is_held: Callable[[int], bool]
    ) -> None:
        self.log = log
        self.window = FinishedWindow(log.end)
        self.read = log.end
        """The index of the next message to be read from the log."""
        self.requeued: deque[tuple[int, int]] = deque()
        """Indexes and attempts of messages that come before those of the log."""
        self.deferred: dict[int, Waiting] = {}
        """Messages whose delay is short enough to be kept in memory."""
        self.delayed: dict[int, Waiting] = {}
        """Messages with a long delay, until they are finished; the log is done with them."""
        self.due: set[int] = set()
        """Those of them whose time has come: they are requeued, deferred or in flight."""
        self.reached = log.end
        """The highest cursor that there was."""
        self._origin = log.end  # nothing before it was read since the last move
        self._reread_until = log.end  # below it the log has messages that may be finished
        self._max_confirm_win = max_confirm_win
        self._holding = False  # too much is unfinished: nothing is read until something wakes it
        self._read_ahead = 0  # before this index nsqd had read when it began to hold
        self._is_held = is_held  # whether a message is in flight

    # Sizes

    @property
    def depth(self) -> int:
        """How many messages there are from the cursor to the end."""
        return self.log.end - self.window.cursor

    @property
    def depth_bytes(self) -> int:
        """How many bytes they are."""
        return self.log.end_offset - self.log.offset_of(self.window.cursor)

    @property
    def unread(self) -> int:
        """How many messages nsqd has not read; it reads one ahead of its consumers."""
        unread = self.log.end - self.read
        return unread - 1 if unread and not self.requeued else unread

    @property
    def depth_timestamp(self) -> int:
        """When the message was published that was read last; 0 if none was."""
        index = self.log.end - self.unread - 1
        return self.log.timestamp_of(index) if index >= self._origin else 0

    @property
    def available(self) -> int:
        """How many messages can be taken now, at most."""
        requeued = len(self.requeued)
        unread = self.log.end - self.read
        return requeued + unread if unread and self._may_read() else requeued

    @property
    def in_order(self) -> bool:
        """Whether what comes next are messages of the log that were never read before."""
        return not self.requeued and self.read >= self._reread_until

    # Taking

    def take(self, most: int, max_bytes: int) -> range:
        """Take messages that follow each other in the log; only where it is ``in_order``."""
        start, log = self.read, self.log
        if not most or start == log.end or not self._may_read():
            return range(start, start)
        most = 1 if self._holding else most
        self.read = min(start + most, log.bytes_end(start, max_bytes))
        return range(start, self.read)

    def pop(self) -> tuple[int, int] | None:
        """Take one message; return its index and how often it was delivered."""
        if self.requeued:
            self.wake()
            return self.requeued.popleft()
        while self.read < self.log.end and self._may_read():
            index = self.read
            self.read += 1
            if index >= self._reread_until or not self._is_done_with(index):
                return index, 0
        return None

    def put_back(self, index: int, attempts: int) -> None:
        """Return a message that no consumer can take now: it is the next one."""
        self.requeued.appendleft((index, attempts))

    # Finishing

    def finish(self, indexes: Sequence[int]) -> None:
        """Finish messages."""
        if self.delayed:
            indexes = [index for index in indexes if self._finish_delayed(index)]
        window = self.window
        if window.finish(indexes):
            self.reached = max(self.reached, window.cursor)
            if window.stretches < self._max_confirm_win / 2:
                self.wake()

    def wake(self) -> None:
        """Try to read on: nsqd does so with each heartbeat."""
        self._holding = self._holding and self.too_much_unfinished

    @property
    def too_much_unfinished(self) -> bool:
        """Whether a message can only be deferred to a time before its timeout."""
        return self.window.stretches > self._max_confirm_win or self._too_much_deferred

    # Moving

    def move(self, index: int, *, read_ahead: bool) -> None:
        """Move the cursor; if nsqd reads ahead, the message that it has read comes first."""
        ahead = self.requeued[0] if self.requeued else None
        if ahead is None and self.read < self.log.end and self._may_read():
            ahead = self.read, 0
        self.window.move(index)
        self.reset()
        self._origin = index
        self.reached = max(self.reached, index)
        if read_ahead and ahead is not None:
            self._reread_until = max(self._reread_until, ahead[0] + 1)
            self.requeued.appendleft(ahead)

    def reset(self, *, forget_finished: bool = False) -> None:
        """Read again from the cursor: nothing is in flight or deferred any more."""
        if forget_finished:
            self.window.move(self.window.cursor)
        self._reread_until = max(self._reread_until, self.read)
        self.read = self.window.cursor
        self.deferred.clear()
        self.requeued.clear()
        self.requeued.extend((index, self.delayed[index].attempts) for index in self.due)
        self._holding = self.too_much_unfinished
        self._read_ahead = 0

    def drop_delayed(self) -> None:
        """Drop the messages with a long delay."""
        self.requeued = deque(each for each in self.requeued if each[0] not in self.delayed)
        self.delayed.clear()
        self.due.clear()

    # Private methods

    def _may_read(self) -> bool:
        if not self._holding and self.too_much_unfinished:
            self._holding = True
            self._read_ahead = self.read + 1  # one message, for which no consumer was ready
        return not self._holding or self.read < self._read_ahead

    @property
    def _too_much_deferred(self) -> bool:
        waiting = self.read - self.window.cursor
        return waiting >= self._max_confirm_win and 2 * len(self.deferred) > waiting

    def _is_done_with(self, index: int) -> bool:
        return (
            index in self.window
            or index in self.delayed
            or index in self.deferred
            or self._is_held(index)
        )

    def _finish_delayed(self, index: int) -> bool:
        """Forget a delayed message; return whether it is one of the log."""
        self.due.discard(index)
        return self.delayed.pop(index, None) is None
