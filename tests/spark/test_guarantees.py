"""What a task may do wrong, and that Spark still has every message once.

All of it happens in the session that is shared: the Python workers of a session come and go.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.fixtures.crashing import Fault, Stall, await_channel, channel, create_channel
from tests.fixtures.servers import ROOT, Nsqd, start_nsqd
from tests.fixtures.spark import published
from tests.fixtures.streams import Read, Stream, addresses, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLOT = 100


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that fills slots of 100 messages."""
    folder = tmp_path_factory.mktemp("nsqd")
    with start_nsqd(folder, options=[f"-max-rdy-count={SLOT}"]) as server:
        yield server


@pytest.fixture(scope="module")
def topics(nsqd: Nsqd) -> Iterator[str]:
    """Topics that nsqd knows well by the time they are used."""
    names = [f"guarantees-{number}-{uuid4().hex[:8]}" for number in range(20)]
    for name in names:
        create_channel(nsqd, name)
    return iter(names)


@pytest.fixture
def topic(topics: Iterator[str]) -> str:
    return next(topics)


@pytest.fixture
def stream(topic: str, spark: SparkSession, tmp_path: Path, nsqd: Nsqd) -> Stream:
    return Stream(spark, tmp_path, topic=topic, **addresses(nsqd))


# --- tasks that die -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "number", "comes_again"),
    [
        ("before publish", 2, True),
        ("after publish", 2, True),
        ("during FIN", 2, True),
        ("after FIN", 1, False),
        ("before yield", 1, False),
    ],
)
def test_a_task_that_dies_loses_and_repeats_nothing(
    step: str,
    number: int,
    comes_again: bool,
    nsqd: Nsqd,
    topic: str,
    stream: Stream,
    tmp_path: Path,
) -> None:
    published(nsqd, topic, 3 * SLOT)
    stream.run(Fault(step, tmp_path, passes=[number]))
    assert stream.numbers() == [*range(3 * SLOT)]

    await_channel(nsqd, topic, in_flight_count=0)
    assert (channel(nsqd.http_address, topic)["timeout_count"] > 0) == comes_again
    published(nsqd, topic, SLOT, first=3 * SLOT)
    stream.run()
    assert stream.numbers() == [*range(4 * SLOT)]
    await_channel(nsqd, topic, depth=0, in_flight_count=0)


def test_a_query_whose_task_died_too_often_goes_on_from_its_slots(
    nsqd: Nsqd, topic: str, stream: Stream, tmp_path: Path
) -> None:
    published(nsqd, topic, 6 * SLOT)
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        stream.run(Fault("after publish", tmp_path, passes=range(1, 5)))
    assert stream.reads == []
    slots = {path.name: path.read_bytes() for path in stream.spool.glob("*/batches/*/*/0*")}
    assert len(slots) == 4

    stream.run(spoolRetentionBatches="9")
    assert stream.numbers() == [*range(6 * SLOT)]
    replayed = {path.name: path for path in stream.spool.glob("*/batches/00000001/*/0*")}
    assert {name: replayed[name].read_bytes() for name in slots} == slots


def test_without_dedupe_a_task_that_dies_does_repeat(
    nsqd: Nsqd, topic: str, stream: Stream, tmp_path: Path
) -> None:
    published(nsqd, topic, 3 * SLOT)
    stream.run(Fault("after publish", tmp_path, passes=[2]), dedupe="off")
    await_channel(nsqd, topic, in_flight_count=0)
    stream.run(dedupe="off")
    assert Counter(Counter(stream.numbers()).values()) == {1: 2 * SLOT, 2: SLOT}


