"""A part of the spool that is gone or altered under an open batch, as Spark's users see it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException

from nsqflow.errors import DataLossError
from nsqflow.spark.options import parse_stream
from nsqflow.spark.source.offsets import PartitionId, make_key
from nsqflow.spark.source.partition_reader import read_partition
from nsqflow.spark.source.reader import NsqInputPartition
from nsqflow.spark.spool.layout import planned_marker
from nsqflow.spark.spool.store import open_store
from tests.fixtures.crashing import create_channel
from tests.fixtures.s3 import S3
from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import published
from tests.fixtures.streams import Stream, addresses, read_twice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLOT = 100
TOTAL = 3 * SLOT


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that fills slots of 100 messages."""
    folder = tmp_path_factory.mktemp("nsqd")
    with start_nsqd(folder, options=[f"-max-rdy-count={SLOT}"]) as server:
        yield server


@pytest.fixture
def stream(nsqd: Nsqd, spark: SparkSession, tmp_path: Path) -> Stream:
    topic = f"damage-{uuid4().hex[:8]}"
    create_channel(nsqd, topic)
    published(nsqd, topic, TOTAL)
    return Stream(spark, tmp_path, topic=topic, **addresses(nsqd))


def fail_after_reading(stream: Stream, frame: DataFrame, batch: int) -> None:
    read_twice(stream, frame, batch)
    raise RuntimeError("the sink is full")


def slot(number: int) -> Callable[[Stream], Path]:
    def find(stream: Stream) -> Path:
        (path,) = stream.spool.glob(f"*/batches/00000001/*/{number:06d}")
        return path

    return find


def share(stream: Stream) -> Path:
    return slot(0)(stream).parent


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("find", "damage", "why", "lost"),
    [
        pytest.param(slot(0), remove, "missing", [0], id="first missing"),
        pytest.param(slot(1), remove, "missing", [1], id="middle missing"),
        pytest.param(slot(2), remove, "missing", [2], id="last missing"),
        pytest.param(share, remove, "missing", [0, 1, 2], id="partition missing"),
        pytest.param(slot(1), truncate, "truncated or altered", [1], id="truncated"),
        pytest.param(slot(0), alter, "its rows were altered", [0], id="altered"),
    ],
)
def test_a_part_of_an_open_batch_that_is_lost_fails_the_query_until_the_loss_is_accepted(
    stream: Stream,
    find: Callable[[Stream], Path],
    damage: Callable[[Path], None],
    why: str,
    lost: list[int],
) -> None:
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        stream.run(each=fail_after_reading)
    assert stream.numbers() == [*range(TOTAL)]
    stream.reads.clear()
    path = find(stream)
    slots = [slot(number)(stream) for number in lost]
    damage(path)

    with pytest.raises(StreamingQueryException) as caught:
        stream.run()
    (said,) = {line for line in str(caught.value).splitlines() if "DataLossError: " in line}
    assert f"of batch 1, topic '{stream.topic}', channel 'spark', nsqd " in said
    assert f", in {slots[0].parent}: {slots[0].name} (" in said
    assert all(f"{path.name} (" in said for path in slots)
    assert why in said
    assert f"{SLOT * len(lost)} messages may be lost; put the files back, or start once" in said
    assert stream.reads == []

    stream.run(failOnDataLoss="false")
    left = stream.numbers()
    assert len(left) == len(set(left)) == TOTAL - SLOT * len(lost)
    stream.run()  # the loss is behind it


def test_a_batch_folder_that_is_gone_fails_the_query_until_the_loss_is_accepted(
    stream: Stream, nsqd: Nsqd
) -> None:
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        stream.run(each=fail_after_reading)
    stream.reads.clear()
    remove(share(stream).parent)
    published(nsqd, stream.topic, SLOT, first=TOTAL)
    with pytest.raises(StreamingQueryException, match="has nothing of batch 1 of generation"):
        stream.run()
    assert stream.reads == []
    stream.run(failOnDataLoss="false")
    assert stream.numbers() == [*range(TOTAL, TOTAL + SLOT)]


def test_a_batch_read_does_not_return_rows_of_an_altered_slot(
    spark: SparkSession, stream: Stream
) -> None:
    frame = spark.read.format("nsq").options(**stream.options).load()
    assert frame.count() == TOTAL
    (path,) = stream.spool.glob("batch-*/batches/00000001/*/000001")
    alter(path)
    with pytest.raises(Exception, match=r"DataLossError: the spool has lost slot 1 of batch 1"):
        frame.count()


# --- on S3 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["missing", "truncated", "altered", "all gone"])
def test_a_lost_slot_on_s3_is_an_error_or_skipped(nsqd: Nsqd, s3: S3, kind: str) -> None:
    topic = f"damage-{uuid4().hex[:8]}"
    location = s3.location(topic)
    create_channel(nsqd, topic)
    published(nsqd, topic, TOTAL)
    given = {"topic": topic, "channel": "spark", "spoolLocation": location, **addresses(nsqd)}
    store = open_store(location)
    store.write(planned_marker("gen", 1), b"{}")
    name = PartitionId("gen", 1, make_key(topic, nsqd.tcp_address), 0)

    def numbers(**options: str) -> list[int]:
        read = read_partition(NsqInputPartition(name, TOTAL), parse_stream(given | options))
        return [int(body[:10]) for batch in read for body in batch.column("body").to_pylist()]

    before = numbers()
    assert numbers() == before
    object_name = f"{name.folder}/000001"
    data = bytearray(store.read(object_name))
    data[5000] ^= 1
    if kind == "missing":
        store.remove(object_name)
    elif kind == "all gone":
        store.remove(name.folder)
    else:
        store.write(object_name, bytes(data if kind == "altered" else data[:1000]))
    with pytest.raises(DataLossError, match=f"in {location}/.*: .*000001 "):
        numbers()
    left = [] if kind == "all gone" else before[:SLOT] + before[2 * SLOT :]
    assert numbers(failOnDataLoss="false") == left
    assert numbers() == left
