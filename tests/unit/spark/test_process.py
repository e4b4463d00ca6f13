"""Which processes of this machine still run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nsqflow.spark import process
from nsqflow.spark.process import ProcessId, this_machine

if TYPE_CHECKING:
    import pytest


def test_a_process_runs_until_it_has_ended() -> None:
    assert ProcessId.of(os.getpid()).is_running() is True
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        identity = ProcessId.of(child.pid)
        assert identity.started
        assert identity.is_running() is True
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
        assert identity.is_running() is False
    assert identity.is_running() is False


def test_another_process_with_the_same_number_is_not_the_same() -> None:
    assert ProcessId(os.getpid(), "1").is_running() is False


def test_a_process_whose_start_is_unknown_may_run() -> None:
    assert ProcessId(os.getpid(), "").is_running() is None
    assert ProcessId(2**22 + 1, "").is_running() is False


def test_a_process_that_is_hidden_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError(f"process {pid} belongs to another user")

    monkeypatch.setattr(os, "kill", refuse)
    assert ProcessId(2**22 + 1, "1").is_running() is None


def test_where_there_is_no_proc_ps_says_when_a_process_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_PROC", Path("/nowhere"))
    identity = ProcessId.of(os.getpid())
    assert identity.started
    assert identity.is_running() is True
    assert ProcessId(2**22 + 1, "x").is_running() is False
    monkeypatch.setenv("PATH", "/nowhere")
    assert identity.is_running() is None


def test_this_machine_has_one_name_for_all_its_processes() -> None:
    code = "from nsqflow.spark.process import this_machine; print(this_machine())"
    other = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert other.strip() == this_machine()
