"""The README's examples as they stand: in a new environment that is not activated, without Java on
PATH, from an empty folder outside the repository."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.crashing import until
from tests.fixtures.environments import build_wheel, install, path_without_java
from tests.fixtures.servers import PATIENCE, start_nsqd
from tests.fixtures.spark import SPARK_PATIENCE, Program, published
from tests.test_readme import blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings of ./dev and of the tests, which a newcomer does not have.
_OURS = ("JAVA_HOME", "SPARK_", "PYSPARK_", "PYTHON", "NSQFLOW_", "VIRTUAL_ENV")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("newcomer")
    return install(build_wheel(folder), folder / "venv", "all")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_OURS)}
    return kept | {"PATH": path_without_java(tmp_path / "bin"), "HOME": str(tmp_path)}


def test_the_client_publishes_and_consumes(
    python: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    (example, _) = blocks("python")
    with start_nsqd(tmp_path) as nsqd:
        program = example.replace("127.0.0.1:4150", nsqd.tcp_address)
        assert program != example
        done = subprocess.run(
            [python, "-W", "error", "-c", program],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "charging b'order 1'" in done.stdout


def test_what_is_published_becomes_parquet(
    python: Path, environment: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    (_, example) = blocks("python")
    parquet = tmp_path / "orders" / "parquet"
    with start_nsqd(tmp_path) as nsqd:
        # The HTTP port of an nsqd is the next one by default.
        places = f'nsqd="{nsqd.tcp_address}", nsqdHttp="{nsqd.http_address}"'
        program = example.replace('nsqd="127.0.0.1:4150"', places)
        program = program.replace("/tmp/orders", f"{tmp_path}/orders")
        command = ["env", "-i", *(f"{name}={text}" for name, text in environment.items())]
        with Program([*command, str(python), "-c", program], tmp_path):
            until(lambda: b'"spark"' in nsqd.ask("/stats?format=json")[1], 2 * SPARK_PATIENCE)
            published(nsqd, "orders", 10)
            until(lambda: len(rows(spark, parquet)) == 10, 2 * SPARK_PATIENCE)
    assert rows(spark, parquet) == [*range(10)]


def rows(spark: SparkSession, parquet: Path) -> list[int]:
    if not (parquet / "_spark_metadata").exists():
        return []
    frame = spark.read.schema("text STRING").parquet(str(parquet))
    return sorted(int(row.text[:10]) for row in frame.collect())


def test_the_pipeline_archives_slow_views_and_puts_broken_ones_aside(
    python: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    (example,) = blocks("toml")
    (tmp_path / "slow.toml").write_text(example)
    for name in ("queue", "shlex", "numbers", "uuid", "gzip", "zipfile"):
        # Not imported, as the current folder may be a repository that was only checked out.
        (tmp_path / f"{name}.py").write_text("open('imported', 'w')")
    slow = {"page": "/", "user": "bob", "ms": 900}
    fast = {"page": "/orders", "user": "ada", "ms": 120}
    with start_nsqd(tmp_path) as nsqd:
        given = {"NSQFLOW_NSQD": nsqd.tcp_address, "NSQFLOW_NSQD_HTTP": nsqd.http_address}
        variables = (environment | given).items()
        command = ["env", "-i", *(f"{name}={text}" for name, text in variables)]
        command.append(str(python.parent / "nsqflow"))
        views = [json.dumps(slow), json.dumps(fast), "oops"]
        with Program([*command, "pub", "views", *views], tmp_path) as pub:
            pub.await_end()
        with Program([*command, "run", "slow.toml", "--available-now"], tmp_path) as run:
            run.await_end(2 * SPARK_PATIENCE)
        with Program([*command, "tail", "views.dead", "-n", "1", "--create"], tmp_path) as tail:
            assert tail.await_end() == ["oops"]
        stats = json.loads(nsqd.ask("/stats?format=json&topic=views.dead")[1])
        assert [topic["message_count"] for topic in stats["topics"]] == [1]
    assert pq.read_table(tmp_path / "data" / "slow").to_pylist() == [slow]
    assert not (tmp_path / "imported").exists()
