"""Every example runs as it stands, and ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.servers import Nsqd

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, nsqd: Nsqd) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", example],
        env={**os.environ, "NSQFLOW_NSQD": nsqd.tcp_address},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
