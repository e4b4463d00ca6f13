"""Streams of redesigned topics through Spark, on our broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqflow.broker import BackgroundBroker
from tests.integration.spark.source.table_reads import TOPIC, now, publish
from tests.spark.queries import CHANNEL, Query, stream, table

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

PARTITIONS = 4
MESSAGES = 100_000


@pytest.fixture(scope="module")
def broker() -> Iterator[BackgroundBroker]:
    with BackgroundBroker("redesigned", 3, lose_moved_cursor=True) as broker:
        broker.create_topic(TOPIC, PARTITIONS, replicas=3)
        yield broker


@pytest.fixture(scope="module")
def middle(broker: BackgroundBroker) -> str:
    """Publish all messages; return the time at which half of them was there."""
    publish(broker, range(MESSAGES // 2))
    middle = now()
    publish(broker, range(MESSAGES // 2, MESSAGES))
    return middle


def numbers(rows: list[Row]) -> list[int]:
    return sorted(int(row.body) for row in rows)


@pytest.mark.parametrize("moved", [False, True])
def test_a_query_from_the_middle_has_exactly_what_came_later(
    spark: SparkSession, broker: BackgroundBroker, tmp_path: Path, middle: str, moved: bool
) -> None:
    """The leaders move when the channel was moved, and before it is read: that is undone."""
    moves = iter([True] if moved else [])

    def move() -> None:
        if next(moves, False):
            for partition in range(PARTITIONS):
                for node in range(3):  # one of them leads: a move to it does nothing
                    broker.move_leader(TOPIC, partition, node)

    options = {
        "topic": TOPIC,
        "channel": f"{CHANNEL}-{moved}",
        "lookupd": ",".join(broker.lookupd_addresses),
        "spoolLocation": str(tmp_path / "spool"),
        "startingPosition": middle,
        "maxMessagesPerTrigger": "20000",
    }
    frame = stream(spark, options).select("body", "partition", "offset")
    query = Query(frame, tmp_path, move, availableNow=True)
    query.await_end()
    assert numbers(query.rows) == [*range(MESSAGES // 2, MESSAGES)]
    assert next(moves, None) is None


def test_a_range_of_the_same_has_the_same_rows_each_time(
    spark: SparkSession, broker: BackgroundBroker, middle: str
) -> None:
    lookupd = ",".join(broker.lookupd_addresses)
    options = {"topic": TOPIC, "lookupd": lookupd, "mode": "range", "startingPosition": middle}
    first, second = (
        table(spark, options).select("body", "partition", "offset").collect() for _ in range(2)
    )
    assert first == second
    assert numbers(first) == [*range(MESSAGES // 2, MESSAGES)]
