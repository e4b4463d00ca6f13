"""Ctrl-C and SIGTERM: they end a coroutine, or what runs on Spark, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, Self, TypeVar, cast

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


class Signals:
    """Both signals beside Spark: raised while it starts, and remembered while it runs."""

    def __init__(self) -> None:
        self.number = 0
        """The first that came."""
        self.urgent = False
        """Whether there was a second."""
        self._raising = True
        self._before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}

    def __enter__(self) -> Self:
        for number in self._before:
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def take_over(self) -> None:
        """From now on remember them: Spark runs, and must not be interrupted."""
        self._raising = False

    def raise_again(self) -> None:
        """Raise what was remembered, now that all is wound up."""
        if self.number:
            raise KeyboardInterrupt if self.number == signal.SIGINT else Terminated

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._raising:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        self.urgent = self.number != 0
        self.number = self.number or number
