"""The page about pipelines says what the code does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from nsqflow.pipelines import model
from nsqflow.pipelines.keys import keys_of
from nsqflow.pipelines.pipeline import _KEYS, load_pipeline

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "pipelines.md").read_text()
EXAMPLE = ROOT / "examples" / "pipelines" / "views.toml"
TABLES: dict[str, Any] = {
    "[source]": model.Source,
    "[parse]": model.Parse,
    "[[table]]": model.Table,
    "[[transform]]": model.Step,
    "[[sink]]": model.Sink,
    "[run]": model.Run,
}
BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("name", TABLES)
def test_every_key_of_a_table_has_its_row_and_no_other(name: str) -> None:
    _, _, section = PAGE.partition(f"\n### `{name}`\n")
    section = re.split(r"\n##+ ", section)[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*) \|$", section, re.MULTILINE)
    declared = [
        (one.name, "required" if one.required else one.default, str(one.value), one.meaning)
        for one in keys_of(TABLES[name])
    ]
    assert rows == declared


def test_every_table_of_a_file_has_its_section() -> None:
    assert {"name", *(name.strip("[]") for name in TABLES)} == {*_KEYS}
    assert re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE) == [*TABLES]


def test_every_event_for_programs_is_shown() -> None:
    source = (ROOT / "src" / "nsqflow" / "cli" / "progress.py").read_text()
    told = re.findall(r'_emit\("(\w+)"', source)
    assert told
    assert re.findall(r'^{"event": "(\w+)"', PAGE, re.MULTILINE) == told


def test_the_example_on_the_page_is_the_one_that_is_run() -> None:
    assert BLOCKS[0] == EXAMPLE.read_text()


def test_the_example_is_right() -> None:
    pipeline = load_pipeline(EXAMPLE, ["source.nsqd=127.0.0.1:4150"])
    assert [sink.channel for sink in pipeline.sinks] == [
        "reports.archive",
        "reports.sections",
        "reports.broken",
    ]


@pytest.mark.parametrize("block", BLOCKS[1:])
def test_what_else_is_shown_fits_into_the_example(block: str, tmp_path: Path) -> None:
    path = tmp_path / "views.toml"
    path.write_text(EXAMPLE.read_text() + block)
    assert tomllib.loads(block)
    load_pipeline(path, ["source.nsqd=127.0.0.1:4150"])
