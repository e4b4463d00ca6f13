"""The demo from end to end: its report is checked against its files, and signals end it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqflow.blocking import Producer
from nsqflow.broker import BackgroundBroker
from tests.cli.commands import install_command, run
from tests.cli.terminals import Terminal
from tests.fixtures.spark import (
    SPARK_PATIENCE,
    Program,
    session_members,
    without_late_pythons,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1200)

COMMAND = [sys.executable, "-m", "nsqflow", "demo"]
WRONG = ("lost", "duplicated", "altered", "left in NSQ")
SMALL = ["--seconds", "3", "--rate", "300"]


def demo(folder: Path, *words: str) -> Program:
    return Program([*COMMAND, *words], folder)


def number(lines: Sequence[str], name: str) -> int:
    """What the account says of something."""
    (line,) = [line for line in lines if line.startswith(f"{name} ")]
    return int(line.removeprefix(name).split()[0].replace(",", ""))


def check_files(spark: SparkSession, folder: Path, archived: int, dead: int) -> None:
    """Look into the files without the demo's own eyes."""
    views = spark.read.parquet(str(folder / "archive"))
    assert sorted(row.n for row in views.select("n").collect()) == [*range(archived)]
    letters = spark.read.json(str(folder / "dead-letters"))
    assert letters.count() == letters.select("body").distinct().count() == dead
    assert letters.where("error IS NULL").count() == 0
    chart = ET.parse(folder / "chart.svg").getroot()
    assert len([part for part in chart if part.tag.endswith("polyline")]) == 4


def check_what_to_try_next(folder: Path, file: Path, path: str) -> None:
    """The demo's pipeline runs by itself on another NSQ, and starts from scratch there."""
    with BackgroundBroker() as broker:
        servers = {
            "NSQFLOW_NSQD": broker.nsqd_addresses[0],
            "NSQFLOW_NSQD_HTTP": broker.nsqd_http_addresses[0],
        }
        with Producer(broker.nsqd_addresses) as producer:
            producer.publish("views", b"hello")
        command = f"nsqflow run {file} --available-now"
        with Program(["sh", "-c", command], folder, PATH=path, **servers) as program:
            lines = program.await_end(4 * SPARK_PATIENCE)
    assert "dead: 1 message read, 1 row written in 1 batch" in lines
    assert list((folder / file).parent.glob("data/dead-letters/*.json"))


def test_the_example_of_the_help_runs_and_its_report_is_true(
    spark: SparkSession, tmp_path: Path
) -> None:
    example, _ = examples_of_help()
    path = install_path(tmp_path)
    with Program(["sh", "-c", example], tmp_path, PATH=path) as program:
        lines = program.await_end(4 * SPARK_PATIENCE)
        assert program.log == []
    account = {
        name: number(lines, name) for name in ("published", "archived", "dead-lettered", *WRONG)
    }
    assert account["archived"] + account["dead-lettered"] == account["published"] > 5000
    assert account["dead-lettered"] > 0
    assert [account[name] for name in WRONG] == [0, 0, 0, 0]
    assert number(lines, "aggregated") == account["archived"]
    assert any(line.endswith(" back through NSQ: all right") for line in lines)
    assert any(re.match(r"[\d,]+ messages published, read by archive [\d,]+, ", li) for li in lines)
    place = Path("nsqflow-demo", "1")
    assert f"Throughput and latency: {place}/chart.svg" in lines
    check_files(spark, tmp_path / place, account["archived"], account["dead-lettered"])
    check_what_to_try_next(tmp_path, place / "pipeline.toml", path)


def examples_of_help() -> list[str]:
    return re.findall(r"^ +\$ (nsqflow demo.*)$", run("demo", "--help").out, re.MULTILINE)


def install_path(folder: Path) -> str:
    install_command(folder)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_an_ordered_topic_keeps_its_order_while_a_leader_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    _, example = examples_of_help()
    path = install_path(tmp_path)
    with Program(["sh", "-c", example], tmp_path, PATH=path) as program:
        lines = program.await_end(4 * SPARK_PATIENCE)
        assert program.log == []
    assert [number(lines, name) for name in (*WRONG, "out of order")] == [0, 0, 0, 0, 0]
    archived, dead = number(lines, "archived"), number(lines, "dead-lettered")
    twice = number(lines, "stored twice")
    assert archived + dead == number(lines, "published") + twice > 1000
    for event in ("killed nsqd .*, the leader of partition 0", "nsqd .* leads partition 0, "):
        assert len([line for line in lines if re.search(f"^after .* s: {event}", line)]) == 2
    folder = tmp_path / "nsqflow-demo" / "1"
    rows = spark.read.parquet(str(folder / "archive")).orderBy("offset").collect()
    assert archived - twice <= len({row.n for row in rows}) <= archived
    for partition in range(3):
        batches = [row.archived for row in rows if row.partition == partition]
        assert batches
        assert batches == sorted(batches)


