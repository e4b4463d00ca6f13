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
from nsqflow.cli.errors import (
    CommandError,
    Terminated,
    error_message,
    handle_errors,
    hint_for,
    report,
)
from nsqflow.errors import (
    AuthFailedError,
    ConfigError,
    DiscoveryError,
    InvalidCommandError,
    NetworkError,
    NoResponseError,
    NsqError,
    RemoteProtocolError,
    RequestTimeout,
)
from tests.cli.clusters import NsqCluster
from tests.cli.commands import COMMAND, InProcess
from tests.fixtures.servers import PATIENCE

CLI = "pip install 'rich>=13.9' 'typer<0.29,>=0.27'"
UNREACHABLE = "is it running? --lookupd and --nsqd set its address; 'nsqflow broker' starts one"
HTTP_PORT = "is that the right port? the HTTP port of nsqlookupd is 4161 by default, of nsqd 4151"
WANTS_TLS = "enable TLS by https:// in an address, and tls in the config file"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("x 1; 2 is allowed"), 2, "x 1; 2 is allowed"),
        (NsqError("no"), 1, "no"),
        (NetworkError("a:1: lost"), 1, f"a:1: lost; {UNREACHABLE}"),
        (RequestTimeout("a:1: late"), 1, f"a:1: late; {UNREACHABLE}"),
        (DiscoveryError("a:1: odd"), 1, f"a:1: odd; {HTTP_PORT}"),
        (NoResponseError("a:1: odd"), 1, f"a:1: odd; {HTTP_PORT}"),
        (AdminError(404, "NOT_FOUND", "a:1/b"), 1, f"a:1/b: 404 NOT_FOUND; {HTTP_PORT}"),
        (AdminError(500, "INTERNAL", "a:1/b"), 1, "a:1/b: 500 INTERNAL"),
        (AdminError(403, "TLS_REQUIRED", "a:1"), 1, f"a:1: 403 TLS_REQUIRED; {WANTS_TLS}"),
        (
            RemoteProtocolError("a frame of type 9"),
            1,
            "a frame of type 9; the default port of nsqd is 4150",
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
        (CommandError("no", "try yes"), 1, "no; try yes"),
        (CommandError("no", code=2), 2, "no"),
        (FileNotFoundError(2, "No such file", "a/b"), 1, "a/b: No such file"),
        (OSError("odd"), 1, "odd"),
        (
            ModuleNotFoundError("no", name="pyspark.sql"),
            1,
            "this needs pyspark: pip install 'pyarrow>=18' 'pyspark>=4.2'",
        ),
        (ModuleNotFoundError("no", name="rich"), 1, f"this needs rich: {CLI}"),
        (KeyError("x"), 1, "KeyError: 'x'; a bug in nsqflow; --debug shows where"),
        (NsqError("two\nlines \x1b[2J"), 1, "two\\x0alines \\x1b[2J"),
    ],
)
def test_an_error_is_one_line(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(error) == code
    assert capsys.readouterr() == ("", f"nsqflow: {line}\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[Errno -2] Name or service not known", "Name or service not known"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", "wrong version number"),
        ("[SSL] internal error (_ssl.c:1)", "internal error"),
        ("message [1] (of 2)", "message [1] (of 2)"),
        ("a:1: closed by nsqd", "closed by nsqd"),
        ("b:2: closed by nsqd", "b:2: closed by nsqd"),
    ],
)
def test_what_is_meant_for_programmers_is_left_out(text: str, said: str) -> None:
    assert error_message(NetworkError(f"a:1: {text}")) == f"a:1: {said}"


@pytest.mark.parametrize(
    ("cause", "hint"),
    [
        (ssl.SSLError(1, "wrong version number"), "does the server use TLS?"),
        (ssl.SSLCertVerificationError(1, "self-signed"), "set tls_ca_file in the config file"),
        (socket.gaierror(-2, "Name or service not known"), "is the name right?"),
        (ConnectionRefusedError(111, "Connection refused"), "is it running?"),
    ],
)
def test_the_hint_fits_the_cause_of_an_error(cause: OSError, hint: str) -> None:
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

    assert handle_errors(verb, debug=False)() == code
    assert capsys.readouterr() == ("", "")


def test_a_traceback_is_shown_if_it_is_wanted_and_only_then(nsqflow: InProcess) -> None:
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


def test_what_follows_two_dashes_is_not_an_option(nsqflow: InProcess, cluster: NsqCluster) -> None:
    done = nsqflow("pub", "debugged", *cluster.directly, "--", "--debug", "--json")
    assert done == (0, "published 2 messages to debugged\n", "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["channels"], "missing argument 'TOPIC'; see nsqflow channels --help"),
        (["topics", "--jsn"], "no such option: --jsn"),
        (["topics", "extra"], "got unexpected extra argument"),
        (["stat", "--sort", "size"], "invalid value for '--sort'"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line_and_a_misuse(
    nsqflow: InProcess, words: list[str], line: str
) -> None:
    done = nsqflow(*words)
    assert (done.code, done.out) == (2, "")
    [found] = done.err.splitlines()
    assert found.startswith(f"nsqflow: {line}")
    assert found.endswith(f"see nsqflow {words[0]} --help")


def test_the_reader_of_the_output_may_end_first(empty_folder: Path, cluster: NsqCluster) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, "nodes", *cluster.directly],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_without_the_extra_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['typer'] = None\n"
        "from nsqflow.cli import main\n"
        "sys.exit(main(['topics']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert done.stderr == f"nsqflow: topics needs typer: {CLI}\n"
