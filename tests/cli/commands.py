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
from typing import TYPE_CHECKING, Any, NamedTuple, Self

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


class InProcess:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Result:
        self._capsys.readouterr()
        code = main(words)
        return Result(code, *self._capsys.readouterr())


def install_command(folder: Path) -> Path:
    """Put the command into a folder, as pip would; return its path."""
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


class CommandProcess:
    """A command that runs until it is stopped; its output can be awaited."""

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
        """Send it a signal, if one is given, and wait for its end; return the exit code."""
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


class OnTerminal(CommandProcess):
    """The same on a terminal of its own."""

    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        columns: int = 120,
        lines: int = 30,
        stdin: int | None = None,
    ) -> None:
        self._stdin = stdin  # of subprocess; None: the terminal
        self._size = struct.pack("HHHH", lines, columns, 0, 0)
        super().__init__(words, env)

    def _start(self, command: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        self._master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, self._size)
        try:
            return subprocess.Popen(
                command,
                env=env,
                stdin=terminal if self._stdin is None else self._stdin,
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

    @property
    def picture(self) -> list[str]:
        """The lines of a screen that is drawn from its top each time, as they were last."""
        return _ESCAPE.sub("", self.text.rpartition("\x1b[H")[2]).replace("\r", "").split("\n")

    @property
    def modes(self) -> list[Any]:
        """How the terminal is set: with echo or without, line by line or key by key."""
        return termios.tcgetattr(self._master)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def press(self, keys: str, pattern: str) -> None:
        """Press keys, and wait until what is shown from then on matches."""
        self.text = ""
        self.type(keys)
        self.await_text(pattern)

    def resize(self, columns: int, lines: int) -> None:
        """Change its size; a command with it as its controlling terminal is signalled."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _output(self) -> int:
        return self._master

    def _read(self) -> bool:
        try:
            return super()._read()
        except OSError:  # on Linux: no process has the terminal any more
            return False

    def _close(self) -> None:
        os.close(self._master)
