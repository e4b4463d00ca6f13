"""The rules of the source find what they are for."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import source_rules


def found(text: str, name: str = "client/example.py") -> list[str]:
    return [*source_rules.check_private_names(name, ast.parse(text))]


@pytest.mark.parametrize(
    "text",
    [
        "from nsqflow.client.message import _State",
        "def flush(batch):\n    return batch._answers",
        "def flush(self):\n    return self.coordinator._queue",
        "def flush(batch):\n    batch._answers = []",
        "def _answers(): ...\ndef flush(batch):\n    return batch._answers",
        "NAME = '_answers'\ndef flush(batch):\n    return batch._answers",
        "def flush(batch):\n    return getattr(batch, '_answers')",
        "from operator import attrgetter\nget = attrgetter('_answers')",
        "def flush(batch):\n    match batch:\n        case Batch(_answers=[]): ...",
        "import nsqflow.client._batch",
        "from nsqflow.client._batch import Batch",
        "from nsqflow.client import _batch",
        "from . import _batch",
    ],
)
def test_a_private_name_of_another_module_is_found(text: str) -> None:
    (line,) = found(text)
    assert line.startswith("client/example.py:")


def test_the_module_for_asyncios_private_names_uses_none_of_ours() -> None:
    assert found("def handlers(loop):\n    return loop._signal_handlers", "signals.py") == []
    assert found("from typer._completion_shared import _get_shell_name", "signals.py") == []
    (line,) = found("from nsqflow.client.message import _State", "signals.py")
    assert "imports _State" in line


@pytest.mark.parametrize(
    "text",
    [
        "class A(Base):\n    def run(self):\n        return self._inherited",
        "class A:\n    _x = 1\n    def __eq__(self, other):\n        return self._x == other._x",
        "class A:\n    __slots__ = ('_x',)\n    def same(self, other):\n        return other._x",
        "class A:\n    def set(self):\n        self._x = 1\n\ndef get(a: A):\n    return a._x",
        "import module\nmodule.__doc__",
    ],
)
def test_names_of_the_module_itself_and_inherited_ones_are_not(text: str) -> None:
    assert found(text) == []


def test_modules_that_are_too_long_or_too_short_are_found() -> None:
    assert [*source_rules.check_size("client/a.py", 60)] == []
    assert [*source_rules.check_size("client/a.py", 400)] == []
    assert "401 lines" in next(source_rules.check_size("client/a.py", 401))
    assert "59 lines" in next(source_rules.check_size("client/a.py", 59))
    assert [*source_rules.check_size("client/__init__.py", 1)] == []


def test_two_classes_of_one_name_are_found(tmp_path: Path) -> None:
    filler = "\n" * 60
    (tmp_path / "a.py").write_text(f"class Batch: ...\nclass _Line: ...{filler}")
    (tmp_path / "b.py").write_text(f"class Batch: ...\nclass _Line: ...{filler}")
    first, second = source_rules.check_source(tmp_path)
    assert "class Batch is defined in a.py, b.py" in first
    assert "class _Line is defined in a.py, b.py" in second


def test_words_for_which_there_are_plainer_ones_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Start anew.\nIt is recommended: amend the file, then try again.\nFor ever.\n")
    assert [line.partition(": ")[2] for line in source_rules.check_prose([page])] == [
        "again",
        "forever",
    ]


def test_words_in_the_name_of_a_test_are_found(tmp_path: Path) -> None:
    page = tmp_path / "test_tail.py"
    page.write_text("def test_nobody_is_told() -> None:\n    nobodys_told = 1\n")
    found = source_rules.check_prose([page], source_rules.TEST_WORDS)
    assert [line.split("'")[1] for line in found] == ["nobody", "told", "told"]


def test_a_docstring_begins_with_what_the_call_does() -> None:
    tree = ast.parse('def size():\n    """Gives the size."""')
    (line,) = source_rules.check_docstrings("a.py", tree)
    assert "begins with 'Gives'" in line


def test_each_exception_from_the_rules_is_a_module_that_exists_and_needs_it() -> None:
    source = source_rules.ROOT / source_rules.SOURCE
    named = {*source_rules.SHORT_MODULES, *source_rules.FOREIGN_PRIVATE_NAMES}
    assert [name for name in sorted(named) if not (source / name).exists()] == []
    lines = {n: len((source / n).read_text().splitlines()) for n in source_rules.SHORT_MODULES}
    assert {n: count for n, count in lines.items() if count >= source_rules.MIN_LINES} == {}
