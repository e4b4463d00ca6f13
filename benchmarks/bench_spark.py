"""What the Spark connector can do, beside what Spark's interface for Python allows.

One warm JVM with two cores (local[2]), bodies of 200 bytes, all on this machine, nsqd too. Each run
has a topic of its own, filled before the clock starts. nsqd has its default options: what is more
than 10,000 messages comes from its disk queue.

source   1,000,000 messages into the sink `noop` by availableNow, in batches of 100,000: ours from 1
         and 2 nsqd; Arrow batches that a Python source has ready, which is the ceiling of the
         interface; parquet with the same columns; what the JVM makes up itself. The rate is that of
         the second batch to the last, from the start of the one to the end of the other
default  the same in batches of 500,000, as many as maxMessagesPerTrigger allows by default
memory   as source, from nsqd that hold all messages in memory
sink     1,000,000 rows in Spark's memory, by two tasks, to 1 and 2 nsqd; beside a writer that
         throws them away, and publish_many of 200, one awaited after the other, without Spark
partitions
         as source, from our own brokers: a topic with 2 partitions of the redesigned NSQ, beside
         one on 2 classic nsqd; half as many messages
ordered  an ordered topic with 2 partitions on our broker, a fiftieth of the messages: finished at
         once and stored together, which is how the source reads; beside each message stored before
         it is finished, as on a channel that is shared
latency  an idle stream, about one message a second: from publishing to foreachBatch; beside how
         long a batch takes that has one row, and that from the ceiling

With --against REV the connector of this tree runs beside that of the commit REV in alternating
rounds: source from 2 nsqd and sink to 1, each tree in a process and on a JVM of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks import against
from benchmarks.rounds import Goal, Report, Sampler, as_json, judge, show
from benchmarks.spark_cpu import show_cpu
from benchmarks.spark_latency import Latency
from benchmarks.spark_partitions import broker_reads
from benchmarks.spark_reads import Reads
from benchmarks.spark_stand_ins import register
from benchmarks.spark_tree import SCENARIOS, SparkTree
from benchmarks.spark_writes import Writes
from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import start_spark, stop_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 5
MESSAGES = 1_000_000
STEP = 2_000  # of which the messages are a multiple: whole batches of all kinds
LATENCIES = 20  # messages in a round
MAX_DELAY = 0.05  # seconds which an idle stream may take longer than a batch of the ceiling

ONE, TWO = "nsq, 1 nsqd", "nsq, 2 nsqd"
REDESIGNED, CLASSIC = "redesigned, 2 partitions", "classic, 2 nsqd, our broker"
AHEAD, EACH = "finished ahead", "each stored first"
CEILING = "ready-made Arrow batches"
PARQUET, RATE = "parquet", "rate-micro-batch"
PUBLISH_MANY, NOWHERE = "publish_many of 200, 1 nsqd", "discarding Arrow writer"


@dataclass(frozen=True)
class Setting:
    """What the tables share."""

    spark: SparkSession
    folder: Path
    messages: int = MESSAGES
    latencies: int = LATENCIES


@dataclass(frozen=True)
class Table:
    """Which contenders run together."""

    title: str
    samplers: Mapping[str, Sampler]
    goals: Sequence[Goal] = ()
    max_delay: float | None = None
    """Seconds by which our p50 may be above the ceiling's."""


@contextmanager
def two_nsqd(folder: Path, options: Sequence[str] = ()) -> Iterator[list[Nsqd]]:
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(TemporaryDirectory(dir=folder))) for _ in range(2)]
        yield [stack.enter_context(start_nsqd(each, options=options)) for each in folders]


