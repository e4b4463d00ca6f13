"""What pipelines need on this machine: Spark, pyarrow, Java, and a place for the spool."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, version

import nsqflow
from nsqflow.cli.finding import Finding, remarkable, well, wrong
from nsqflow.errors import ConfigError
from nsqflow.spark.java import find_java
from nsqflow.spark.store import open_store

_NEEDED = {"pyspark": (4, 2), "pyarrow": (18, 0)}
_INSTALL = "pip install -U 'nsqflow[spark]'"
_INSTALL_S3 = "pip install -U 'nsqflow[s3]'"
_ANOTHER_PLACE = "choose a place that every executor may write to"


def examine_equipment() -> list[Finding]:
    """Look at the versions, and at Java if there is a Spark that would use it."""
    own = f"{nsqflow.__version__}, Python {platform.python_version()}"
    findings = [well("nsqflow", own)]
    if _version("pyspark") is None:
        text = 'not here; only pipelines and format("nsq") need it'
        return [*findings, remarkable("pyspark", text, _INSTALL)]
    findings += [_package(name, least) for name, least in _NEEDED.items()]
    return [*findings, _java()]


def examine_spool(location: str) -> Finding:
    """Try all that a spool does, at the place where it is to be; leaves nothing there."""
    try:
        open_store(location).probe()
    except ConfigError as error:
        # It is the place that is wrong, or what is needed to reach any of its kind.
        at_fault = str(error).startswith("spoolLocation")
        return wrong("spool", str(error), _ANOTHER_PLACE if at_fault else _INSTALL_S3)
    return well("spool", f"{location} can be written to, and creates exclusively")


def _package(name: str, least: tuple[int, int]) -> Finding:
    found = _version(name)
    if found is None:
        return wrong(name, "not here, and Spark needs it", _INSTALL)
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < least:
        needed = ".".join(map(str, least))
        return wrong(name, f"version {found}; {needed} or newer is needed", _INSTALL)
    return well(name, f"version {found}")


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
        return wrong("java", text, remedy)
    return well("java", f"version {java.version}, from {java.origin}: {java.home}")
