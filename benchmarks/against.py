"""This tree beside another commit of it, in alternating rounds.

Only the library differs: the benchmark is that of this tree, and PYTHONPATH says which nsqflow is
imported by the processes that are measured. Each row is a ratio, this tree over the other commit,
taken within a round. glibc's malloc gives no memory back to the kernel in these processes: by
chance of the layout of the heap, the page faults of trimming it would make two equal trees differ
by 20 %.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.rounds import (
    Goal,
    Measure,
    Ratio,
    Report,
    Sampler,
    as_json,
    measure,
    show,
    write_json,
)

ROOT = Path(__file__).resolve().parents[1]
THIS = "this tree"
LABELS: dict[Measure, str] = {
    "cpu": "CPU per message",
    "rate": "rate",
    "p50": "p50",
    "p99": "p99",
}

_NO_TRIMMING = {
    "MALLOC_TRIM_THRESHOLD_": "100000000",  # bytes
    "MALLOC_MMAP_THRESHOLD_": "100000000",
}


class RevisionError(Exception):
    """A revision that can't be compared with; says why in one line."""


def commit_of(revision: str, root: Path = ROOT) -> str:
    """Return the short hash of the commit that a revision names."""
    command = ["git", "rev-parse", "--verify", "--quiet", "--short", "--end-of-options"]
    try:
        found = subprocess.run(
            [*command, f"{revision}^{{commit}}"], cwd=root, capture_output=True, text=True
        )
    except FileNotFoundError:
        raise RevisionError("git is not installed") from None
    commit = found.stdout.split()[-1:]  # before it, an old git prints --end-of-options
    if found.returncode or not commit:
        raise RevisionError(f"{revision!r} is no commit of this repository")
    return commit[0]


@contextmanager
def sources_of(commit: str) -> Iterator[Path]:
    """Give the src folder of a commit, in a temporary folder."""
    with TemporaryDirectory(prefix="nsqflow-against-") as folder:
        archive = subprocess.run(
            ["git", "archive", "--format=zip", commit, "src"], cwd=ROOT, capture_output=True
        )
        if archive.returncode:
            raise RevisionError(f"{commit} has no folder src")
        with zipfile.ZipFile(io.BytesIO(archive.stdout)) as files:
            files.extractall(folder)
        sources = Path(folder, "src")
        check_import(sources)
        yield sources


def environment_of(sources: Path) -> dict[str, str]:
    """Return the environment of a process that imports nsqflow from a folder and trims no heap."""
    return {**os.environ, **_NO_TRIMMING, "PYTHONPATH": str(sources)}


def check_import(sources: Path) -> None:
    """Make sure that a worker gets this nsqflow, not the one that is installed."""
    found = subprocess.run(
        [sys.executable, "-c", "import nsqflow; print(nsqflow.__file__)"],
        cwd=ROOT,
        env=environment_of(sources),
        capture_output=True,
        text=True,
    )
    if not Path(found.stdout.strip()).resolve().is_relative_to(sources.resolve()):
        reason = found.stdout.strip() or found.stderr.strip().rpartition("\n")[2]
        raise RevisionError(f"nsqflow can't be imported from {sources}: {reason}")


def goals_of(scenario: str, other: str) -> list[Goal]:
    """Return the ratios to show; without bounds, as the machine decides what is noise."""
    # The pace of the latency is given, so its rate says nothing.
    measures: list[Measure] = ["cpu", "p50", "p99"] if scenario == "latency" else ["cpu", "rate"]
    return [Goal(THIS, (other,), of=measure) for measure in measures]


def verdict(scenario: str, report: Report) -> str:
    """Say in one line how this tree does beside the other commit."""
    if report.failures:
        return f"{scenario}: failed: " + "; ".join(
            f"{name}: {reason}" for name, reason in report.failures.items()
        )
    return f"{scenario}: " + ", ".join(map(described, report.ratios))


def described(ratio: Ratio) -> str:
    span = f"{ratio.low:.2f} to {ratio.high:.2f}"
    return f"{LABELS[ratio.goal.of]} {ratio.median:.2f}x ({span})"


def show_verdicts(other: str, rounds: int, reports: Mapping[str, Report]) -> None:
    print(f"{THIS} over {other}, median of {rounds} rounds (min to max):")
    for scenario, report in reports.items():
        print(f"  {verdict(scenario, report)}")


Scenarios = Iterable[tuple[str, Mapping[str, Sampler]]]
"""Names of scenarios, each with a sampler for each tree."""


def run_comparison(
    bench: str,
    args: argparse.Namespace,
    scenarios: Callable[[Mapping[str, Path], ExitStack], Scenarios],
) -> int:
    """Measure this tree beside ``args.against``; print, write; return the exit code.

    ``scenarios`` is called with the src folder of each tree, and a stack for what it starts.
    """
    try:
        commit = commit_of(args.against)
        with ended_by_sigterm(), sources_of(commit) as sources, ExitStack() as stack:
            reports: dict[str, Report] = {}
            for name, samplers in scenarios({THIS: ROOT / "src", commit: sources}, stack):
                reports[name] = measure(name, samplers, goals_of(name, commit), args.rounds)
                show(reports[name], ratios=False)
    except RevisionError as error:
        print(f"bench {bench} --against: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    show_verdicts(commit, args.rounds, reports)
    if args.json:
        write_json(Path(args.json), [as_json(report) for report in reports.values()])
    return 1 if any(report.failures for report in reports.values()) else 0


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """End by an exception on SIGTERM too, so that nothing temporary is left."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
