"""Signals: SIGINT and SIGTERM as a request to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stopping(stop: Callable[[signal.Signals], None], *, wanted: bool = True) -> Iterator[None]:
    """Call ``stop`` for each such signal while the block runs; only in the main thread.

    Afterwards the handlers that were there before are back.
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # asyncio has its own handlers, and no way to ask for them; uvloop does not even show them.
    loops = {number: getattr(loop, "_signal_handlers", {}).get(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if (handle := loops[number]) is not None:
                loop.add_signal_handler(number, handle._callback, *handle._args)
            else:
                # None: it was not set from Python, and can't be.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
