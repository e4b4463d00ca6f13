"""The fixtures of Spark themselves: what they start works, and is gone when it must be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.spark import Driver, Program, session_members, without_late_pythons

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# One task that would never end; what a worker says goes into the driver's log.
BUSY = """
import os, sys, time
from tests.fixtures.spark import start_spark

def wait(batches):
    print("task in", os.getpid(), file=sys.stderr, flush=True)
    time.sleep(1000)
    yield from batches

start_spark().range(1).mapInArrow(wait, "id long").count()
"""


def test_killing_a_program_ends_those_it_started_in_other_process_groups(tmp_path: Path) -> None:
    script = (
        "import os, time\n"
        "if not os.fork():\n"
        "    os.setpgid(0, 0)\n"
        "    print('child', os.getpid(), flush=True)\n"
        "time.sleep(1000)\n"
    )
    with Program([sys.executable, "-c", script], tmp_path) as program:
        child = int(program.await_line(r"child (\d+)")[1])
        assert set(session_members(program.process.pid)) == {program.process.pid, child}
        program.kill()
        assert session_members(program.process.pid) == []


def test_a_program_that_fails_is_not_taken_for_one_that_ended_well(tmp_path: Path) -> None:
    with (
        Program([sys.executable, "-c", "raise SystemExit('no luck')"], tmp_path) as program,
        pytest.raises(AssertionError, match="no luck"),
    ):
        program.await_end()


def test_only_a_python_that_spark_does_not_wait_for_may_leave_its_traceback() -> None:
    ours = "Traceback (most recent call last):\n  File x\nValueError: no luck\n"
    late = "Traceback (most recent call last):\n  File y\nError: [CANNOT_OPEN_SOCKET] Can not\n"
    assert without_late_pythons(f"working{late}{ours}{late}end") == f"working\n{ours}\nend"


def test_the_shared_session_runs_python_in_its_tasks(spark: SparkSession) -> None:
    rows = spark.range(0, 1000, 1, 2).mapInArrow(lambda batches: batches, "id long")
    assert rows.count() == 1000


@pytest.mark.timeout(1200)
def test_killing_a_driver_ends_its_jvm_and_the_python_of_its_tasks(tmp_path: Path) -> None:
    with Driver(tmp_path, BUSY) as driver:
        worker = int(driver.await_log(r"^task in (\d+)")[1])
        assert worker in session_members(driver.process.pid)
        driver.kill()
        assert session_members(driver.process.pid) == []