@contextmanager
def reads_table(
    setting: Setting, *, batches: int, peers: bool = False, options: Sequence[str] = ()
) -> Iterator[Table]:
    reads = Reads(setting.spark, setting.folder, setting.messages, setting.messages // batches)
    goals = [Goal(TWO, (CEILING,), at_least=0.48), Goal(ONE, (CEILING,))]
    title = (
        f"read {setting.messages:,} messages in batches of {reads.per_trigger:,}, "
        f"nsqd {' '.join(options) or 'with its defaults'}; batches 2 to {batches}"
    )
    with two_nsqd(setting.folder, options) as nsqd:
        samplers: dict[str, Sampler] = {
            TWO: partial(reads.nsq, nsqd),
            ONE: partial(reads.nsq, nsqd[:1]),
            CEILING: reads.ready,
        }
        if peers:
            samplers |= {PARQUET: reads.parquet, RATE: reads.rate}
            goals += [Goal(PARQUET, (CEILING,)), Goal(RATE, (CEILING,))]
        yield Table(title, samplers, goals)


@contextmanager
def partitions_table(setting: Setting, *, batches: int) -> Iterator[Table]:
    messages = setting.messages // 2
    reads = Reads(setting.spark, setting.folder, messages, messages // batches)
    title = f"read {messages:,} messages from our brokers in batches of {reads.per_trigger:,}"
    with broker_reads(reads, "classic") as classic, broker_reads(reads, "redesigned") as redesigned:
        samplers: dict[str, Sampler] = {REDESIGNED: redesigned, CLASSIC: classic}
        yield Table(title, samplers, [Goal(REDESIGNED, (CLASSIC,), at_least=0.9)])


@contextmanager
def ordered_table(setting: Setting, *, batches: int) -> Iterator[Table]:
    messages = setting.messages // 50
    reads = Reads(setting.spark, setting.folder, messages, messages // batches)
    title = f"read {messages:,} messages of an ordered topic in batches of {reads.per_trigger:,}"
    with broker_reads(reads, "redesigned") as broker:
        samplers: dict[str, Sampler] = {
            AHEAD: replace(broker, ordered=True),
            EACH: replace(broker, ordered=True, shared=True),
        }
        yield Table(title, samplers, [Goal(AHEAD, (EACH,))])


@contextmanager
def writes_table(setting: Setting) -> Iterator[Table]:
    goals = [
        Goal(ONE, (PUBLISH_MANY,), at_least=0.5),
        Goal(TWO, (PUBLISH_MANY,)),
        Goal(ONE, (NOWHERE,)),
        Goal(TWO, (NOWHERE,)),
    ]
    with (
        two_nsqd(setting.folder) as nsqd,
        closing(Writes(setting.spark, setting.messages)) as writes,
    ):
        samplers: dict[str, Sampler] = {
            TWO: partial(writes.nsq, nsqd),
            ONE: partial(writes.nsq, nsqd[:1]),
            PUBLISH_MANY: partial(writes.publish_many, nsqd[0]),
            NOWHERE: writes.nowhere,
        }
        yield Table(f"write {setting.messages:,} rows by two tasks", samplers, goals)


@contextmanager
def latency_table(setting: Setting) -> Iterator[Table]:
    latency = Latency(setting.spark, setting.folder, setting.latencies)
    title = "an idle stream: from publishing to foreachBatch, and a batch of the ceiling"
    with two_nsqd(setting.folder) as (nsqd, _):
        samplers: dict[str, Sampler] = {ONE: partial(latency.nsq, nsqd), CEILING: latency.ready}
        yield Table(title, samplers, max_delay=MAX_DELAY)


TABLES: dict[str, Callable[[Setting], AbstractContextManager[Table]]] = {
    "source": partial(reads_table, batches=10, peers=True),
    "default": partial(reads_table, batches=2),
    "memory": partial(reads_table, batches=10, options=["-mem-queue-size=1000000"]),
    "partitions": partial(partitions_table, batches=10),
    "ordered": partial(ordered_table, batches=2),
    "sink": writes_table,
    "latency": latency_table,
}


def measure_table(table: Table, rounds: int) -> tuple[dict[str, object], bool]:
    """Measure and print; return the figures, and whether all goals are reached."""
    report = judge(table.title, table.samplers, table.goals, rounds=rounds)
    show(report)
    good = report.reached and not report.failures
    if table.max_delay is None:
        show_cpu(report)
        return as_json(report), good
    delays = delays_of(report)
    good &= show_delays(delays, table.max_delay)
    return as_json(report) | {"delays": delays, "max_delay": table.max_delay}, good


def delays_of(report: Report) -> list[float]:
    """By how many seconds our p50 was above that of the ceiling, round by round."""
    rounds = zip(report.samples.get(ONE, []), report.samples.get(CEILING, []), strict=False)
    return [ours.p50 - theirs.p50 for ours, theirs in rounds if ours.p50 and theirs.p50]


def show_delays(delays: Sequence[float], most: float) -> bool:
    """Print them; whether they are small enough."""
    if not delays:
        return False
    typical, low, high = (1000 * pick(delays) for pick in (median, min, max))
    reached = typical <= 1000 * most
    bounds = f"{low:.0f} to {high:.0f}; goal: {1000 * most:.0f} or less"
    verdict = "ok    " if reached else "MISSED"
    print(f"  {verdict} p50 of {ONE}: that of {CEILING} and {typical:.0f} ms ({bounds})")
    return reached


@contextmanager
def warm_spark(folder: Path, *, stand_ins: bool = True) -> Iterator[SparkSession]:
    """Start a session with the better compiler, which logs no errors: some are meant."""
    spark = start_spark(
        "local[2]",
        scratch=folder,
        **{
            "spark.driver.memory": "4g",
            "spark.driver.extraJavaOptions": f"-XX:-UsePerfData -Djava.io.tmpdir={folder}",
            "spark.log.level": "OFF",  # a query that is stopped within a batch is an error there
        },
    )
    try:
        if stand_ins:
            register(spark)
        yield spark
    finally:
        stop_spark(spark)


def compared_scenarios(
    args: argparse.Namespace, trees: Mapping[str, Path], stack: ExitStack
) -> against.Scenarios:
    """Yield the scenarios, each with the connector of this tree and of the other."""
    sparks = {
        name: stack.enter_context(SparkTree(against.environment_of(tree), args.messages))
        for name, tree in trees.items()
    }
    for scenario in args.only:
        yield scenario, {name: partial(spark.run, scenario) for name, spark in sparks.items()}


def main() -> int:
    args = parse_arguments()
    if args.against is not None:
        return against.run_comparison("spark", args, partial(compared_scenarios, args))
    figures: list[dict[str, object]] = []
    good = True
    # Where the figures go to the standard output, what is for people must not.
    with (
        redirect_stdout(sys.stderr if args.json == "-" else sys.stdout),
        TemporaryDirectory() as folder,
        warm_spark(Path(folder)) as spark,
    ):
        setting = Setting(spark, Path(folder), args.messages)
        for name in args.only:
            with TABLES[name](setting) as table:
                measured, reached = measure_table(table, args.rounds)
            figures.append(measured)
            good &= reached
    if args.json:
        text = json.dumps(figures, indent=2) + "\n"
        if args.json == "-":
            sys.stdout.write(text)
        else:
            Path(args.json).write_text(text)
    return 0 if good else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="write the figures to this file, or - for the output")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="after one to warm up")
    parser.add_argument("--messages", type=whole_batches, default=MESSAGES)
    parser.add_argument("--only", choices=TABLES, action="append", help="of the tables")
    parser.add_argument("--against", metavar="REV", help="compare with another commit")
    args = parser.parse_args()
    tables = list(TABLES)
    if args.against is not None:
        tables = list(SCENARIOS)
        if other := set(args.only or ()) - set(tables):
            parser.error(f"--against measures {' and '.join(tables)}, not {min(other)}")
    args.only = args.only or tables
    return args


def whole_batches(text: str) -> int:
    if not text.isdecimal() or not int(text) or int(text) % STEP:
        raise argparse.ArgumentTypeError(f"{text!r} messages; a multiple of {STEP:,} is needed")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
