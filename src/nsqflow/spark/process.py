"""Identifies processes of this machine, so that a later one can check whether they still run.

A process is identified by its number and its start, as numbers are used again.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from uuid import getnode

_PROC = Path("/proc")
_TIMEOUT = 5.0  # seconds for ps to answer
_TAG = re.compile(r"([0-9a-f]{12})/([0-9]{1,10})/([0-9A-Za-z:_-]*)")
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
        """Return whether the process still runs, on this machine; None if unknown."""
        started = _start_of(self.pid)
        if started is None or (started and not self.started):
            return None
        return bool(started) and started == self.started


def process_tag() -> str:
    """Return a word that identifies this process among those of all machines."""
    started = re.sub("[^0-9A-Za-z:]", "_", ProcessId.of(os.getpid()).started)
    return f"{_machine_digest()}/{os.getpid()}/{started}"


def has_ended(text: str) -> bool:
    """Return whether a text has the tag of a process of this machine that has ended."""
    match = _TAG.search(text)
    if match is None or match[1] != _machine_digest():
        return False
    started = re.sub("[^0-9A-Za-z:]", "_", ProcessId.of(int(match[2])).started)
    return started != match[3] if started else not _exists(int(match[2]))


@cache
def _machine_digest() -> str:
    return sha256(this_machine().encode()).hexdigest()[:12]


@cache
def this_machine() -> str:
    """Return what identifies this machine since its start, or this container.

    Containers may have the same host name, and processes of others can't be seen.
    """
    host = socket.gethostname()
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{host} {boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return f"{host} {getnode():x}"


def _start_of(pid: int) -> str | None:
    """Return when a process started; empty if it does not run, None if unknown."""
    if (_PROC / "self" / "stat").exists():
        try:
            stat = (_PROC / str(pid) / "stat").read_text()
        except OSError:  # processes of other users may be hidden
            return None if _exists(pid) else ""
        state, *fields = stat.rpartition(")")[2].split()
        return "" if state in ("Z", "X") else fields[_START_FIELD - 1]
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    try:
        listed = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            env=os.environ | {"TZ": "UTC", "LC_ALL": "C"},  # one form for all processes
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return listed.stdout.strip()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True
