"""Who takes how much CPU while Spark works: its JVM, its Python processes, the nsqd."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.rounds import Report, Sample
from tests.fixtures.servers import Nsqd

TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class SparkSample(Sample):
    """A run, and whose CPU it took: microseconds a row, together those of ``cpu``."""

    jvm: float = 0.0
    python: float = 0.0
    nsqd: float = 0.0


class Process(NamedTuple):
    """A process: seconds of CPU are its own, and those of its children that have ended."""

    parent: int
    own: float
    of_the_ended: float


class Meter:
    """The CPU time that Spark and the nsqd have taken since this was made."""

    def __init__(self, nsqd: Sequence[Nsqd] = ()) -> None:
        self._nsqd = [server.process.pid for server in nsqd]
        self._before = self._read()

    def sample(self, rate: float, rows: int) -> SparkSample:
        taken = [after - before for after, before in zip(self._read(), self._before, strict=True)]
        jvm, python, nsqd = (seconds / rows * 1e6 for seconds in taken)
        return SparkSample(rate, jvm + python + nsqd, jvm=jvm, python=python, nsqd=nsqd)

    def _read(self) -> tuple[float, float, float]:
        from pyspark import SparkContext

        assert SparkContext._gateway
        jvm = SparkContext._gateway.proc.pid
        found = processes()
        below = descendants(jvm, found)
        python = found[jvm].of_the_ended + sum(each.own + each.of_the_ended for each in below)
        return found[jvm].own, python, sum(found[pid].own for pid in self._nsqd)


def processes() -> dict[int, Process]:
    """All processes of this machine, which must be a Linux."""
    return dict(_processes())


def _processes() -> Iterator[tuple[int, Process]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = path.read_text()
        except OSError:  # it has ended
            continue
        fields = stat.rpartition(")")[2].split()  # those behind the name, which may hold spaces
        user, system, ended_user, ended_system = map(int, fields[11:15])
        own, of_the_ended = (user + system) / TICK, (ended_user + ended_system) / TICK
        yield int(path.parent.name), Process(int(fields[1]), own, of_the_ended)


def descendants(root: int, found: dict[int, Process]) -> list[Process]:
    """The processes below another one."""
    pids = {root}
    while more := {pid for pid, each in found.items() if each.parent in pids} - pids:
        pids |= more
    return [found[pid] for pid in pids - {root}]


def show_cpu(report: Report) -> None:
    """Print whose CPU it was, line by line of a report."""
    print("  us of CPU a row, by process")
    width = max(map(len, report.samples), default=0)
    for name, taken in report.samples.items():
        runs = [sample for sample in taken if isinstance(sample, SparkSample)]
        if runs:
            jvm, python, nsqd = (
                median(getattr(run, who) for run in runs) for who in ("jvm", "python", "nsqd")
            )
            print(f"    {name:{width}}  JVM {jvm:5.2f}  Python {python:5.2f}  nsqd {nsqd:5.2f}")
