"""What is known of a JVM by its exit status and its stderr, and who holds the pipe to it."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from nsqflow.spark import jvm
from nsqflow.spark.jvm import describe_exit, exit_text, is_noise


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-9, "killed by SIGKILL"),
        (-200, "killed by signal 200"),
        (143, "exit status 143, which is SIGTERM"),
        (1, "exit status 1"),
        (0, "exit status 0"),
    ],
)
def test_an_exit_status_is_described_and_no_cause_is_guessed(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_a_process_that_runs_has_no_exit() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert exit_text(SimpleNamespace(proc=process)) is None
        process.kill()
        assert exit_text(SimpleNamespace(proc=process)) == "killed by SIGKILL"


@pytest.mark.parametrize(
    ("line", "noise"),
    [
        ("WARNING: Using incubator modules: jdk.incubator.vector", True),
        ("WARNING: A terminally deprecated method in sun.misc.Unsafe has been called", True),
        ("WARNING: sun.misc.Unsafe::arrayBaseOffset will be removed in a future release", True),
        ("spark: WARN Utils: Your hostname resolves to a loopback address", False),
        ("Error: Could not find or load main class", False),
    ],
)
def test_only_warnings_of_every_java_are_noise(line: str, noise: bool) -> None:
    assert is_noise(line) is noise


FORKED = """
import os, subprocess, sys
from nsqflow.spark import jvm

process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
jvm._running.add(process)
if os.fork() == 0:
    sys.stdin.read()  # a child that outlives us, until the test is over
    os._exit(0)
print(process.pid, flush=True)
os._exit(0)
"""


def test_a_forked_child_does_not_hold_the_pipe_that_ends_a_jvm() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", FORKED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with program:
        assert program.stdout
        # The line, and the end of output: `cat` has ended, though the child lives.
        with os.fdopen(os.dup(program.stdout.fileno())) as lines:
            pid = int(lines.readline())
        assert program.wait(60) == 0
        assert _ends(pid)


def _ends(pid: int) -> bool:
    descriptor = os.pidfd_open(pid) if _is_there(pid) else None
    if descriptor is None:
        return True
    import select

    try:
        return bool(select.select([descriptor], [], [], 60)[0])
    finally:
        os.close(descriptor)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_variables_for_the_jvm_are_set_while_it_is_launched_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.1")
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    with jvm._environment({"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": "-Dx=y"}):
        assert (os.environ["SPARK_LOCAL_IP"], os.environ["SPARK_SUBMIT_OPTS"]) == (
            "127.0.0.1",
            "-Dx=y",
        )
    assert os.environ["SPARK_LOCAL_IP"] == "10.0.0.1"
    assert "SPARK_SUBMIT_OPTS" not in os.environ
