"""The daemons as processes: their logs, signals and exit codes, beside the real ones."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.servers import PATIENCE, Server, find_server

LINE = re.compile(
    r"\[(\w+)\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} (DEBUG|INFO|WARNING|ERROR|FATAL): .+"
)
FREE = ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]

# What can't be had of a healthy daemon: one that never comes to its end.
STUBBORN = """
import asyncio, logging, sys
from nsqflow.broker import process

class Stubborn:
    async def start(self):
        print(" TCP: listening on x\\n HTTP: listening on x", file=sys.stderr, flush=True)

    async def stop(self):
        print("stopping", file=sys.stderr, flush=True)
        await asyncio.Event().wait()

sys.exit(process.serve(Stubborn))
"""


def ours(verb: str, *flags: str) -> list[str]:
    return [sys.executable, "-m", "nsqflow", verb, *FREE, *flags]


def run(verb: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Let a daemon run to its own end."""
    return subprocess.run(
        ours(verb, *flags), capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def fail(verb: str, *flags: str, code: int = 1) -> str:
    """Start a daemon that can't start; return its last lines."""
    done = run(verb, *flags)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    *before, last = done.stderr.splitlines()
    assert not [line for line in before if "FATAL" in line or not LINE.fullmatch(line)]
    return last


@pytest.fixture(params=["nsqd", "nsqlookupd"])
def verb(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)  # where nsqd stores without a data path
    return str(request.param)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_daemon_cleanly(verb: str, number: signal.Signals) -> None:
    with Server(ours(verb), []) as server:
        assert server.ask("/ping") == (200, b"OK")
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 0
        server.await_log(r"TCP: closing")
    assert [line for line in server.log if not LINE.fullmatch(line)] == []


@pytest.mark.parametrize("before", ["", "import sys; sys.modules['uvloop'] = None"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(number: signal.Signals, before: str) -> None:
    with Server([sys.executable, "-c", before + STUBBORN], []) as server:
        server.process.terminate()
        server.await_log("stopping")
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == -number


def test_the_log_has_the_form_of_the_real_daemons(verb: str) -> None:
    with Server(ours(verb), []) as our, Server([str(find_server(verb)), *FREE], []) as real:
        pass
    for server in (our, real):
        matches = [LINE.fullmatch(line) for line in server.log]
        assert {match[1] for match in matches if match} == {verb}
        assert None not in matches


def test_the_log_has_the_prefix_that_a_flag_says(verb: str) -> None:
    with Server(ours(verb, "-log-prefix=here: ", "-verbose"), []) as server:
        server.await_log(r"^here: 20.* WARNING: -verbose has no effect in nsqflow$")
    assert all(line.startswith("here: 20") for line in server.log)


def test_the_log_has_nothing_below_the_level_that_a_flag_says(verb: str, tmp_path: Path) -> None:
    flags = [f"-http-address={tmp_path}/missing/socket", "-verbose"]
    assert len(run(verb, *flags).stderr.splitlines()) > 1
    [line] = run(verb, *flags, "-log-level=fatal").stderr.splitlines()
    assert " FATAL: " in line


def test_a_port_that_is_taken_is_reported_in_one_line_with_a_hint(verb: str) -> None:
    with Server(ours("nsqlookupd"), []) as other:
        last = fail(verb, f"-tcp-address={other.tcp_address}")
    port = other.tcp_address.rpartition(":")[2]
    assert LINE.fullmatch(last)
    assert "FATAL: failed to start" in last
    assert port in last
    assert "Address already in use" in last
    assert "choose another address" in last


def test_a_config_file_that_is_broken_is_reported_in_one_line(verb: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.cfg"
    path.write_text("log_level = [")
    assert f" FATAL: config file '{path}' is not TOML" in fail(verb, f"-config={path}")
    path.write_text("log_level = 'loud'")
    assert f" FATAL: {path}: log_level='loud' is invalid" in fail(verb, f"-config={path}")


def test_a_value_out_of_its_range_is_reported_in_one_line() -> None:
    last = fail("nsqd", "-max-deflate-level=10")
    assert last.endswith("FATAL: max_deflate_level=10 is invalid: must be an integer from 1 to 9")


def test_a_command_line_that_cannot_be_read_has_an_exit_code_of_its_own(verb: str) -> None:
    last = fail(verb, "-log-level=loud", code=2)
    assert last.startswith(f"{verb}: -log-level='loud' is invalid: must be debug")


def test_a_certificate_that_is_missing_is_reported(tmp_path: Path) -> None:
    last = fail("nsqd", "-tls-cert=nope.pem", "-tls-key=nope.key", f"-data-path={tmp_path}")
    assert "failed to start - tls_cert='nope.pem' is invalid: No such file or directory" in last


def test_a_data_path_that_is_missing_is_reported(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    last = fail("nsqd", f"-data-path={missing}")
    assert f"FATAL: failed to start - data_path='{missing}' is invalid" in last


def test_a_data_path_that_another_nsqd_uses_is_reported(tmp_path: Path) -> None:
    with Server(ours("nsqd", f"-data-path={tmp_path}"), []):
        last = fail("nsqd", f"-data-path={tmp_path}")
    assert f"FATAL: failed to start - data_path='{tmp_path}' is invalid" in last


def test_nsqd_has_its_topics_and_channels_again_after_a_restart(
    tmp_path: Path,
) -> None:
    path = f"-data-path={tmp_path}"
    with Server(ours("nsqd", path), []) as server:
        assert server.ask("/topic/create?topic=orders", "POST")[0] == 200
        assert server.ask("/channel/create?topic=orders&channel=billing", "POST")[0] == 200
    with Server(ours("nsqd", path), []) as server:
        [topic] = json.loads(server.ask("/stats?format=json")[1])["topics"]
    assert topic["topic_name"] == "orders"
    assert [channel["channel_name"] for channel in topic["channels"]] == ["billing"]
