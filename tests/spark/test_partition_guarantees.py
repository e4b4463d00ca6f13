"""What Spark and its processes do to a stream of a redesigned topic: each message is a row once.

The broker has the hazards of the real servers. Its messages, on one partition, are numbers in the
order in which they were published.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from nsqflow.blocking import Producer
from nsqflow.broker import BackgroundBroker
from tests.fixtures.crashing import Fault, until
from tests.fixtures.spark import SPARK_PATIENCE, Driver
from tests.fixtures.streams import Read, Stream, digest, rows_of
from tests.spark.test_drivers import SCRIPT, Plight

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(1200)

SLOT = 50
BATCH = 100
TOTAL = 4 * BATCH


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker(
        "redesigned",
        nodes=3,
        max_rdy_count=SLOT,
        repeat_messages=True,
        skip_unfinished=True,
        lose_moved_cursor=True,
    ) as broker:
        yield broker


def waiting(broker: BackgroundBroker, *, ordered: bool) -> dict[str, str]:
    """Publish the numbers to a new topic; return the options that say where to read."""
    topic = f"t{uuid4().hex[:16]}"
    broker.create_topic(topic, replicas=3, ordered=ordered)
    broker.create_channel(topic, "spark")
    with Producer(lookupd=broker.lookupd_addresses) as producer:
        producer.publish_many(topic, [b"%010d " % number for number in range(TOTAL)])
    return {
        "topic": topic,
        "lookupd": ",".join(broker.lookupd_addresses),
        "maxMessagesPerTrigger": str(BATCH),
    }


def check(stream: Stream, *, ordered: bool, first: list[int] | None = None) -> None:
    """Check that there is each number once, in order over all batches of an ordered topic."""
    batches = [row.number for _, rows in sorted(stream.batches().items()) for row in rows]
    numbers = [*(first or []), *batches]
    assert sorted(numbers) == [*range(TOTAL)]
    assert not ordered or numbers == [*range(TOTAL)]


# --- tasks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ordered", "step"),
    [
        (False, "before publish"),
        (False, "after publish"),
        (False, "during FIN"),
        (True, "before publish"),
        (True, "after publish"),
    ],
)
def test_a_worker_that_dies_while_it_reads_a_partition_loses_and_repeats_nothing(
    spark: SparkSession, broker: BackgroundBroker, tmp_path: Path, ordered: bool, step: str
) -> None:
    stream = Stream(spark, tmp_path, **waiting(broker, ordered=ordered))
    fault = Fault(step, tmp_path, passes=[2])
    stream.run(fault)
    assert len([*fault.folder.iterdir()]) > 2
    check(stream, ordered=ordered)
    stream.run()
    check(stream, ordered=ordered)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_batch_of_partitions_may_be_read_twice_at_once_or_only_in_part(
    spark: SparkSession, broker: BackgroundBroker, tmp_path: Path, ordered: bool
) -> None:
    """Each read of the batch has the same rows."""

    def each(stream: Stream, frame: DataFrame, batch: int) -> None:
        assert not frame.isEmpty()
        few = rows_of(frame.limit(5))
        both = rows_of(frame.union(frame))
        assert both[::2] == both[1::2]
        assert len({*few} & {*both}) == 5
        stream.reads += [Read(batch, both[::2]), Read(batch, rows_of(frame))]

    stream = Stream(spark, tmp_path, **waiting(broker, ordered=ordered))
    stream.run(each=each)
    check(stream, ordered=ordered)


@pytest.mark.parametrize("ordered", [False, True])
def test_tasks_of_an_action_that_race_for_a_partition_read_the_same_rows(
    spark: SparkSession, broker: BackgroundBroker, tmp_path: Path, ordered: bool
) -> None:
    """No task has read anything of the batch before."""

    def each(stream: Stream, frame: DataFrame, batch: int) -> None:
        both = rows_of(frame.union(frame))
        assert both[::2] == both[1::2]
        stream.reads.append(Read(batch, both[::2]))

    stream = Stream(spark, tmp_path, **waiting(broker, ordered=ordered))
    stream.run(each=each)
    check(stream, ordered=ordered)


# --- drivers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Killed:
    """Streams whose driver was killed: in a batch, or while a task reads."""

    in_batch: dict[bool, Plight]
    in_task: dict[bool, Plight]
    driver: Driver


@pytest.fixture(scope="module")
def killed(broker: BackgroundBroker, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """One driver with four streams; each of them has come to its moment when it is killed."""

    def plight(ordered: bool, step: str, stays_in: int) -> Plight:
        folder = tmp_path_factory.mktemp("stream")
        os.mkfifo(folder / "pipe")
        fault = Fault(step, folder, "hang", passes=[2])
        return Plight(folder, waiting(broker, ordered=ordered), fault, stays_in)

    in_batch = {ordered: plight(ordered, "never", 1) for ordered in (False, True)}
    in_task = {ordered: plight(ordered, "after publish", -1) for ordered in (False, True)}
    arguments = [each.argument() for each in (*in_batch.values(), *in_task.values())]
    with Driver(tmp_path_factory.mktemp("driver"), SCRIPT, *arguments) as driver:
        for each in in_batch.values():
            each.await_batch(driver, 1)
        until(lambda: sum("hangs at:" in line for line in driver.log) == 2, SPARK_PATIENCE)
        driver.kill()
    return Killed(in_batch, in_task, driver)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_driver_killed_in_a_batch_of_partitions_is_followed_by_one_that_reads_the_same(
    spark: SparkSession, killed: Killed, ordered: bool
) -> None:
    left = killed.in_batch[ordered]
    _, first = left.await_batch(killed.driver, 0)
    second, _ = left.await_batch(killed.driver, 1)
    stream = left.taken_over(spark)
    stream.run()
    assert digest(stream.batches()[1]) == second
    check(stream, ordered=ordered, first=first)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_driver_killed_while_a_task_reads_a_partition_is_followed_by_one_that_reads_on(
    spark: SparkSession, killed: Killed, ordered: bool
) -> None:
    left = killed.in_task[ordered]
    stream = left.taken_over(spark)
    before = {path: path.read_bytes() for path in stream.spool.glob("*/batches/*/*/" + "[0-9]" * 6)}
    assert before
    said = [line.split() for line in killed.driver.lines if line.startswith(stream.topic)]
    done = len(left.logged("commits"))
    first = [int(number) for line in said if int(line[2]) < done for number in line[4:]]
    stream.run(spoolRetentionBatches="9")
    assert {path: path.read_bytes() for path in before} == before
    check(stream, ordered=ordered, first=first)
