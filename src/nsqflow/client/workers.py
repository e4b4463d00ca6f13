"""Workers: hand each message to a handler, and answer for it.

A coroutine function runs in the loop, several at a time if asked for; a plain function runs
on threads that live as long as the run does, so that it may block.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from nsqflow.client.handoff import Handoff
from nsqflow.client.inbox import Inbox
from nsqflow.client.message import FIN, Message
from nsqflow.errors import ConfigError

logger = logging.getLogger(__name__)

Handler = Callable[[Message], Awaitable[Any]] | Callable[[Message], Any]

_LAST_WORD = 1.0  # seconds for threads to end when all is answered


def make_workers(
    handler: Handler, concurrency: int, auto_answer: bool
) -> LoopWorkers | ThreadWorkers:
    """Return those that fit the handler: in the loop, or on threads."""
    _check(handler, concurrency)
    kind = LoopWorkers if is_async(handler) else ThreadWorkers
    return kind(handler, concurrency, auto_answer)


def is_async(handler: Handler) -> bool:
    """Tell whether calling it gives a coroutine."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - it may be an object with one
    return any(map(inspect.iscoroutinefunction, (handler, call)))


def _check(handler: object, concurrency: object) -> None:
    if not callable(handler):
        raise ConfigError(f"handler {handler!r}; allowed is what can be called with a message")
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise ConfigError(f"concurrency {concurrency!r}; 1 or more is allowed")


class LoopWorkers:
    """Tasks that run an async handler, one message at a time each."""

    def __init__(
        self, handler: Callable[[Message], Awaitable[Any]], concurrency: int, auto_answer: bool
    ) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._auto_answer = auto_answer

    async def run(self, inbox: Inbox) -> None:
        """Work until the inbox is closed; raise what is no mere failure of a message."""
        tasks = [
            asyncio.create_task(self._work(inbox), name=f"nsqflow worker {number}")
            for number in range(self._concurrency)
        ]
        working = set(tasks)
        inbox.workers += self._concurrency
        try:
            while working:
                done, working = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            inbox.workers -= self._concurrency
            for task in tasks:
                task.cancel()
            # One error ends the run; asyncio would complain that nobody asked for the others.
            await asyncio.gather(*tasks, return_exceptions=True)

    async def part(self) -> None:
        """Nothing is left when ``run`` has ended."""

    async def _work(self, inbox: Inbox) -> None:
        handler, auto_answer = self._handler, self._auto_answer
        while await inbox.wait():
            for message in inbox.turn():
                try:
                    await handler(message)
                except BaseException as error:
                    if not message._delivery.subscription.failed(message, error):
                        raise
                else:
                    if auto_answer and message._answer is None:
                        # As finish() does, which would ask once more whether it was answered.
                        message._answer = FIN
                        message._delivery.subscription.answered(message)
            # A handler that never waits gives the loop no turn: heartbeats, answers.
            await asyncio.sleep(0)


class ThreadWorkers:
    """Threads that run a plain handler."""

    def __init__(
        self, handler: Callable[[Message], Any], concurrency: int, auto_answer: bool
    ) -> None:
        self._handler = handler
        self._auto_answer = auto_answer
        self._handoff: Handoff | None = None
        self._loop = asyncio.get_running_loop()
        self._threads = [
            threading.Thread(target=self._work, name=f"nsqflow worker {number}", daemon=True)
            for number in range(concurrency)
        ]
        self._alive = 0
        self._error: BaseException | None = None  # what ended a thread before its time
        self._ended = asyncio.Event()  # by an error, or all threads have
        self._gone = asyncio.Event()  # all threads

    async def run(self, inbox: Inbox) -> None:
        """Work until the inbox is closed; raise what is no mere failure of a message."""
        post = self._loop.call_soon_threadsafe
        self._handoff = Handoff(inbox, post, readers=len(self._threads))
        try:
            for thread in self._threads:
                thread.start()
                self._alive += 1
            await self._ended.wait()
        finally:
            # Before anything is awaited: this may be cancelled again, and threads must end.
            self._handoff.end()
        if self._error is not None:
            raise self._error

    async def part(self) -> None:
        """Wait until the threads have ended; not for long: all is answered."""
        if self._alive:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORD):
                    await self._gone.wait()
        if self._alive:
            logger.warning(
                "%d threads still in the handler %s; they end with it, or with the process",
                self._alive, getattr(self._handler, "__qualname__", type(self._handler).__name__),
            )  # fmt: skip
            return
        for thread in self._threads:
            thread.join()  # it has said its last

    def _work(self) -> None:
        error: BaseException | None = None
        assert self._handoff is not None
        try:
            while (message := self._handoff.take()) is not None:
                self._handle(message)
        except BaseException as caught:  # SystemExit and its kind: the run ends with it
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._thread_ended, error)

    def _handle(self, message: Message) -> None:
        try:
            result = self._handler(message)
        except BaseException as error:
            if not message._delivery.subscription.failed(message, error):
                raise
        else:
            if result is not None and inspect.isawaitable(result):
                self._refuse(message, result)
            if self._auto_answer and message._answer is None:
                # Not by finish(): should the loop abandon it right now, that would raise.
                message._answer = FIN
                message._delivery.subscription.answered(message)

    def _refuse(self, message: Message, result: Awaitable[Any]) -> None:
        """Raise: what it should have done is not done, and never would be."""
        if inspect.iscoroutine(result):
            result.close()
        if not message.answered:
            message.requeue(0, backoff=False)
        raise ConfigError(
            f"handler {self._handler!r} gave something to await, and is no coroutine function; "
            "allowed is async def, or def with a result"
        )

    def _thread_ended(self, error: BaseException | None) -> None:
        self._alive -= 1
        if error is not None:
            self._error = self._error or error
            self._ended.set()
        if not self._alive:
            self._gone.set()
            self._ended.set()
