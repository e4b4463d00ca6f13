"""Workers: which handler runs where, and how they end."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nsqflow.client.consumer.reader import MessageReader
from nsqflow.client.consumer.workers import (
    AsyncWorkers,
    Handler,
    ThreadWorkers,
    is_async,
    make_workers,
)
from nsqflow.client.message import Message
from nsqflow.errors import ConfigError
from tests.fixtures.loops import asynchronous, eventually
from tests.unit.client.fakes import FakeCoordinator, FakeSubscription

# --- which is which


async def coroutine_function(message: Message) -> None: ...


def plain_function(message: Message) -> None: ...


class AsyncHandler:
    async def __call__(self, message: Message) -> None: ...

    async def method(self, message: Message) -> None: ...

    @classmethod
    async def of_class(cls, message: Message) -> None: ...

    @staticmethod
    async def static(message: Message) -> None: ...


class PlainHandler:
    def __call__(self, message: Message) -> None: ...

    def method(self, message: Message) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [
        coroutine_function,
        AsyncHandler(),
        AsyncHandler().method,
        AsyncHandler.of_class,
        AsyncHandler.static,
        functools.partial(coroutine_function),
        functools.partial(functools.partial(AsyncHandler().method)),
    ],
    ids=["function", "object", "method", "class method", "static", "partial", "partial twice"],
)
def test_a_handler_that_returns_a_coroutine_runs_in_the_loop(handler: Handler) -> None:
    assert is_async(handler)


@pytest.mark.parametrize(
    "handler",
    [
        plain_function,
        PlainHandler(),
        PlainHandler().method,
        functools.partial(plain_function),
        print,
    ],
    ids=["function", "object", "method", "partial", "built in"],
)
def test_anything_else_runs_on_threads(handler: Handler) -> None:
    assert not is_async(handler)


@asynchronous
async def test_the_workers_fit_the_handler() -> None:
    assert isinstance(make_workers(coroutine_function, 1, True), AsyncWorkers)
    assert isinstance(make_workers(plain_function, 1, True), ThreadWorkers)


@pytest.mark.parametrize("concurrency", [0, -1, True, 1.5, "2", None])
def test_an_invalid_concurrency_is_refused(concurrency: Any) -> None:
    with pytest.raises(ConfigError, match="concurrency="):
        make_workers(coroutine_function, concurrency, True)


def test_a_handler_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(ConfigError, match="handler=7"):
        make_workers(7, 1, True)  # type: ignore[arg-type]


# --- working


class Running:
    """A reader and workers on it; answers are only recorded."""

    def __init__(self, handler: Handler, concurrency: int = 1, auto_answer: bool = True) -> None:
        self.subscription = FakeSubscription()
        self.reader = MessageReader(FakeCoordinator(1000))
        self.queue = self.reader.queue
        self.workers = make_workers(handler, concurrency, auto_answer)
        self.task = asyncio.create_task(self.workers.run(self.reader))

    def put(self, count: int) -> list[Message]:
        messages = self.subscription.messages(count)
        self.queue.put(messages)
        return messages

    async def answered(self, count: int) -> None:
        await eventually(lambda: len(self.subscription.answers) >= count)

    async def end(self) -> None:
        """Close the running and wait for its workers; raise what they did."""
        self.queue.close()
        await self.ended()

    async def ended(self) -> None:
        try:
            async with asyncio.timeout(20):
                await self.task
        finally:
            await self.workers.join()


def both(handle: Callable[[Message], None]) -> list[Handler]:
    """The handler as a plain function and as a coroutine function."""

    async def handle_in_loop(message: Message) -> None:
        handle(message)

    return [handle, handle_in_loop]


def commands(messages: list[Message]) -> list[str | None]:
    return [message.answer and message.answer.command for message in messages]


@asynchronous
async def test_what_was_taken_is_handled_and_finished_before_the_end() -> None:
    for handler in both(lambda message: None):
        running = Running(handler, concurrency=3)
        messages = running.put(100)
        await running.answered(100)
        await running.end()
        assert commands(messages) == ["FIN"] * 100


@asynchronous
async def test_a_handler_that_answers_later_is_not_answered_for() -> None:
    handled: list[Message] = []
    for handler in both(handled.append):
        running = Running(handler, auto_answer=False)
        messages = running.put(1)
        await eventually(lambda messages=messages: handled[-1:] == messages)  # type: ignore[misc]
        await running.end()
        assert commands(messages) == [None]


@asynchronous
async def test_a_failure_is_one_of_its_message_and_the_work_goes_on() -> None:
    def fail(message: Message) -> None:
        if message.body == b"1":
            raise ValueError(message.body)

    for handler in both(fail):
        running = Running(handler)
        messages = running.put(3)
        await running.answered(3)
        await running.end()
        assert commands(messages) == ["FIN", "REQ", "FIN"]
        assert [message for message, _ in running.subscription.failures] == [messages[1]]


@asynchronous
async def test_an_error_of_the_queue_is_raised_once_however_many_wait() -> None:
    for handler in both(lambda message: None):
        running = Running(handler, concurrency=4)
        await asyncio.sleep(0)
        running.queue.close(ConfigError("all is lost"))
        with pytest.raises(ConfigError, match="all is lost"):
            await running.ended()


# --- in the loop


@asynchronous
async def test_a_cancellation_that_comes_from_the_handler_is_not_the_silent_end_of_a_worker() -> (
    None
):
    never = asyncio.get_running_loop().create_future()

    async def handle(message: Message) -> None:
        if message.body == b"0":
            raise asyncio.CancelledError
        await never

    running = Running(handle, concurrency=2)
    messages = running.put(2)
    with pytest.raises(asyncio.CancelledError):
        await running.ended()
    assert commands(messages) == ["REQ", "REQ"]


@asynchronous
async def test_cancelled_workers_cancel_their_handlers_and_take_nothing_more() -> None:
    begun = asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    running = Running(handle, concurrency=2)
    messages = running.put(3)
    await begun.wait()
    running.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running.ended()
    assert commands(messages) == ["REQ", "REQ", None]
    assert list(running.queue.messages) == [messages[2]]


# --- on threads


@asynchronous
async def test_threads_are_used_again() -> None:
    seen: set[str] = set()
    running = Running(lambda message: seen.add(threading.current_thread().name), concurrency=3)
    running.put(500)
    await running.answered(500)
    await running.end()
    assert seen <= {f"nsqflow worker {number}" for number in range(3)}


@asynchronous
async def test_messages_that_no_thread_has_started_stay_in_the_queue() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        go_on.wait(20)

    running = Running(handle)
    messages = running.put(5)
    await asyncio.to_thread(begun.wait, 20)
    assert running.queue.close() == messages[1:]
    go_on.set()
    await running.ended()
    assert commands(messages) == ["FIN", None, None, None, None]


class Stop(BaseException):
    """No failure of a message, like ``SystemExit``; but asyncio lets that one through at once."""


@asynchronous
async def test_what_ends_a_thread_ends_the_run_and_leaves_the_queue_open() -> None:
    def handle(message: Message) -> None:
        if message.body == b"1":
            raise Stop

    running = Running(handle, concurrency=2)
    running.queue.set_max_in_flight(2)
    messages = running.put(5)
    with pytest.raises(Stop):
        await running.ended()
    assert commands(messages) == ["FIN", "REQ", None, None, None]
    assert running.queue.close() == messages[2:]


@pytest.mark.parametrize(
    "handler",
    [lambda message: coroutine_function(message), functools.partial(AsyncHandler())],
    ids=["lambda", "partial of an object"],
)
def test_a_coroutine_that_is_never_awaited_ends_the_run_and_loses_nothing(
    handler: Callable[[Message], Awaitable[None]],
) -> None:
    @asynchronous
    async def work() -> None:
        running = Running(handler)
        messages = running.put(1)
        with pytest.raises(ConfigError, match=r"handler=.*awaitable"):
            await running.ended()
        assert commands(messages) == ["REQ"]

    work()


@asynchronous
async def test_a_thread_that_does_not_end_is_named_and_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def stubborn(message: Message) -> None:
        begun.set()
        go_on.wait(20)

    running = Running(stubborn)
    running.put(1)
    await asyncio.to_thread(begun.wait, 20)
    running.task.cancel()
    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        await running.ended()
    assert "1 threads are still in the handler" in caplog.text
    assert "stubborn" in caplog.text
    go_on.set()
    await running.workers.join()
