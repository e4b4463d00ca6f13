"""What our nsqd can do beside the real one: each in a process of its own, under the same client.

The client is nsqflow on asyncio, one process with one connection to publish and one to consume:
batches of 500 bodies of 200 bytes (MPUB), one awaited after the other, and at the same time batches
of 500 at max_in_flight 2500 and nsqd's default output buffer. Not more than 20,000 messages lie
between. The rate counts what was published, consumed and finished; the CPU is the client's.

memory   queues in memory
durable  ours with -data-path: every message is on disk, synced, before it is answered and
         delivered; the real one with -mem-queue-size=0: every message goes through its disk queue,
         synced every 2500; and the real one by default: it stores what 10,000 messages in memory
         leave over
tools    the same servers under nsq's own bench_writer and bench_reader at the same time, as many
         connections each as there are cores: batches of 200 bodies of 200 bytes, each answered
         before the next, and RDY 2500. The rate counts what bench_reader received and finished
redesigned
         ours of the redesigned NSQ, one node and one partition, beside ours of the classic NSQ;
         clients ask nsqlookupd in both. Publishing, and publishing and consuming at once
start    from the command to the OK for a first PUB, the median of five

With --against REV our nsqd of this tree runs beside that of the commit REV, in alternating rounds,
under the client of this tree; the CPU is then that of nsqd.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks import against
from benchmarks.clients.worker import BY_LOOKUP
from benchmarks.nsq_tools import ToolRuns
from benchmarks.rounds import (
    MIN_SECONDS,
    ROUNDS,
    Goal,
    Report,
    Sample,
    Sampler,
    as_json,
    judge,
    show,
    write_json,
)
from benchmarks.runs import ClientRuns
from benchmarks.topics import PartitionTopic, Topic
from tests.fixtures.servers import Kind, Nsqd, command_of

NAMES: dict[Kind, str] = {"ours": "nsqflow nsqd (uvloop)", "real": "nsqd 1.3.0 (Go)"}
OURS, REAL = NAMES["ours"], NAMES["real"]
ON_DISK, BY_DEFAULT = f"{REAL}, -mem-queue-size=0", f"{REAL}, by default"
WORKER = [sys.executable, "-m", "benchmarks.clients.nsqflow_worker"]
IN_MEMORY = "-mem-queue-size=1000000"
GOALS = {
    "memory": [Goal(OURS, (REAL,), at_least=0.2)],
    "durable": [Goal(OURS, (ON_DISK,)), Goal(OURS, (BY_DEFAULT,))],
    "tools": [Goal(OURS, (ON_DISK,)), Goal(OURS, (BY_DEFAULT,))],
}
TITLES = {
    "memory": "publish_many and batches through nsqd, memory; client on asyncio, 2 connections",
    "durable": "publish_many and batches through nsqd, durable; client on asyncio, 2 connections",
    "tools": "bench_writer and bench_reader through nsqd, durable",
}
CLASSIC, REDESIGNED = "nsqflow broker", "nsqflow broker --redesigned"
REDESIGNED_SCENARIOS = ("publish_many", "through")
STARTS = 5
MAX_START = 1.5  # seconds
PUB = b"  V2PUB start\n" + struct.pack(">l", 1) + b"x"
OK = struct.pack(">ll", 6, 0) + b"OK"


def start(kind: Kind, *options: str) -> Nsqd:
    addresses = ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
    return Nsqd([*command_of("nsqd", kind), *addresses, *options], [])


def start_in_memory(folder: Path, kind: Kind) -> Nsqd:
    # The real one can't do without a folder, but leaves no message there.
    options = [f"-data-path={folder}"] if kind == "real" else []
    return start(kind, IN_MEMORY, *options)


def start_durable(folder: Path, kind: Kind, *options: str) -> Nsqd:
    return start(kind, f"-data-path={folder}", *options)


Starter = Callable[[Path], Nsqd]
DURABLE: dict[str, Starter] = {
    OURS: partial(start_durable, kind="ours"),
    ON_DISK: lambda folder: start_durable(folder, "real", "-mem-queue-size=0"),
    BY_DEFAULT: partial(start_durable, kind="real"),
}
STARTERS: dict[str, dict[str, Starter]] = {
    "memory": {name: partial(start_in_memory, kind=kind) for kind, name in NAMES.items()},
    "durable": DURABLE,
    "tools": DURABLE,
}


def measure_table(table: str, rounds: int, seconds: float) -> Report:
    with ExitStack() as stack:
        samplers: dict[str, Sampler] = {}
        for name, start_in in STARTERS[table].items():
            folder = Path(stack.enter_context(TemporaryDirectory()))
            nsqd = stack.enter_context(start_in(folder))
            new_topic = partial(Topic, nsqd.tcp_address, nsqd.http_address)
            if table == "tools":
                samplers[name] = ToolRuns(seconds, new_topic)
            else:
                samplers[name] = ClientRuns(WORKER, "through", seconds, new_topic)
        report = judge(TITLES[table], samplers, GOALS[table], rounds=rounds)
    show(report)
    return report


def measure_redesigned(rounds: int, seconds: float) -> list[Report]:
    """Measure our redesigned broker beside our classic one."""
    reports = []
    for scenario in REDESIGNED_SCENARIOS:
        with ExitStack() as stack:
            samplers: dict[str, Sampler] = {}
            for name, flags in ((CLASSIC, []), (REDESIGNED, ["--redesigned"])):
                addresses = stack.enter_context(start_broker(*flags))
                new_topic = partial(broker_topic, addresses, redesigned=bool(flags))
                samplers[name] = ClientRuns(WORKER, scenario, seconds, new_topic)
            goals = [Goal(REDESIGNED, (CLASSIC,), at_least=0.85)]
            title = f"{scenario} through our brokers; client on asyncio, by nsqlookupd"
            reports.append(judge(title, samplers, goals, rounds=rounds))
        show(reports[-1])
    return reports


@contextmanager
def start_broker(*flags: str) -> Iterator[dict[str, Any]]:
    """Start a broker in a process of its own; yield its addresses."""
    command = [sys.executable, "-m", "nsqflow", "broker", "--port", "0", "--json", *flags]
    with Popen(command, stdout=PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def broker_topic(addresses: dict[str, Any], *, redesigned: bool) -> Topic:
    if not redesigned:
        return Topic(BY_LOOKUP + addresses["lookupd"], addresses["nsqd_http"])
    lookupd = addresses["lookupd"][0]
    return PartitionTopic(BY_LOOKUP + lookupd, addresses["nsqd_http"][0], lookupd)


@dataclass(frozen=True)
class ServerRuns:
    """Runs of a client, with the CPU of the server."""

    client: ClientRuns
    server: int

    def __call__(self) -> Sample:
        before = cpu_seconds(self.server)
        sample = self.client()
        taken = cpu_seconds(self.server) - before
        return replace(sample, cpu=taken / self.client.count * 1e6)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, more exactly than in clock ticks."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


def compared_scenarios(
    args: argparse.Namespace, trees: Mapping[str, Path], stack: ExitStack
) -> against.Scenarios:
    """Yield the scenarios, each with our nsqd of this tree and of the other."""
    for table in args.only:
        samplers: dict[str, Sampler] = {}
        for name, tree in trees.items():
            folder = stack.enter_context(TemporaryDirectory())
            options = [IN_MEMORY] if table == "memory" else [f"-data-path={folder}"]
            nsqd = stack.enter_context(start_of_tree(tree, *options))
            new_topic = partial(Topic, nsqd.tcp_address, nsqd.http_address)
            environment = against.environment_of(trees[against.THIS])
            client = ClientRuns(WORKER, "through", args.seconds, new_topic, environment)
            samplers[name] = ServerRuns(client, nsqd.process.pid)
        yield table, samplers


def start_of_tree(tree: Path, *options: str) -> Nsqd:
    """Start our nsqd from a folder of sources."""
    wanted = against.environment_of(tree)
    variables = [f"{name}={text}" for name, text in wanted.items() if os.environ.get(name) != text]
    addresses = ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
    return Nsqd(["env", *variables, *command_of("nsqd", "ours"), *addresses, *options], [])


def time_start(kind: Kind) -> float:
    """Seconds until a command has become an nsqd that takes messages."""
    with TemporaryDirectory() as folder:
        before = perf_counter()
        with start_in_memory(Path(folder), kind) as nsqd, nsqd.connect() as connection:
            connection.sendall(PUB)
            answer = b""
            while len(answer) < len(OK) and (data := connection.recv(len(OK) - len(answer))):
                answer += data
            took = perf_counter() - before
        if answer != OK:
            raise RuntimeError(f"{NAMES[kind]} answers {answer!r} to a first PUB")
        return took


def measure_starts() -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in NAMES.values()}
    for _ in range(STARTS):
        for kind, name in NAMES.items():
            taken[name].append(time_start(kind))
    return taken


def show_starts(taken: dict[str, list[float]]) -> bool:
    """Print the times; whether ours is quick enough."""
    print("from the command to the first PUB answered OK")
    for name, seconds in taken.items():
        span = f"{min(seconds):.2f} to {max(seconds):.2f}"
        print(f"  {name:21}  {median(seconds):.2f} s ({span})")
    reached = median(taken[NAMES["ours"]]) <= MAX_START
    print(f"  {'ok    ' if reached else 'MISSED'} {NAMES['ours']} (goal: {MAX_START} s or less)")
    return reached


def main() -> int:
    args = parse_arguments()
    if args.against is not None:
        return against.run_comparison("broker", args, partial(compared_scenarios, args))
    good = True
    figures: list[dict[str, object]] = []
    for table in args.only:
        if table == "start":
            starts = measure_starts()
            good &= show_starts(starts)
            figures.append({"title": "start", "seconds": starts})
        elif table == "redesigned":
            for report in measure_redesigned(args.rounds, args.seconds):
                good &= report.reached and not report.failures
                figures.append(as_json(report))
        else:
            report = measure_table(table, args.rounds, args.seconds)
            good &= report.reached and not report.failures
            figures.append(as_json(report))
    if args.json:
        write_json(args.json, figures)
    return 0 if good else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = [*STARTERS, "redesigned", "start"]
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=MIN_SECONDS, help="of each run")
    parser.add_argument("--only", choices=tables, action="append", help="of the scenarios")
    parser.add_argument(
        "--against", metavar="REV", help="compare our nsqd with that of another commit"
    )
    args = parser.parse_args()
    if args.against is not None:
        tables = ["memory", "durable"]
        if other := set(args.only or ()) - set(tables):
            parser.error(f"--against measures {' and '.join(tables)}, not {min(other)}")
    args.only = args.only or tables
    return args


if __name__ == "__main__":
    sys.exit(main())
