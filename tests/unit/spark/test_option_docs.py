"""The reference of the options says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from nsqflow.spark.options import OPTIONS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "spark-options.md").read_text()


def test_names_in_the_text_that_look_like_options_are_options() -> None:
    words = set(re.findall(r"`([a-z]+(?:[A-Z][a-z]+)+)(?:=\w+)?`", PAGE))
    assert words - {one.name for one in OPTIONS} == {"writeStream"}