# --- tasks that stall ---------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["before publish", "after publish"])
def test_a_stall_beyond_msg_timeout_loses_and_repeats_nothing(
    step: str, nsqd: Nsqd, topic: str, stream: Stream, tmp_path: Path
) -> None:
    published(nsqd, topic, 6 * SLOT)
    stall = Stall(nsqd.http_address, topic, SLOT // 2)
    stream.run(Fault(step, tmp_path, stall, passes=[2]))
    assert stream.numbers() == [*range(6 * SLOT)]

    await_channel(nsqd, topic, in_flight_count=0)
    stream.run()
    assert stream.numbers() == [*range(6 * SLOT)]
    await_channel(nsqd, topic, depth=0, in_flight_count=0)


MANY = {"maxMessagesPerTrigger": str(SLOT), "spoolRetentionBatches": "1"}


def test_stalls_over_many_batches_that_leave_the_spool_at_once_repeat_nothing(
    nsqd: Nsqd, topic: str, stream: Stream, tmp_path: Path
) -> None:
    published(nsqd, topic, 8 * SLOT)
    stall = Stall(nsqd.http_address, topic, SLOT // 2)
    stream.options |= MANY
    stream.run(Fault("after publish", tmp_path, stall, passes=[1, 3]))
    assert stream.numbers() == [*range(8 * SLOT)]
    assert len(stream.batches()) >= 8
    assert len([*stream.spool.glob("*/batches/*")]) < 4


def test_without_dedupe_such_stalls_do_repeat(
    nsqd: Nsqd, topic: str, stream: Stream, tmp_path: Path
) -> None:
    published(nsqd, topic, 8 * SLOT)
    stall = Stall(nsqd.http_address, topic, SLOT // 2)
    stream.options |= MANY | {"dedupe": "off"}
    stream.run(Fault("after publish", tmp_path, stall, passes=[1, 3]))
    stream.run()  # those whose places were taken in the first
    repeated = Counter(stream.numbers())
    assert set(repeated) == {*range(8 * SLOT)}
    assert max(repeated.values()) > 1


def test_a_stall_with_two_partitions_per_nsqd_loses_nothing(
    nsqd: Nsqd, topic: str, stream: Stream, tmp_path: Path
) -> None:
    published(nsqd, topic, 6 * SLOT)
    stall = Stall(nsqd.http_address, topic, SLOT // 2)
    for _ in range(2):
        stream.run(Fault("before publish", tmp_path, stall), partitionsPerNsqd="2")
    assert {*stream.numbers()} == {*range(6 * SLOT)}  # repetitions are allowed here


# --- batches that are read in other ways than once and whole --------------------------------------


def test_tasks_that_race_for_the_same_slots_read_the_same_rows(
    nsqd: Nsqd, topic: str, stream: Stream
) -> None:
    def each(stream: Stream, frame: DataFrame, batch: int) -> None:
        both = rows_of(frame.union(frame))
        assert both[::2] == both[1::2]
        stream.reads.append(Read(batch, both[::2]))
        stream.reads.append(Read(batch, rows_of(frame)))

    published(nsqd, topic, 6 * SLOT)
    stream.run(each=each)
    assert stream.numbers() == [*range(6 * SLOT)]
    await_channel(nsqd, topic, depth=0, in_flight_count=0)


def test_two_actions_on_a_batch_read_the_same_rows(nsqd: Nsqd, topic: str, stream: Stream) -> None:
    def each(stream: Stream, frame: DataFrame, batch: int) -> None:
        last = rows_of(frame.where("cast(left(cast(body as string), 10) as int) >= 200"))
        stream.reads.append(Read(batch, rows_of(frame)))
        assert last == [row for row in stream.reads[-1].rows if row.number >= 200]

    published(nsqd, topic, 3 * SLOT)
    stream.run(each=each)
    assert stream.numbers() == [*range(3 * SLOT)]


def test_a_batch_that_was_looked_into_is_read_whole_afterwards(
    nsqd: Nsqd, topic: str, stream: Stream
) -> None:
    def each(stream: Stream, frame: DataFrame, batch: int) -> None:
        assert not frame.isEmpty()
        few = rows_of(frame.limit(5))
        stream.reads.append(Read(batch, rows_of(frame)))
        assert len(few) == len({*few} & {*stream.reads[-1].rows}) == 5

    published(nsqd, topic, 6 * SLOT)
    stream.run(each=each)
    assert stream.numbers() == [*range(6 * SLOT)]
    await_channel(nsqd, topic, depth=0, in_flight_count=0)


def test_a_message_that_is_published_twice_is_two_rows(
    nsqd: Nsqd, topic: str, stream: Stream
) -> None:
    published(nsqd, topic, 10)
    published(nsqd, topic, 10)
    stream.run(dedupe="always")
    assert stream.numbers() == sorted([*range(10)] * 2)
    assert len({row.id for rows in stream.batches().values() for row in rows}) == 20


# --- the page -----------------------------------------------------------------------------------


def test_every_test_that_the_page_of_guarantees_names_is_there() -> None:
    page = (ROOT / "docs" / "spark-guarantees.md").read_text()
    tests = {
        name
        for folder in ("spark", "integration/spark", "unit/spark")
        for path in (ROOT / "tests" / folder).rglob("*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    named = {*re.findall(r"`(test_\w+)`", page)}
    assert len(named) > 20
    assert named <= tests
