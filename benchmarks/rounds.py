"""How speed is measured here: contenders side by side, in rounds, judged by their ratios.

One warm-up and seven rounds, in each of which every contender runs for two seconds or more,
in an order that rotates. A ratio is taken within a round, so that what slows the machine
slows both; the median of the rounds is judged, the smallest and largest are shown. If they
lie too far apart, all is measured once more.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

ROUNDS = 7
MIN_SECONDS = 2.0
MAX_SPREAD = 1.6

Contender = Callable[[], int]
"""Does some work and returns how many messages it was."""


@dataclass(frozen=True)
class Sample:
    """One contender in one round."""

    rate: float
    """Messages a second."""
    cpu: float
    """Microseconds of CPU a message."""


@dataclass(frozen=True)
class Goal:
    """A ratio that must be reached: ``contender`` against the fastest of ``peers``."""

    contender: str
    peers: tuple[str, ...]
    at_least: float


@dataclass(frozen=True)
class Ratio:
    """What became of a goal."""

    goal: Goal
    median: float
    low: float
    high: float

    @property
    def reached(self) -> bool:
        return self.median >= self.goal.at_least

    @property
    def spread(self) -> float:
        return self.high / self.low


def run(
    title: str,
    contenders: Mapping[str, Contender],
    goals: list[Goal],
    *,
    json_file: Path | None = None,
    rounds: int = ROUNDS,
    seconds: float = MIN_SECONDS,
) -> int:
    """Measure, print, write; return the exit code: 1 if a goal was missed."""
    samples = measure(contenders, rounds=rounds, seconds=seconds)
    ratios = [compare(goal, samples) for goal in goals]
    if any(ratio.spread > MAX_SPREAD for ratio in ratios):
        print(f"ratios spread by more than {MAX_SPREAD}: measuring once more", file=sys.stderr)
        samples = measure(contenders, rounds=rounds, seconds=seconds)
        ratios = [compare(goal, samples) for goal in goals]
    show(title, samples, ratios)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(title, samples, ratios), indent=2) + "\n")
    return 0 if all(ratio.reached for ratio in ratios) else 1


def measure(
    contenders: Mapping[str, Contender], *, rounds: int, seconds: float
) -> dict[str, list[Sample]]:
    """Return each contender's samples, the warm-up left out."""
    samples: dict[str, list[Sample]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name in rotated(list(contenders), number):
            progress(f"round {number} of {rounds}: {name}")
            sample = take_sample(contenders[name], seconds)
            if number:
                samples[name].append(sample)
    progress("")
    return samples


def take_sample(contender: Contender, seconds: float) -> Sample:
    count = 0
    wall, cpu = perf_counter(), process_time()
    while (elapsed := perf_counter() - wall) < seconds:
        count += contender()
    return Sample(count / elapsed, (process_time() - cpu) / count * 1e6)


def rotated(names: list[str], by: int) -> Iterator[str]:
    by %= len(names)
    return iter(names[by:] + names[:by])


def compare(goal: Goal, samples: Mapping[str, list[Sample]]) -> Ratio:
    ours = [sample.rate for sample in samples[goal.contender]]
    theirs = [[sample.rate for sample in samples[peer]] for peer in goal.peers]
    ratios = [
        mine / max(peers) for mine, peers in zip(ours, zip(*theirs, strict=True), strict=True)
    ]
    return Ratio(goal, median(ratios), min(ratios), max(ratios))


def show(title: str, samples: Mapping[str, list[Sample]], ratios: list[Ratio]) -> None:
    print(
        f"{title} (Python {platform.python_version()}, {len(next(iter(samples.values())))} rounds)"
    )
    width = max(map(len, samples))
    for name, taken in samples.items():
        rate = median(sample.rate for sample in taken)
        cpu = median(sample.cpu for sample in taken)
        print(f"  {name:{width}}  {rate:>12,.0f} messages/s  {cpu:>7.3f} us of CPU each")
    for ratio in ratios:
        goal = ratio.goal
        print(
            f"  {'ok    ' if ratio.reached else 'MISSED'} {goal.contender}: "
            f"{ratio.median:.2f}x the faster of {' and '.join(goal.peers)} "
            f"({ratio.low:.2f} to {ratio.high:.2f}; {goal.at_least:g}x or better)"
        )


def as_json(
    title: str, samples: Mapping[str, list[Sample]], ratios: list[Ratio]
) -> dict[str, object]:
    return {
        "title": title,
        "python": platform.python_version(),
        "samples": {name: [vars(sample) for sample in taken] for name, taken in samples.items()},
        "ratios": [
            {**vars(ratio), "goal": vars(ratio.goal), "reached": ratio.reached} for ratio in ratios
        ],
    }


def progress(line: str) -> None:
    """Show what is going on, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
