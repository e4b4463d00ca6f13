"""A daemon as a process: its command line, log, signals and exit codes.

The log goes to stderr, in the format of the real daemons. SIGTERM and SIGINT stop the daemon after
everything is stored; a second signal ends it at once.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from nsqflow.broker.flags import FlagError, Flags, nsqd_flags, nsqlookupd_flags
from nsqflow.broker.options import D, LookupdOptions, NsqdOptions
from nsqflow.broker.version import describe
from nsqflow.errors import ConfigError, NsqError
from nsqflow.signals import first_stop_signal

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
    errno.EADDRNOTAVAIL: "this machine has no such address; 0.0.0.0 listens on all interfaces",
    errno.EACCES: "choose a port above 1023, or a path that you may write to",
    errno.ENOENT: "create the folder first",
}

logger = logging.getLogger(__name__)


class Service(Protocol):
    """A daemon, or several, that can run as a process."""

    async def start(self) -> None:
        """Listen; raise on failure."""

    async def stop(self) -> None:
        """Store everything and stop."""


# Control characters, and those that change the direction of text.
_BIDI = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    code: f"\\u{code:04x}" for code in _BIDI
}


class GoFormatter(logging.Formatter):
    """Formats as the real daemons do: prefix, date, time to the microsecond, level, text."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        """Format the line; logging appends an exception."""
        second, microseconds = divmod(int(record.created * 1_000_000), 1_000_000)
        at = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(second))
        level = "FATAL" if record.levelno >= logging.CRITICAL else record.levelname
        # It may contain text of clients, which must not start a line or control a terminal.
        text = record.message.translate(_ESCAPES)
        return f"{self._prefix}{at}.{microseconds:06d} {level}: {text}"


def run_nsqd(arguments: Sequence[str]) -> int:
    """Run nsqd until a signal arrives; return the exit code."""

    def create(options: NsqdOptions) -> Service:
        from nsqflow.broker.nsqd.daemon import NsqdDaemon

        return NsqdDaemon(options)

    return _run(nsqd_flags(), arguments, create)


def run_nsqlookupd(arguments: Sequence[str]) -> int:
    """Run nsqlookupd until a signal arrives; return the exit code."""

    def create(options: LookupdOptions) -> Service:
        from nsqflow.broker.lookupd.daemon import Nsqlookupd

        return Nsqlookupd(options)

    return _run(nsqlookupd_flags(), arguments, create)


def serve(create: Callable[[], Service], *, hints: Mapping[int, str] | None = None) -> int:
    """Run a daemon until a signal arrives; return the exit code.

    ``hints`` replaces the usual hints about some errnos.
    """
    import asyncio  # only here: -version and flag errors do not need it

    _raise_limit_of_files()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(create, {**_HINTS, **(hints or {})}))


def _run(flags: Flags[D], arguments: Sequence[str], create: Callable[[D], Service]) -> int:
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
    root.setLevel(max(_LEVELS[level], logging.INFO))  # asyncio's debug messages are not useful here
    logging.getLogger("nsqflow").setLevel(_LEVELS[level])


def _raise_limit_of_files() -> None:
    """Raise the limit of open files to the maximum, as Go programs do."""
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS reports no limit, but has one
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(create: Callable[[], Service], hints: Mapping[int, str]) -> int:
    stopped = first_stop_signal()
    try:
        daemon = create()
        await daemon.start()
    except (OSError, NsqError) as error:
        logger.critical("failed to start - %s", _describe(error, hints))
        return FAILED
    await stopped.wait()
    try:
        await daemon.stop()
    except (OSError, NsqError) as error:
        logger.critical("failed to stop - %s", _describe(error, hints))
        return FAILED
    return OK


def _describe(error: OSError | NsqError, hints: Mapping[int, str]) -> str:
    if not isinstance(error, OSError):
        return str(error)
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    hint = hints.get(error.errno or 0)
    return f"{where}{error.strerror or error}" + (f"; {hint}" if hint else "")
