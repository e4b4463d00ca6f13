"""A terminal for commands that start Spark, with all the processes that belong to it."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from typing import Any

from tests.cli.commands import OnTerminal
from tests.fixtures.spark import SPARK_PATIENCE, session_members

CONTROLLED = f"""
import fcntl, os, sys
fcntl.ioctl(0, {termios.TIOCSCTTY}, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal(OnTerminal):
    """A terminal whose Ctrl-C goes to all processes of the command, as on a real one."""

    def _start(self, command: list[str], env: Any) -> subprocess.Popen[bytes]:
        wrapped = [sys.executable, "-c", CONTROLLED, *command]
        return super()._start(wrapped, env)

    def await_shown(self, pattern: str) -> None:
        """Wait until what it has shown so far matches."""
        deadline = time.monotonic() + 2 * SPARK_PATIENCE
        while not re.search(pattern, self.shown):
            assert time.monotonic() < deadline, self.shown
            if select.select([self._output()], [], [], 1.0)[0]:
                assert self._read(), self.shown

    def __exit__(self, *_: object) -> None:
        for member in session_members(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        super().__exit__(*_)
