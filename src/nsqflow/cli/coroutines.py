"""Runs the coroutine of a verb, with signals, threads and a progress line."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from nsqflow.cli.errors import Terminated
from nsqflow.cli.terminal import ProgressLine
from nsqflow.signals import handle_signals_in_loop

T = TypeVar("T")

_TICK = 0.5  # seconds


def run_async(main: Coroutine[Any, Any, T], waiting: str | Callable[[], str] = "") -> T:
    """Run a coroutine; SIGINT or SIGTERM cancels it, and is raised once it has ended.

    ``waiting`` is shown on a terminal while it runs; a function is called for each update.
    """
    text = waiting if callable(waiting) else lambda: waiting
    progress = ProgressLine(lambda: f"{text()} ...") if waiting else None
    terminated = False

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None

        def on_sigterm(_: signal.Signals) -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        with (
            handle_signals_in_loop(on_sigterm, signals=(signal.SIGTERM,)),
            show_progress(progress) if progress else contextlib.nullcontext(),
        ):
            return await main

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if not terminated:
            raise
        raise Terminated from None


async def run_in_thread(function: Callable[[], T]) -> T:
    """Call a plain function in a daemon thread and return its result.

    If the caller is cancelled, the program can exit at once; a thread of an executor would have to
    end first.
    """
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # the future must not be cancelled any more

    def call() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=call, name="nsqflow-call", daemon=True).start()
    return await asyncio.wrap_future(result)


@contextlib.contextmanager
def show_progress(progress: ProgressLine) -> Iterator[None]:
    """Show and update a progress line while the block runs."""
    loop = asyncio.get_running_loop()

    timer: asyncio.TimerHandle | None = None

    def tick() -> None:
        nonlocal timer
        progress.tick()
        timer = loop.call_later(_TICK, tick)

    tick()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        progress.clear()
