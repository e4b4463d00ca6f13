"""Which test shows which row of docs/features.md; ``./dev docs`` writes their names there."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "features.md"

_PREFIXES = {"rows": "", "defects": "D", "wishes": "W"}
_ROW = re.compile(r"^\| ([DW]?\d+) \|")


def proofs() -> dict[str, list[str]]:
    """The tests marked with ``proves``, by the row's name: 17, D3, W9."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for row in marked(function):
                    found[row].append(f"{path.relative_to(ROOT)}::{function.name}")
    return found


def marked(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("mark.proves"):
            for keyword in decorator.keywords:
                for number in ast.literal_eval(keyword.value):
                    yield f"{_PREFIXES[keyword.arg or '']}{number}"


def rows(page: str) -> list[str]:
    """The names of all rows of the page's tables."""
    return [match[1] for line in page.splitlines() if (match := _ROW.match(line))]


def filled(page: str, found: dict[str, list[str]]) -> str:
    """The page with the tests' names in the last column."""
    lines = []
    for line in page.splitlines():
        if match := _ROW.match(line):
            cells = line.strip("| ").split(" | ")
            width = 3 if match[1].startswith("D") else 2
            tests = "<br>".join(f"`{name.removeprefix('tests/')}`" for name in found[match[1]])
            line = f"| {' | '.join(cell.strip(' |') for cell in cells[:width])} | {tests} |"
        lines.append(line)
    return "\n".join(lines) + "\n"
