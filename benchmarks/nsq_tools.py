"""Runs of nsq's own bench_writer and bench_reader, both at the same time."""

from __future__ import annotations

import os
import re
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.clients.worker import CHANNEL
from benchmarks.rounds import ContenderFailed, Sample
from benchmarks.topics import Topic

TIMEOUT = 60.0  # seconds beside the run itself


class ToolRuns:
    """Publishes and consumes for some seconds; counts what was consumed."""

    def __init__(self, seconds: float, new_topic: Callable[[], Topic]) -> None:
        self.seconds = seconds
        self.new_topic = new_topic

    def __call__(self) -> Sample:
        before = children_cpu()
        with self.new_topic() as topic:
            topic.create_channel()
            # The channel is there first, so that bench_reader takes part from the beginning.
            reader = self.start("bench_reader", topic, f"-channel={CHANNEL}")
            writer = self.start("bench_writer", topic)
            received = read_rate(reader)
            read_rate(writer)
        messages = received * self.seconds
        return Sample(received, (children_cpu() - before) / messages * 1e6)

    def start(self, program: str, topic: Topic, *options: str) -> subprocess.Popen[str]:
        path = Path(os.environ["NSQFLOW_SERVERS"]) / program
        command = [str(path), f"-nsqd-tcp-address={topic.nsqd}", f"-topic={topic.name}"]
        return subprocess.Popen(
            [*command, f"-runfor={self.seconds:g}s", *options], stderr=subprocess.PIPE, text=True
        )


def read_rate(process: subprocess.Popen[str]) -> float:
    """Wait for a program's end and return the rate that it prints."""
    try:
        _, output = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise ContenderFailed(f"not done in {TIMEOUT:g} s") from None
    match = re.search(r"([\d.]+)ops/s", output)
    if process.returncode or match is None:
        raise ContenderFailed(f"exit code {process.returncode}: {output.strip()[-200:]}")
    return float(match[1])


def children_cpu() -> float:
    """Seconds of CPU of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
