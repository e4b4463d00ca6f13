"""A daemon as a process of its own: its command line, log, signals and exit codes.

The log is on stderr, line for line in the form of the real daemons. SIGTERM and SIGINT end it
once all is stored; a second one ends it at once.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from nsqflow.broker.flags import D, FlagError, Flags, nsqd_flags, nsqlookupd_flags
from nsqflow.broker.options import LookupdOptions, NsqdOptions
from nsqflow.broker.version import describe
from nsqflow.errors import ConfigError, NsqError

if TYPE_CHECKING:
    import asyncio

OK, FAILED, MISUSED = 0, 1, 2

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_HINTS = {
    errno.EADDRINUSE: "another process listens there; stop it or choose another address",
    errno.EADDRNOTAVAIL: "this machine has no such address; 0.0.0.0 stands for all it has",
    errno.EACCES: "choose a port above 1023, or a path that you may write to",
    errno.ENOENT: "create the folder first",
}

logger = logging.getLogger(__name__)


class Daemon(Protocol):
    """What can be run as a process."""

    async def start(self) -> None:
        """Listen; raise what prevents it."""

    async def stop(self) -> None:
        """Store what there is, and end."""


_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


class GoFormatter(logging.Formatter):
    """Writes as the real daemons do: prefix, date, time to the microsecond, level, text."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        """Write the line; what logging knows of an exception follows it."""
        second, microseconds = divmod(int(record.created * 1_000_000), 1_000_000)
        at = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(second))
        level = "FATAL" if record.levelno >= logging.CRITICAL else record.levelname
        # What clients say is in it: it must not begin a line of its own, nor talk to a terminal.
        text = record.message.translate(_ESCAPES)
        return f"{self._prefix}{at}.{microseconds:06d} {level}: {text}"


def run_nsqd(arguments: Sequence[str]) -> int:
    """Run nsqd until it is told to end; gives the exit code."""

    def create(options: NsqdOptions) -> Daemon:
        from nsqflow.broker.nsqd.daemon import Nsqd

        return Nsqd(options)

    return _run(nsqd_flags(), arguments, create)


def run_nsqlookupd(arguments: Sequence[str]) -> int:
    """Run nsqlookupd until it is told to end; gives the exit code."""

    def create(options: LookupdOptions) -> Daemon:
        from nsqflow.broker.lookupd.daemon import Nsqlookupd

        return Nsqlookupd(options)

    return _run(nsqlookupd_flags(), arguments, create)


def serve(create: Callable[[], Daemon]) -> int:
    """Run a daemon until a signal comes; gives the exit code."""
    import asyncio  # only now: -version and a mistyped flag are answered without it

    _raise_limit_of_files()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_live(create))


def _run(flags: Flags[D], arguments: Sequence[str], create: Callable[[D], Daemon]) -> int:
    try:
        given = flags.read(arguments)
    except FlagError as error:
        print(f"{flags.program}: {error}", file=sys.stderr)
        return MISUSED
    if "help" in given:
        print(flags.usage(), end="")
        return OK
    if given.get("version"):
        print(describe(flags.program))
        return OK
    try:
        options, warnings = flags.options(given)
    except ConfigError as error:
        _start_log(flags.prefix, "info")
        logger.critical("%s", error)
        return FAILED
    _start_log(options.log_prefix, options.log_level)
    for warning in warnings:
        logger.warning("%s", warning)
    return serve(lambda: create(options))


def _start_log(prefix: str, level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(GoFormatter(prefix))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(max(_LEVELS[level], logging.INFO))  # asyncio's own talk is of no use to anyone
    logging.getLogger("nsqflow").setLevel(_LEVELS[level])


def _raise_limit_of_files() -> None:
    """Have as many clients as the system allows, as a program in Go does by itself."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS says that there is no limit, and has one
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _live(create: Callable[[], Daemon]) -> int:
    ended = _await_signals()
    try:
        daemon = create()
        await daemon.start()
    except (OSError, NsqError) as error:
        logger.critical("failed to start - %s", _describe(error))
        return FAILED
    await ended.wait()
    try:
        await daemon.stop()
    except (OSError, NsqError) as error:
        logger.critical("failed to stop - %s", _describe(error))
        return FAILED
    return OK


def _await_signals() -> asyncio.Event:
    """Give what is set by the first signal; the next one is left to the system."""
    import asyncio

    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)

    def end() -> None:
        ended.set()
        for number in signals:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in signals:
        loop.add_signal_handler(number, end)
    return ended


def _describe(error: OSError | NsqError) -> str:
    if not isinstance(error, OSError):
        return str(error)
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    hint = _HINTS.get(error.errno or 0)
    return f"{where}{error.strerror or error}" + (f"; {hint}" if hint else "")
