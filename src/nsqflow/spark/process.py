"""Identifies processes of this machine, so that one can know whether another still runs.

A process is identified by its number and its start, as numbers are used again. Where the system
does not tell, the answer is unknown, never wrong.
"""

from __future__ import annotations

import os
import socket
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import getnode

_TIMEOUT = 5.0  # seconds for ps to answer
_START_FIELD = 19  # of /proc/PID/stat, counted from the one after the name in parentheses


class ProcessId(NamedTuple):
    """A process of a machine."""

    pid: int
    started: str
    """When it started, in the words of the system; empty if unknown."""

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Identify a process of this machine."""
        return cls(pid, _start_of(pid) or "")

    def is_running(self) -> bool | None:
        """Return whether a process of this machine still runs; None if unknown."""
        started = _start_of(self.pid)
        if started is None:
            return None
        return started == self.started if self.started and started else bool(started)


@cache
def this_machine() -> str:
    """Return what identifies this machine since its start, or this container.

    Containers may have the same host name, and processes of others can't be seen.
    """
    host = socket.gethostname()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{host} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{host} {getnode():x}"


def _start_of(pid: int) -> str | None:
    """Return when a process started; empty if it does not run, None if unknown."""
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return ""
        except OSError:
            return None
        state, *fields = stat.rpartition(")")[2].split()
        return "" if state in ("Z", "X") else fields[_START_FIELD - 1]
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    try:
        listed = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return listed.stdout.strip()
