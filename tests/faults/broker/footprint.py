"""What a server takes of the machine, and whether it complains."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fixtures.servers import Server

MEBIBYTE = 1024 * 1024

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="what a process takes is told by /proc only"
)


def resident(server: Server) -> int:
    """How many bytes of a server are in memory."""
    return _status(server, "VmRSS")


def most_resident(server: Server) -> int:
    """How many bytes of it have ever been in memory."""
    return _status(server, "VmHWM")


def open_files(server: Server) -> int:
    """How many files and sockets it has open."""
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def complaints(server: Server) -> list[str]:
    """What its log says that should never be said: an exception that nobody expected."""
    signs = ("Traceback", "Fatal error", "Task exception", "never retrieved", "Exception in")
    return [line for line in server.log if any(sign in line for sign in signs)]


def _status(server: Server, name: str) -> int:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
