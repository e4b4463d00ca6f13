"""A declarative pipeline over NSQ: the example project, run with the commands of its page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nsqflow.blocking import Consumer, Producer
from tests.fixtures.servers import PATIENCE, ROOT, Nsqd, Nsqlookupd, start_nsqd, start_nsqlookupd
from tests.fixtures.spark import (
    SPARK_PATIENCE,
    Program,
    published,
    quick_options,
    start_command,
)
from tests.spark.queries import CHANNEL, Rival

EXAMPLE = ROOT / "examples" / "spark" / "declarative"
PAGE = ROOT / "docs" / "spark-declarative.md"

CREATE = "nsqflow create --lookupd 127.0.0.1:4161 orders landing"
RUN = "SPARK_CONF_DIR=conf spark-pipelines run --remote 'local[*,4]'"
LOOK = "SPARK_CONF_DIR=conf spark-sql -S -e 'SELECT * FROM shops ORDER BY shop'"

RUN_PATIENCE = 2 * SPARK_PATIENCE  # seconds for a run, whose JVMs are two

SHOPS = ("Lisbon", "Oslo", "Turin")

SHARED_VIEW = """
from pyspark import pipelines as dp

@dp.temporary_view
def messages():
    return (
        spark.readStream.format("nsq")
        .option("lookupd", spark.conf.get("spark.orders.lookupd"))
        .option("topic", "shared")
        .option("channel", "CHANNEL")
        .option("spoolLocation", f"{spark.conf.get('spark.orders.spool')}/shared")
        .option("msgTimeout", "600s")
        .load()
    )

@dp.table
def one():
    return spark.readStream.table("messages")

@dp.table
def other():
    return spark.readStream.table("messages")
"""


class Project:
    """A copy of the example with servers and places of its own."""

    def __init__(self, folder: Path, lookupd: Nsqlookupd) -> None:
        self.data = folder / "data"
        self.folder = folder / "project"
        self._lookupd = lookupd.http_address
        shutil.copytree(EXAMPLE, self.folder)
        for name in ("spark-pipeline.yml", "conf/spark-defaults.conf"):
            path = self.folder / name
            path.write_text(self._moved(path.read_text()))

    def start(self, command: str, options: str = "") -> Program:
        """Start a command of the page in the project's folder, with more options."""
        return start_command(self.folder, f"{self._moved(command)} {options}")

    def run(self, options: str = "") -> None:
        """Run the pipeline, which succeeds."""
        with self.start(RUN, f"{options} {quick_options(self.data)}") as program:
            assert any("Run is COMPLETED" in line for line in program.await_end(RUN_PATIENCE))

    def fail(self, options: str, pattern: str) -> None:
        """Run the pipeline, which fails with a line that matches."""
        with self.start(RUN, f"{options} {quick_options(self.data)}") as program:
            program.await_line(pattern, RUN_PATIENCE)
            assert program.process.wait(RUN_PATIENCE) == 1, program.account()

    def files(self, table: str) -> list[Path]:
        """The files of a table, which has no others."""
        return sorted((self.data / "warehouse" / table).glob("*.parquet"))

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows in the files of a table."""
        return [row for path in self.files(table) for row in rows(path)]

    def landed(self) -> list[int]:
        """The orders in the landing table."""
        return sorted(map(number_in, self.rows("landing")))

    def paid(self) -> list[int]:
        """The orders in the table of those that are paid."""
        return sorted(row["number"] for row in self.rows("paid"))

    def _moved(self, text: str) -> str:
        return text.replace("/data/orders", str(self.data)).replace("127.0.0.1:4161", self._lookupd)


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a Parquet file."""
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def number_in(row: dict[str, Any]) -> int:
    """The number of the order in a message."""
    return int(json.loads(row["body"])["number"])


def total(number: int) -> int:
    return number % 10


def paid(count: int) -> list[int]:
    return [number for number in range(count) if total(number)]


def publish_orders(nsqd: Nsqd, first: int, count: int) -> None:
    orders = [
        {"number": number, "shop": SHOPS[number % 3], "total": total(number)}
        for number in range(first, first + count)
    ]
    with Producer(nsqd.tcp_address) as producer:
        producer.publish_many("orders", [json.dumps(order).encode() for order in orders])


def confirmations(nsqd: Nsqd) -> int:
    """How many confirmations there ever were."""
    (topic,) = json.loads(nsqd.ask("/stats?format=json&topic=confirmations")[1])["topics"]
    return int(topic["message_count"])


def take_confirmed(nsqd: Nsqd, count: int) -> list[int]:
    """The orders of that many confirmations, in order."""
    numbers = []
    with Consumer("confirmations", "test", nsqd=[nsqd.tcp_address]) as consumer:
        for message in islice(consumer, count):
            with message:
                numbers.append(json.loads(message.body)["number"])
    return sorted(numbers)


