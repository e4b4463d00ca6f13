"""Drivers that are killed, with their JVM and all their tasks, at the worst of times.

The shared session takes over from them: a checkpoint and a spool are all that it has of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.fixtures.crashing import Fault, create_channel
from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import Driver, published
from tests.fixtures.streams import Stream, addresses, digest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1200)

# Runs several streams at once and prints their batches; in the requested one it waits until a pipe
# is written to.
SCRIPT = """
import json, sys, threading
from pathlib import Path
from tests.fixtures.crashing import Fault
from tests.fixtures.spark import start_spark
from tests.fixtures.streams import Stream, digest, rows_of

spark = start_spark("local[3,4]")

def run(folder, options, fault, stays_in):
    def each(stream, frame, batch):
        begun.set()
        rows = rows_of(frame)
        numbers = (row.number for row in rows)
        print(stream.topic, "batch", batch, digest(rows), *numbers, flush=True)
        if batch == stays_in:
            Path(folder, "pipe").read_text()

    Stream(spark, Path(folder), **options).run(Fault.from_option(fault), each, limit=600)

# One after the other: Spark gives each of their processes ten seconds to come up.
for stream in map(json.loads, sys.argv[1:]):
    begun = threading.Event()
    threading.Thread(target=run, args=stream).start()
    begun.wait()
"""

BATCH = 100
TOTAL = 4 * BATCH


@dataclass(frozen=True)
class Plight:
    """A stream of four batches that are published already, and what is to become of it."""

    folder: Path
    options: dict[str, str]
    fault: Fault
    stays_in: int

    def argument(self) -> str:
        """As the script takes it."""
        return json.dumps([str(self.folder), self.options, self.fault.option(), self.stays_in])

    def await_batch(self, driver: Driver, batch: int) -> tuple[str, list[int]]:
        """The digest and the numbers of a batch, once a driver has it."""
        line = driver.await_line(f"^{self.options['topic']} batch {batch} ").string
        _, _, _, digested, *numbers = line.split()
        return digested, [*map(int, numbers)]

    def taken_over(self, spark: SparkSession) -> Stream:
        """The stream, for another session to go on with."""
        return Stream(spark, self.folder, **self.options)

    def logged(self, log: str) -> list[str]:
        """The batches in one of Spark's logs: ``offsets`` or ``commits``."""
        found = (self.folder / "checkpoint" / log).glob("[0-9]*")
        return sorted(path.name for path in found)


def plight(
    nsqd: Nsqd, folder: Path, step: str = "never", number: int = 1, stays_in: int = -1
) -> Plight:
    """Publish its messages, and prepare its folder."""
    topic = f"drivers-{uuid4().hex[:8]}"
    create_channel(nsqd, topic)
    published(nsqd, topic, TOTAL)
    os.mkfifo(folder / "pipe")
    limits = {"maxMessagesPerTrigger": str(BATCH), "spoolRetentionBatches": "1"}
    fault = Fault(step, folder, "hang", passes=[number])
    return Plight(folder, {"topic": topic} | addresses(nsqd) | limits, fault, stays_in)


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that fills slots of 50 messages."""
    folder = tmp_path_factory.mktemp("nsqd")
    with start_nsqd(folder, options=["-max-rdy-count=50"]) as server:
        yield server


@dataclass(frozen=True)
class Killed:
    """Streams whose driver was killed, by the moment of that, and what it said of their batches."""

    in_batch: Plight
    in_task: Plight
    planned: Plight
    commit: Plight
    driver: Driver


@pytest.fixture(scope="module")
def killed(nsqd: Nsqd, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """One driver with four streams; each of them has come to its moment when it is killed."""
    new = tmp_path_factory.mktemp
    in_batch = plight(nsqd, new("in-batch"), stays_in=1)
    in_task = plight(nsqd, new("in-task"), "after publish")
    planned = plight(nsqd, new("planned"), "planned", 2)
    commit = plight(nsqd, new("commit"), "commit")
    arguments = [stream.argument() for stream in (in_batch, in_task, planned, commit)]
    with Driver(new("driver"), SCRIPT, *arguments) as driver:
        in_batch.await_batch(driver, 1)
        for step in ("after publish", "planned", "commit"):
            driver.await_log(f"hangs at: {step}")
        driver.kill()
    return Killed(in_batch, in_task, planned, commit, driver)


def test_a_driver_killed_in_a_batch_is_followed_by_one_that_reads_the_same(
    spark: SparkSession, killed: Killed
) -> None:
    left = killed.in_batch
    _, first = left.await_batch(killed.driver, 0)
    second, _ = left.await_batch(killed.driver, 1)
    assert (left.logged("offsets"), left.logged("commits")) == (["0", "1"], ["0"])
    stream = left.taken_over(spark)
    stream.run()
    assert digest(stream.batches()[1]) == second
    assert sorted(first + stream.numbers()) == [*range(TOTAL)]


def test_a_driver_killed_while_a_task_reads_is_followed_by_one_that_reads_on(
    spark: SparkSession, killed: Killed
) -> None:
    left = killed.in_task
    assert (left.logged("offsets"), left.logged("commits")) == (["0"], [])
    stream = left.taken_over(spark)
    (slot,) = stream.spool.glob("*/batches/00000001/*/0*")
    content = slot.read_bytes()
    stream.run(spoolRetentionBatches="9")
    assert slot.read_bytes() == content
    assert (slot.parent / "000001").exists()
    assert stream.numbers() == [*range(TOTAL)]


def test_a_driver_killed_before_the_offset_is_logged_has_pulled_nothing(
    spark: SparkSession, killed: Killed
) -> None:
    left = killed.planned
    _, first = left.await_batch(killed.driver, 0)
    assert (left.logged("offsets"), left.logged("commits")) == (["0"], ["0"])
    stream = left.taken_over(spark)
    (planned,) = stream.spool.glob("*/batches/00000002")
    assert [path.name for path in planned.iterdir()] == ["_planned"]
    stream.run()
    assert sorted(first + stream.numbers()) == [*range(TOTAL)]


def test_a_driver_killed_before_the_source_hears_of_a_commit_leaves_what_is_removed_later(
    spark: SparkSession, killed: Killed
) -> None:
    left = killed.commit
    _, first = left.await_batch(killed.driver, 0)
    assert (left.logged("offsets"), left.logged("commits")) == (["0", "1"], ["0"])
    stream = left.taken_over(spark)
    (batch,) = stream.spool.glob("*/batches/00000001")
    stream.run()
    assert sorted(first + stream.numbers()) == [*range(TOTAL)]
    assert not batch.exists()
