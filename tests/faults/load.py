"""Many messages through one producer and one consumer, and the memory it takes.

    python -m tests.faults.load NSQD MESSAGES      prints figures as a line of JSON

A process of its own, so that nothing but the client is in the figures.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from nsqflow import Consumer, Message, Producer
from tests.fixtures.servers import ROOT, start_nsqd

WARM_UP = 100_000  # messages; by then every buffer has had its full size
WAVE = 2_000  # messages that are published at a time
BODY = b"x" * 100
ALLOWED = 10_000_000  # bytes that memory may have grown by since


@dataclass(frozen=True)
class Figures:
    """The figures of one run."""

    messages: int
    seconds: float
    rss_early: int
    """Bytes in memory after the warm-up."""
    rss_late: int
    """Bytes in memory at the end."""
    rss_peak: int
    tasks: int
    """Left at the end."""

    @property
    def grows(self) -> bool:
        """Memory is not where it was after the warm-up."""
        return self.rss_late - self.rss_early >= ALLOWED

    def __str__(self) -> str:
        early, late, peak = (n / 2**20 for n in (self.rss_early, self.rss_late, self.rss_peak))
        return (
            f"{self.messages:,} messages in {self.seconds:.1f} s; memory after the first "
            f"{WARM_UP:,}: {early:.1f} MiB, at the end: {late:.1f} MiB, at most: {peak:.1f} MiB"
        )


async def run_load(nsqd: str, messages: int) -> Figures:
    """Send ``messages`` in waves, not far ahead of the consumer."""
    began = time.monotonic()
    early = 0
    async with Producer(nsqd) as producer:
        consumer = Consumer("load", "out#ephemeral", nsqd=nsqd, max_in_flight=1000)
        progress = Progress()
        running = asyncio.create_task(consumer.run(progress.handle, signals=False))
        for sent in range(0, messages, WAVE):
            if sent == WARM_UP:
                await progress.reach(sent)
                early = resident_bytes()
            await asyncio.gather(*(producer.publish("load", BODY) for _ in range(WAVE)))
            await progress.reach(sent - WAVE)
        await progress.reach(messages)
        late = resident_bytes()
        await consumer.close()
        await running
    tasks = len(asyncio.all_tasks()) - 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Figures(messages, time.monotonic() - began, early, late, peak, tasks)


class Progress:
    """Counts handled messages, and waits for a number of them."""

    def __init__(self) -> None:
        self._count = 0
        self._wanted = 0
        self._reached = asyncio.Event()

    async def handle(self, message: Message) -> None:
        self._count += 1
        if self._count >= self._wanted:
            self._reached.set()

    async def reach(self, count: int) -> None:
        self._wanted = count
        if self._count < count:
            self._reached.clear()
            await self._reached.wait()


def resident_bytes() -> int:
    """What of this process is in memory, garbage not counted."""
    gc.collect()
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def measure_nsqd(messages: int, nsqd: str | None = None) -> Figures:
    """Run the load in a process of its own, and on an nsqd of its own unless one is given."""
    if nsqd is None:
        with tempfile.TemporaryDirectory() as folder, start_nsqd(Path(folder)) as server:
            return measure_nsqd(messages, server.tcp_address)
    command = [sys.executable, "-m", "tests.faults.load", nsqd, str(messages)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=600, check=True)
    return Figures(**json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(run_load(sys.argv[1], int(sys.argv[2]))))))
