"""Signals in plain code: SIGINT and SIGTERM as a request to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stopping(stop: Callable[[signal.Signals], None], *, wanted: bool = True) -> Iterator[None]:
    """Call ``stop`` for each such signal while the block runs; only in the main thread.

    Afterwards the handlers that were there before are back.
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: FrameType | None) -> None:
        stop(signal.Signals(number))

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number in _SIGNALS:
            signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            # None: it was not set from Python, and can't be.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
