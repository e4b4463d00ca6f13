"""How speed is measured here: contenders side by side, in rounds, judged by their ratios.

One warm-up and seven rounds, in each of which every contender runs for two seconds or more,
in an order that rotates. A ratio is taken within a round, so that what slows the machine
slows both; the median of the rounds is judged, the smallest and largest are shown. If they
lie too far apart, all is measured once more. A contender that fails is left out from there on.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Literal

ROUNDS = 7
MIN_SECONDS = 2.0
MAX_SPREAD = 1.6

Contender = Callable[[], int]
"""Does some work in this process and returns how many messages it was."""


class ContenderFailed(Exception):
    """A contender could not do its run; says why in one line."""


@dataclass(frozen=True)
class Sample:
    """One contender in one round."""

    rate: float
    """Messages a second."""
    cpu: float
    """Microseconds of CPU a message."""
    p50: float | None = None
    """Seconds from publishing to the handler, where that is what is measured."""
    p99: float | None = None


Sampler = Callable[[], Sample]
"""Runs a contender once. The first run is the warm-up, whose sample is thrown away."""

Measure = Literal["rate", "cpu", "p50", "p99"]


@dataclass(frozen=True)
class Goal:
    """A ratio that must be reached: ``contender`` against the best of ``peers``.

    Without a bound it is only shown.
    """

    contender: str
    peers: tuple[str, ...]
    at_least: float | None = None
    at_most: float | None = None
    of: Measure = "rate"


@dataclass(frozen=True)
class Ratio:
    """What became of a goal."""

    goal: Goal
    median: float
    low: float
    high: float

    @property
    def reached(self) -> bool:
        at_least, at_most = self.goal.at_least, self.goal.at_most
        return (at_least is None or self.median >= at_least) and (
            at_most is None or self.median <= at_most
        )

    @property
    def spread(self) -> float:
        return self.high / self.low


@dataclass(frozen=True)
class Report:
    """What was measured, and what became of the goals."""

    title: str
    samples: dict[str, list[Sample]]
    failures: dict[str, str]
    ratios: list[Ratio]

    @property
    def reached(self) -> bool:
        return all(ratio.reached for ratio in self.ratios)


def run(
    title: str,
    contenders: Mapping[str, Contender],
    goals: list[Goal],
    *,
    json_file: Path | None = None,
    rounds: int = ROUNDS,
    seconds: float = MIN_SECONDS,
) -> int:
    """Measure in this process, print, write; return the exit code: 1 if a goal was missed."""
    samplers = {
        name: partial(take_sample, contender, seconds) for name, contender in contenders.items()
    }
    report = judge(title, samplers, goals, rounds=rounds)
    show(report)
    if json_file is not None:
        write_json(json_file, as_json(report))
    return 0 if report.reached and not report.failures else 1


def judge(
    title: str, samplers: Mapping[str, Sampler], goals: Sequence[Goal], *, rounds: int = ROUNDS
) -> Report:
    """Measure, and once more if the ratios of the rounds are too different."""
    report = measure(title, samplers, goals, rounds)
    if any(ratio.spread > MAX_SPREAD for ratio in report.ratios):
        print(f"ratios spread by more than {MAX_SPREAD}: measuring once more", file=sys.stderr)
        report = measure(title, samplers, goals, rounds)
    return report


def measure(
    title: str, samplers: Mapping[str, Sampler], goals: Sequence[Goal], rounds: int
) -> Report:
    samples: dict[str, list[Sample]] = {name: [] for name in samplers}
    failures: dict[str, str] = {}
    for number in range(rounds + 1):
        for name in rotated(list(samplers), number):
            if name in failures:
                continue
            progress(f"round {number} of {rounds}: {name}")
            try:
                sample = samplers[name]()
            except ContenderFailed as error:
                failures[name] = str(error)
                del samples[name]
            else:
                if number:
                    samples[name].append(sample)
    progress("")
    ratios = [compare(goal, samples) for goal in attainable(goals, samples)]
    return Report(title, samples, failures, ratios)


def take_sample(contender: Contender, seconds: float) -> Sample:
    count = 0
    wall, cpu = perf_counter(), process_time()
    while (elapsed := perf_counter() - wall) < seconds:
        count += contender()
    return Sample(count / elapsed, (process_time() - cpu) / count * 1e6)


def rotated(names: list[str], by: int) -> Iterator[str]:
    by %= len(names)
    return iter(names[by:] + names[:by])


def attainable(goals: Sequence[Goal], samples: Mapping[str, list[Sample]]) -> Iterator[Goal]:
    """The goals between the clients that ran: the best peer is the best of those."""
    for goal in goals:
        peers = tuple(peer for peer in goal.peers if peer in samples)
        if goal.contender in samples and peers:
            yield Goal(goal.contender, peers, goal.at_least, goal.at_most, goal.of)


def compare(goal: Goal, samples: Mapping[str, list[Sample]]) -> Ratio:
    best = max if goal.of == "rate" else min
    ours = figures(goal.of, samples[goal.contender])
    theirs = [figures(goal.of, samples[peer]) for peer in goal.peers]
    ratios = [
        mine / best(peers) for mine, peers in zip(ours, zip(*theirs, strict=True), strict=True)
    ]
    return Ratio(goal, median(ratios), min(ratios), max(ratios))


def figures(of: Measure, taken: Sequence[Sample]) -> list[float]:
    return [figure for sample in taken if (figure := getattr(sample, of)) is not None]


def show(report: Report, *, ratios: bool = True) -> None:
    rounds = len(next(iter(report.samples.values()), []))
    print(f"{report.title} (Python {platform.python_version()}, {rounds} rounds)")
    width = max(map(len, [*report.samples, *report.failures]))
    for name, taken in report.samples.items():
        print(f"  {name:{width}}  {described(taken)}")
    for name, reason in report.failures.items():
        print(f"  {name:{width}}  failed: {reason}")
    for ratio in report.ratios if ratios else ():
        print(f"  {'ok    ' if ratio.reached else 'MISSED'} {judged(ratio)}")


def described(taken: Sequence[Sample]) -> str:
    rate, cpu = median(figures("rate", taken)), median(sample.cpu for sample in taken)
    line = f"{rate:>12,.0f} messages/s  {cpu:>7.3f} us of CPU each"
    if latencies := figures("p99", taken):
        p50 = median(sample.p50 or 0 for sample in taken)
        line += f"  p50 {p50 * 1e3:.2f} ms  p99 {median(latencies) * 1e3:.2f} ms"
    return line


def judged(ratio: Ratio) -> str:
    goal = ratio.goal
    subject = goal.contender if goal.of == "rate" else f"{goal.of} of {goal.contender}"
    peers = goal.peers[0] if len(goal.peers) == 1 else f"the best of {', '.join(goal.peers)}"
    bound = "no goal"
    if goal.at_least is not None:
        bound = f"goal: {goal.at_least:g}x or more"
    elif goal.at_most is not None:
        bound = f"goal: {goal.at_most:g}x or less"
    span = f"{ratio.low:.2f} to {ratio.high:.2f}"
    return f"{subject}: {ratio.median:.2f}x {peers} ({span}; {bound})"


def write_json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n")


def as_json(report: Report) -> dict[str, object]:
    return {
        "title": report.title,
        "python": platform.python_version(),
        "samples": {name: [vars(one) for one in taken] for name, taken in report.samples.items()},
        "failures": report.failures,
        "ratios": [
            {**vars(ratio), "goal": vars(ratio.goal), "reached": ratio.reached}
            for ratio in report.ratios
        ],
    }


def progress(line: str) -> None:
    """Show what is going on, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
