"""Memory and files of a server, and unexpected errors in its log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fixtures.servers import Server

MEBIBYTE = 1024 * 1024

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


def resident(server: Server) -> int:
    """Return the resident memory of a server in bytes."""
    return _status(server, "VmRSS")


def max_resident(server: Server) -> int:
    """Return the maximum of its resident memory in bytes."""
    return _status(server, "VmHWM")


def open_files(server: Server) -> int:
    """Return the number of its open files and sockets."""
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def unexpected_errors(server: Server) -> list[str]:
    """Return the lines of its log about unexpected exceptions."""
    signs = ("Traceback", "Fatal error", "Task exception", "never retrieved", "Exception in")
    return [line for line in server.log if any(sign in line for sign in signs)]


def _status(server: Server, name: str) -> int:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
