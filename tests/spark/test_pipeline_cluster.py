"""A pipeline file on a cluster: killed amid a batch of each sink, and an account of every message.

Its last step gives SQL a function ``gate``, through which each sink passes its rows. One row of
one sink, as ``--set`` says, makes its task wait there: then part of the batch is written.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.servers import Nsqd, start_nsqd
from tests.fixtures.spark import JVM, SPARK_PATIENCE, Program, SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = f"""
[source]
topic = "views"
channel = "reports"
nsqd = "${{NSQD}}"
nsqd_http = "${{NSQD_HTTP}}"
options = {{ maxMessagesPerTrigger = 400, msgTimeout = "3s", idleTimeout = "200ms" }}

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
options = {{ header = true }}

[[transform]]
name = "views"
sql = "SELECT n, page, section, at FROM input JOIN pages USING (page)"

[[transform]]
name = "sums"
sql = \"\"\"
SELECT date_format(window.start, 'HH:mm') AS start, section, count(*) AS views, sum(n) AS total
FROM input
GROUP BY window(at, '10 minutes'), section
\"\"\"

[[transform]]
name = "gated"
python = "gates:gated"
arguments = {{ port = 0, sink = "", number = 0 }}

[[sink]]
name = "archive"
of = "views"
select = "gate('archive', n) AS n, page, section, at"
format = "parquet"
path = "data/views"
partition_by = "section"

[[sink]]
name = "sums"
of = "gated"
select = "start, section, views, gate('sums', total) AS total"
format = "nsq"
topic = "sums"

[[sink]]
name = "broken"
of = "errors"
select = "gate('broken', int(substring(string(body), 8))) AS n, error, topic"
format = "json"
path = "data/broken"

[run.conf]
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.extraJavaOptions" = "{JVM}"
"spark.executor.extraJavaOptions" = "{JVM}"
"spark.sql.session.timeZone" = "UTC"
"spark.sql.shuffle.partitions" = 2
"spark.ui.enabled" = false
"""

GATES = """
import socket

def gated(frame, port, sink, number):
    def gate(name, value):
        if (name, value) == (sink, int(number)):
            with socket.create_connection(("127.0.0.1", int(port))) as held:
                held.recv(1)
        return value

    frame.sparkSession.udf.register("gate", gate, "bigint")
    return frame
