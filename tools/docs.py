"""The tables of the documentation that are made from the code: ``./dev docs`` writes them.

An option's row is made from its declaration; a link in parentheses at the end of a row stays. The
last column of docs/features.md has the tests that are marked with ``proves``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nsqflow.broker.redesigned.options import ClusterOptions
from nsqflow.client.config import ClientConfig
from nsqflow.client.consumer.config import ConsumerConfig
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.config.options import Option, declared_options
from nsqflow.config.reference import python_default, python_range
from nsqflow.pipelines import model
from nsqflow.spark.options import OPTIONS
from nsqflow.spark.server_options import SCOPES
from tests.features import filled, proofs

DOCS = Path(__file__).resolve().parents[1] / "docs"
PIPELINE_TABLES: dict[str, Any] = {
    "[source]": model.Source,
    "[parse]": model.Parse,
    "[[table]]": model.Table,
    "[[transform]]": model.Step,
    "[[sink]]": model.Sink,
    "[run]": model.Run,
}

_ROW = re.compile(r"^\| `\w+` \|.*\|$", re.MULTILINE)
_LINK = re.compile(r" \(\[[^]]+\]\([^)]+\)\) \|$")

Rows = Mapping[tuple[str, ...], str]
"""Rows of a Markdown table, by their first cells."""


def main() -> int:
    """Write the pages; return the exit code."""
    try:
        made = pages()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for name, text in made.items():
        (DOCS / name).write_text(text)
    return 0


def pages() -> dict[str, str]:
    """Return the pages with generated tables as they have to be, by name."""
    made = {
        "options.md": update_rows(_read("options.md"), option_rows()),
        "spark-options.md": update_rows(_read("spark-options.md"), spark_option_rows()),
        "broker.md": _read("broker.md"),
        "pipelines.md": _read("pipelines.md"),
        "features.md": filled(_read("features.md"), proofs()),
    }
    before, section, after = _split(made["broker.md"], "\n## A redesigned cluster\n")
    made["broker.md"] = before + update_rows(section, cluster_option_rows()) + after
    for name, table in PIPELINE_TABLES.items():
        head = f"\n### `{name}`\n"
        before, section, after = _split(made["pipelines.md"], head)
        made["pipelines.md"] = before + update_rows(section, key_rows(table)) + after
    return made


def option_rows() -> Rows:
    """Return the rows of the clients' options."""
    declared = (declared_options(one) for one in (ClientConfig, ConsumerConfig, ProducerConfig))
    return {
        (one.name,): _row(one.name, python_default(one), python_range(one), one.text)
        for options in declared
        for one in options
    }


def cluster_option_rows() -> Rows:
    """Return the rows of the options of a redesigned cluster."""
    return {
        (one.name,): _row(one.name, python_default(one), one.text)
        for one in declared_options(ClusterOptions)
    }


def spark_option_rows() -> Rows:
    """Return the rows of Spark's options."""
    return {
        (one.name, scopes): _row(one.name, scopes, _default(one), str(one.kind), one.text)
        for one in OPTIONS
        for scopes in [", ".join(one.scopes or SCOPES)]
    }


def key_rows(table: Any) -> Rows:
    """Return the rows of the keys of a pipeline file's table."""
    return {
        (one.name,): _row(
            one.name, "required" if one.required else _default(one), str(one.kind), one.text
        )
        for one in declared_options(table)
    }


def update_rows(text: str, rows: Rows) -> str:
    """Return a text with the rows of its tables rewritten.

    Raises ``ValueError`` for a row that is missing, and for one that has no option.
    """
    width = len(next(iter(rows)))
    found = [_cells(row)[:width] for row in _ROW.findall(text)]
    if sorted(found) != sorted(rows):
        missing, unknown = {*rows} - {*found}, {*found} - {*rows}
        raise ValueError(
            f"docs/: no row for {_names(missing)}; no option for the row {_names(unknown)}"
        )

    def rewrite(match: re.Match[str]) -> str:
        row, link = rows[_cells(match[0])[:width]], _LINK.search(match[0])
        return row.removesuffix(" |") + link[0] if link else row

    return _ROW.sub(rewrite, text)


def _read(name: str) -> str:
    return (DOCS / name).read_text()


def _split(page: str, head: str) -> tuple[str, str, str]:
    """Split a page into what is before a section, the section and the rest."""
    before, _, rest = page.partition(head)
    end = re.search(r"\n##+ ", rest)
    cut = end.start() if end else len(rest)
    return before + head, rest[:cut], rest[cut:]


def _row(name: str, *cells: str) -> str:
    return " | ".join((f"| `{name}`", *cells)) + " |"


def _cells(row: str) -> tuple[str, ...]:
    return tuple(cell.strip(" `") for cell in row.strip("|").split(" | "))


def _names(keys: Iterable[tuple[str, ...]]) -> str:
    return ", ".join(sorted(map(" ".join, keys))) or "none"


def _default(option: Option) -> str:
    if option.default_text or option.default in (None, "", ()):
        return option.default_text
    return option.kind.show(option.default)


if __name__ == "__main__":
    sys.exit(main())
