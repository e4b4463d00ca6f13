"""What a verb says of an address where something else is than was meant, or nothing at all."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.clusters import NsqCluster
from tests.cli.commands import InProcess, OnTerminal
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import Nsqd, start_nsqd

RIGHT_PORT = "is that the right port? the HTTP port of nsqlookupd is 4161 by default, of nsqd 4151"
PORT_ABOVE = "its HTTP API is taken to be at the port above --nsqd, unless --nsqd-http says where"

VERBS = [
    *("topics", "channels orders", "nodes", "stat", "stat --once", "pub orders x", "tail orders"),
    *("delete orders --yes", "empty orders --yes", "pause orders", "unpause orders"),
]


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def error_line(nsqflow: InProcess, *words: str) -> str:
    """The one line that a verb ends with."""
    done = nsqflow(*words)
    assert (done.code, done.out) == (1, "")
    [line] = done.err.splitlines()
    return line


@pytest.mark.parametrize("verb", [["pub", "orders", "x"], ["tail", "orders"]])
def test_a_client_at_the_http_port_is_an_error(
    nsqflow: InProcess, cluster: NsqCluster, verb: list[str]
) -> None:
    address = cluster.nsqd_http[0]
    line = error_line(nsqflow, *verb, "--nsqd", address)
    assert line.startswith(f"nsqflow: {address}: frame of ")
    assert line.endswith("; the default port of nsqd is 4150")


@pytest.mark.parametrize("verb", [*VERBS, "create orders"])
def test_http_is_not_spoken_at_the_port_for_clients(
    nsqflow: InProcess, nsqd: Nsqd, verb: str
) -> None:
    line = error_line(nsqflow, *verb.split(), "--lookupd", nsqd.tcp_address)
    assert line.startswith(f"nsqflow: {nsqd.tcp_address}: the response is not HTTP: ")
    assert line.endswith(RIGHT_PORT)


@pytest.mark.parametrize("verb", VERBS)
def test_an_nsqd_is_not_an_nsqlookupd(nsqflow: InProcess, nsqd: Nsqd, verb: str) -> None:
    line = error_line(nsqflow, *verb.split(), "--lookupd", nsqd.http_address)
    assert line.startswith(f"nsqflow: {nsqd.http_address}")
    assert line.endswith(RIGHT_PORT)


def test_an_nsqlookupd_is_not_an_nsqd(nsqflow: InProcess, cluster: NsqCluster) -> None:
    line = error_line(nsqflow, "topics", "--nsqd", cluster.nsqd[0], "--nsqd-http", cluster.lookupd)
    assert line == f"nsqflow: {cluster.lookupd}/stats: 404 NOT_FOUND; {RIGHT_PORT}"


@pytest.mark.parametrize("verb", ["topics", "nodes", "stat", "delete orders --yes"])
def test_the_error_says_that_the_http_address_was_assumed(nsqflow: InProcess, verb: str) -> None:
    line = error_line(nsqflow, *verb.split(), "--nsqd", "127.0.0.1:9")
    assert line.startswith("nsqflow: 127.0.0.1:10: Connection refused; is it running? ")
    assert PORT_ABOVE in line


@pytest.mark.parametrize(
    ("option", "reason"),
    [("--lookupd", "no answer within 0.2 s"), ("--nsqd", "not ready within the dial_timeout of")],
)
def test_a_silent_server_is_not_waited_for(
    nsqflow: InProcess, silent: str, option: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSQFLOW_TIMEOUT", "0.2")
    line = error_line(nsqflow, "pub", "orders", "x", option, silent)
    assert line.startswith(f"nsqflow: {silent}: {reason}")


def test_a_terminal_says_which_server_it_waits_for(empty_folder: Path, silent: str) -> None:
    with OnTerminal(["topics", "--lookupd", silent], {"NSQFLOW_TIMEOUT": "20"}) as command:
        command.await_text(f"asking nsqlookupd {silent} ...")
        assert command.end(2) == 130


def test_tls_to_a_server_without_it_is_reported(nsqflow: InProcess, cluster: NsqCluster) -> None:
    line = error_line(nsqflow, "topics", "--lookupd", f"https://{cluster.lookupd}")
    assert line.startswith(f"nsqflow: https://{cluster.lookupd}: ")
    assert "; does the server use TLS?" in line
    assert "_ssl.c" not in line


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["topics", "--nsqd-http"], "403 TLS_REQUIRED"),
        (["pub", "orders", "x", "--nsqd-http"], "E_INVALID cannot PUB in current state (TLS req"),
    ],
)
def test_a_server_that_requires_tls_is_reported(
    nsqflow: InProcess, tmp_path: Path, certificates: Certificates, words: list[str], reason: str
) -> None:
    with start_nsqd(tmp_path, tls=certificates, options=["-tls-required=true"]) as nsqd:
        done = nsqflow(*words, nsqd.http_address, "--nsqd", nsqd.tcp_address)
    assert done.code == 1
    assert reason in done.err
    assert done.err.endswith("; enable TLS by https:// in an address, and tls in the config file\n")


def test_http_on_the_port_of_https_is_reported(nsqflow: InProcess, nsqd: Nsqd) -> None:
    servers = ["--nsqd", nsqd.tcp_address, "--nsqd-http", nsqd.https_address]
    line = error_line(nsqflow, "topics", *servers)
    assert "HTTPS server" in line
    assert line.endswith("; enable TLS by https:// in an address, and tls in the config file")


@pytest.mark.parametrize("option", ["--nsqd", "--lookupd"])
def test_a_host_name_that_does_not_resolve_is_reported(nsqflow: InProcess, option: str) -> None:
    line = error_line(nsqflow, "pub", "orders", "x", option, "nsqd.invalid:4150")
    assert line.startswith("nsqflow: nsqd.invalid:4150: ")
    assert "; is the name right? " in line
    assert "Errno" not in line


def test_a_password_in_an_address_is_not_shown(nsqflow: InProcess) -> None:
    for option in ("--lookupd", "--nsqd-http"):
        address = "http://me:hunter2@127.0.0.1:9"
        servers = ["--nsqd", "127.0.0.1:9"] if option == "--nsqd-http" else []
        for words in (["topics"], ["stat"], ["doctor"], ["topics", "--debug"]):
            done = nsqflow(*words, option, address, *servers)
            assert done.code == 1
            assert "hunter2" not in done.out + done.err
