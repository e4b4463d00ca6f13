"""Checks of this machine: Spark, pyarrow, Java and the spool."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import nsqflow
from nsqflow.cli.doctor.finding import Finding, note, ok, problem
from nsqflow.errors import ConfigError
from nsqflow.extras import install_hint
from nsqflow.spark.java import find_java
from nsqflow.spark.spool.store import open_store

_NEEDED = {"pyspark": (4, 2), "pyarrow": (18, 0)}
_ANOTHER_PLACE = "choose a location that every executor can write to"


def check_environment() -> list[Finding]:
    """Check the versions, and Java if Spark is installed."""
    own = f"{nsqflow.__version__}, Python {platform.python_version()}"
    findings = [ok("nsqflow", own)]
    if _version("pyspark") is None:
        text = 'not installed; only pipelines and format("nsq") need it'
        return [*findings, note("pyspark", text, install_hint("spark"))]
    findings += [_package(name, least) for name, least in _NEEDED.items()]
    return [*findings, _java()]


def check_spool(location: str) -> Finding:
    """Try everything that a spool needs at its location; leave nothing behind."""
    try:
        store = open_store(location)
        missing = _missing_folders(store.location)
        try:
            store.probe()
        finally:
            for folder in missing:
                with suppress(OSError):
                    os.rmdir(folder)
    except ConfigError as error:
        # The location is invalid, or a package for it is missing.
        at_fault = str(error).startswith("spoolLocation")
        return problem("spool", str(error), _ANOTHER_PLACE if at_fault else install_hint("s3"))
    return ok("spool", f"{location} is writable, and creates files exclusively")


def _missing_folders(path: str) -> list[str]:
    """Return the folders of a local path that would have to be created, the innermost first."""
    missing = []
    while path.startswith("/") and not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _package(name: str, least: tuple[int, int]) -> Finding:
    found = _version(name)
    if found is None:
        return problem(name, "not installed, but Spark needs it", install_hint("spark"))
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < least:
        needed = ".".join(map(str, least))
        return problem(name, f"version {found}; {needed} or newer is needed", install_hint("spark"))
    return ok(name, f"version {found}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _java() -> Finding:
    try:
        java = find_java()
    except ConfigError as error:
        text, _, remedy = str(error).rpartition(": ")
        return problem("java", text, remedy)
    return ok("java", f"version {java.version}, from {java.origin}: {java.home}")
