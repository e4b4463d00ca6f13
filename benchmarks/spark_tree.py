"""The Spark connector of one tree: a process with a warm JVM and nsqd of its own.

The process reads the name of a scenario from its input, runs it and prints the sample as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from benchmarks.rounds import ContenderFailed, Sample

ROOT = Path(__file__).resolve().parents[1]
SCENARIOS = ("source", "sink")
BATCHES = 10


class SparkTree:
    """Runs scenarios in a process with a given environment."""

    def __init__(self, environment: Mapping[str, str], messages: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.spark_tree", str(messages)],
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, scenario: str) -> Sample:
        """Run a scenario once."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{scenario}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise ContenderFailed(f"ended with exit code {self._process.wait()}")
        figures = json.loads(answer)
        if "error" in figures:
            raise ContenderFailed(figures["error"])
        return Sample(figures["rate"], figures["cpu"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes its input, which ends it
            pass


def serve(messages: int) -> None:
    """Run what is asked for until the input ends."""
    # Loaded here alone: the parent has the nsqflow of this tree, and needs none of it.
    from benchmarks.bench_spark import two_nsqd, warm_spark
    from benchmarks.spark_reads import Reads
    from benchmarks.spark_writes import Writes

    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        spark = stack.enter_context(warm_spark(folder, stand_ins=False))
        nsqd = stack.enter_context(two_nsqd(folder))
        reads = Reads(spark, folder, messages, messages // BATCHES)
        writes = stack.enter_context(closing(Writes(spark, messages)))
        scenarios: dict[str, Callable[[], Sample]] = {
            "source": lambda: reads.nsq(nsqd),
            "sink": lambda: writes.nsq(nsqd[:1]),
        }
        for line in sys.stdin:
            try:
                sample = scenarios[line.strip()]()
            except ContenderFailed as error:
                print(json.dumps({"error": str(error)}), flush=True)
            else:
                print(json.dumps({"rate": sample.rate, "cpu": sample.cpu}), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
