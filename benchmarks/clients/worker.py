"""What the workers share: one worker is one client in a process of its own, for one run.

    python -m benchmarks.clients.pynsq_worker SCENARIO NSQD TOPIC COUNT

It connects, publishes or consumes COUNT messages, and prints one line of JSON: what it took
from the first message to the last. A consumer finds some more than it has to take. The program
of go-nsq in ``../go`` does the same.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

CHANNEL = "bench"
BY_LOOKUP = "lookupd="  # before the address of an nsqlookupd, where an nsqd is expected
BODY = bytes(200)
IN_FLIGHT = 200
BATCH = [BODY] * 200
MAX_IN_FLIGHT = 2500
# More messages follow the last one that counts: without them it would wait in nsqd's output buffer
# for the timeout of that, and every run would take a multiple of 250 ms.
SURPLUS = 2 * MAX_IN_FLIGHT
AHEAD = 20_000  # messages between publisher and consumer, where both are at work
PACE = 0.001  # seconds from one publish to the next, where the latency is measured
OUTPUT_BUFFER_TIMEOUT = 0.025
LINGER = 0.2  # seconds in which a client without a clean close gets its last commands out


@dataclass(frozen=True)
class Task:
    """What a worker is asked to do."""

    nsqd: str
    topic: str
    count: int

    @property
    def host(self) -> str:
        return self.nsqd.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.nsqd.rpartition(":")[2])


class Stopwatch:
    """The time of a run, and the CPU time of this process in it."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self.figures: dict[str, float] = {}

    def start(self) -> None:
        self.wall, self.cpu = perf_counter(), process_time()

    def stop(self) -> None:
        cpu, wall = process_time() - self.cpu, perf_counter() - self.wall
        self.figures.update(seconds=wall, cpu_seconds=cpu)

    def add_latencies(self, seconds: list[float]) -> None:
        ordered = sorted(seconds)
        self.figures["p50"] = ordered[len(ordered) // 2]
        self.figures["p99"] = ordered[len(ordered) * 99 // 100]


Scenario = Callable[[Task, Stopwatch], None]
AsyncScenario = Callable[[Task, Stopwatch], Coroutine[Any, Any, None]]


def main(scenarios: Mapping[str, Scenario]) -> None:
    """Do what the command line says and print the figures."""
    _, scenario, nsqd, topic, count = sys.argv
    stopwatch = Stopwatch()
    scenarios[scenario](Task(nsqd, topic, int(count)), stopwatch)
    print(json.dumps({"messages": int(count), **stopwatch.figures}))


def on_loop(
    scenarios: Mapping[str, AsyncScenario],
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> dict[str, Scenario]:
    """The scenarios, run by an event loop: by the standard one if no other is given."""

    def bound(scenario: AsyncScenario) -> Scenario:
        return lambda task, stopwatch: run(scenario(task, stopwatch))

    return {name: bound(scenario) for name, scenario in scenarios.items()}


async def publish_side_by_side(
    publish: Callable[[], Awaitable[object]], count: int, stopwatch: Stopwatch
) -> None:
    """Await ``count`` publishes, 200 of them at any time."""
    turns = iter(range(count))

    async def publish_on() -> None:
        for _ in turns:
            await publish()

    stopwatch.start()
    await asyncio.gather(*(publish_on() for _ in range(IN_FLIGHT)))
    stopwatch.stop()


async def publish_in_turn(
    publish_batch: Callable[[], Awaitable[object]], count: int, stopwatch: Stopwatch
) -> None:
    """Await one batch after the other."""
    stopwatch.start()
    for _ in batches(count):
        await publish_batch()
    stopwatch.stop()


def batches(count: int) -> Iterator[int]:
    return iter(range(0, count, len(BATCH)))
