"""The CPU time of Spark's JVM, of its Python processes and of the nsqd."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.rounds import Report, Sample

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


Processes = dict[int, Process]


class Meter:
    """The CPU time that Spark and the processes of nsqd have taken since this was made."""

    def __init__(self, nsqd: Sequence[int] = ()) -> None:
        from pyspark import SparkContext

        assert SparkContext._gateway
        self._jvm = SparkContext._gateway.proc.pid
        self._nsqd = nsqd
        self._before = processes()

    def sample(self, rate: float, rows: int) -> SparkSample:
        before, after = self._before, processes()
        jvm, nsqd = taken(before, after, [self._jvm]), taken(before, after, self._nsqd)
        python = taken_below(before, after, self._jvm)
        jvm, python, nsqd = (seconds / rows * 1e6 for seconds in (jvm, python, nsqd))
        return SparkSample(rate, jvm + python + nsqd, jvm=jvm, python=python, nsqd=nsqd)


def taken(before: Processes, after: Processes, pids: Iterable[int]) -> float:
    """Seconds that processes took which are there still."""
    new = Process(0, 0.0, 0.0)
    return sum(after[pid].own - before.get(pid, new).own for pid in pids if pid in after)


def taken_below(before: Processes, after: Processes, root: int) -> float:
    """Seconds that the descendants of a process took.

    Those that have ended meanwhile are found with their parents, with all they ever took; but
    where a parent did not wait for them, with none.
    """
    family_before, family = descendants(root, before), descendants(root, after)
    ended = sum(
        after[pid].of_the_ended - before[pid].of_the_ended
        for pid in {root, *family_before} & {root, *family}
    )
    earlier = sum(before[pid].own for pid in family_before - family)
    return taken(before, after, family) + max(0.0, ended - earlier)


def processes() -> Processes:
    """All processes of this machine, which must be a Linux."""
    return dict(_processes())


def _processes() -> Iterator[tuple[int, Process]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = path.read_text()
        except OSError:  # it has ended
            continue
        fields = stat.rpartition(")")[2].split()  # after the name, which may contain spaces
        user, system, ended_user, ended_system = map(int, fields[11:15])
        own, of_the_ended = (user + system) / TICK, (ended_user + ended_system) / TICK
        yield int(path.parent.name), Process(int(fields[1]), own, of_the_ended)


def descendants(root: int, found: Processes) -> set[int]:
    """The processes below another one."""
    family = {root}
    while more := {pid for pid, each in found.items() if each.parent in family} - family:
        family |= more
    return family - {root}


def show_cpu(report: Report) -> None:
    """Print whose CPU it was, line by line of a report."""
    print("  us of CPU a row, by process")
    width = max(map(len, report.samples), default=0)
    for name, taken in report.samples.items():
        runs = [sample for sample in taken if isinstance(sample, SparkSample)]
        if runs:
            jvm, python, nsqd = (
                median(getattr(run, part) for run in runs) for part in ("jvm", "python", "nsqd")
            )
            print(f"    {name:{width}}  JVM {jvm:5.2f}  Python {python:5.2f}  nsqd {nsqd:5.2f}")