"""

SECTIONS = {"/": "home", "/orders": "shop", "/help": "support", "/cart": "shop"}
START = datetime(2026, 1, 1, 6, tzinfo=UTC)
TOTAL = 2000


# --- messages -----------------------------------------------------------------------------------


def body(n: int) -> str:
    """A view, or each tenth time something else."""
    if n % 10 == 0:
        return f"broken {n}"
    return view(n, START + timedelta(seconds=3 * n))


def view(n: int, at: datetime) -> str:
    return json.dumps({"n": n, "page": list(SECTIONS)[n % 4], "at": at.isoformat()})


def publish(nsqds: list[Nsqd], numbers: Iterable[int]) -> None:
    """Publish messages, views and broken ones, to all nsqd in turns."""
    for place, nsqd in enumerate(nsqds):
        put(nsqd, [body(n) for n in numbers if n // 10 % len(nsqds) == place])


def put(nsqd: Nsqd, bodies: Iterable[str]) -> None:
    from nsqflow.blocking import Producer

    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many("views", [text.encode() for text in bodies])


def expected_sums() -> dict[tuple[str, str], dict[str, Any]]:
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for n in range(TOTAL):
        if n % 10:
            at = START + timedelta(seconds=3 * n)
            start = f"{at.hour:02}:{at.minute // 10}0"
            section = list(SECTIONS.values())[n % 4]
            empty = {"start": start, "section": section, "views": 0, "total": 0}
            one = sums.setdefault((start, section), empty)
            one["views"] += 1
            one["total"] += n
    return sums


# --- nsqd ---------------------------------------------------------------------------------------


def stats(nsqd: Nsqd, topic: str) -> dict[str, Any]:
    """What nsqd counts of a topic; nothing if it has none."""
    answer = json.loads(nsqd.ask(f"/stats?format=json&topic={topic}")[1])
    return dict(answer["topics"][0]) if answer["topics"] else {}


def is_read(nsqd: Nsqd, channel: str) -> bool:
    """Whether all that was published has come to the channel and is finished."""
    topic = stats(nsqd, "views")
    (found,) = [one for one in topic["channels"] if one["channel_name"] == channel]
    open_ = topic["depth"] + found["depth"] + found["in_flight_count"] + found["deferred_count"]
    return not open_ and found["message_count"] >= topic["message_count"]


def count_sums(nsqds: list[Nsqd]) -> int:
    return sum(stats(nsqd, "sums").get("message_count", 0) for nsqd in nsqds)


def received(nsqds: list[Nsqd], count: int) -> Counter[str]:
    """``count`` unread messages of the topic of sums, and how often each was delivered."""
    from nsqflow.blocking import Consumer

    addresses = [nsqd.tcp_address for nsqd in nsqds]
    bodies: list[str] = []
    with Consumer("sums", "test", nsqd=addresses) as consumer:
        for batch in consumer.batches(size=count, max_wait=SPARK_PATIENCE):
            bodies += [message.body.decode() for message in batch]
            batch.finish()
            if len(bodies) >= count:
                break
    return Counter(bodies)


# --- the pipeline -------------------------------------------------------------------------------


class Site:
    """A folder with the pipeline, its servers and its cluster."""

    def __init__(self, folder: Path, nsqds: list[Nsqd], cluster: SparkCluster) -> None:
        self.folder = folder
        self.nsqds = nsqds
        self._cluster = cluster
        (folder / "views.toml").write_text(PIPELINE)
        (folder / "gates.py").write_text(GATES)
        lines = [f"{page},{section}" for page, section in SECTIONS.items()]
        (folder / "pages.csv").write_text("\n".join(["page,section", *lines]))

    def run(self, *options: str) -> Program:
        command = [sys.executable, "-m", "nsqflow", "run", "views.toml", "--json"]
        return Program(
            [*command, "--master", self._cluster.master, *options],
            self.folder,
            NSQD=",".join(nsqd.tcp_address for nsqd in self.nsqds),
            NSQD_HTTP=",".join(nsqd.http_address for nsqd in self.nsqds),
            SPARK_LOCAL_IP="127.0.0.1",
            SPARK_LOCAL_DIRS=str(self.folder),
        )

    def strays(self, name: str) -> set[str]:
        """The files of a sink that no batch counts as its own."""
        folder = self.folder / "data" / name
        logged = "".join(path.read_text() for path in folder.glob("_spark_metadata/[0-9]*"))
        # Before the first byte is in it, Spark may yet change its mind.
        files = [path for path in folder.rglob("part-*") if path.stat().st_size]
        return {path.name for path in files if path.name not in logged}

    def open_batches(self, sink: str) -> set[str]:
        """The batches of a sink that were planned, and are not done."""
        checkpoint = self.folder / "nsqflow-data" / "views" / sink / "checkpoint"
        planned, done = (
            {path.name for path in (checkpoint / name).glob("[0-9]*")}
            for name in ("offsets", "commits")
        )
        return planned - done


class Gate:
    """Where a task that comes to a certain row of a sink waits until it is dead."""

    def __init__(self, sink: str, number: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(2 * SPARK_PATIENCE)
        settings = {"port": self._listener.getsockname()[1], "sink": sink, "number": number}
        self.options = [
            word
            for key, value in settings.items()
            for word in ("--set", f"transform.gated.arguments.{key}={value}")
        ]

    def kill(self, program: Program, *, when: Callable[[], object]) -> None:
        """Kill a program while a task waits and something holds; the task dies with it."""
        try:
            held, _ = self._listener.accept()
        except TimeoutError:
            pytest.fail(program.account())
        with held:
            until(when, program)
            program.kill()
            held.settimeout(SPARK_PATIENCE)
            assert held.recv(1) == b""

    def close(self) -> None:
        self._listener.close()


def until(holds: Callable[[], object], program: Program) -> None:
    deadline = time.monotonic() + 2 * SPARK_PATIENCE
    while not holds():
        assert time.monotonic() < deadline, program.account()
        assert program.process.poll() is None, program.account()
        time.sleep(0.05)  # neither files nor nsqd tell by themselves


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    for name in ("a", "b", "cluster", "shared"):
        (tmp_path / name).mkdir()
    with ExitStack() as end:
        nsqds = [end.enter_context(start_nsqd(tmp_path / name)) for name in ("a", "b")]
        cluster = end.enter_context(SparkCluster(tmp_path / "cluster"))
        yield Site(tmp_path / "shared", nsqds, cluster)


@pytest.mark.timeout(1200)
def test_a_pipeline_that_is_killed_amid_a_batch_of_each_sink_has_every_message_once(
    site: Site, spark: SparkSession
) -> None:
    half = TOTAL // 2
    publish(site.nsqds, range(half))
    with closing(Gate("archive", half - 299)) as gate, site.run(*gate.options) as run:
        gate.kill(run, when=lambda: site.strays("views"))
    assert site.open_batches("archive")
    publish(site.nsqds, range(half, TOTAL))
    with closing(Gate("broken", TOTAL - 300)) as gate, site.run(*gate.options) as run:
        gate.kill(run, when=lambda: site.strays("broken"))
    assert site.open_batches("broken")

    # A sum is written when a view comes that is late enough; what comes behind that is too late.
    sums = expected_sums()
    last = sums["07:00", "shop"]["total"]
    with closing(Gate("sums", last)) as gate, site.run(*gate.options) as run:
        until(lambda: all(is_read(nsqd, "reports.sums") for nsqd in site.nsqds), run)
        assert not count_sums(site.nsqds)
        put(site.nsqds[0], [view(TOTAL, START + timedelta(days=2))])
        gate.kill(run, when=lambda: count_sums(site.nsqds))
    assert site.open_batches("sums")
    before = received(site.nsqds, count_sums(site.nsqds))
    with site.run("--available-now") as run:
        run.await_end(3 * SPARK_PATIENCE)

    # Files: once, for who asks Spark; what the kills left behind is still there.
    assert site.strays("views")
    assert site.strays("broken")
    archive = spark.read.parquet(str(site.folder / "data" / "views")).collect()
    assert sorted(row.n for row in archive) == [*(n for n in range(TOTAL) if n % 10), TOTAL]
    assert all(row.section == SECTIONS[row.page] for row in archive)
    broken = spark.read.json(str(site.folder / "data" / "broken")).collect()
    assert sorted(row.n for row in broken) == [*range(0, TOTAL, 10)]
    assert {(row.error, row.topic) for row in broken} == {("not JSON", "views")}

    # NSQ: at least once. The batch that was broken off is published again, from its beginning.
    after = received(site.nsqds, count_sums(site.nsqds) - before.total())
    texts = {text: json.loads(text) for text in after}
    assert {(one["start"], one["section"]): one for one in texts.values()} == sums
    assert set(after.values()) == {1}
    assert len(after) == len(sums)
    assert before.keys() < after.keys()
