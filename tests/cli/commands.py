"""The command ``nsqflow`` in this process, as a process of its own, and on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from nsqflow.cli import main
from tests.fixtures.servers import PATIENCE

if TYPE_CHECKING:
    import pytest

COMMAND = [sys.executable, "-m", "nsqflow"]

_TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Here:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Result:
        self._capsys.readouterr()
        code = main(words)
        return Result(code, *self._capsys.readouterr())


def install_command(folder: Path) -> Path:
    """Put the command into a folder, as pip would; gives its path."""
    path = folder / "nsqflow"
    path.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    path.chmod(0o700)
    return path


def run(*words: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Result:
    """Run a command as a process, to its end."""
    done = subprocess.run(
        [*COMMAND, *words],
        input=stdin,
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


class Running:
    """A command that runs until it is told to end; its output can be awaited."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        # Of the terminal that the tests run on, nothing is to be known.
        ours = {name: text for name, text in os.environ.items() if name not in _TERMINAL}
        environment = {**ours, "TERM": "xterm-256color", **(env or {})}
        self.process = self._start([*COMMAND, *words], environment)
        self.text = ""

    def await_text(self, pattern: str, patience: float = PATIENCE) -> re.Match[str]:
        """Wait until what it has said so far matches."""
        deadline = time.monotonic() + patience
        while not (match := re.search(pattern, self.text)):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._output()], [], [], left)[0]:
                raise AssertionError(f"no {pattern!r} within {patience} s in:\n{self.text}")
            if not self._read():
                raise AssertionError(f"it ended without {pattern!r}:\n{self.text}")
        return match

    def end(self, number: int | None = None) -> int:
        """Send it a signal, if one is given, and wait for its end; gives the exit code."""
        if number is not None:
            self.process.send_signal(number)
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._close()

    def _start(self, command: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )

    def _output(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def _read(self) -> bool:
        data = os.read(self._output(), 64 * 1024)
        self.text += data.decode(errors="replace")
        return bool(data)

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class OnTerminal(Running):
    """The same on a terminal of its own."""

    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        columns: int = 120,
        lines: int = 30,
    ) -> None:
        self._size = struct.pack("HHHH", lines, columns, 0, 0)
        super().__init__(words, env)

    def _start(self, command: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        self._master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, self._size)
        try:
            return subprocess.Popen(
                command,
                env=env,
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                start_new_session=True,
            )
        finally:
            os.close(terminal)

    @property
    def shown(self) -> str:
        """What it has said, without the escape sequences."""
        return _ESCAPE.sub("", self.text).replace("\r", "")

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def _output(self) -> int:
        return self._master

    def _read(self) -> bool:
        try:
            return super()._read()
        except OSError:  # how Linux says that nobody has the terminal any more
            return False

    def _close(self) -> None:
        os.close(self._master)
