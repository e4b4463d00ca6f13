"""What the README shows, done."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.fixtures.servers import start_nsqd

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_the_example_publishes_and_consumes(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    with start_nsqd(tmp_path) as nsqd:
        program = example.replace("127.0.0.1:4150", nsqd.tcp_address)
        assert program != example
        command = [sys.executable, "-W", "error", "-c", program]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "charging b'order 1'" in done.stdout


def test_every_path_it_names_is_there() -> None:
    paths = re.findall(r"^\| `([^`]+)` \|", README, re.MULTILINE)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_it_fits_on_about_one_screen() -> None:
    assert len(README.splitlines()) < 80
