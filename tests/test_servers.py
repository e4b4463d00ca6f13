"""The real servers are the right ones, and the fixtures hand them over ready and take them back."""

import http.client
import json
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import Nsqd, Nsqlookupd, find_server, start_nsqd


@pytest.mark.parametrize(
    "name",
    ["nsqd", "nsqlookupd", "nsqadmin", "nsq_tail", "nsq_to_file", "nsq_to_nsq", "nsq_stat"],
)
def test_the_real_servers_and_utilities_are_version_1_3_0(name: str) -> None:
    answer = subprocess.run(
        [find_server(name), "--version"], capture_output=True, text=True, check=True, timeout=30
    )
    assert f"{name} v1.3.0" in answer.stdout


def test_to_nsq_runs_though_it_has_no_version_flag() -> None:
    answer = subprocess.run(
        [find_server("to_nsq"), "--help"], capture_output=True, text=True, timeout=30
    )
    assert "-nsqd-tcp-address" in answer.stderr


def test_nsqd_is_ready_when_a_test_gets_it(nsqd: Nsqd) -> None:
    nsqd.connect().close()
    info = json.loads(nsqd.ask("/info")[1])
    assert info["version"] == "1.3.0"
    assert nsqd.tcp_address == f"127.0.0.1:{info['tcp_port']}"


def test_nsqd_shows_a_certificate_that_the_test_authority_signed(
    nsqd: Nsqd, certificates: Certificates
) -> None:
    host, port = nsqd.https_address.split(":")
    trusting = ssl.create_default_context(cafile=certificates.ca)
    connection = http.client.HTTPSConnection(host, int(port), timeout=20, context=trusting)
    connection.request("GET", "/ping")
    assert connection.getresponse().read() == b"OK"
    connection.close()


def test_nsqlookupd_knows_nsqd_when_a_test_gets_it(nsqlookupd: Nsqlookupd, tmp_path: Path) -> None:
    with start_nsqd(tmp_path, lookupd=[nsqlookupd]) as nsqd:
        nodes = json.loads(nsqlookupd.ask("/nodes")[1])
    ports = [node["tcp_port"] for node in nodes["producers"]]
    assert int(nsqd.tcp_address.split(":")[1]) in ports


def test_a_failing_test_leaves_no_server_running(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), start_nsqd(tmp_path) as nsqd:
        _ = 1 / 0
    # Not always 0: in its first moment nsqd does not yet catch the signal.
    assert nsqd.process.returncode is not None
    with pytest.raises(ConnectionRefusedError):
        nsqd.connect()


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no-such-option"):
        start_nsqd(tmp_path, options=["-no-such-option"])