def test_the_report_can_be_json_and_each_run_has_its_own_files(tmp_path: Path) -> None:
    earlier = tmp_path / "out" / "1"
    earlier.mkdir(parents=True)
    picture = tmp_path / "screen.svg"
    with demo(tmp_path, *SMALL, "--json", "--folder", "out", "--picture", str(picture)) as program:
        (line,) = program.await_end(4 * SPARK_PATIENCE)
        assert program.log == []
    account = json.loads(line)
    assert account["right"] is True
    wrong = ("lost", "duplicated", "altered", "left", "missummed")
    assert [account[name] for name in wrong] == [0] * 5
    assert account["archived"] + account["dead_lettered"] == account["published"] > 500
    assert account["archive"] == "out/2/archive"
    assert [*earlier.iterdir()] == []
    screen = "".join(ET.parse(picture).getroot().itertext()).replace("\xa0", " ")
    assert "slowest pages" in screen
    assert "//" not in screen  # nothing is loaded from elsewhere


LOSING = """
import sys

from nsqflow.cli import main
from nsqflow.cli.demo.workload import PageViews

make = PageViews.make

def lose_the_first(page_views, count, now):
    bodies = make(page_views, count, now)
    return bodies[1:] if page_views.total == len(bodies) > 0 else bodies

PageViews.make = lose_the_first
sys.exit(main(["demo", *sys.argv[1:]]))
"""


def test_a_lost_message_is_in_the_report_and_in_the_exit_code(tmp_path: Path) -> None:
    with Program([sys.executable, "-c", LOSING, *SMALL, "--json"], tmp_path) as program:
        (line,) = [program.await_line("lost", 4 * SPARK_PATIENCE).string]
        assert program.process.wait(SPARK_PATIENCE) == 1, program.account()
    account = json.loads(line)
    assert account["right"] is False
    assert (account["lost"], account["duplicated"], account["altered"]) == (1, 0, 0)
    assert account["archived"] + account["dead_lettered"] == account["published"] - 1


def test_a_terminal_shows_a_live_view_and_then_the_report(tmp_path: Path) -> None:
    with Terminal(["demo", *SMALL, "--folder", str(tmp_path)]) as command:
        command.await_text("duplicated +0", 4 * SPARK_PATIENCE)
        assert command.end() == 0
        members = session_members(command.process.pid)
        shown = command.shown
    assert members == []
    for text in ("starting Spark", "published, ", "waiting", "last batch", "slowest pages"):
        assert text in shown
    assert re.search(r"/\w+ +[\d,]+ +[\d,]+ ms", shown)
    assert re.search("lost +0", shown)
    assert "Traceback" not in without_late_pythons(shown)


@pytest.mark.parametrize("moment", ["starting Spark", "starting the queries", "last batch"])
def test_ctrl_c_ends_it_cleanly(moment: str, tmp_path: Path) -> None:
    with Terminal(["demo", "--seconds", "300", "--folder", str(tmp_path)]) as command:
        command.await_text(moment, 4 * SPARK_PATIENCE)
        command.type("\x03")
        assert command.end() == 130
        members = session_members(command.process.pid)
        shown = command.shown
    assert members == []
    assert "Traceback" not in without_late_pythons(shown)
    assert shown.splitlines()[-1] == f"nsqflow: not finished; partial results are in {tmp_path}/1"


LOOPBACK = {"0100007F", "0" * 16 + "FFFF00000100007F", "0" * 24 + "01000000"}


def listening_addresses(session: int) -> set[str]:
    """Where the processes of a session listen, as Linux writes it."""
    addresses = set()
    for member in session_members(session):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            place = Path("/proc", str(member))
            sockets = open_files(place)
            for table in ("net/tcp", "net/tcp6"):
                for line in (place / table).read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                        addresses.add(fields[1].partition(":")[0])
    return addresses


def open_files(process: Path) -> set[str]:
    files = set()
    for link in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            files.add(os.readlink(link))
    return files


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_it_listens_on_loopback_alone_and_sigterm_ends_it_cleanly(tmp_path: Path) -> None:
    with demo(tmp_path, "--seconds", "300") as program:
        program.await_line("messages published", 4 * SPARK_PATIENCE)
        listening = listening_addresses(program.process.pid)
        assert listening
        assert listening <= LOOPBACK
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(SPARK_PATIENCE) == 143, program.account()
        assert session_members(program.process.pid) == []
    assert len(program.log) == 1
