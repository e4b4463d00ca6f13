"""Thousands of idle connections and a client that sends invalid data, beside working clients."""

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
from tests.faults.broker.resources import (
    MEBIBYTE,
    max_resident,
    needs_proc,
    open_files,
    resident,
    unexpected_errors,
)
from tests.fixtures.certificates import Certificates
from tests.fixtures.loops import asynchronous, eventually
from tests.fixtures.servers import ROOT, Nsqd, start_nsqd

IDLE_CLIENTS = 5_000
RESERVED = 1_000  # files for other things than idle clients
INVALID_SESSIONS = 4_000
MESSAGES = 30_000  # at least
ROUND = 500  # of them are published at a time
MAX_MEMORY = 400 * MEBIBYTE  # of the server


def max_files() -> int:
    """Return the maximum of open files of a process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


@contextmanager
def client_process(module: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a module of this folder as a process."""
    command = [sys.executable, "-m", f"tests.faults.broker.{module}", *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def output_of(process: subprocess.Popen[str]) -> str:
    """Close the stdin of a process, wait for its end and return its output."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output


async def work(server: Nsqd, over: Callable[[], bool]) -> Counter[bytes]:
    """Publish and consume until ``over``, and then the rest; return how often each body came."""
    received: Counter[bytes] = Counter()
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
            while received.total() < sent:
                batch = await anext(batches)
                received.update(message.body for message in batch)
                batch.finish()
    assert len(received) == sent
    return received


@needs_proc
@asynchronous
async def test_idle_and_hostile_clients_do_not_disturb_others(
    tmp_path: Path, certificates: Certificates
) -> None:
    seed = int(os.environ.get("NSQFLOW_SEED", time.time_ns() % 10**6))
    print(f"NSQFLOW_SEED={seed}")
    count = min(IDLE_CLIENTS, max_files() - RESERVED)
    if count < IDLE_CLIENTS:
        print(f"only {count} connections: more files are not allowed here")
    options = ["-max-memory=100000000", "-msg-timeout=60s"]
    with start_nsqd(tmp_path, kind="ours", tls=certificates, options=options) as server:
        before = open_files(server), resident(server)
        host, port = server.tcp_address.rsplit(":", 1)
        with (
            client_process("idle_clients", host, port, count) as idle,
            client_process(
                "fuzzer", seed, server.tcp_address, server.http_address, INVALID_SESSIONS
            ) as fuzzer,
        ):
            assert idle.stdout is not None
            assert await asyncio.to_thread(idle.stdout.readline)
            await eventually(lambda: open_files(server) >= before[0] + count)
            with_idle_clients = resident(server)
            began = time.monotonic()
            received = await work(server, lambda: fuzzer.poll() is not None)
            seconds = time.monotonic() - began
            status, health = await asyncio.to_thread(server.ask, "/ping")
            done = json.loads(await asyncio.to_thread(output_of, fuzzer))
            await asyncio.to_thread(output_of, idle)
        await eventually(lambda: open_files(server) <= before[0] + 5)
        print(
            f"{count} connections beside {sum(done.values())} invalid sessions {done};"
            f" {len(received):,} messages"
            f" in {seconds:.1f} s; memory {before[1] / MEBIBYTE:.0f} MiB before,"
            f" {with_idle_clients / MEBIBYTE:.0f} with the idle ones,"
            f" {max_resident(server) / MEBIBYTE:.0f} at most,"
            f" {resident(server) / MEBIBYTE:.0f} afterwards"
        )
        assert (status, health) == (200, b"OK")
        assert set(received.values()) == {1}
        assert max_resident(server) < MAX_MEMORY
        assert unexpected_errors(server) == []


@needs_proc
def test_a_server_raises_its_limit_of_open_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        server = start_nsqd(tmp_path, kind="ours")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with server:
        assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
