"""The inbox: messages that have arrived and wait to be handed out.

It counts what is in hands, and hands out no more than ``max_in_flight`` at a time, whatever
the servers send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic

from nsqflow.client.message import Message

# After so many messages, or so many seconds, the loop has its turn, if nobody else gives it one.
_TURN_MESSAGES = 1024
_TURN_SECONDS = 0.01
_STRIDE = 8  # messages from one look at the clock to the next, while they are quick


class Inbox:
    """What waits, who waits for it, and how much is in hands."""

    def __init__(self, max_in_flight: int, flush: Callable[[], None]) -> None:
        self.in_hands = 0
        self.closed = False
        self.error: BaseException | None = None  # what ended it, if that was an error
        self.messages: deque[Message] = deque()
        self._most = max_in_flight
        self._flush = flush
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._watchers: list[asyncio.Future[None]] = []  # of what is in hands
        self._hurried = False
        self._until_look = 0  # messages
        self._looks = 0  # in this turn
        self._turn_ends = 0.0

    @property
    def max_in_flight(self) -> int:
        """How many may be in hands; may be set."""
        return self._most

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        self._most = count
        self._wake_for_room()
        self._tell_watchers()

    # Filling

    def put(self, messages: list[Message]) -> None:
        """Take in what has arrived."""
        self.messages.extend(messages)
        if self._waiters:
            self._wake_for_room()

    def released(self, count: int) -> None:
        """So many are in hands no more."""
        self.in_hands -= count
        if self._waiters and self.messages:
            self._wake_for_room()
        if self._watchers:
            self._tell_watchers()

    def discard(self, unwanted: Callable[[Message], bool]) -> None:
        """Forget messages that can't be answered any more."""
        kept = [message for message in self.messages if not unwanted(message)]
        self.messages.clear()
        self.messages.extend(kept)

    def close(self, error: BaseException | None = None) -> list[Message]:
        """Hand out no more; return what was waiting."""
        self.closed = True
        self.error = self.error or error
        rest = list(self.messages)
        self.messages.clear()
        self._wake(len(self._waiters))
        return rest

    # Handing out

    def ready(self) -> bool:
        """Tell whether a message can be taken now."""
        if not self.messages:
            return False
        if self.in_hands >= self._most:
            self._flush()  # answers of this turn count already
        return self.in_hands < self._most

    def turn(self) -> Iterator[Message]:
        """Hand out messages, one by one, until there are none or the loop must have its turn."""
        messages, ends, next_look = self.messages, monotonic() + _TURN_SECONDS, 1
        for count in range(1, _TURN_MESSAGES + 1):
            if not messages or (self.in_hands >= self._most and not self.ready()):
                return
            self.in_hands += 1
            yield messages.popleft()
            if count == next_look:
                if monotonic() > ends:
                    return
                next_look += min(count, _STRIDE)  # those that begin quickly go on so

    def take_many(self, size: int) -> list[Message]:
        """Hand out up to ``size`` messages, as many as there are; only if ``ready``."""
        count = min(size, len(self.messages), self._most - self.in_hands)
        self.in_hands += count
        take = self.messages.popleft
        return [take() for _ in range(count)]

    async def wait(self) -> bool:
        """Wait until a message can be taken; False: there will be none, it is closed."""
        while not self.ready():
            if self.closed:
                self._raise()
                return False
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                self._pass_on(waiter)
                raise
        return True

    async def next(self) -> Message:
        """Wait for a message and hand it out; the end of an iteration once it is closed."""
        self._until_look -= 1
        if self._until_look < 0:
            await self._look_at_the_clock()
        if not self.ready() and not await self.wait():
            raise StopAsyncIteration
        self.in_hands += 1
        return self.messages.popleft()

    async def idle(self) -> None:
        """Wait until nothing is in hands; ``TimeoutError`` as soon as there is no time for it."""
        while self.in_hands:
            if self._hurried:
                raise TimeoutError
            await self._hands_change()

    def hurry(self) -> None:
        """Let nobody wait any longer for what is in hands."""
        self._hurried = True
        self._tell_watchers()

    async def hold(self) -> None:
        """Wait until one more may be in hands, and count it."""
        while self.in_hands >= self._most:
            await self._hands_change()
        self.in_hands += 1

    # Private methods

    async def _look_at_the_clock(self) -> None:
        """Give the loop a turn if it is time: who never waits would starve the connection."""
        self._looks += 1
        slow = monotonic() > self._turn_ends
        if slow or self._looks * _STRIDE >= _TURN_MESSAGES:
            await asyncio.sleep(0)
            self._looks = 0
            self._turn_ends = monotonic() + _TURN_SECONDS
        self._until_look = 0 if slow else _STRIDE - 1

    async def _hands_change(self) -> None:
        watcher = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        await watcher

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)
        self._watchers.clear()

    def _wake_for_room(self) -> None:
        """Wake as many as can take something; the others keep their places in the queue."""
        self._wake(min(len(self.messages), self._most - self.in_hands))

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def _pass_on(self, waiter: asyncio.Future[None]) -> None:
        """Wake another in place of one that was woken and cancelled at the same time."""
        if waiter.done() and not waiter.cancelled():
            self._wake(1)

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error
