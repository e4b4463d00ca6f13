"""Every example of NSQ on Spark runs as it stands, and ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.spark import SPARK_PATIENCE

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples" / "spark").glob("*.py"))


@pytest.mark.timeout(3 * SPARK_PATIENCE)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, example],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * SPARK_PATIENCE,
    )
    assert done.returncode == 0, done.stderr  # Spark's own warnings go there too
    assert {
        "orders_to_parquet": "rows 2000, pulled 2000",
        "dataframe_to_nsq": "1000 letters wait",
    }[example.stem] in done.stdout
