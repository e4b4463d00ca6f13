"""Thousands of idle connections and a client gone mad, beside two that only want to work."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nsqflow import Consumer, Producer
from tests.faults.broker.footprint import (
    MEBIBYTE,
    complaints,
    most_resident,
    needs_proc,
    open_files,
    resident,
)
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import ROOT, Nsqd, start_nsqd

CROWD = 5_000
RESERVED = 1_000  # files that are not for the crowd
WILD = 4_000  # connections
MESSAGES = 30_000  # at least
ROUND = 500  # of them are published at a time
BOUND = 400 * MEBIBYTE  # of the server's memory


def most_files() -> int:
    """How many files a process may have open at the most."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


@contextmanager
def abuser(module: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run one of those modules as a process of its own."""
    command = [sys.executable, "-m", f"tests.faults.broker.{module}", *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def last_words(process: subprocess.Popen[str]) -> str:
    """Wait for its end, of which it is told if it needs to be; what it says then."""
    words, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return words


async def work(server: Nsqd, over: Callable[[], bool]) -> Counter[bytes]:
    """Publish and consume until it is over, and then all that is left; how often what came."""
    came: Counter[bytes] = Counter()
    sent = 0
    address = server.tcp_address
    consumer = Consumer("work", "out", nsqd=address, max_in_flight=1000)
    async with Producer(address) as producer, consumer:
        batches = consumer.batches(size=ROUND, max_wait=0.05)
        while sent < MESSAGES or not over():
            bodies = [b"%d" % number for number in range(sent, sent + ROUND)]
            await asyncio.gather(
                *(producer.publish("work", body) for body in bodies[: ROUND // 2]),
                producer.publish_many("work", bodies[ROUND // 2 :]),
            )
            sent += ROUND
            while came.total() < sent:
                batch = await anext(batches)
                came.update(message.body for message in batch)
                batch.finish()
    assert len(came) == sent
    return came


@needs_proc
@asynchronous
async def test_a_crowd_and_a_madman_do_not_disturb_those_who_work(
    tmp_path: Path, certificates: Certificates
) -> None:
    seed = int(os.environ.get("NSQFLOW_SEED", time.time_ns() % 10**6))
    print(f"NSQFLOW_SEED={seed}")
    count = min(CROWD, most_files() - RESERVED)
    if count < CROWD:
        print(f"only {count} connections: more files are not allowed here")
    options = ["-max-memory=100000000", "-msg-timeout=60s"]
    with start_nsqd(tmp_path, kind="ours", tls=certificates, options=options) as server:
        before = open_files(server), resident(server)
        host, port = server.tcp_address.rsplit(":", 1)
        with (
            abuser("crowd", host, port, count) as crowd,
            abuser("fuzzer", seed, server.tcp_address, server.http_address, WILD) as fuzzer,
        ):
            assert crowd.stdout is not None
            assert await asyncio.to_thread(crowd.stdout.readline)
            await eventually(lambda: open_files(server) >= before[0] + count)
            crowded = resident(server)
            began = time.monotonic()
            came = await work(server, lambda: fuzzer.poll() is not None)
            seconds = time.monotonic() - began
            status, health = await asyncio.to_thread(server.ask, "/ping")
            done = json.loads(await asyncio.to_thread(last_words, fuzzer))
            await asyncio.to_thread(last_words, crowd)
        await eventually(lambda: open_files(server) <= before[0] + 5)
        print(
            f"{count} connections beside {sum(done.values())} wild ones {done}; {len(came):,}"
            f" messages"
            f" in {seconds:.1f} s; memory {before[1] / MEBIBYTE:.0f} MiB before,"
            f" {crowded / MEBIBYTE:.0f} with the crowd, {most_resident(server) / MEBIBYTE:.0f} at"
            f" most, {resident(server) / MEBIBYTE:.0f} afterwards"
        )
        assert (status, health) == (200, b"OK")
        assert set(came.values()) == {1}
        assert most_resident(server) < BOUND
        assert complaints(server) == []


@needs_proc
def test_a_server_takes_as_many_files_as_it_may(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        server = start_nsqd(tmp_path, kind="ours")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with server:
        assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
