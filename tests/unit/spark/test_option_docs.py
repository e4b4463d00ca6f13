"""The reference of the options says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nsqflow.spark.options import OPTIONS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "spark-options.md"
ROW = re.compile(
    r"^\| `(?P<name>\w+)` \| (?P<where>.*?) \| (?P<default>.*?) \| (?P<allowed>.*?)"
    r" \| (?P<meaning>.+) \|$",
    re.MULTILINE,
)

DOCUMENTED = [match.groupdict() for match in ROW.finditer(PAGE.read_text())]
DECLARED = [
    {
        "name": row.name,
        "where": ", ".join(row.where),
        "default": row.default,
        "allowed": str(row.kind),
        "meaning": row.meaning,
    }
    for row in OPTIONS
]


def test_every_option_has_one_row_for_each_place_and_no_other_has_any() -> None:
    documented = sorted((row["name"], row["where"]) for row in DOCUMENTED)
    assert documented == sorted((row["name"], row["where"]) for row in DECLARED)


@pytest.mark.parametrize("row", DECLARED, ids=lambda row: f"{row['name']} of {row['where']}")
def test_a_row_says_what_is_declared(row: dict[str, str]) -> None:
    assert row in DOCUMENTED


def test_names_in_the_text_that_look_like_options_are_options() -> None:
    words = set(re.findall(r"`([a-z]+(?:[A-Z][a-z]+)+)(?:=\w+)?`", PAGE.read_text()))
    assert words - {row["name"] for row in DECLARED} == {"writeStream"}
