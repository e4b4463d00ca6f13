"""SIGINT and SIGTERM as requests to stop: as callbacks, in an event loop and in plain code."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:  # nsqd -version is answered without asyncio
    import asyncio

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_REPEAT_WINDOW = 0.25  # seconds

OnSignal = Callable[[signal.Signals], None]


class RepeatedSignals:
    """Recognizes a signal that is delivered twice at once: it is one request to stop.

    ``timeout`` sends a signal to the process and then to its group, and so do some supervisors:
    that is not a second request by an impatient user.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: dict[int, float] = {}

    def is_repeated(self, number: int) -> bool:
        """Return whether this is the first signal of its number, delivered again."""
        now = self._clock()
        if number in self._first:
            return now - self._first[number] <= _REPEAT_WINDOW
        self._first[number] = now
        return False


@contextlib.contextmanager
def handle_signals(callback: OnSignal, *, enabled: bool = True) -> Iterator[None]:
    """Call ``callback`` for each stop signal while the block runs; only in the main thread.

    The previous handlers are restored afterwards.
    """
    if not enabled or not _in_main_thread():
        yield
        return
    repeated = RepeatedSignals()

    def on_signal(number: int, _: FrameType | None) -> None:
        if not repeated.is_repeated(number):
            callback(signal.Signals(number))

    with _restored_handlers(STOP_SIGNALS):
        for number in STOP_SIGNALS:
            signal.signal(number, on_signal)
        yield


@contextlib.contextmanager
def handle_signals_in_loop(
    callback: OnSignal,
    *,
    enabled: bool = True,
    signals: Sequence[signal.Signals] = STOP_SIGNALS,
) -> Iterator[None]:
    """Call ``callback`` in the running loop for each stop signal while the block runs.

    Only in the main thread. The previous handlers are restored afterwards, the loop's own ones
    too.
    """
    if not enabled or not _in_main_thread():
        yield
        return
    import asyncio

    loop, repeated = asyncio.get_running_loop(), RepeatedSignals()

    def on_signal(number: signal.Signals) -> None:
        if not repeated.is_repeated(number):
            callback(number)

    previous = {number: _loop_handler(loop, number) for number in signals}
    with _restored_handlers(tuple(n for n in signals if previous[n] is None)):
        for number in signals:
            loop.add_signal_handler(number, on_signal, number)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
                if (handler := previous[number]) is not None:
                    loop.add_signal_handler(number, *handler)


def first_stop_signal() -> asyncio.Event:
    """Return an event of the running loop that the first stop signal sets.

    After that the signals have their default action: a second one ends the process.
    """
    import asyncio

    loop, received = asyncio.get_running_loop(), asyncio.Event()

    def on_signal() -> None:
        received.set()
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal)
    return received


class SignalRecorder:
    """Raises stop signals at first, and only records them once ``start_recording`` is called.

    SIGINT is raised as ``KeyboardInterrupt``, SIGTERM as ``on_sigterm``.
    """

    def __init__(
        self, on_sigterm: type[BaseException], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._on_sigterm = on_sigterm
        self._clock = clock
        self._repeated = RepeatedSignals(clock)
        self.number = 0
        """The first recorded signal; 0 if there is none."""
        self.urgent = False
        """Whether a second signal was recorded."""
        self._recording = False
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._exit.enter_context(_restored_handlers(STOP_SIGNALS))
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def start_recording(self) -> None:
        """Record signals from now on, instead of raising them."""
        self._recording = True
        self._repeated = RepeatedSignals(self._clock)

    def raise_recorded(self) -> None:
        """Raise the first recorded signal, if there is one."""
        if self.number:
            raise self._exception(self.number)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._repeated.is_repeated(number):
            return
        if not self._recording:
            raise self._exception(number)
        self.urgent = self.number != 0
        self.number = self.number or number

    def _exception(self, number: int) -> type[BaseException]:
        return KeyboardInterrupt if number == signal.SIGINT else self._on_sigterm


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def _restored_handlers(signals: Sequence[signal.Signals]) -> Iterator[None]:
    previous = {number: signal.getsignal(number) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            # None: it was not set from Python, and cannot be restored from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _loop_handler(loop: asyncio.AbstractEventLoop, number: int) -> tuple[Any, ...] | None:
    """Return callback and arguments of the loop's handler for a signal.

    asyncio offers no way to ask for them, and uvloop does not keep them: then it is None.
    """
    handle = getattr(loop, "_signal_handlers", {}).get(number)
    return None if handle is None else (handle._callback, *handle._args)
