"""Several nsqd, and what becomes of a query when one of them is lost, for a while or for good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException

from tests.fixtures.crashing import Fault, await_channel, create_channel
from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import published
from tests.fixtures.streams import Stream, addresses, read_twice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EACH = 200  # messages of an nsqd
SLOT = 50


def begin(folder: Path, name: str, *options: str) -> Nsqd:
    """Start an nsqd that has a folder of its own, and fills slots of 50 messages."""
    place = folder / name
    place.mkdir(exist_ok=True)
    return start_nsqd(place, options=[f"-max-rdy-count={SLOT}", *options])


def begin_again(folder: Path, name: str, before: Nsqd, *options: str) -> Nsqd:
    """Start it again, where it was."""
    ports = [f"-tcp-address={before.tcp_address}", f"-http-address={before.http_address}"]
    return begin(folder, name, *ports, *options)


def stream_of(spark: SparkSession, folder: Path, *nsqds: Nsqd, **options: str) -> Stream:
    """A stream of which each nsqd has its messages already, with numbers that follow on."""
    stream = Stream(spark, folder, topic=f"nsqds-{uuid4().hex[:8]}", **addresses(*nsqds), **options)
    for place, nsqd in enumerate(nsqds):
        create_channel(nsqd, stream.topic)
        published(nsqd, stream.topic, EACH, first=place * EACH)
        await_channel(nsqd, stream.topic, depth=EACH)
    return stream


def once_planned(batch: int, do: Callable[[], None]) -> Callable[[Stream, DataFrame, int], None]:
    """Do something when a batch is in Spark's log, and nothing of it has been read."""

    def each(stream: Stream, frame: DataFrame, number: int) -> None:
        if number == batch:
            do()
        read_twice(stream, frame, number)

    return each


def test_messages_of_two_nsqd_are_read_once_though_a_task_dies(
    spark: SparkSession, tmp_path: Path
) -> None:
    with begin(tmp_path, "one") as one, begin(tmp_path, "two") as two:
        stream = stream_of(spark, tmp_path, one, two)
        stream.run(Fault("after publish", tmp_path, passes=[3]))
        for nsqd in (one, two):
            await_channel(nsqd, stream.topic, in_flight_count=0)
        stream.run()
    assert stream.numbers() == [*range(2 * EACH)]
    for rows in stream.batches().values():
        assert all((row.nsqd == two.tcp_address) == (row.number >= EACH) for row in rows)


def test_an_nsqd_lost_for_good_is_an_error_that_says_how_to_go_on_without(
    spark: SparkSession, tmp_path: Path
) -> None:
    fault = Fault("nsqd gone", tmp_path)
    with begin(tmp_path, "one") as one, begin(tmp_path, "two") as two:
        stream = stream_of(spark, tmp_path, one, two, maxMessagesPerTrigger=str(EACH))
        said = (
            rf"{two.tcp_address}: .*: {EACH // 2} messages of topic '{stream.topic}' were planned "
            "from there; bring that nsqd back, or start once with failOnDataLoss=false"
        )
        with pytest.raises(StreamingQueryException, match=said):
            stream.run(fault, each=once_planned(1, two.kill))
        assert [*stream.batches()] == [0]

        stream.run(fault, failOnDataLoss="false")
    had = [row.number for row in stream.batches()[0] if row.nsqd == two.tcp_address]
    assert len(had) == EACH // 2
    assert stream.numbers() == [*range(EACH), *sorted(had)]


def test_an_nsqd_that_comes_back_has_what_was_planned_from_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    with begin(tmp_path, "one") as one, begin(tmp_path, "two") as two:
        stream = stream_of(spark, tmp_path, one, two, maxMessagesPerTrigger=str(EACH))
        with pytest.raises(StreamingQueryException, match="bring that nsqd back"):
            stream.run(Fault("nsqd gone", tmp_path), each=once_planned(1, two.stop))
        with begin_again(tmp_path, "two", two):
            stream.run()
    assert stream.numbers() == [*range(2 * EACH)]


@pytest.mark.parametrize(("dedupe", "most"), [("always", 1), ("redelivered", 2)])
def test_an_nsqd_that_is_killed_repeats_from_its_disk_what_only_dedupe_always_knows(
    dedupe: str, most: int, spark: SparkSession, tmp_path: Path
) -> None:
    def fail() -> None:
        raise RuntimeError("the sink is full")

    # All is on disk. What it has read of that, and what was finished, it would write down
    # now and then; this one never does, so that a crash takes it back to the beginning.
    on_disk = ["-mem-queue-size=0", "-sync-every=1000000", "-sync-timeout=1h"]
    limits = {"dedupe": dedupe, "maxMessagesPerTrigger": str(SLOT)}
    with begin(tmp_path, "one", *on_disk) as first:
        stream = stream_of(spark, tmp_path, first, **limits)
    with begin_again(tmp_path, "one", first, *on_disk) as second:
        with pytest.raises(StreamingQueryException, match="the sink is full"):
            stream.run(each=once_planned(3, fail))
        read = stream.numbers()
        assert len(read) == 3 * SLOT
        second.kill()
    with begin_again(tmp_path, "one", first, *on_disk) as third:
        await_channel(third, stream.topic, depth=EACH)
        stream.run()
        await_channel(third, stream.topic, depth=0, in_flight_count=0)
    assert {row.attempts for rows in stream.batches().values() for row in rows} == {1}
    counted = Counter(stream.numbers())
    assert set(counted) == {*range(EACH)}
    assert max(counted.values()) == most
