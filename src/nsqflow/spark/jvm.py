"""The JVM that Spark's driver runs in: started in a process group of its own, ended with ours.

A signal to our process group (Ctrl-C, ``timeout``, ``kill -- -PGID``) does not reach the JVM, so
that a query can end cleanly before it. The JVM exits when the pipe to its stdin closes: that
happens on our exit, even by ``kill -9``, as no other process holds the pipe.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from nsqflow.errors import JavaStartError
from nsqflow.spark import internals

Lines = Callable[[str], object]
"""Called with each line of the JVM's stderr, on another thread."""

_EXIT_TIMEOUT = 30.0  # seconds for a JVM to end before it is killed
_REAP_TIMEOUT = 1.0  # seconds until the exit status of a JVM that has died is known
_DRAIN_TIMEOUT = 5.0  # seconds for the last lines of stderr

# Warnings that every Java prints when Spark starts, and that users can do nothing about.
_NOISE = re.compile(
    r"WARNING: (Using incubator modules|package \S+ not in|A terminally deprecated method"
    r"|A restricted method|sun\.misc\.Unsafe|java\.lang\.System::load|Please consider reporting"
    r"|Use --enable-native-access|Restricted methods will be blocked)"
)

_environment_lock = threading.Lock()
_running: set[subprocess.Popen[bytes]] = set()


def launch(
    conf: Mapping[str, str], environment: Mapping[str, str], on_stderr: Lines | None = None
) -> Any:
    """Start a JVM and return its gateway; raise ``JavaStartError`` if it ends before it is ready.

    ``conf`` goes to its command line, ``environment`` is added to ours. Without ``on_stderr`` it
    writes to our stderr.
    """
    from pyspark import SparkConf
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    settings = SparkConf(False).setAll([*conf.items()])
    start: Callable[..., Any] = launch_gateway
    with _stderr_to(on_stderr) as (options, reader), _environment(environment):
        try:
            gateway = start(settings, {"process_group": 0, **options})
        except PySparkRuntimeError as error:
            raise JavaStartError(
                "Java ended while Spark was starting; its output above says why"
            ) from error
    gateway.nsqflow_reader = reader
    _running.add(gateway.proc)
    return gateway


def end(gateway: Any) -> None:
    """End a JVM, and wait until it has ended."""
    with suppress(Exception):  # it may have ended, or the connection is in the middle of a call
        gateway.shutdown()
    internals.forget_gateway()
    with gateway.proc as jvm:
        jvm.stdin.close()
        try:
            with suppress(subprocess.TimeoutExpired):
                jvm.wait(_EXIT_TIMEOUT)
        finally:
            jvm.kill()
            _running.discard(jvm)
    drain(gateway)


def drain(gateway: Any) -> None:
    """Wait for the last lines of stderr of a JVM that has ended."""
    if reader := gateway.__dict__.get("nsqflow_reader"):
        reader.join(_DRAIN_TIMEOUT)


def is_noise(line: str) -> bool:
    """Return whether a line of stderr is one that every run prints."""
    return _NOISE.match(line) is not None


def exit_text(gateway: Any) -> str | None:
    """Return how a JVM ended, as in ``killed by SIGKILL``; None if it runs."""
    try:
        code = gateway.proc.wait(_REAP_TIMEOUT)
    except subprocess.TimeoutExpired:
        return None
    return describe_exit(code)


def describe_exit(code: int) -> str:
    """Describe an exit status as ``Popen`` returns it."""
    names = {number.value: number.name for number in signal.Signals}
    if code < 0:
        return f"killed by {names.get(-code, f'signal {-code}')}"
    # A JVM that gets SIGTERM ends by itself, with the status that a shell would show.
    hint = f", which is {names[code - 128]}" if code - 128 in names else ""
    return f"exit status {code}{hint}"


@contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the JVM alone: ``launch_gateway`` copies our environment."""
    with _environment_lock:
        before = {name: os.environ.get(name) for name in added}
        os.environ.update(added)
        try:
            yield
        finally:
            for name, text in before.items():
                if text is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = text


@contextmanager
def _stderr_to(
    on_line: Lines | None,
) -> Iterator[tuple[dict[str, int], threading.Thread | None]]:
    """Open a pipe whose lines go to ``on_line`` until the JVM closes it."""
    if on_line is None:
        yield {}, None
        return
    ours, its = os.pipe()
    reader = threading.Thread(
        target=_read_lines, args=(ours, on_line), name="nsqflow-java-stderr", daemon=True
    )
    reader.start()
    try:
        yield {"stderr": its}, reader
    except BaseException:
        os.close(its)
        reader.join(_DRAIN_TIMEOUT)
        raise
    os.close(its)


def _read_lines(descriptor: int, on_line: Lines) -> None:
    with open(descriptor, encoding="utf-8", errors="replace") as pipe:
        for line in pipe:
            on_line(line.rstrip("\n"))


def _close_pipes_in_child() -> None:
    """Close the pipes in a forked child: the JVM must end with us, not with our children."""
    if not _running:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for jvm in _running:
        if jvm.stdin is not None and not jvm.stdin.closed:
            # Not closed: the file object would later close another file of the same number.
            os.dup2(nowhere, jvm.stdin.fileno(), inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_close_pipes_in_child)
