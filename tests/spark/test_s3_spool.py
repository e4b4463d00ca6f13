"""A query whose spool is on S3: the driver dies in the middle of a batch, and nothing is lost."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fixtures.s3 import S3
from tests.fixtures.servers import start_nsqd
from tests.fixtures.spark import Driver, published

# Writes each batch to a file of its own, as a sink does that knows which batch it was given.
# The first time it says when the second batch has been read, and then waits for its end.
STREAM = """
import json, sys, time
from pathlib import Path
from tests.fixtures.spark import start_spark

nsqd, nsqd_http, spool, folder, hold = sys.argv[1:]

def keep(frame, batch):
    rows = sorted([bytes(row.body)[:10].decode(), bytes(row.id).decode(), row.attempts]
                  for row in frame.select("body", "id", "attempts").collect())
    if batch == 1 and hold == "hold":
        (Path(folder) / "seen").write_text(json.dumps(rows))
        print("in the middle", flush=True)
        time.sleep(600)
    (Path(folder) / f"batch-{batch}").write_text(json.dumps(rows))

spark = start_spark()
query = (
    spark.readStream.format("nsq")
    .options(topic="orders", channel="spark", nsqd=nsqd, nsqdHttp=nsqd_http, spoolLocation=spool)
    .option("maxMessagesPerTrigger", "8000")
    .load()
    .writeStream.foreachBatch(keep)
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(json.loads(query.lastProgress.json)["sources"][0]["latestOffset"]["spool"])
spark.stop()
"""

EACH = 10_000


@pytest.mark.timeout(1200)
def test_a_driver_that_is_killed_finds_its_batch_again_on_s3(tmp_path: Path, s3: S3) -> None:
    spool = s3.location("a-query/spool")
    with ExitStack() as end:
        nsqds = []
        for number, name in enumerate("ab"):
            (tmp_path / name).mkdir()
            nsqds.append(end.enter_context(start_nsqd(tmp_path / name)))
            published(nsqds[-1], "orders", EACH, first=number * EACH, channel="spark")
        arguments = [
            ",".join(nsqd.tcp_address for nsqd in nsqds),
            ",".join(nsqd.http_address for nsqd in nsqds),
            spool,
            str(tmp_path),
        ]
        with Driver(tmp_path, STREAM, *arguments, "hold", **s3.environment) as driver:
            driver.await_line("in the middle")
            driver.kill()
        with Driver(tmp_path, STREAM, *arguments, "go on", **s3.environment) as driver:
            assert driver.await_end() == [spool]
    batches = [json.loads((tmp_path / f"batch-{n}").read_text()) for n in range(3)]
    assert batches[1] == json.loads((tmp_path / "seen").read_text()), "replayed, row by row"
    rows = sorted(int(number) for batch in batches for number, _, _ in batch)
    assert rows == [*range(2 * EACH)]
