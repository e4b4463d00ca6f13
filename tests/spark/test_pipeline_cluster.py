"""A pipeline file on a cluster: killed, run again, and an account of every message."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import SPARK_PATIENCE, Program, SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = """
[source]
topic = "views"
channel = "reports"
nsqd = "${NSQD}"
nsqd_http = "${NSQD_HTTP}"
options = { maxMessagesPerTrigger = 400, msgTimeout = "3s", idleTimeout = "200ms" }

[parse]
format = "json"
schema = "n INT NOT NULL, page STRING NOT NULL, at TIMESTAMP NOT NULL"
watermark = "at"
delay = "2 hours"

[[table]]
name = "pages"
format = "csv"
path = "pages.csv"
schema = "page STRING, section STRING"
options = { header = true }

[[transform]]
name = "views"
sql = "SELECT n, page, section, at FROM input JOIN pages USING (page)"

[[transform]]
name = "by_hour"
sql = \"\"\"
SELECT date_format(window.start, 'HH') AS hour, section, count(*) AS views, sum(n) AS total
FROM input
GROUP BY window(at, '1 hour'), section
\"\"\"

[[sink]]
name = "archive"
of = "views"
format = "parquet"
path = "data/views"
partition_by = "section"

[[sink]]
name = "sums"
of = "by_hour"
format = "nsq"
topic = "sums"

[[sink]]
name = "broken"
of = "errors"
select = "CAST(body AS STRING) AS body, error, topic"
format = "json"
path = "data/broken"

[run.conf]
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.sql.session.timeZone" = "UTC"
"spark.sql.shuffle.partitions" = 2
"spark.ui.enabled" = false
"""

SECTIONS = {"/": "home", "/orders": "shop", "/help": "support", "/cart": "shop"}
START = datetime(2026, 1, 1, 6, tzinfo=UTC)
TOTAL = 2000


def body(n: int) -> str:
    """A view, or each tenth time something else."""
    if n % 10 == 0:
        return f"broken {n}"
    at = START + timedelta(seconds=3 * n)
    return json.dumps({"n": n, "page": list(SECTIONS)[n % 4], "at": at.isoformat()})


def publish(nsqd: Nsqd, bodies: Iterable[str]) -> None:
    from nsqflow.blocking import Producer

    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many("views", [text.encode() for text in bodies])


def run(folder: Path, nsqd: Nsqd, cluster: SparkCluster, *options: str) -> Program:
    command = [sys.executable, "-m", "nsqflow", "run", "views.toml", "--json"]
    return Program(
        [*command, "--master", cluster.master, *options],
        folder,
        NSQD=nsqd.tcp_address,
        NSQD_HTTP=nsqd.http_address,
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_LOCAL_DIRS=str(folder),
    )


def await_batches(program: Program, *sinks: str) -> None:
    for sink in sinks:
        program.await_line(f'"event": "batch", "sink": "{sink}"', 2 * SPARK_PATIENCE)


def received(nsqd: Nsqd) -> Counter[str]:
    """What the topic of sums has got, and how often."""
    from nsqflow.blocking import Consumer

    stats = json.loads(nsqd.ask("/stats?format=json&topic=sums")[1])
    count = stats["topics"][0]["message_count"]
    with Consumer("sums", "test", nsqd=nsqd.tcp_address) as consumer:
        batch = next(consumer.batches(size=count, max_wait=SPARK_PATIENCE))
        batch.finish()
    return Counter(message.body.decode() for message in batch)


def expected_sums() -> dict[tuple[str, str], dict[str, Any]]:
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for n in range(TOTAL):
        if n % 10:
            hour = f"{(START + timedelta(seconds=3 * n)).hour:02}"
            section = list(SECTIONS.values())[n % 4]
            empty = {"hour": hour, "section": section, "views": 0, "total": 0}
            one = sums.setdefault((hour, section), empty)
            one["views"] += 1
            one["total"] += n
    return sums


@pytest.mark.timeout(900)
def test_a_pipeline_that_is_killed_on_a_cluster_and_run_again_has_every_message_once(
    tmp_path: Path, spark: SparkSession
) -> None:
    folder = tmp_path / "shared"
    for path in (folder, tmp_path / "nsqd", tmp_path / "cluster"):
        path.mkdir()
    (folder / "views.toml").write_text(PIPELINE)
    lines = [f"{page},{section}" for page, section in SECTIONS.items()]
    (folder / "pages.csv").write_text("\n".join(["page,section", *lines]))
    with ExitStack() as end:
        nsqd = end.enter_context(start_nsqd(tmp_path / "nsqd"))
        cluster = end.enter_context(SparkCluster(tmp_path / "cluster"))
        publish(nsqd, map(body, range(TOTAL // 2)))
        with run(folder, nsqd, cluster) as first:
            await_batches(first, "archive")
            first.kill()
        publish(nsqd, map(body, range(TOTAL // 2, TOTAL)))
        with run(folder, nsqd, cluster) as second:
            await_batches(second, "archive", "sums", "broken")
            second.process.send_signal(signal.SIGTERM)
            assert second.process.wait(2 * SPARK_PATIENCE) == 143, second.account()
        # Late enough for all hours to be over.
        late = (START + timedelta(days=2)).isoformat()
        publish(nsqd, [json.dumps({"n": TOTAL, "page": "/", "at": late})])
        with run(folder, nsqd, cluster, "--available-now") as last:
            last.await_end(2 * SPARK_PATIENCE)

        archive = spark.read.parquet(str(folder / "data" / "views")).collect()
        numbers = [n for n in range(TOTAL) if n % 10]
        assert sorted(row.n for row in archive) == [*numbers, TOTAL]
        assert all(row.section == SECTIONS[row.page] for row in archive)
        broken = spark.read.json(str(folder / "data" / "broken")).collect()
        assert sorted(row.body for row in broken) == sorted(map(body, range(0, TOTAL, 10)))
        assert {(row.error, row.topic) for row in broken} == {("not JSON", "views")}

        # At least once: every sum is there, and what is there again is the same.
        sums = received(nsqd)
        distinct = [json.loads(text) for text in sums]
        assert {(one["hour"], one["section"]): one for one in distinct} == expected_sums()
        assert len(distinct) == len(expected_sums())
