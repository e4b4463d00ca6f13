"""The page about pipelines says what the code does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from nsqflow.pipelines.pipeline import _KEYS, load_pipeline
from tools.docs import PIPELINE_TABLES

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "pipelines.md").read_text()
EXAMPLE = ROOT / "examples" / "pipelines" / "views.toml"
BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_every_table_of_a_file_has_its_section() -> None:
    assert {"name", *(name.strip("[]") for name in PIPELINE_TABLES)} == {*_KEYS}
    assert re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE) == [*PIPELINE_TABLES]


def test_every_event_for_programs_is_shown() -> None:
    source = (ROOT / "src" / "nsqflow" / "cli" / "run_view.py").read_text()
    events = re.findall(r'_print_event\("(\w+)"', source)
    assert events
    assert re.findall(r'^{"event": "(\w+)"', PAGE, re.MULTILINE) == events


def test_the_example_on_the_page_is_the_one_that_is_run() -> None:
    assert BLOCKS[0] == EXAMPLE.read_text()


def test_the_example_is_right() -> None:
    pipeline = load_pipeline(EXAMPLE, ["source.nsqd=127.0.0.1:4150"])
    assert [sink.channel for sink in pipeline.sinks] == [
        "reports.archive",
        "reports.sections",
        "reports.broken",
    ]


@pytest.mark.parametrize("block", [block for block in BLOCKS if "[source]" in block])
def test_a_whole_file_on_the_page_is_right(block: str, tmp_path: Path) -> None:
    path = tmp_path / "orders.toml"
    path.write_text(block)
    servers = {"nsqd": ["127.0.0.1:4150"]}
    assert load_pipeline(path, servers=lambda: servers).sinks


@pytest.mark.parametrize("block", [block for block in BLOCKS if "[source]" not in block])
def test_what_else_is_shown_fits_into_the_example(block: str, tmp_path: Path) -> None:
    path = tmp_path / "views.toml"
    path.write_text(EXAMPLE.read_text() + block)
    assert tomllib.loads(block)
    load_pipeline(path, ["source.nsqd=127.0.0.1:4150"])
