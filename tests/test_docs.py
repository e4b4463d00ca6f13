"""The documents say what the code does."""

import ast
import pydoc
import re
from pathlib import Path

import pytest

import nsqflow
from nsqflow import blocking
from nsqflow.client.config import ClientConfig
from nsqflow.client.consumer.config import ConsumerConfig
from nsqflow.client.producer.config import ProducerConfig
from nsqflow.config.options import declared_options
from nsqflow.config.reference import python_default, python_range
from tools import docs

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_generated_tables_are_up_to_date() -> None:
    stale = [name for name, text in docs.pages().items() if (docs.DOCS / name).read_text() != text]
    assert stale == [], "run: ./dev docs"


def test_a_table_with_a_row_too_few_or_too_many_is_refused() -> None:
    rows: docs.Rows = {("one",): "| `one` | 1 |", ("two",): "| `two` | 2 |"}
    assert docs.update_rows("| `two` | old |\n\n| `one` | old ([why](x.md)) |", rows) == (
        "| `two` | 2 |\n\n| `one` | 1 ([why](x.md)) |"
    )
    for page in ("| `one` | 1 |", "| `one` | 1 |\n| `two` | 2 |\n| `six` | 6 |"):
        with pytest.raises(ValueError, match=r"two|six"):
            docs.update_rows(page, rows)


@pytest.mark.parametrize(
    ("owner", "config"),
    [
        (nsqflow.Consumer, ConsumerConfig),
        (nsqflow.Producer, ProducerConfig),
        (blocking.Consumer, ConsumerConfig),
        (blocking.Producer, ProducerConfig),
    ],
)
def test_help_lists_every_option_with_default_and_range(
    owner: type, config: type[ClientConfig]
) -> None:
    text = pydoc.plain(pydoc.render_doc(owner))
    for option in declared_options(config):
        if option.name in ("nsqd", "lookupd"):
            continue
        facts = ", ".join(filter(None, (python_default(option), python_range(option))))
        assert re.search(rf"^ \|  {option.name}(: {re.escape(facts)})?$", text, re.M), option.name
    assert max(map(len, str(owner.__doc__).splitlines())) <= 110
    assert str(owner.__doc__).startswith(("Consumes a channel", "Publishes to one nsqd"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_on_a_page_is_python(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        compile(block, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
