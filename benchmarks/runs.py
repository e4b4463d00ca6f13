"""Runs of the clients: each in a process of its own, on a fresh topic of the same nsqd."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients.worker import BODY, PACE, SURPLUS
from benchmarks.rounds import ContenderFailed, Sample
from benchmarks.topics import Topic

ROOT = Path(__file__).resolve().parents[1]  # where the workers are found as modules
FIRST_COUNT = 4_000  # messages of the first run, from which the next is reckoned
STEP = 1_000  # counts are multiples: whole batches of all sizes
MAX_COUNT = 1_900_000  # below nsqd's -mem-queue-size
MARGIN = 1.2
MAX_GROWTH = 40.0
STARTUP = 20.0  # seconds for everything beside the messages, on a machine that is busy
PATIENCE = 10.0  # times as long as it should take


@dataclass(frozen=True)
class Figures:
    """What a worker prints at its end."""

    messages: int
    seconds: float
    cpu_seconds: float
    p50: float | None = None
    p99: float | None = None

    def sample(self) -> Sample:
        rate = self.messages / self.seconds
        return Sample(rate, self.cpu_seconds / self.messages * 1e6, self.p50, self.p99)


def read_figures(output: str) -> Figures:
    """The last line of a worker's output; before it some clients print what they like."""
    lines = output.splitlines()
    try:
        return Figures(**json.loads(lines[-1]))
    except (IndexError, ValueError, TypeError):
        raise ContenderFailed(f"printed no figures, but {lines[-1:]}") from None


class ClientRuns:
    """Runs one client in one scenario; how many messages a run needs is found in the first."""

    def __init__(
        self,
        command: Sequence[str],
        scenario: str,
        seconds: float,
        new_topic: Callable[[], Topic],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.command = [*command, scenario]
        self.kind = scenario.partition("-")[0]
        self.seconds = seconds
        self.new_topic = new_topic
        self.environment = environment
        self.count = 0

    def __call__(self) -> Sample:
        if not self.count:
            return self.find_count()
        return self.run_once(self.count).sample()

    def find_count(self) -> Sample:
        """A warm-up: longer and longer runs until one is long enough."""
        if self.kind == "latency":
            count = round(self.seconds / PACE)
            figures = self.run_once(count)
        else:
            count = FIRST_COUNT
            figures = self.run_once(count)
            while figures.seconds < self.seconds and count < MAX_COUNT:
                count = next_count(count, figures.seconds, self.seconds)
                figures = self.run_once(count)
        self.count = count
        return figures.sample()

    def run_once(self, count: int) -> Figures:
        """One process, one topic; nsqd must agree with what the worker says it has done."""
        with self.new_topic() as topic:
            if self.kind == "consume":
                topic.fill(count + SURPLUS, BODY)
            figures = read_figures(self.output_of_worker(topic, count))
            self.check(topic, count)
        return figures

    def check(self, topic: Topic, count: int) -> None:
        if self.kind == "latency":
            return
        expected = count if self.kind.startswith("publish") else count + SURPLUS
        if (published := topic.published()) != expected:
            raise ContenderFailed(f"published {published} messages and not {expected}")
        if self.kind in ("consume", "through"):
            topic.await_departure()
            if (left := topic.unfinished() - SURPLUS) > 0:
                raise ContenderFailed(f"left {left} of {count} messages unfinished")

    def output_of_worker(self, topic: Topic, count: int) -> str:
        command = [*self.command, topic.nsqd, topic.name, str(count)]
        patience = STARTUP + PATIENCE * self.seconds
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=patience,
            )
        except subprocess.TimeoutExpired:
            raise ContenderFailed(f"not done with {count} messages in {patience:g} s") from None
        if done.returncode:
            last_words = done.stderr.strip().rpartition("\n")[2]
            raise ContenderFailed(f"exit code {done.returncode}: {last_words}")
        return done.stdout


def next_count(count: int, took: float, wanted: float) -> int:
    """How many messages will take as long as wanted, a little more rather than less."""
    growth = min(MARGIN * wanted / took, MAX_GROWTH)
    return min(math.ceil(count * growth / STEP) * STEP, MAX_COUNT)
