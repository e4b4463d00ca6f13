"""The queue between the event loop and the threads that handle messages.

The loop reads a few messages ahead; a thread takes one, and asks for more when few are left,
so one switch between threads serves many messages. Messages here are not handed out yet: the
thread that takes one checks its deadline, and the loop takes back those that expire. They
count towards ``max_in_flight``, too.
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
    from nsqflow.client.consumer.reader import MessageReader

_MAX_CHUNK = 256  # messages read ahead at a time, but at most half of max_in_flight
_WAIT_SLICE = 0.2  # seconds

Post = Callable[[Callable[[], object]], object]
"""Calls a function in the event loop, from any thread."""


def wait_slice() -> float | None:
    """Return how long a thread may wait without a break; None: no limit.

    The main thread handles signals such as Ctrl-C. Most often they interrupt its wait, but
    the system may deliver them to another thread, so it wakes up now and then.
    """
    return _WAIT_SLICE if threading.current_thread() is threading.main_thread() else None


class ThreadQueue:
    """Created in the event loop; threads call only ``take``."""

    def __init__(
        self,
        reader: MessageReader,
        post: Post,
        *,
        readers: int = 0,
        before_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.readers = readers
        self.handed_at = -inf
        self._reader = reader
        self._post = post
        self._before_waiting = before_waiting
        self._queue: SimpleQueue[Message | None] = SimpleQueue()  # None: the end
        self._deadlines: deque[float] = deque()  # of those in the queue, and some taken before
        self._ended = False
        self._error: BaseException | None = None  # what ended the consumer, if it was an error
        self._few = 0
        self._asked = True
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._waiting: dict[int, float] = {}  # threads that wait, and since when
        self._idle = 0.0
        self._rejected: deque[Message] = deque()  # taken by a thread, and too late to handle
        reader.queue.thread_queues.append(self)
        self._feeder = self._start()

    def __len__(self) -> int:
        return self._queue.qsize()

    # For threads

    def take(self) -> Message | None:
        """Wait for a message; None at the end. Raise the error that ended the consumer."""
        queue = self._queue
        while True:
            try:
                message = queue.get_nowait()
            except Empty:
                message = self._wait()
            if message is None:
                queue.put(None)  # for the next thread
                if self._error is not None:
                    raise self._error
                return None
            if not self._asked and queue.qsize() <= self._few:
                self._ask()
            now = monotonic()
            delivery = message.delivery
            if now < delivery.deadline and not delivery.subscription.removed:
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
            elif self._reader.queue.prefetch_limited:
                self._post(self._reader.update_rdy)  # a free thread is new demand
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
        """Return a message that timed out, or whose connection was lost."""
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
        """Return the deadline of the message that has waited longest."""
        deadlines = self._deadlines
        while len(deadlines) > len(self):
            deadlines.popleft()
        return deadlines[0] if deadlines else inf

    def recall(self, unwanted: Callable[[Message], bool]) -> list[Message]:
        """Take out unwanted messages, and those that threads have rejected."""
        rejected = [self._rejected.popleft() for _ in range(len(self._rejected))]
        recalled = [message for message in rejected if message.answer is None]
        if len(self):
            messages = self._drain()
            recalled += filter(unwanted, messages)
            self._fill([message for message in messages if not unwanted(message)])
            if not len(self):
                self._feed_waiting()
        return recalled

    def _return_rejected(self) -> None:
        if self in self._reader.queue.thread_queues:
            self._reader.drop_expired()
        else:  # ended meanwhile
            self._reader.put_back(self.recall(lambda _: True))

    def clear(self) -> None:
        """Put all messages back for other readers; read ahead again if a thread waits."""
        self._put_back()
        self._asked = False
        self._wanted.clear()
        self._feed_waiting()
        self._feeder = self._start()

    def _feed_waiting(self) -> None:
        """Read ahead again if a thread waits: what it was woken for may be gone."""
        # After the queue was emptied: a thread that begins to wait now asks by itself.
        if self._waiting:
            self._asked = True
            self._wanted.set()

    def end(self) -> None:
        """Put all messages back, and end the threads' waits."""
        self._put_back()
        self._end_queue()
        if self in self._reader.queue.thread_queues:
            self._reader.queue.thread_queues.remove(self)

    def _put_back(self) -> None:
        self._feeder.cancel()
        self._reader.drop_expired()
        self._reader.put_back(self._drain())

    def _drain(self) -> list[Message]:
        """Take all messages out; the mark of the end stays."""
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
            self._deadlines.append(message.delivery.deadline)
            self._queue.put(message)

    def _end_queue(self) -> None:
        self._ended = True
        self._queue.put(None)

    def _start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._feed(), name="nsqflow thread queue")

    def _more_wanted(self) -> None:
        self._wanted.set()
        if self._reader.queue.prefetch_limited and self._waiting:
            self._reader.update_rdy()

    async def _feed(self) -> None:
        try:
            while await self._more():
                size = max(1, min(_MAX_CHUNK, self._reader.queue.max_in_flight // 2))
                self._few = size // 2
                # Before the queue is filled: a thread that takes from it asks for more.
                self._asked = False
                self._fill(self._reader.take_many(size))
        except Exception as error:
            self._error = error
        self._end_queue()

    async def _more(self) -> bool:
        await self._wanted.wait()
        self._wanted.clear()
        return await self._reader.wait(demand=False)
