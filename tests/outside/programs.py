"""Running programs of other projects and waiting for their output."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import IO, Self, TypeVar

from tests.fixtures.servers import PATIENCE, ROOT, find_server

T = TypeVar("T")


def command_of(name: str, **flags: str | int) -> list[str]:
    """Return the command of an NSQ program: ``max_in_flight=1`` becomes ``-max-in-flight=1``."""
    return [
        str(find_server(name)),
        *(f"-{flag.replace('_', '-')}={value}" for flag, value in flags.items()),
    ]


def run(command: Sequence[str], stdin: bytes = b"") -> bytes:
    """Run a program that ends by itself; return its output."""
    done = subprocess.run(command, input=stdin, capture_output=True, cwd=ROOT, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


class Program:
    """A program that runs until ``stop`` or the end of its ``with`` block."""

    def __init__(self, command: Sequence[str]) -> None:
        self.lines: list[bytes] = []
        self.log: list[bytes] = []
        self._changed = threading.Condition()  # a line of output or log, or the end of one
        self._open = 2
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdout
        assert self._process.stderr
        self._readers = [
            threading.Thread(target=self._read, args=way, daemon=True)
            for way in ((self._process.stdout, self.lines), (self._process.stderr, self.log))
        ]
        for reader in self._readers:
            reader.start()

    def await_lines(self, count: int) -> list[bytes]:
        """Wait for ``count`` lines of output; return all lines so far."""

        def enough() -> list[bytes] | None:
            return list(self.lines) if len(self.lines) >= count else None

        return self._await(enough, f"fewer than {count} lines")

    def await_log(self, pattern: bytes) -> re.Match[bytes]:
        """Wait until a line of its log matches; earlier lines count too."""

        def found() -> re.Match[bytes] | None:
            return next(filter(None, (re.search(pattern, line) for line in self.log)), None)

        return self._await(found, f"no {pattern!r}")

    def stop(self) -> None:
        """Terminate it and wait until all its output is read."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
            for reader in self._readers:
                reader.join()

    def _await(self, poll: Callable[[], T | None], otherwise: str) -> T:
        with self._changed:
            self._changed.wait_for(lambda: poll() is not None or not self._open, PATIENCE)
            if (found := poll()) is not None:
                return found
            log = b"\n".join(self.log).decode(errors="replace")
            raise AssertionError(f"{otherwise}; its log:\n{log}")

    def _read(self, pipe: IO[bytes], into: list[bytes]) -> None:
        with pipe:
            for line in pipe:
                with self._changed:
                    into.append(line.removesuffix(b"\n"))
                    self._changed.notify_all()
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
