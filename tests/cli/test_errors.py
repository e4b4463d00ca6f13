"""How verbs end when something goes wrong: a line, a hint, an exit code."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from nsqflow.admin import AdminError
from nsqflow.cli.errors import Failure, Terminated, guarded, hint_for, tell, words
from nsqflow.errors import (
    AuthFailedError,
    ConfigError,
    DiscoveryError,
    InvalidCommandError,
    NetworkError,
    NsqError,
    RemoteProtocolError,
    RequestTimeout,
)
from nsqflow.http.client import NoAnswer
from tests.cli.commands import COMMAND, Here
from tests.cli.sites import Site
from tests.fixtures.servers import PATIENCE

UNREACHABLE = "is it running? --lookupd and --nsqd say where; 'nsqflow broker' starts one"
HTTP_PORT = "is that the right port? over HTTP nsqlookupd is at 4161 and nsqd at 4151, as a rule"
WANTS_TLS = "https:// in an address, and tls in the config file, ask for it"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("x 1; 2 is allowed"), 2, "x 1; 2 is allowed"),
        (NsqError("no"), 1, "no"),
        (NetworkError("a:1: lost"), 1, f"a:1: lost; {UNREACHABLE}"),
        (RequestTimeout("a:1: late"), 1, f"a:1: late; {UNREACHABLE}"),
        (DiscoveryError("a:1: odd"), 1, f"a:1: odd; {HTTP_PORT}"),
        (NoAnswer("a:1: odd"), 1, f"a:1: odd; {HTTP_PORT}"),
        (AdminError(404, "NOT_FOUND", "a:1/b"), 1, f"a:1/b: 404 NOT_FOUND; {HTTP_PORT}"),
        (AdminError(500, "INTERNAL", "a:1/b"), 1, "a:1/b: 500 INTERNAL"),
        (AdminError(403, "TLS_REQUIRED", "a:1"), 1, f"a:1: 403 TLS_REQUIRED; {WANTS_TLS}"),
        (
            RemoteProtocolError("a frame of type 9"),
            1,
            "a frame of type 9; nsqd listens for clients at port 4150, as a rule",
        ),
        (
            InvalidCommandError("E_INVALID", "cannot PUB in current state (TLS required)"),
            1,
            f"E_INVALID cannot PUB in current state (TLS required); {WANTS_TLS}",
        ),
        (
            AuthFailedError("E_AUTH_FAILED", "no"),
            1,
            "E_AUTH_FAILED no; the secret is taken from NSQFLOW_AUTH_SECRET, or as the config "
            "file says",
        ),
        (Failure("no", "try yes"), 1, "no; try yes"),
        (Failure("no", code=2), 2, "no"),
        (FileNotFoundError(2, "No such file", "a/b"), 1, "a/b: No such file"),
        (OSError("odd"), 1, "odd"),
        (
            ModuleNotFoundError("no", name="pyspark.sql"),
            1,
            "this needs pyspark: pip install 'nsqflow[spark]'",
        ),
        (ModuleNotFoundError("no", name="rich"), 1, "this needs rich: pip install 'nsqflow[cli]'"),
        (KeyError("x"), 1, "KeyError: 'x'; a mistake in nsqflow, --debug tells where"),
        (NsqError("two\nlines \x1b[2J"), 1, "two\\x0alines \\x1b[2J"),
    ],
)
def test_an_error_is_one_line(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tell(error) == code
    assert capsys.readouterr() == ("", f"nsqflow: {line}\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[Errno 111] Connect call failed ('127.0.0.1', 1)", os.strerror(111)),
        ("[Errno -2] Name or service not known", "Name or service not known"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", "wrong version number"),
        ("[SSL] internal error (_ssl.c:1)", "internal error"),
        ("message [1] (of 2)", "message [1] (of 2)"),
    ],
)
def test_what_is_meant_for_programmers_is_left_out(text: str, said: str) -> None:
    assert words(NetworkError(f"a:1: {text}")) == f"a:1: {said}"


@pytest.mark.parametrize(
    ("cause", "hint"),
    [
        (ssl.SSLError(1, "wrong version number"), "does it speak TLS there?"),
        (ssl.SSLCertVerificationError(1, "self-signed"), "tls_ca_file in the config file says"),
        (socket.gaierror(-2, "Name or service not known"), "is the name right?"),
        (ConnectionRefusedError(111, "Connection refused"), "is it running?"),
    ],
)
def test_the_hint_is_of_what_lies_behind_an_error(cause: OSError, hint: str) -> None:
    error = NetworkError("a:1: lost")
    error.__cause__ = cause
    assert hint_for(error).startswith(hint)


@pytest.mark.parametrize(
    ("raised", "code"), [(None, 0), (KeyboardInterrupt(), 130), (Terminated(), 143)]
)
def test_signals_have_their_exit_codes(
    raised: BaseException | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def verb() -> None:
        if raised is not None:
            raise raised

    assert guarded(verb, debug=False)() == code
    assert capsys.readouterr() == ("", "")


def test_a_traceback_is_shown_if_it_is_wanted_and_only_then(nsqflow: Here) -> None:
    done = nsqflow("topics", "--nsqd", "127.0.0.1:9")
    assert "Traceback" not in done.err
    server = ["--nsqd", "127.0.0.1:9"]
    for line in (
        ["topics", "--debug", *server],
        ["topics", *server, "--debug"],
        ["--debug", "topics", *server],
    ):
        done = nsqflow(*line)
        assert done.code == 1
        assert "Traceback (most recent call last):" in done.err
        assert done.err.splitlines()[-1].startswith("nsqflow: 127.0.0.1:10: Connection refused; ")


def test_what_stands_behind_two_dashes_is_no_option(nsqflow: Here, site: Site) -> None:
    done = nsqflow("pub", "debugged", *site.directly, "--", "--debug", "--json")
    assert done == (0, "published 2 messages to debugged\n", "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["channels"], "missing argument 'TOPIC'; see nsqflow channels --help"),
        (["topics", "--jsn"], "no such option: --jsn"),
        (["topics", "extra"], "got unexpected extra argument"),
        (["stat", "--interval", "soon"], "invalid value for '--interval'"),
    ],
)
def test_a_command_line_that_can_not_be_read_is_one_line_and_a_misuse(
    nsqflow: Here, words: list[str], line: str
) -> None:
    done = nsqflow(*words)
    assert (done.code, done.out) == (2, "")
    [told] = done.err.splitlines()
    assert told.startswith(f"nsqflow: {line}")
    assert told.endswith(f"see nsqflow {words[0]} --help")


def test_who_reads_our_output_may_end_before_us(nowhere: Path, site: Site) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, "nodes", *site.directly],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_without_the_extra_it_is_said_what_to_install() -> None:
    program = (
        "import sys; sys.modules['typer'] = None\n"
        "from nsqflow.cli import main\n"
        "sys.exit(main(['topics']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert done.stderr == "nsqflow: topics needs typer: pip install 'nsqflow[cli]'\n"
