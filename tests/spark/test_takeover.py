"""Drivers that end or stall while they own a spool, and the drivers that take it over."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.fixtures.crashing import Fault, await_channel, create_channel
from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import Driver, published
from tests.fixtures.streams import Stream, addresses
from tests.spark.test_drivers import SCRIPT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1200)

BATCH = 100
TOTAL = 4 * BATCH
LOST = (
    "does not belong to this query any more|comes too late|Multiple streaming jobs detected|"
    "CONCURRENT_STREAM"
)


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that fills slots of 50 messages."""
    folder = tmp_path_factory.mktemp("nsqd")
    with start_nsqd(folder, options=["-max-rdy-count=50"]) as server:
        yield server


@pytest.fixture
def options(nsqd: Nsqd) -> dict[str, str]:
    """The options of a stream of four batches that are published already."""
    topic = f"takeover-{uuid4().hex[:8]}"
    create_channel(nsqd, topic)
    published(nsqd, topic, TOTAL)
    return {"topic": topic, **addresses(nsqd), "maxMessagesPerTrigger": str(BATCH)}


def start(folder: Path, options: dict[str, str], fault: Fault, stays_in: int = -1) -> Driver:
    """Start a driver; in batch ``stays_in`` it waits until the pipe is written to."""
    os.mkfifo(folder / "pipe")
    return Driver(folder, SCRIPT, json.dumps([str(folder), options, fault.option(), stays_in]))


def numbers_of(driver: Driver, batches: int) -> list[int]:
    """Return the numbers in the batches that a driver has printed, each batch once."""
    lines = [driver.await_line(rf" batch {batch} ").string.split() for batch in range(batches)]
    return [int(number) for line in lines for number in line[4:]]


def never(folder: Path) -> Fault:
    return Fault("never", folder)


def test_a_driver_that_was_killed_is_replaced_at_once(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    patient = options | {"leaseTimeout": "10m"}  # a restart that waited for it would fail
    with start(tmp_path, patient, never(tmp_path), stays_in=1) as driver:
        first = numbers_of(driver, 2)
        driver.kill()
    stream = Stream(spark, tmp_path, **patient)
    stream.run()
    assert sorted(first[:BATCH] + stream.numbers()) == [*range(TOTAL)]
    assert sorted(row.number for row in stream.batches()[1]) == sorted(first[BATCH:])


def test_a_driver_that_stalls_in_a_batch_is_followed_by_one_with_the_same_rows(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    short = options | {"leaseTimeout": "3s"}
    with start(tmp_path, short, never(tmp_path), stays_in=1) as driver:
        first = numbers_of(driver, 2)
        driver.suspend()
        stream = Stream(spark, tmp_path, **short)
        stream.run()
        driver.wake()
        (tmp_path / "pipe").write_text("go on")
        driver.await_log(LOST)
    assert sorted(row.number for row in stream.batches()[1]) == sorted(first[BATCH:])
    assert sorted(first[:BATCH] + stream.numbers()) == [*range(TOTAL)]


@pytest.mark.parametrize("step", ["before publish", "after publish"])
def test_a_task_that_wakes_after_the_lease_was_taken_finishes_nothing(
    spark: SparkSession, nsqd: Nsqd, options: dict[str, str], tmp_path: Path, step: str
) -> None:
    short = options | {"leaseTimeout": "3s", "msgTimeout": "20s"}
    fault = Fault(step, tmp_path, "pause", passes=[2])
    with start(tmp_path, short, fault) as driver:
        driver.await_log(f"hangs at: {step}")  # it holds 50 messages of batch 0
        driver.suspend()
        stream = Stream(spark, tmp_path, **short)
        stream.run(idleTimeout="1s")
        driver.wake()
        (tmp_path / "go on").touch()
        driver.await_log(LOST)
        await_channel(nsqd, options["topic"], in_flight_count=0)
    stream.run()
    assert stream.numbers() == [*range(TOTAL)]
    await_channel(nsqd, options["topic"], depth=0, in_flight_count=0)


def test_a_second_driver_on_the_checkpoint_of_one_that_runs_is_refused(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    with start(tmp_path, options, never(tmp_path), stays_in=1) as driver:
        numbers_of(driver, 2)
        stream = Stream(spark, tmp_path, **options)
        with pytest.raises(Exception, match=r"SourceInUseError: .* belongs to a running query"):
            stream.run()
        (tmp_path / "pipe").write_text("go on")
        assert sorted(numbers_of(driver, 4)) == [*range(TOTAL)]
        driver.await_end()
    assert stream.reads == []
