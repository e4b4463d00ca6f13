"""The handoff: messages on their way from the event loop to the threads that handle them.

The loop reads some ahead; a thread takes one, and asks for more when few are left, so that
one crossing serves many messages. What waits here is not handed out yet: its deadline is
checked by the thread that takes it, and the loop takes it back when it expires or is not to
be handled any more. It counts towards ``max_in_flight`` all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING

from nsqflow.client.message import Message

if TYPE_CHECKING:
    from nsqflow.client.inbox import Inbox

_MAX_CHUNK = 256  # messages read ahead at a time ...
_PART = 2  # ... but not more than this part of max_in_flight
_SLICE = 0.2  # seconds

Post = Callable[[Callable[[], object]], object]
"""Have a function called in the loop, from any thread."""


def wait_slice() -> float | None:
    """Return how long a thread may wait in one go; None: no limit.

    Signals, such as Ctrl-C, are handled by the main thread. Most often they interrupt what
    it waits for, but the system is free to deliver them to another one: so it looks.
    """
    return _SLICE if threading.current_thread() is threading.main_thread() else None


class Handoff:
    """Made in the loop; ``take`` is for the threads, all else for the loop."""

    def __init__(
        self,
        inbox: Inbox,
        post: Post,
        *,
        readers: int = 0,
        before_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.readers = readers
        self.handed_at = -inf
        self._inbox = inbox
        self._post = post
        self._before_waiting = before_waiting
        self._queue: SimpleQueue[Message | None] = SimpleQueue()  # None: the end
        self._deadlines: deque[float] = deque()  # of those in the queue, and some that were
        self._ended = False
        self._error: BaseException | None = None  # what ended it, if that was an error
        self._few = 0
        self._asked = True
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._waiting: dict[int, float] = {}  # threads, and since when
        self._idle = 0.0
        self._rejected: deque[Message] = deque()  # taken by a thread, and not to be handled
        inbox.read_ahead.append(self)
        self._feeder = self._start()

    def __len__(self) -> int:
        return self._queue.qsize()

    # For threads

    def take(self) -> Message | None:
        """Wait for a message; None: there will be none. Raise what ended the consumer."""
        queue = self._queue
        while True:
            try:
                message = queue.get_nowait()
            except Empty:
                message = self._wait()
            if message is None:
                queue.put(None)  # for the next thread that asks
                if self._error is not None:
                    raise self._error
                return None
            if not self._asked and queue.qsize() <= self._few:
                self._ask()
            now = monotonic()
            delivery = message._delivery
            if now < delivery.deadline and not delivery.subscription.gone:
                self.handed_at = now
                return message
            self._reject(message)

    def _wait(self) -> Message | None:
        self._before_waiting()
        ident = threading.get_ident()
        began = monotonic()
        self._waiting[ident] = began
        try:
            if not self._asked:
                self._ask()
            elif self._inbox.restrained:
                self._post(self._inbox.review)  # this thread is free: that is new demand
            seconds = wait_slice()
            while True:
                with contextlib.suppress(Empty):
                    return self._queue.get(timeout=seconds)
        finally:
            del self._waiting[ident]
            self._idle += monotonic() - began

    def _ask(self) -> None:
        self._asked = True
        try:
            self._post(self._more_wanted)
        except BaseException:
            self._asked = False
            raise

    def _reject(self, message: Message) -> None:
        """Hand back a message that timed out, or whose connection was lost."""
        self._rejected.append(message)
        self._post(self._return_rejected)

    # For the loop

    def free(self) -> int:
        """Return how many threads wait for a message."""
        return len(self._waiting)

    def idle_seconds(self, now: float) -> float:
        """Return how long threads have waited since the start, summed over all of them."""
        return self._idle + sum(max(0.0, now - since) for since in list(self._waiting.values()))

    def oldest_deadline(self) -> float:
        """Return when the message that waits longest times out."""
        deadlines = self._deadlines
        while len(deadlines) > len(self):
            deadlines.popleft()
        return deadlines[0] if deadlines else inf

    def recall(self, unwanted: Callable[[Message], bool]) -> list[Message]:
        """Take back those that are unwanted, and those that threads have rejected."""
        rejected = [self._rejected.popleft() for _ in range(len(self._rejected))]
        recalled = [message for message in rejected if message._answer is None]
        if len(self):
            messages = self._drain()
            recalled += filter(unwanted, messages)
            self._fill([message for message in messages if not unwanted(message)])
        return recalled

    def _return_rejected(self) -> None:
        if self in self._inbox.read_ahead:
            self._inbox.recheck()
        else:  # ended meanwhile
            self._inbox.put_back(self.recall(lambda _: True))

    def clear(self) -> None:
        """Put all back into the inbox, which hands it out again; here only if a thread waits."""
        self._put_back()
        self._asked = False
        self._wanted.clear()
        # After that, not before: a thread that begins to wait now is seen here, or asks.
        if self._waiting:
            self._asked = True
            self._wanted.set()
        self._feeder = self._start()

    def end(self) -> None:
        """Put all back, and let threads take no more."""
        self._put_back()
        self._end_queue()
        if self in self._inbox.read_ahead:
            self._inbox.read_ahead.remove(self)

    def _put_back(self) -> None:
        self._feeder.cancel()
        self._inbox.recheck()
        self._inbox.put_back(self._drain())

    def _drain(self) -> list[Message]:
        """Empty the queue, but for the mark of its end."""
        messages: list[Message] = []
        with contextlib.suppress(Empty):
            while True:
                message = self._queue.get_nowait()
                if message is not None:
                    messages.append(message)
        self._deadlines.clear()
        if self._ended:
            self._queue.put(None)
        return messages

    def _fill(self, messages: list[Message]) -> None:
        for message in messages:
            self._deadlines.append(message._delivery.deadline)
            self._queue.put(message)

    def _end_queue(self) -> None:
        self._ended = True
        self._queue.put(None)

    def _start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._feed(), name="nsqflow handoff")

    def _more_wanted(self) -> None:
        self._wanted.set()
        if self._inbox.restrained and self._waiting:
            self._inbox.review()

    async def _feed(self) -> None:
        try:
            while await self._more():
                size = max(1, min(_MAX_CHUNK, self._inbox.max_in_flight // _PART))
                self._few = size // 2
                # Before anything is put: the thread that takes it asks for more.
                self._asked = False
                self._fill(self._inbox.take_many(size))
        except Exception as error:
            self._error = error
        self._end_queue()

    async def _more(self) -> bool:
        await self._wanted.wait()
        self._wanted.clear()
        return await self._inbox.wait(demand=False)
