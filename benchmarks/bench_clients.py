"""What publishing and consuming cost: nsqflow beside the Python clients of NSQ and go-nsq.

Each client runs in a process of its own, over one connection to the same nsqd, on a topic made
for the run, with bodies of 200 bytes. nsqd's output buffer is 16 KiB and 250 ms, its default, which
every client leaves or asks for; 25 ms where the latency is measured. What a client leaves undone
by nsqd's account is a failure, and a peer that fails is left out.

publish       200 in flight: coroutines, callbacks, greenlets; go-nsq by PublishAsync. nsqflow sends
              what is published in one turn of the loop as one MPUB, the others send each as a PUB
publish_many  batches of 200 (MPUB), one awaited after the other
consume       a full channel, max_in_flight 2500, from the first message to the last
latency       from publishing to the handler at 1000 messages a second, both in one process

With --against REV only nsqflow runs, on asyncio: this tree beside the commit REV, in alternating
rounds, both without malloc's trimming of the heap, which is noise. --only takes the ways to
consume too, such as consume-batch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import against
from benchmarks.rounds import (
    MIN_SECONDS,
    ROUNDS,
    Goal,
    Report,
    as_json,
    judge,
    show,
    write_json,
)
from benchmarks.runs import ROOT, ClientRuns
from benchmarks.topics import Topic
from tests.fixtures.servers import Nsqd, start_nsqd

NSQD_OPTIONS = ["-mem-queue-size=2000000"]  # a queue on disk would be what is measured
GO_CLIENT = Path(os.environ.get("NSQFLOW_GO_CLIENT", ROOT / ".dev/go-nsq/client"))


@dataclass(frozen=True)
class Entry:
    """A row of a table: a client, by one of the ways it has to do a thing."""

    client: str
    runs_on: str
    scenario: str
    way: str = ""

    @property
    def name(self) -> str:
        return f"{self.client}{self.way and ' ' + self.way} ({self.runs_on})"

    @property
    def command(self) -> list[str]:
        if self.client == "go-nsq":
            return [str(GO_CLIENT)]
        worker = "nsqflow_uvloop" if self.runs_on == "uvloop" else self.client
        return [sys.executable, "-m", f"benchmarks.clients.{worker}_worker"]


OURS = ("nsqflow", "asyncio")
RUNS_ON = {"pynsq": "Tornado", "ansq": "asyncio", "gnsq": "gevent", "asyncnsq": "asyncio"}
WAYS = {
    "consume-handler": "handler",
    "consume-iterator": "iterator",
    "consume-context": "iterator, async with message",
    "consume-batch": "batches of 500",
}


def ours(scenario: str, way: str = "") -> list[Entry]:
    return [Entry("nsqflow", loop, scenario, way) for loop in ("asyncio", "uvloop")]


def go(scenario: str) -> Entry:
    return Entry("go-nsq", "Go", scenario)


def peers(scenario: str) -> list[Entry]:
    return [Entry(client, loop, scenario) for client, loop in RUNS_ON.items()]


TABLES: dict[str, list[Entry]] = {
    "publish": [*ours("publish"), go("publish"), *peers("publish")],
    "publish_many": [*ours("publish_many"), go("publish_many"), *peers("publish_many")],
    "consume": [
        *(entry for scenario, way in WAYS.items() for entry in ours(scenario, way)),
        go("consume"),
        *peers("consume"),
    ],
    "latency": [*ours("latency")[:1], go("latency")],
}

GO = ("go-nsq (Go)",)
PEERS = tuple(entry.name for entry in peers(""))
GOALS: dict[str, list[Goal]] = {
    "publish": [
        Goal("nsqflow (asyncio)", GO, at_least=2.5),
        Goal("nsqflow (uvloop)", GO, at_least=3),
    ],
    "publish_many": [Goal("nsqflow (asyncio)", GO, at_least=0.9)],
    "consume": [
        Goal(f"nsqflow {WAYS[way]} (asyncio)", rivals, at_least=factor)
        for way in ("consume-handler", "consume-batch")
        for rivals, factor in ((GO, 4), (PEERS, 8))
    ],
    "latency": [Goal("nsqflow (asyncio)", GO, at_most=1.5, of="p99")],
}
TITLES = {
    "publish": "publish, 200 in flight (nsqflow coalesces them into MPUB)",
    "publish_many": "publish_many, 200 messages each, one after the other",
    "consume": "consume, max_in_flight 2500",
    "latency": "publish to handler, 1000 messages/s",
}


def selected(table: str, clients: Collection[str]) -> list[Entry]:
    return [entry for entry in TABLES[table] if not clients or entry.client in clients]


def measure_table(
    table: str, entries: Sequence[Entry], nsqd: Nsqd, args: argparse.Namespace
) -> Report:
    buffer = "16 KiB, 25 ms" if table == "latency" else "16 KiB, 250 ms"
    new_topic = partial(Topic, nsqd.tcp_address, nsqd.http_address)
    samplers = {
        entry.name: ClientRuns(entry.command, entry.scenario, args.seconds, new_topic)
        for entry in entries
    }
    title = f"{TITLES[table]}; 1 connection each, output buffer {buffer}"
    report = judge(title, samplers, GOALS[table], rounds=args.rounds)
    show(report)
    return report


def passed(report: Report) -> bool:
    """The goals are reached, and none but peers failed."""
    return report.reached and all(name in PEERS for name in report.failures)


def scenarios_of(names: Sequence[str]) -> list[str]:
    """Return what nsqflow does in these tables; the name of a way to consume stays."""
    rows = [entry for table in TABLES.values() for entry in table]
    asyncio_rows = [entry for entry in rows if (entry.client, entry.runs_on) == OURS]
    return [
        entry.scenario
        for name in names
        for entry in asyncio_rows
        if entry.scenario == name or entry in TABLES.get(name, ())
    ]


def compared_scenarios(
    args: argparse.Namespace, trees: Mapping[str, Path], stack: ExitStack
) -> against.Scenarios:
    """Yield the scenarios, each with the workers of this tree and of the other."""
    folder = stack.enter_context(TemporaryDirectory())
    nsqd = stack.enter_context(start_nsqd(Path(folder), options=NSQD_OPTIONS))
    new_topic = partial(Topic, nsqd.tcp_address, nsqd.http_address)
    for scenario in scenarios_of(args.only):
        command = Entry(*OURS, scenario).command
        yield (
            scenario,
            {
                name: ClientRuns(
                    command, scenario, args.seconds, new_topic, against.environment_of(tree)
                )
                for name, tree in trees.items()
            },
        )


def main() -> int:
    args = parse_arguments()
    if args.against is not None:
        return against.run_comparison("clients", args, partial(compared_scenarios, args))
    with TemporaryDirectory() as folder, start_nsqd(Path(folder), options=NSQD_OPTIONS) as nsqd:
        reports = [
            measure_table(table, entries, nsqd, args)
            for table in args.only
            if (entries := selected(table, args.clients))
        ]
    if args.json:
        write_json(args.json, [as_json(report) for report in reports])
    return 0 if all(map(passed, reports)) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=MIN_SECONDS, help="of each run")
    parser.add_argument(
        "--only", choices=[*TABLES, *WAYS], action="append", help="of the scenarios"
    )
    parser.add_argument("--clients", type=known_clients, default=[], help="comma-separated")
    parser.add_argument(
        "--against",
        metavar="REV",
        help="compare this tree with another commit; malloc trims no heap",
    )
    args = parser.parse_args()
    if args.against is not None and args.clients:
        parser.error("--against runs nsqflow alone: leave --clients out")
    if args.against is None and args.only and (ways := set(args.only) - set(TABLES)):
        parser.error(f"--only {min(ways)} is for --against")
    args.only = args.only or list(TABLES)
    return args


def known_clients(names: str) -> list[str]:
    known = ("nsqflow", "go-nsq", *RUNS_ON)
    chosen = names.split(",")
    if unknown := [name for name in chosen if name not in known]:
        raise argparse.ArgumentTypeError(f"no client {unknown[0]!r}; there are {', '.join(known)}")
    return chosen


if __name__ == "__main__":
    sys.exit(main())
