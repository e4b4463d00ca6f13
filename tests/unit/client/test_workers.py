"""Workers: which handler runs where, and how they end."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nsqflow.client.inbox import Inbox
from nsqflow.client.message import Message
from nsqflow.client.workers import Handler, LoopWorkers, ThreadWorkers, is_async, make_workers
from nsqflow.errors import ConfigError
from tests.fixtures.loops import asynchronous, eventually
from tests.unit.client.mail import Desk, FakeCoordinator

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
def test_what_gives_a_coroutine_runs_in_the_loop(handler: Handler) -> None:
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
    assert isinstance(make_workers(coroutine_function, 1, True), LoopWorkers)
    assert isinstance(make_workers(plain_function, 1, True), ThreadWorkers)


@pytest.mark.parametrize("concurrency", [0, -1, True, 1.5, "2", None])
def test_a_concurrency_that_is_none_is_refused(concurrency: Any) -> None:
    with pytest.raises(ConfigError, match=r"concurrency .*; 1 or more"):
        make_workers(coroutine_function, concurrency, True)


def test_a_handler_that_can_not_be_called_is_refused() -> None:
    with pytest.raises(ConfigError, match="handler 7; allowed is what can be called"):
        make_workers(7, 1, True)  # type: ignore[arg-type]


# --- working


class Shop:
    """An inbox and workers on it; answers are only written down."""

    def __init__(self, handler: Handler, concurrency: int = 1, auto_answer: bool = True) -> None:
        self.desk = Desk()
        self.inbox = Inbox(1000, FakeCoordinator())
        self.workers = make_workers(handler, concurrency, auto_answer)
        self.task = asyncio.create_task(self.workers.run(self.inbox))

    def put(self, count: int) -> list[Message]:
        messages = self.desk.messages(count)
        self.inbox.put(messages)
        return messages

    async def answered(self, count: int) -> None:
        await eventually(lambda: len(self.desk.answers) >= count)

    async def end(self) -> None:
        """Close the shop and wait for its workers; raise what they did."""
        self.inbox.close()
        await self.ended()

    async def ended(self) -> None:
        try:
            async with asyncio.timeout(20):
                await self.task
        finally:
            await self.workers.part()


def both(handle: Callable[[Message], None]) -> list[Handler]:
    """The handler as a plain function and as a coroutine function."""

    async def handle_in_loop(message: Message) -> None:
        handle(message)

    return [handle, handle_in_loop]


def commands(messages: list[Message]) -> list[str | None]:
    return [message._answer and message._answer.command for message in messages]


@asynchronous
async def test_what_was_taken_is_handled_and_finished_before_the_end() -> None:
    for handler in both(lambda message: None):
        shop = Shop(handler, concurrency=3)
        messages = shop.put(100)
        await shop.answered(100)
        await shop.end()
        assert commands(messages) == ["FIN"] * 100


@asynchronous
async def test_a_handler_that_answers_later_is_not_answered_for() -> None:
    handled: list[Message] = []
    for handler in both(handled.append):
        shop = Shop(handler, auto_answer=False)
        messages = shop.put(1)
        await eventually(lambda messages=messages: handled[-1:] == messages)  # type: ignore[misc]
        await shop.end()
        assert commands(messages) == [None]


@asynchronous
async def test_a_failure_is_one_of_its_message_and_the_work_goes_on() -> None:
    def fail(message: Message) -> None:
        if message.body == b"1":
            raise ValueError(message.body)

    for handler in both(fail):
        shop = Shop(handler)
        messages = shop.put(3)
        await shop.answered(3)
        await shop.end()
        assert commands(messages) == ["FIN", "REQ", "FIN"]
        assert [message for message, _ in shop.desk.failures] == [messages[1]]


@asynchronous
async def test_an_error_of_the_inbox_is_raised_once_however_many_wait() -> None:
    for handler in both(lambda message: None):
        shop = Shop(handler, concurrency=4)
        await asyncio.sleep(0)
        shop.inbox.close(ConfigError("all is lost"))
        with pytest.raises(ConfigError, match="all is lost"):
            await shop.ended()


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

    shop = Shop(handle, concurrency=2)
    messages = shop.put(2)
    with pytest.raises(asyncio.CancelledError):
        await shop.ended()
    assert commands(messages) == ["REQ", "REQ"]


@asynchronous
async def test_cancelled_workers_cancel_their_handlers_and_take_nothing_more() -> None:
    begun = asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()

    shop = Shop(handle, concurrency=2)
    messages = shop.put(3)
    await begun.wait()
    shop.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await shop.ended()
    assert commands(messages) == ["REQ", "REQ", None]
    assert list(shop.inbox.messages) == [messages[2]]


# --- on threads


@asynchronous
async def test_threads_are_used_again() -> None:
    seen: set[str] = set()
    shop = Shop(lambda message: seen.add(threading.current_thread().name), concurrency=3)
    shop.put(500)
    await shop.answered(500)
    await shop.end()
    assert seen <= {f"nsqflow worker {number}" for number in range(3)}


@asynchronous
async def test_what_no_thread_has_begun_is_left_to_the_owner_of_the_inbox() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        begun.set()
        go_on.wait(20)

    shop = Shop(handle)
    messages = shop.put(5)
    await asyncio.to_thread(begun.wait, 20)
    assert shop.inbox.close() == messages[1:]
    go_on.set()
    await shop.ended()
    assert commands(messages) == ["FIN", None, None, None, None]


class Enough(BaseException):
    """No failure of a message, like ``SystemExit``; but asyncio lets that one through at once."""


@asynchronous
async def test_what_ends_a_thread_ends_the_run_and_leaves_the_inbox_to_its_owner() -> None:
    def handle(message: Message) -> None:
        if message.body == b"1":
            raise Enough

    shop = Shop(handle, concurrency=2)
    shop.inbox.max_in_flight = 2
    messages = shop.put(5)
    with pytest.raises(Enough):
        await shop.ended()
    assert commands(messages) == ["FIN", "REQ", None, None, None]
    assert shop.inbox.close() == messages[2:]


@pytest.mark.parametrize(
    "handler",
    [lambda message: coroutine_function(message), functools.partial(AsyncHandler())],
    ids=["lambda", "partial of an object"],
)
def test_a_coroutine_that_nobody_would_await_ends_the_run_and_loses_nothing(
    handler: Callable[[Message], Awaitable[None]],
) -> None:
    @asynchronous
    async def work() -> None:
        shop = Shop(handler)
        messages = shop.put(1)
        with pytest.raises(ConfigError, match="is no coroutine function; allowed is async def"):
            await shop.ended()
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

    shop = Shop(stubborn)
    shop.put(1)
    await asyncio.to_thread(begun.wait, 20)
    shop.task.cancel()
    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        await shop.ended()
    assert "1 threads still in the handler" in caplog.text
    assert "stubborn" in caplog.text
    go_on.set()
    await shop.workers.part()
