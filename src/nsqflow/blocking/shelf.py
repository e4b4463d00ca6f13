"""The shelf: messages on their way from the loop to the threads that iterate.

The loop puts some at a time; a thread takes one, and asks for more when few are left, so
that one crossing serves many messages. What lies here counts as being in hands: never more
than ``max_in_flight`` are, shelf and all.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from queue import Empty, SimpleQueue

from nsqflow.blocking.calls import wait_slice
from nsqflow.blocking.loop import LoopThread
from nsqflow.client.inbox import Inbox
from nsqflow.client.message import Message

_MOST = 256  # messages put at a time
_PART = 2  # ... but not more than this part of max_in_flight


class Shelf:
    """Made in the loop; ``take`` is for the threads, all else for the loop."""

    def __init__(self, thread: LoopThread, inbox: Inbox) -> None:
        self._thread = thread
        self._inbox = inbox
        self._queue: SimpleQueue[Message | None] = SimpleQueue()  # None: the end
        self._error: BaseException | None = None  # what ended it, if that was an error
        self._few = 0
        self._asked = True
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._waiting: set[int] = set()  # threads
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
                queue.put(None)  # for the next one who asks
                if self._error is not None:
                    raise self._error
                return None
            if not self._asked and queue.qsize() <= self._few:
                self._ask()
            if _can_be_answered(message):
                return message

    def _wait(self) -> Message | None:
        self._thread.forbid_inside()
        ident = threading.get_ident()
        self._waiting.add(ident)
        try:
            if not self._asked:
                self._ask()
            seconds = wait_slice()
            while True:
                with contextlib.suppress(Empty):
                    return self._queue.get(timeout=seconds)
        finally:
            self._waiting.discard(ident)

    def _ask(self) -> None:
        self._asked = True
        try:
            self._thread.post(self._wanted.set)
        except BaseException:
            self._asked = False
            raise

    # For the loop

    def clear(self) -> None:
        """Put all back into the inbox, which hands it out anew; here only if a thread waits."""
        self._stop()
        self._asked = False
        self._wanted.clear()
        # After that, not before: who begins to wait now either is seen here or asks.
        if self._waiting:
            self._asked = True
            self._wanted.set()
        self._feeder = self._start()

    def end(self) -> None:
        """Put all back, and nothing more here."""
        self._stop()
        self._queue.put(None)

    def _start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._feed(), name="nsqflow shelf")

    def _stop(self) -> None:
        self._feeder.cancel()
        messages = list(filter(_can_be_answered, iter(self._get, None)))
        self._inbox.messages.extendleft(reversed(messages))
        self._inbox.released(len(messages))

    def _get(self) -> Message | None:
        try:
            return self._queue.get_nowait()
        except Empty:
            return None

    async def _feed(self) -> None:
        try:
            while await self._more():
                size = max(1, min(_MOST, self._inbox.max_in_flight // _PART))
                self._few = size // 2
                # Before anything is put: who takes it asks for more.
                self._asked = False
                for message in self._inbox.take_many(size):
                    self._queue.put(message)
        except Exception as error:
            self._error = error
        self._queue.put(None)

    async def _more(self) -> bool:
        await self._wanted.wait()
        self._wanted.clear()
        return await self._inbox.wait()


def _can_be_answered(message: Message) -> bool:
    """Tell whether it is worth handling; else forget it."""
    if not message._delivery.subscription.gone:
        return True
    # Its connection was lost, and nsqd delivers it again: nobody is told of this answer.
    message.requeue(0, backoff=False)
    return False
