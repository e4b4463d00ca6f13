"""A spool that is gone: what is lost with it, and how a query says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException

from tests.fixtures.crashing import create_channel
from tests.fixtures.servers import Nsqd
from tests.fixtures.spark import published
from tests.fixtures.streams import Read, Stream, addresses, read_twice, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 100
TOTAL = 4 * BATCH


@pytest.fixture
def stream(nsqd: Nsqd, spark: SparkSession, tmp_path: Path) -> Stream:
    """A stream of four batches that are published already."""
    topic = f"spool-lost-{uuid4().hex[:8]}"
    create_channel(nsqd, topic)
    published(nsqd, topic, TOTAL)
    options = {"topic": topic, "maxMessagesPerTrigger": str(BATCH)}
    return Stream(spark, tmp_path, **addresses(nsqd), **options)


def failing_in(last: int) -> Callable[[Stream, DataFrame, int], None]:
    """Have the query fail when all of a batch has been read."""

    def each(stream: Stream, frame: DataFrame, batch: int) -> None:
        read_twice(stream, frame, batch)
        if batch == last:
            raise RuntimeError("the sink is full")

    return each


def test_a_batch_that_was_open_when_the_spool_was_lost_is_an_error_that_says_how_to_go_on(
    stream: Stream,
) -> None:
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        stream.run(each=failing_in(1))
    shutil.rmtree(stream.spool)
    before = stream.batches()
    stream.reads.clear()

    said = (
        rf"spoolLocation '{stream.spool}' has nothing of batch 2 of generation \w+: .* Up to "
        rf"{BATCH} messages of it may be lost; start once with failOnDataLoss=false"
    )
    with pytest.raises(StreamingQueryException, match=said):
        stream.run()
    assert stream.reads == []

    stream.run(failOnDataLoss="false")
    lost = [row.number for row in before[1]]
    had = [row.number for row in before[0]]
    assert len(lost) == BATCH
    assert sorted(had + lost + stream.numbers()) == [*range(TOTAL)]
    stream.run()  # to go on without was for once


def test_a_spool_that_is_lost_under_a_batch_fails_it_and_gives_it_no_other_rows(
    stream: Stream,
) -> None:
    def each(stream: Stream, frame: DataFrame, batch: int) -> None:
        stream.reads.append(Read(batch, rows_of(frame)))
        shutil.rmtree(stream.spool)
        rows_of(frame)

    with pytest.raises(
        StreamingQueryException, match="is not in the spool: this task comes too late"
    ):
        stream.run(each=each)
    first = stream.numbers()
    stream.reads.clear()
    stream.run(failOnDataLoss="false")
    assert sorted(first + stream.numbers()) == [*range(TOTAL)]


def test_a_spool_that_is_lost_between_batches_is_an_error_that_takes_nothing_with_it(
    stream: Stream, nsqd: Nsqd
) -> None:
    stream.run()
    shutil.rmtree(stream.spool)
    published(nsqd, stream.topic, BATCH, first=TOTAL)
    said = rf"spoolLocation '{stream.spool}' has nothing of generation \w+, which the checkpoint"
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=said):
            stream.run()
    stream.run(failOnDataLoss="false")
    stream.run()  # to go on without was for once
    assert stream.numbers() == [*range(TOTAL + BATCH)]
