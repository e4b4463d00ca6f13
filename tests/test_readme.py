"""What the README shows, done; its example for Spark is run in tests/spark."""

import os
import re
import subprocess
import sys
from pathlib import Path

from nsqflow.cli import VERBS
from nsqflow.pipelines.pipeline import load_pipeline
from tests.fixtures.servers import start_nsqd

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_example_publishes_and_consumes(tmp_path: Path) -> None:
    (example, _) = blocks("python")
    with start_nsqd(tmp_path) as nsqd:
        program = example.replace("127.0.0.1:4150", nsqd.tcp_address)
        assert program != example
        command = [sys.executable, "-W", "error", "-c", program]
        done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "charging b'order 1'" in done.stdout


def test_the_pipeline_is_one(tmp_path: Path) -> None:
    (example,) = blocks("toml")
    (tmp_path / "slow.toml").write_text(example)
    servers = {"nsqd": ["127.0.0.1:4150"], "nsqd_http": ["127.0.0.1:4151"]}
    pipeline = load_pipeline(tmp_path / "slow.toml", servers=lambda: servers)
    assert [sink.channel for sink in pipeline.sinks] == ["reports.archive", "reports.dead"]


def test_it_gives_two_commands_that_are_there() -> None:
    (commands,) = blocks("sh")
    assert [line.split("#")[0].strip() for line in commands.splitlines()] == [
        "./dev demo",
        "./dev test",
    ]
    listing = subprocess.check_output([ROOT / "dev", "help"], text=True, timeout=60)
    assert {"demo", "test"} <= {*re.findall(r"^  (\w+) ", listing, re.MULTILINE)}


def test_it_names_verbs_that_are_there() -> None:
    named = {*re.findall(r"`nsqflow (\w+)", README)}
    assert named
    assert named <= {*VERBS}


def test_every_path_that_contributors_are_told_of_is_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_it_fits_on_about_one_screen() -> None:
    assert len(README.splitlines()) < 80