@pytest.fixture(scope="module")
def lookupd() -> Iterator[Nsqlookupd]:
    with start_nsqlookupd() as server:
        yield server


@pytest.fixture(scope="module")
def orders_nsqd(tmp_path_factory: pytest.TempPathFactory, lookupd: Nsqlookupd) -> Iterator[Nsqd]:
    """The only nsqd that this nsqlookupd knows."""
    with start_nsqd(tmp_path_factory.mktemp("nsqd"), lookupd=[lookupd]) as server:
        yield server


@pytest.fixture(scope="module")
def project(
    tmp_path_factory: pytest.TempPathFactory, lookupd: Nsqlookupd, orders_nsqd: Nsqd
) -> Project:
    """The example after its first run, which had 1,500 orders."""
    project = Project(tmp_path_factory.mktemp("orders"), lookupd)
    with project.start(CREATE) as create:
        create.await_end(PATIENCE)
    publish_orders(orders_nsqd, 0, 1500)
    project.run()
    return project


@pytest.mark.timeout(6 * SPARK_PATIENCE)
def test_a_second_run_adds_only_the_new_messages(project: Project, orders_nsqd: Nsqd) -> None:
    assert project.landed() == [*range(1500)]
    assert project.paid() == paid(1500)
    assert confirmations(orders_nsqd) == 1500
    first_files = {*project.files("landing")}
    publish_orders(orders_nsqd, 1500, 300)
    project.run()
    assert project.landed() == [*range(1800)]
    assert project.paid() == paid(1800)
    new_rows = [row for path in {*project.files("landing")} - first_files for row in rows(path)]
    assert sorted(map(number_in, new_rows)) == [*range(1500, 1800)]
    assert confirmations(orders_nsqd) == 1800
    assert take_confirmed(orders_nsqd, 1800) == [*range(1800)]
    with project.start(LOOK) as look:
        assert look.await_end() == [
            f"{shop}\t{len(totals)}\t{sum(totals)}"
            for index, shop in enumerate(SHOPS)
            for totals in [[total(number) for number in paid(1800) if number % 3 == index]]
        ]


@pytest.mark.timeout(6 * SPARK_PATIENCE)
def test_a_full_refresh_leaves_the_landing_table_alone(project: Project, orders_nsqd: Nsqd) -> None:
    landed = project.landed()
    confirmed = confirmations(orders_nsqd)
    publish_orders(orders_nsqd, len(landed), 100)
    project.fail("--full-refresh landing", "TABLE_NOT_RESETTABLE")
    assert project.landed() == landed
    project.run("--full-refresh-all")
    assert project.landed() == [*range(len(landed) + 100)]
    assert project.paid() == paid(len(landed) + 100)
    # A sink can't be protected: all is sent again.
    assert confirmations(orders_nsqd) == confirmed + len(landed) + 100


@pytest.mark.timeout(6 * SPARK_PATIENCE)
def test_a_view_over_nsq_with_two_tables_fails_and_names_the_way_out(
    tmp_path: Path, lookupd: Nsqlookupd, orders_nsqd: Nsqd
) -> None:
    project = Project(tmp_path, lookupd)
    shutil.rmtree(project.folder / "transformations")
    (project.folder / "transformations").mkdir()
    view = project.folder / "transformations" / "shared.py"
    view.write_text(SHARED_VIEW.replace("CHANNEL", CHANNEL))
    published(orders_nsqd, "shared", 20_000, channel=CHANNEL)
    with (
        closing(Rival(orders_nsqd, "shared", msg_timeout=600.0)) as rival,
        project.start(RUN, quick_options(project.data)) as program,
    ):
        held = rival.take(1)  # the table that comes first waits for this message
        error = program.await_line("SourceInUseError: .*", RUN_PATIENCE)[0]
        rival.finish(held)
        # Spark starts the refused one again, when the other has ended.
        assert program.process.wait(RUN_PATIENCE) == 1, program.account()
    assert "belongs to a running query" in error
    assert "give each query a channel and a spoolLocation of its own" in error
    assert any("was refused there before" in line for line in program.lines)
    assert sorted(len(project.rows(table)) for table in ("one", "other")) == [0, 19_999]


def test_what_the_page_shows_is_in_the_example() -> None:
    files = [path.read_text() for path in EXAMPLE.rglob("*") if path.is_file()]
    blocks = re.findall(r"^```\w*\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 6
    assert [block for block in blocks if not any(block in text for text in files)] == []
    for command in (CREATE, RUN, LOOK):
        assert any(command in block for block in blocks), command
