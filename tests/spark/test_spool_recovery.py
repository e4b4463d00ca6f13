"""Rows of queries that failed, recovered by the command from their spools and checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException

from nsqflow.cli import main
from tests.fixtures.crashing import create_channel
from tests.fixtures.servers import Nsqd
from tests.fixtures.spark import published
from tests.fixtures.streams import Stream, addresses, read_twice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH = 50
OFFSET_LOG = "spark.sql.streaming.offsetLog.formatVersion"


def fail_second(stream: Stream, frame: DataFrame, batch: int) -> None:
    """Have the query fail when all of its second batch has been read."""
    read_twice(stream, frame, batch)
    if batch == 1:
        raise RuntimeError("the sink is full")


def recover(stream: Stream, path: Path, *words: str) -> list[int]:
    """The numbers of the recovered rows."""
    assert main(["spool", "recover", str(stream.spool), *words, "--output", str(path)]) == 0
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted(int(json.loads(line)["body"][:10]) for line in lines)


@pytest.mark.parametrize("version", ["1", "2"])
def test_the_rows_of_a_failed_batch_are_recovered_once_its_checkpoint_is_lost(
    spark: SparkSession, nsqd: Nsqd, tmp_path: Path, version: str
) -> None:
    topic = f"recovery-{uuid4().hex[:8]}"
    create_channel(nsqd, topic)
    published(nsqd, topic, 4 * BATCH)
    options = {"topic": topic, "maxMessagesPerTrigger": str(BATCH)}
    stream = Stream(spark, tmp_path, **addresses(nsqd), **options)
    before = spark.conf.get(OFFSET_LOG, "1")
    spark.conf.set(OFFSET_LOG, version)
    try:
        with pytest.raises(StreamingQueryException, match="the sink is full"):
            stream.run(each=fail_second)
    finally:
        spark.conf.set(OFFSET_LOG, before or "1")
    assert (stream.checkpoint / "offsets" / "1").read_text().startswith(f"v{version}\n")
    failed = [row.number for row in stream.batches()[1]]
    checkpoint = ["--checkpoint", str(stream.checkpoint)]
    assert recover(stream, tmp_path / "by checkpoint", *checkpoint) == sorted(failed)

    shutil.rmtree(stream.checkpoint)
    first = stream.numbers()
    stream.reads.clear()
    # In the same application, a new checkpoint on this spool would be refused.
    stream.run(allowSharedChannel="true")
    rows = recover(stream, tmp_path / "rows")
    assert rows == sorted(failed)
    assert sorted({*first, *rows}) == first
    assert sorted(first + stream.numbers()) == [*range(4 * BATCH)]
