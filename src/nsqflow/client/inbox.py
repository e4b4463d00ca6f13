"""The inbox: messages that have arrived and wait to be handed to user code.

It hands out no more than ``max_in_flight`` at a time whatever the servers send, and nothing
whose deadline has passed: nsqd has that again. It keeps count of its readers, which is what
prefetch goes by.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from nsqflow.client.message import Message
from nsqflow.client.prefetch import Readers

if TYPE_CHECKING:
    from nsqflow.client.handoff import Handoff

# A reader that never waits lets the event loop run after this many seconds; an iterating one
# also after this many messages, as its own code between them costs next to nothing.
_TURN_MESSAGES = 1024
_TURN_SECONDS = 0.003


class Coordinator(Protocol):
    """What the inbox asks of the consumer."""

    def flush(self) -> None:
        """Write the answers of this turn of the loop."""

    def review(self) -> None:
        """Send the RDY that the readers need now."""

    def check(self, now: float) -> None:
        """Drop what has expired, give up what is exhausted at the front."""

    def expire(self, now: float) -> None:
        """Drop what has expired."""

    def give_back(self, messages: list[Message]) -> None:
        """Requeue messages that user code never had."""

    def is_starved(self) -> bool:
        """Whether nothing more can come before messages are answered."""


class Inbox:
    """The queue between subscriptions and readers."""

    def __init__(self, max_in_flight: int, coordinator: Coordinator) -> None:
        self.in_hands = 0
        self.closed = False
        self.error: BaseException | None = None  # what ended it, if that was an error
        self.messages: deque[Message] = deque()
        self.check_at = inf  # the front needs no check before; see set_check_at
        self.restrained = True  # prefetch holds back: new demand makes a difference
        self.workers = 0  # tasks that run handlers
        self.read_ahead: list[Handoff] = []  # taken for threads, and not handed out yet
        self._most = max_in_flight
        self._coordinator = coordinator
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._gatherers: dict[asyncio.Future[None], None] = {}
        self._watchers: dict[asyncio.Future[None], None] = {}  # wait until messages are answered
        self._hurried = False
        self._free = 0
        self._free_changed = monotonic()
        self._idle = 0.0
        self._gathering = 0
        self._chunk = 1
        self._released = 0
        self._handed_at = -inf
        self._turn_left = 0
        self._turn_ends = 0.0
        self._look_at = 0.0  # the earlier of the two: one comparison for each message

    @property
    def max_in_flight(self) -> int:
        """How many may be in hands; may be set."""
        return self._most

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        self._most = count
        self._wake_for_room()
        _wake_all(self._watchers)

    @property
    def outstanding(self) -> int:
        """How many messages user code holds."""
        return self.in_hands - sum(map(len, self.read_ahead))

    @property
    def queued(self) -> int:
        """How many messages wait, those read ahead for threads included."""
        return len(self.messages) + sum(map(len, self.read_ahead))

    def readers(self, now: float) -> Readers:
        """Return what the readers are doing."""
        self._set_free(0, now)
        threads = self.read_ahead
        free = self._free + sum(each.free() for each in threads)
        total = self.workers + sum(each.readers for each in threads)
        outstanding = self.outstanding
        return Readers(
            total=max(total, free, 1),
            free=free,
            gathering=min(self._gathering, self._most),
            chunk=self._chunk,
            outstanding=outstanding,
            handed=self._released + outstanding,
            idle=self._idle + sum(each.idle_seconds(now) for each in threads),
            handed_at=max([self._handed_at, *(each.handed_at for each in threads)]),
            oldest_deadline=self.oldest_deadline(),
        )

    def set_check_at(self, at: float) -> None:
        """Have the front checked before anything is handed out from then on."""
        self.check_at = at
        self._look_at = min(self._turn_ends, at)

    def oldest_deadline(self) -> float:
        """Return when the message that waits longest times out."""
        front = self.messages[0]._delivery.deadline if self.messages else inf
        return min([front, *(each.oldest_deadline() for each in self.read_ahead)])

    def next_deadline(self) -> float:
        """Return when the first of the messages that wait times out."""
        deadlines = (message._delivery.deadline for message in self.messages)
        return min([*deadlines, *(each.oldest_deadline() for each in self.read_ahead)], default=inf)

    def review(self) -> None:
        """Have the RDY sent that the readers need now."""
        self._coordinator.review()

    def recheck(self) -> None:
        """Have what has expired, or was rejected by threads, dropped now."""
        self._coordinator.expire(monotonic())

    # Filling

    def put(self, messages: list[Message]) -> None:
        """Queue messages that have arrived."""
        self.messages.extend(messages)
        if self._waiters:
            self._wake_for_room()
        if self._gatherers:
            _wake_all(self._gatherers)

    def put_back(self, messages: list[Message]) -> None:
        """Queue messages again that were taken and not handed to user code, at the front."""
        self.in_hands -= len(messages)
        if self.closed:
            self._coordinator.give_back(messages)
            return
        self.messages.extendleft(reversed(messages))
        self._wake_for_room()
        _wake_all(self._gatherers)

    def released(self, count: int) -> None:
        """Count messages that were answered."""
        self.in_hands -= count
        self._released += count
        if self._waiters and self.messages:
            self._wake_for_room()
        if self._gatherers:
            _wake_all(self._gatherers)
        if self._watchers:
            _wake_all(self._watchers)

    def remove(self, unwanted: Callable[[Message], bool]) -> list[Message]:
        """Take out messages that must not be handed out; return them."""
        removed = list(filter(unwanted, self.messages))
        if removed:
            gone = set(removed)
            kept = [message for message in self.messages if message not in gone]
            self.messages.clear()
            self.messages.extend(kept)
        recalled = [message for each in self.read_ahead for message in each.recall(unwanted)]
        if recalled:
            self.in_hands -= len(recalled)
            self._wake_for_room()
            _wake_all(self._watchers)
        return removed + recalled

    def close(self, error: BaseException | None = None) -> list[Message]:
        """Hand out no more; return what was waiting."""
        self.closed = True
        self.error = self.error or error
        rest = self.remove(lambda _: True)
        self._wake(len(self._waiters))
        _wake_all(self._gatherers)
        return rest

    # Handing out

    def ready(self) -> bool:
        """Tell whether a message can be taken now."""
        if monotonic() >= self.check_at:
            self._coordinator.check(monotonic())
        if not self.messages:
            return False
        if self.in_hands >= self._most:
            self._coordinator.flush()  # answers of this turn count already
        return self.in_hands < self._most

    def turn(self) -> Iterator[Message]:
        """Hand out messages, one by one, until there are none or the loop must have its turn."""
        messages, popleft = self.messages, self.messages.popleft
        self._begin_turn()
        if self._handed_at >= self.check_at:
            self._coordinator.check(self._handed_at)
        while messages:
            if self.in_hands >= self._most and not self.ready():
                return
            self.in_hands += 1
            yield popleft()
            if monotonic() >= self._look_at:
                if monotonic() >= self._turn_ends:
                    return
                self._coordinator.check(monotonic())

    def take_many(self, size: int) -> list[Message]:
        """Take up to ``size`` messages, as many as there are; only if ``ready``."""
        taken: list[Message] = []
        messages, count = self.messages, min(size, self._most - self.in_hands)
        now = monotonic()
        if now < self.check_at:
            taken = [messages.popleft() for _ in range(min(count, len(messages)))]
        else:  # each must be looked at
            while len(taken) < count:
                self._coordinator.check(now)
                if not messages:
                    break
                taken.append(messages.popleft())
        self.in_hands += len(taken)
        return taken

    async def wait(self, *, demand: bool = True) -> bool:
        """Wait until a message can be taken; False: there will be none, it is closed.

        ``demand=False``: it is not a reader that waits, or one that is counted elsewhere.
        """
        while not self.ready():
            if self.closed:
                self._raise()
                return False
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            self._set_free(demand, monotonic())
            try:
                if demand and self.restrained:
                    self._coordinator.review()
                await waiter
            except BaseException:
                self._pass_on(waiter)
                raise
            finally:
                self._set_free(-demand, monotonic())
        return True

    async def next(self) -> Message:
        """Wait for a message and hand it out; the end of an iteration once it is closed."""
        self._turn_left -= 1
        if monotonic() >= self._look_at or self._turn_left < 0:
            await self._look()
        messages = self.messages
        if not messages or self.in_hands >= self._most:
            if not self.ready() and not await self.wait():
                raise StopAsyncIteration
            self._begin_turn()
        self.in_hands += 1
        return messages.popleft()

    async def gather(self, size: int, max_wait: float) -> list[Message]:
        """Wait for ``size`` messages, or as many as come in time; none: it is closed.

        They stay in the queue until then, so a caller that is cancelled loses none, and
        ``max_wait`` goes on counting from the first of them.
        """
        self._gathering += size
        self._set_free(+1, monotonic())
        try:
            if self.restrained:
                self._coordinator.review()
            while not self.closed:
                if (seconds := self._gathering_time(size, max_wait)) > 0:
                    await self._arrival(seconds)
                elif batch := self.take_many(size):
                    self._chunk = size
                    self._handed_at = monotonic()
                    return batch
        finally:
            self._gathering -= size
            self._set_free(-1, monotonic())
        self._raise()
        return []

    # Messages that user code holds

    async def idle(self) -> None:
        """Wait until nothing is in hands; ``TimeoutError`` as soon as there is no time for it."""
        while self.in_hands:
            if self._hurried:
                raise TimeoutError
            await self._hands_change()

    def hurry(self) -> None:
        """Let nobody wait any longer for what is in hands."""
        self._hurried = True
        _wake_all(self._watchers)

    async def hold(self) -> None:
        """Wait until one more may be in hands, and count it."""
        while self.in_hands >= self._most:
            await self._hands_change()
        self.in_hands += 1

    # Private methods

    def _gathering_time(self, size: int, max_wait: float) -> float:
        """Return the seconds until a batch must go out; 0: now."""
        if not self.ready():
            return inf
        if len(self.messages) >= min(size, self._most - self.in_hands):
            return 0.0
        first, now = self.messages[0]._delivery, monotonic()
        # Later it might time out before the batch is handled.
        latest = first.deadline - first.subscription.msg_timeout / 2
        ends = min(first.arrived + max_wait, latest)
        return 0.0 if ends <= now or self._coordinator.is_starved() else ends - now

    async def _arrival(self, seconds: float) -> None:
        """Wait until a message arrives or is answered; ``seconds`` at most."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._gatherers[waiter] = None
        timer = None if seconds == inf else loop.call_later(seconds, _wake_one, waiter)
        try:
            await waiter
        finally:
            self._gatherers.pop(waiter, None)
            if timer is not None:
                timer.cancel()

    def _set_free(self, change: int, now: float) -> None:
        self._idle += self._free * (now - self._free_changed)
        self._free_changed = now
        self._free += change

    async def _look(self) -> None:
        """Let the loop run if it is time, and check the front.

        A reader that never waits would starve the connection.
        """
        if monotonic() >= self._turn_ends or self._turn_left < 0:
            await asyncio.sleep(0)
            self._begin_turn()
        if monotonic() >= self.check_at:
            self._coordinator.check(monotonic())

    def _begin_turn(self) -> None:
        self._handed_at = monotonic()
        self._turn_ends = self._handed_at + _TURN_SECONDS
        self._turn_left = _TURN_MESSAGES
        self._look_at = min(self._turn_ends, self.check_at)
        self._chunk = 1

    async def _hands_change(self) -> None:
        watcher = asyncio.get_running_loop().create_future()
        self._watchers[watcher] = None
        try:
            await watcher
        finally:
            self._watchers.pop(watcher, None)

    def _wake_for_room(self) -> None:
        """Wake as many as can take something; the others keep their places in the queue."""
        self._wake(min(len(self.messages), self._most - self.in_hands))

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def _pass_on(self, waiter: asyncio.Future[None]) -> None:
        """Wake another in place of one that was woken and cancelled at the same time."""
        self._waiters.pop(waiter, None)
        if waiter.done() and not waiter.cancelled():
            self._wake(1)

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error


def _wake_one(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _wake_all(waiters: dict[asyncio.Future[None], None]) -> None:
    for waiter in waiters:
        _wake_one(waiter)
    waiters.clear()
