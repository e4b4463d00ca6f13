"""Workers: pass each message to a handler and answer it.

A coroutine function runs in the event loop, ``concurrency`` calls at a time; a plain function
runs on threads that live as long as the run, so it may block.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from nsqflow.client.consumer.reader import MessageReader
from nsqflow.client.consumer.thread_queue import ThreadQueue
from nsqflow.client.message import Message
from nsqflow.config.numbers import CONCURRENCY
from nsqflow.errors import ConfigError

logger = logging.getLogger(__name__)

Handler = Callable[[Message], Awaitable[Any]] | Callable[[Message], Any]

_JOIN_TIMEOUT = 1.0  # seconds for threads to end when all messages are answered


def make_workers(
    handler: Handler, concurrency: int, auto_answer: bool
) -> AsyncWorkers | ThreadWorkers:
    """Return workers for the handler: tasks if it is async, else threads."""
    if not callable(handler):
        raise ConfigError(f"handler={handler!r} is invalid: must be callable with a message")
    CONCURRENCY.check("concurrency", concurrency)
    kind = AsyncWorkers if is_async(handler) else ThreadWorkers
    return kind(handler, concurrency, auto_answer)


def is_async(handler: Handler) -> bool:
    """Return whether calling it returns a coroutine."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - the method of an object
    return any(map(inspect.iscoroutinefunction, (handler, call)))


class AsyncWorkers:
    """Tasks that run an async handler, one message at a time each."""

    def __init__(
        self, handler: Callable[[Message], Awaitable[Any]], concurrency: int, auto_answer: bool
    ) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._auto_answer = auto_answer

    async def run(self, reader: MessageReader) -> None:
        """Handle messages until the consumer is closed; raise what is not an ``Exception``."""
        tasks = [
            asyncio.create_task(self._work(reader), name=f"nsqflow worker {number}")
            for number in range(self._concurrency)
        ]
        working = set(tasks)
        reader.queue.workers += self._concurrency
        try:
            while working:
                done, working = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            reader.queue.workers -= self._concurrency
            for task in tasks:
                task.cancel()
            # One error ends the run; asyncio would log the others as never retrieved.
            await asyncio.gather(*tasks, return_exceptions=True)

    async def join(self) -> None:
        """Do nothing: the tasks have ended with ``run``."""

    async def _work(self, reader: MessageReader) -> None:
        handler, auto_answer = self._handler, self._auto_answer
        while await reader.wait():
            for message in reader.take_slice():
                try:
                    await handler(message)
                except BaseException as error:
                    if not message.delivery.subscription.handler_failed(message, error):
                        raise
                else:
                    if auto_answer:
                        message.try_finish()
            # A handler that never awaits would block the event loop: heartbeats, answers.
            await asyncio.sleep(0)


class ThreadWorkers:
    """Threads that run a plain handler, one message at a time each."""

    def __init__(
        self, handler: Callable[[Message], Any], concurrency: int, auto_answer: bool
    ) -> None:
        self._handler = handler
        self._auto_answer = auto_answer
        self._thread_queue: ThreadQueue | None = None
        self._loop = asyncio.get_running_loop()
        self._threads = [
            threading.Thread(target=self._work, name=f"nsqflow worker {number}", daemon=True)
            for number in range(concurrency)
        ]
        self._alive = 0
        self._error: BaseException | None = None  # what ended a thread early
        self._ended = asyncio.Event()  # one thread by an error, or all
        self._all_ended = asyncio.Event()

    async def run(self, reader: MessageReader) -> None:
        """Handle messages until the consumer is closed; raise what is not an ``Exception``."""
        post = self._loop.call_soon_threadsafe
        self._thread_queue = ThreadQueue(reader, post, readers=len(self._threads))
        try:
            for thread in self._threads:
                thread.start()
                self._alive += 1
            await self._ended.wait()
        finally:
            # Before any await: this task may be cancelled again, and the threads must end.
            self._thread_queue.end()
        if self._error is not None:
            raise self._error

    async def join(self) -> None:
        """Wait briefly until the threads have ended: all messages are answered."""
        if self._alive:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_JOIN_TIMEOUT):
                    await self._all_ended.wait()
        if self._alive:
            logger.warning(
                "%d threads are still in the handler %s; they end with it, or with the process",
                self._alive, getattr(self._handler, "__qualname__", type(self._handler).__name__),
            )  # fmt: skip
            return
        for thread in self._threads:
            thread.join()  # the thread has already left its loop

    def _work(self) -> None:
        error: BaseException | None = None
        assert self._thread_queue is not None
        try:
            while (message := self._thread_queue.take()) is not None:
                self._handle(message)
        except BaseException as caught:  # such as SystemExit: it ends the run
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._thread_ended, error)

    def _handle(self, message: Message) -> None:
        try:
            result = self._handler(message)
        except BaseException as error:
            if not message.delivery.subscription.handler_failed(message, error):
                raise
        else:
            if result is not None and inspect.isawaitable(result):
                self._refuse(message, result)
            if self._auto_answer:
                message.try_finish()  # finish() would raise if close() abandons it just now

    def _refuse(self, message: Message, result: Awaitable[Any]) -> None:
        """Requeue the message and raise: the result was never awaited."""
        if inspect.iscoroutine(result):
            result.close()
        if not message.answered:
            message.requeue(0, backoff=False)
        raise ConfigError(
            f"handler={self._handler!r} is invalid: it is a plain function that returned an "
            "awaitable; must be async def, or return a plain value"
        )

    def _thread_ended(self, error: BaseException | None) -> None:
        self._alive -= 1
        if error is not None:
            self._error = self._error or error
            self._ended.set()
        if not self._alive:
            self._all_ended.set()
            self._ended.set()
