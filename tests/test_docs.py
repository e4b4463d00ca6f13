"""The documents say what the code does."""

import ast
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from nsqflow.client.config import ClientConfig, ConsumerConfig, ProducerConfig, in_digits

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OPTION = re.compile(r"^\| `(?P<name>\w+)` \| (?P<default>.*?) \| (?P<range>.*?) \| .+ \|$", re.M)


def documented() -> dict[str, tuple[str, str]]:
    page = (ROOT / "docs" / "options.md").read_text()
    return {m["name"]: (m["default"], m["range"]) for m in OPTION.finditer(page)}


def options() -> dict[str, Any]:
    return {f.name: f for c in (ClientConfig, ConsumerConfig, ProducerConfig) for f in fields(c)}


def test_every_option_is_documented_and_no_other() -> None:
    assert sorted(documented()) == sorted(options())


@pytest.mark.parametrize("name", sorted(options()))
def test_default_and_range_of_an_option_are_documented(name: str) -> None:
    option = options()[name]
    default, range_ = documented()[name]
    if "check" in option.metadata:
        assert range_ == str(option.metadata["check"])
        assert default == ("None" if option.default is None else in_digits(option.default))
    elif option.default not in ((), MISSING):
        assert default == str(option.default)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_on_a_page_is_python(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        compile(block, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
