"""A full-screen view on a terminal that takes keys and restores the terminal afterwards.

The terminal is always restored: at the end, on an exception, on Ctrl-C and SIGTERM, and while the
command is stopped by Ctrl-Z.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from nsqflow.cli.keys import ESCAPE, KeyDecoder

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_ESC_TIMEOUT = 0.1  # seconds after which an Esc is the key, not the start of a sequence
_READ_SIZE = 1024
_FATAL = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
_LFLAG, _CC = 3, 6  # indexes into what tcgetattr returns


class LiveScreen:
    """The alternate screen of stdout, and the keys of the same terminal.

    ``draw`` returns what to show, for a width and a height; ``press`` takes a key.
    """

    def __init__(
        self,
        console: Console,
        draw: Callable[[int, int], RenderableType],
        press: Callable[[str], None],
    ) -> None:
        self._console = console
        self._draw = draw
        self._press = press
        self._fd = (sys.stdin if sys.stdin.isatty() else sys.stdout).fileno()
        self._decoder = KeyDecoder()
        self._before: list[Any] | None = None  # the terminal's own modes, while ours are set
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        self._hide()

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Handle keys and signals in the running event loop."""
        self._loop = loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], None]] = {
            signal.SIGWINCH: self.refresh,
            signal.SIGTSTP: self._suspend,
            signal.SIGCONT: self._resume,
            **{number: partial(self._die, number) for number in _FATAL},
        }
        if threading.current_thread() is not threading.main_thread():
            handlers = {}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        self._listen()
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
            loop.remove_reader(self._fd)
            self._cancel_timer()
            self._loop = None

    def refresh(self) -> None:
        """Redraw at the terminal's current size."""
        if self._before is None:
            self._show()  # after `bg` and `fg`, no signal says that the terminal is ours again
        if self._before is None:
            return
        from rich.control import Control
        from rich.screen import Screen

        width, height = self._console.size
        self._console.control(Control.home())
        self._console.print(Screen(self._draw(width, height)), end="")

    def _show(self) -> None:
        if self._before is None and self._is_ours():
            self._before = termios.tcgetattr(self._fd)
            self._set_up()

    def _set_up(self) -> None:
        modes = termios.tcgetattr(self._fd)
        modes[_LFLAG] &= ~(termios.ECHO | termios.ICANON)
        modes[_CC][termios.VMIN], modes[_CC][termios.VTIME] = 1, 0
        # Ctrl-\ would end the process before the terminal is restored.
        modes[_CC][termios.VQUIT] = os.fpathconf(self._fd, "PC_VDISABLE").to_bytes(1, "little")
        termios.tcsetattr(self._fd, termios.TCSADRAIN, modes)
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        self._listen()

    def _hide(self) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
        # The terminal may be gone, or belong to another process group.
        with contextlib.suppress(OSError, termios.error):
            if self._is_ours():
                termios.tcsetattr(self._fd, termios.TCSADRAIN, before)
                self._console.show_cursor(True)
                self._console.set_alt_screen(False)

    def _is_ours(self) -> bool:
        """Return whether we are in the foreground; only then may modes be set."""
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:  # not our controlling terminal, so nothing is checked
            return True

    def _die(self, number: signal.Signals) -> None:
        """Restore the terminal, then end by a signal that nothing else handles."""
        self._hide()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _suspend(self) -> None:
        self._hide()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # The process was continued, or never stopped because no shell could continue it.
        if self._loop is not None:
            self._loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._resume()

    def _resume(self) -> None:
        # After SIGSTOP the shell has set its own modes.
        if self._before is not None and self._is_ours():
            self._set_up()
        self.refresh()

    def _listen(self) -> None:
        if self._loop is not None and self._before is not None:
            self._loop.add_reader(self._fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _READ_SIZE)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            self._press(ESCAPE)
            return
        self._cancel_timer()
        keys = self._decoder.feed(data)
        if self._decoder.is_waiting and self._loop is not None:
            self._timer = self._loop.call_later(_ESC_TIMEOUT, self._flush)
        self._pressed(keys)

    def _flush(self) -> None:
        self._timer = None
        self._pressed(self._decoder.flush())

    def _pressed(self, keys: list[str]) -> None:
        for key in keys:
            self._press(key)
        if keys:
            self.refresh()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
