"""Running a coroutine until it is done, or until Ctrl-C or SIGTERM; nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar, cast

from nsqflow.cli.errors import Terminated
from nsqflow.cli.screen import Progress

T = TypeVar("T")

_TICK = 0.5  # seconds


def run(main: Coroutine[Any, Any, T], waiting: str = "") -> T:
    """Run it; either signal cancels it, and is raised once it has cleaned up.

    ``waiting`` is what a terminal is told if that takes its time.
    """
    progress = Progress(lambda: f"{waiting} ...") if waiting else None
    terminated = False

    async def watched() -> T:
        task = asyncio.current_task()
        assert task is not None

        def end() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        with _on_sigterm(end), ticking(progress) if progress else contextlib.nullcontext():
            return await main

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        if not terminated:
            raise
        raise Terminated from None


async def aside(call: Callable[[], T]) -> T:
    """Make a plain call on a thread; who gives up waiting for it can end at once.

    (An executor's thread would keep the whole program until the call returns.)
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast(T, result))

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="nsqflow-aside", daemon=True).start()
    return await done


@contextlib.contextmanager
def ticking(progress: Progress) -> Iterator[None]:
    """Have ``progress`` shown while the block runs."""
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


@contextlib.contextmanager
def _on_sigterm(act: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
