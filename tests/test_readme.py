"""What the README shows is true; its examples are run in tests/spark."""

import re
import subprocess
from pathlib import Path

import nsqflow
from nsqflow.cli import VERBS
from nsqflow.pipelines.pipeline import load_pipeline

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_pipeline_is_one(tmp_path: Path) -> None:
    (example,) = blocks("toml")
    (tmp_path / "slow.toml").write_text(example)
    servers = {"nsqd": ["127.0.0.1:4150"], "nsqd_http": ["127.0.0.1:4151"]}
    pipeline = load_pipeline(tmp_path / "slow.toml", servers=lambda: servers)
    assert [sink.channel for sink in pipeline.sinks] == ["reports.archive", "reports.dead"]


def test_it_shows_commands_that_exist() -> None:
    (commands,) = blocks("sh")
    given = [line.split("  #")[0].strip() for line in commands.splitlines()]
    assert given == [
        "python3 -m venv venv && venv/bin/pip install '.[all]'",
        "venv/bin/pip wheel --no-deps -w dist .",
        "./dev demo",
        "./dev test",
    ]
    assert f"nsqflow-{nsqflow.__version__}-py3-none-any.whl" in commands
    listing = subprocess.check_output([ROOT / "dev", "help"], text=True, timeout=60)
    assert {"demo", "test"} <= {*re.findall(r"^  (\w+) ", listing, re.MULTILINE)}


def test_it_names_verbs_that_exist() -> None:
    named = {*re.findall(r"`nsqflow (\w+)", README)}
    assert named
    assert named <= {*VERBS}


def test_every_path_in_contributing_exists() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:src|tests|docs|tools|benchmarks|examples)/[^`*]+)`", page)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_it_fits_on_about_one_screen() -> None:
    assert len(README.splitlines()) < 85
